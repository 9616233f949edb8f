"""A run's figures: the multi-turn categories as `bench score bfcl` has them, the single-turn ones beside."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report.words import estimate_text
from bench.run.bfcl.cases import MULTI_TURN
from bench.run.bfcl.results import errored, result_files
from bench.run.logged import calibrations, cost
from bench.run.probed import by_turn, hits, looks
from bench.score import bfcl as bfcl_files
from bench.score.bfcl import GOLD
from bench.score.bfcl_figures import model_figures
from bench.score.decision_log import classes, last_attempts
from bench.score.figures import missing, share
from bench.score.lines import Row, rows
from calibrators.actions import Cues

Json = dict[str, Any]


def figures(
    root: Path,
    arms: Iterable[str],
    planned: Mapping[str, Sequence[str]],
    logs: Sequence[Path],
    cues: Cues,
    seed: int,
) -> tuple[Json, list[Json]]:
    """`{cues, models, single_turn, applied, probes}` and a record of each case.

    root: BFCL_PROJECT_ROOT; logs: decision logs. They have the classes of replies whose text the results
    lost, what each case cost, how often the calibration was really applied, and what probes took back.
    """
    counts = {category: len(ids) for category, ids in planned.items()}
    models, single, records, applied, probes = [], [], [], {}, {}
    every = last_attempts(logs)
    for arm in arms:
        logged = every.get(arm, {})
        applied[arm] = calibrations(logged)
        probes[arm] = looks(logged) if logged else None
        cases: list[Json]
        if any(category in MULTI_TURN for category in planned):
            by_id = {id: classes(replies) for id, replies in logged.items()}
            for model in bfcl_files.read([root / "result" / arm], cues, logged=by_id):
                told, cases = model_figures(model, seed, None, counts)
                models.append(told)
                cases = [_probed(case, logged.get(case["id"], ())) for case in cases]
                for category in told["categories"]:
                    category |= _recall_before(category["category"], cases, seed)
                records += cases
        for category in planned:
            if category not in MULTI_TURN:
                told, cases = _single(root, arm, category, counts[category], seed)
                single.append(told)
                records += [{**case, **cost(logged.get(case["id"], ()))} for case in cases]
    return {
        "cues": str(cues),
        "models": models,
        "single_turn": single,
        "applied": applied,
        "probes": probes,
    }, records


def _probed(case: Json, records: Sequence[Row]) -> Json:
    """A multi-turn case's record with its cost, and its classes and hits before probes."""
    told = {**case, **cost(records)}
    if "error" in case:
        return told
    return {**told, "before": by_turn(records), **hits(records, GOLD[case["category"]])}


def _recall_before(category: str, cases: Sequence[Json], seed: int) -> Json:
    """GAR of the reply before a probe, and of either reply, over the cases that the decision log has."""
    found: Json = {}
    for name in ("before", "either"):
        known = {
            int(case["id"].rpartition("_")[2]): case[f"hit_{name}"]
            for case in cases
            if case["category"] == category and case.get(f"hit_{name}") is not None
        }
        found |= share(f"gar_{name}", [*known.values()], [*known], seed, "no decision log has its cases")
    return found


def _single(root: Path, arm: str, category: str, planned: int, seed: int) -> tuple[Json, list[Json]]:
    """A single-turn category: BFCL's accuracy, and how many cases were answered by a call."""
    name = f"BFCL_v4_{category}"
    file = next(path for path in result_files(root, arm) if path.name == f"{name}_result.json")
    graded = root / "score" / arm / file.parent.name / f"{name}_score.json"
    cases, _ = rows(file, mend="give another --out")
    score = bfcl_files.read_score(graded)
    live = [row for row in cases if not errored(row)]
    # With our handler a call is a list that is not empty; a text is a string, or lost as [].
    called = {row["id"]: isinstance(row["result"], list) and bool(row["result"]) for row in live}
    outcomes = [row["id"] not in score.failed for row in cases]
    told: Json = {
        "model": arm,
        "category": category,
        "planned": planned,
        "run": len(cases),
        "errored": len(cases) - len(live),
        "errors": dict(Counter(row["result"] for row in cases if errored(row))),
        **share("acc", outcomes, range(len(outcomes)), seed),
        **(share("called", list(called.values()), range(len(called)), seed) if live else _none_live()),
        "score_file": str(graded),
    }
    return told, [
        {
            "model": arm,
            "category": category,
            "id": row["id"],
            "called": called.get(row["id"]),
            "passed": row["id"] not in score.failed,
        }
        for row in cases
    ]


def _none_live() -> Json:
    return missing("called", "every case ended in an error")


def recall_before_text(models: Sequence[Json]) -> str:
    """Where probes changed recall: what was served, what they saw first, and either; empty where nowhere."""
    lines = []
    for model in models:
        for each in model["categories"]:
            read = [each[name] for name in ("gar", "gar_before", "gar_either")]
            if all(read) and len({figure["hits"] for figure in read}) > 1:
                served, first, both = (f"{figure['hits']}/{figure['of']}" for figure in read)
                where = f"{model['model']} {each['category'].removeprefix('multi_turn_')}"
                lines.append(f"  {where}: {served} served, {first} before probes, {both} of either reply")
    return "\n".join(["recall that probes changed", *lines]) if lines else ""


def single_turn_text(single: Sequence[Json]) -> str:
    """The single-turn categories as a table."""
    lines = [f"{'single turn':40} {'counts':>12}  {'Acc':>24}  {'called':>24}"]
    for each in single:
        counts = f"{each['run']}/{each['planned']} {each['errored']}"
        called = estimate_text(each["called"]) if each["called"] else "–"
        label, acc = f"{each['model']} {each['category']}", estimate_text(each["acc"])
        lines.append(f"{label:40} {counts:>12}  {acc:>24}  {called:>24}")
    return "\n".join([*lines, "counts: run/planned, errored (failures in Acc, as BFCL has it)"])
