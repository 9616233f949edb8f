"""Benchmark runs side by side: recall, accuracy and calls on the same cases.

BFCL's records are of a case each; tau2's are of a trial, and reduced to their task's mean first (rigor.md).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bench.compare.folders import Folder, Kind
from bench.compare.measures import Lost, Measure, Value, claims
from bench.compare.systems import System, baseline, name, named
from bench.errors import InputError
from bench.run.when2call.figures import told_label
from bench.score.bfcl import GOLD
from bench.score.figures import agreement, missing, no_agreement
from bench.score.loops import LOOPED
from calibrators.actions import Action

Json = dict[str, Any]
Outcomes = Mapping[tuple[str, str], Mapping[str, Value]]
"""What a system came to: by part (category, class) and case the value of each figure."""

POOLED: Final = "all multi-turn categories"
ALL_TASKS: Final = "all tasks"
ALL_QUESTIONS: Final = "all questions"
COSTS: Final = {
    "case_queries": "queries",
    "case_prompt_tokens": "prompt_tokens",
    "case_completion_tokens": "completion_tokens",
    "case_seconds": "seconds",
}
"""What a case took, by the record's member."""
_NUMBERS: Final = frozenset({*COSTS, "calls_per_turn"})
"""Figures that are no shares."""
_NO_CALL_DUE: Final = ("irrelevance", "live_irrelevance")


def compare(
    folders: Sequence[Folder], wanted: str | None, again: str | None, limit: int | None, seed: int
) -> tuple[Json, list[Measure]]:
    """The comparison as a document, and the measures that its claims are made of.

    wanted: the baseline's name; again: the name of the system that is the baseline asked a second time.
    Raises InputError where the runs can't be paired, with the reason.
    """
    _same_reading(folders)
    kind = folders[0].kind
    arms = {folder.label: _arms(folder) for folder in folders}
    systems = [
        System(name(folder, arm, len(folders), len(arms[folder.label])), folder, arm)
        for folder in folders
        for arm in arms[folder.label]
    ]
    base = baseline(systems, wanted)
    second = named(systems, again, "--again") if again else _repeated(base, systems)
    outcomes = {system.name: _READERS[kind](arms[system.folder.label][system.arm]) for system in systems}
    _same_parts(outcomes)
    groups = {record["id"]: record["group"] for own in arms.values() for records in own.values()
              for record in records if "group" in record}  # fmt: skip
    clusters = _clusters(outcomes, groups, limit)
    measures = _measures(outcomes, clusters)
    if second is not None:
        measures = [_with_floor(measure, base.name, second.name, seed) for measure in measures]
    told: Json = {
        "kind": kind,
        "baseline": base.name,
        "again": second.name if second else None,
        "cues": folders[0].result["cues"],
        "systems": [_system(system) for system in systems],
        "pairing": {
            part: {"cases": len(own), "clusters": len(set(own.values()))} for part, own in clusters.items()
        },
        "warnings": _warnings(systems),
        "claims": claims(measures, base.name, seed),
        "parts": _parts(measures, outcomes, clusters, [system.name for system in systems], seed),
    }
    return told, measures


# Reading ----------------------------------------------------------------------------------------------------


def _arms(folder: Folder) -> dict[str, list[Json]]:
    """The records of each model, arm or tau2 run of a folder."""
    arms: dict[str, list[Json]] = {}
    for record in folder.records():
        arms.setdefault(record[_ARM[folder.kind]], []).append(record)
    if not arms:
        raise InputError("holds no record of a case", where=str(folder.path), mend="score results with cases")
    return arms


def _bfcl(records: Iterable[Json]) -> Outcomes:
    found: dict[tuple[str, str], Mapping[str, Value]] = {}
    for record in records:
        category, id = record["category"], record["id"]
        gone = "error" in record or record.get("called", True) is None
        found[category, id] = _single(record, gone) if category not in GOLD else _multi(record, gone)
    return found


def _multi(record: Json, gone: bool) -> dict[str, Value]:
    names = {"gar": "hit", "acc": "passed", "gar_at_gold_turn": "hit_at_gold_turn"}
    read = {figure: record.get(member) for figure, member in names.items()}
    # Of a case that is gone by name only; runs may have been scored without them.
    loops = dict.fromkeys(LOOPED) if gone else record.get("loops", {})
    return _values(read | loops, gone) | _costs(record)


def _single(record: Json, gone: bool) -> dict[str, Value]:
    called = "over_calling" if record["category"] in _NO_CALL_DUE else "call_recall"
    return _values({"acc": record["passed"], called: record["called"]}, gone) | _costs(record)


def _values(read: Mapping[str, Any], gone: bool) -> dict[str, Value]:
    if gone:
        return dict.fromkeys(read, Lost.ERRORED)
    return {figure: Lost.UNMEASURABLE if value is None else float(value) for figure, value in read.items()}


def _costs(record: Json) -> dict[str, Value]:
    return {
        figure: float(record[member]) for figure, member in COSTS.items() if record.get(member) is not None
    }


def _replies(records: Iterable[Json]) -> Outcomes:
    """Labelled decisions: whether a call came, where one is due and where none is."""
    found: dict[tuple[str, str], Mapping[str, Value]] = {}
    for record in records:
        figure, part = ("call_recall", "call due") if record["due"] else ("over_calling", "no call due")
        called = None if record.get("action") is None else record["action"] == Action.TOOL_CALL
        found[part, record["id"]] = _values({figure: called}, "fault" in record) | _costs(record)
    return found


def _when2call(records: Iterable[Json]) -> Outcomes:
    """Whether replies are of the right one of When2Call's labels: in all, and where each is right."""
    found: dict[tuple[str, str], Mapping[str, Value]] = {}
    for record in records:
        gold, action = told_label(record["gold"]), record.get("action")
        right = None if action is None else told_label(action) == gold
        own = _values({"acc": right}, "fault" in record)
        found[ALL_QUESTIONS, record["id"]] = own | _costs(record)
        found[gold, record["id"]] = own
    return found


def _tau2(records: Iterable[Json]) -> Outcomes:
    """Means over the scored trials of each task; a task without one is errored or unmeasurable.

    What a task cost is a mean over all of its trials that the proxy's log knows.
    """
    trials: dict[str, list[Json]] = defaultdict(list)
    for record in records:
        trials[record["task"]].append(record)
    found: dict[tuple[str, str], Mapping[str, Value]] = {}
    for task, own in trials.items():
        scored = [record for record in own if record["state"] == "scored"]
        lost = Lost.UNMEASURABLE if any(r["state"] == "unmeasurable" for r in own) else Lost.ERRORED
        acc = _mean([record["passed"] for record in scored], lost)
        found[ALL_TASKS, task] = {"acc": acc, **_mean_loops(scored, lost), **_mean_costs(own)}
        for label in own[0]["hits"]:
            found[label, task] = {
                "gar": _mean([record["hits"][label] for record in scored], lost),
                "acc": acc,
            }
    return found


def _mean_loops(scored: Sequence[Json], lost: Lost) -> dict[str, Value]:
    told = [record.get("loops", {}) for record in scored]
    return {name: _mean([own[name] for own in told if own.get(name) is not None], lost) for name in LOOPED}


def _mean_costs(records: Iterable[Json]) -> dict[str, Value]:
    read = [told for record in records if (told := _costs(record))]
    return (
        {figure: _mean([float(told[figure]) for told in read], Lost.UNMEASURABLE) for figure in COSTS}
        if read
        else {}
    )


def _mean(values: Sequence[float], lost: Lost) -> Value:
    return sum(values) / len(values) if values else lost


_READERS: Final[Mapping[Kind, Callable[[Iterable[Json]], Outcomes]]] = {
    "bfcl": _bfcl,
    "tau2": _tau2,
    "replies": _replies,
    "when2call": _when2call,
}
_ARM: Final[Mapping[Kind, str]] = {"bfcl": "model", "tau2": "run", "replies": "arm", "when2call": "arm"}
"""The member of a record that names its arm."""


# What can be paired -----------------------------------------------------------------------------------------


def _same_reading(folders: Sequence[Folder]) -> None:
    """Raise InputError where the runs classify by other cues, or are of other domains."""
    first = folders[0]
    told: tuple[tuple[str, Callable[[Folder], str], str], ...] = (
        ("cues", lambda folder: str(folder.result["cues"]), "score both with one --cues"),
        ("domain", _domains, "compare runs of one domain"),
    )
    for what, of, mend in told:
        for folder in folders:
            if of(folder) != of(first):
                raise InputError(
                    f"its {what} is {of(folder)}, that of {first.path} {of(first)}",
                    where=str(folder.path),
                    mend=mend,
                )


def _domains(folder: Folder) -> str:
    return ", ".join(sorted({str(run["domain"]) for run in folder.result.get("runs", ())}))


def _same_parts(outcomes: Mapping[str, Outcomes]) -> None:
    """Raise InputError where nothing is shared, or a task has other labels in another run."""
    (first, one), *others = outcomes.items()
    for other, two in others:
        if not one.keys() & two.keys():
            raise InputError(
                f"no case is in both {first!r} and {other!r}",
                where="RUN",
                mend="compare runs of the same cases",
            )
        tasks = {task for part, task in one if part == ALL_TASKS and (part, task) in two}
        for part, task in one.keys() ^ two.keys():
            if task in tasks:
                raise InputError(
                    f"task {task} is of class {part} in only one of {first!r} and {other!r}: the data differ",
                    where="RUN",
                    mend="compare runs of the same tasks",
                )


def _repeated(base: System, systems: Sequence[System]) -> System | None:
    """The arm of the baseline's own run that has its server and calibration too, if there is one."""
    plan = base.folder.manifest.plan
    if not plan.command.startswith("run ") or plan.upstream is None or plan.profile is None:
        return None
    same = [
        system
        for system in systems
        if system.folder is base.folder
        and system.arm != base.arm
        and plan.upstream[system.arm] == plan.upstream[base.arm]
        and plan.profile[system.arm] == plan.profile[base.arm]
    ]
    return same[0] if same else None


# Figures ----------------------------------------------------------------------------------------------------


def _clusters(
    outcomes: Mapping[str, Outcomes], groups: Mapping[str, Hashable], limit: int | None
) -> dict[str, dict[str, Hashable]]:
    """The cases of each part with their clusters: entry N of BFCL's four categories is one scenario.

    groups: by case, where the records say it: the source conversation.
    """
    found: dict[str, dict[str, Hashable]] = {}
    for part, case in sorted({key for own in outcomes.values() for key in own}, key=_order):
        own = found.setdefault(part, {})
        if limit is None or len(own) < limit:
            own[case] = _entry(case) if part in GOLD else groups.get(case, case)
    pooled = {case: cluster for part in GOLD for case, cluster in found.get(part, {}).items()}
    several = sum(part in GOLD for part in found) > 1
    return {**found, **({POOLED: pooled} if several else {})}


def _order(key: tuple[str, str]) -> tuple[int, str, int, str]:
    part, case = key
    parts = [*GOLD, ALL_TASKS, ALL_QUESTIONS]
    place = parts.index(part) if part in parts else len(parts)
    return place, part, _entry(case), case


def _entry(case: str) -> int:
    number = case.rpartition("_")[2]
    return int(number) if number.isdecimal() else 0


def _measures(
    outcomes: Mapping[str, Outcomes], clusters: Mapping[str, Mapping[str, Hashable]]
) -> list[Measure]:
    found = []
    for part, cases in clusters.items():
        keys = {case: _key(part, case) for case in cases}
        figures = dict.fromkeys(
            figure for own in outcomes.values() for key in keys.values() for figure in own.get(key, ())
        )
        for figure in figures:
            # Two categories have no gold turn, so that pooled it would be of other cases than the rest; what
            # a case costs is shown pooled only.
            pooled_only = figure in COSTS and part in GOLD and POOLED in clusters
            if pooled_only or (part == POOLED and figure == "gar_at_gold_turn"):
                continue
            values = {
                system: {case: own.get(key, {}).get(figure, Lost.NOT_RUN) for case, key in keys.items()}
                for system, own in outcomes.items()
            }
            known = any(isinstance(value, float) for own in values.values() for value in own.values())
            # Recall and accuracy that nobody has are said to be unmeasurable; other figures are left out.
            if known or figure in ("gar", "acc"):
                found.append(Measure(part, figure, cases, values, mean=figure in _NUMBERS))
    return found


def _key(part: str, case: str) -> tuple[str, str]:
    return (case.rpartition("_")[0], case) if part == POOLED else (part, case)


def _with_floor(measure: Measure, base: str, again: str, seed: int) -> Measure:
    """The measure without the repeated system, which has become the baseline's noise floor."""
    floor = measure.disagreement(base, again, seed)
    values = {system: own for system, own in measure.values.items() if system != again}
    return replace(measure, values=values, floors={base: floor})


def _parts(
    measures: Sequence[Measure],
    outcomes: Mapping[str, Outcomes],
    clusters: Mapping[str, Mapping[str, Hashable]],
    systems: Sequence[str],
    seed: int,
) -> Json:
    """By part and system: each figure with its counts, and recall against accuracy on the same cases."""
    found: Json = {}
    for part, cases in clusters.items():
        own = [measure for measure in measures if measure.part == part]
        found[part] = {
            system: {
                **{
                    measure.figure: measure.estimate(system, seed)
                    for measure in own
                    if system in measure.values
                },
                "counts": next((m.counts(system) for m in own if system in m.values and not m.mean), None),
                **_agreement(outcomes[system], part, cases, seed),
            }
            for system in systems
        }
    return found


def _agreement(own: Outcomes, part: str, cases: Mapping[str, Hashable], seed: int) -> Json:
    both = []
    for case, cluster in cases.items():
        values = own.get(_key(part, case), {})
        hit, passed = values.get("gar"), values.get("acc")
        if hit in (0.0, 1.0) and passed in (0.0, 1.0):
            both.append((bool(hit), bool(passed), cluster))
    if not both:
        return no_agreement("no case has both, as yes or no")
    pairs, groups = [(hit, passed) for hit, passed, _ in both], [cluster for *_, cluster in both]
    no_masking = missing("masking", "it counts reads too") if part == "tool_call" else {}
    return agreement(pairs, groups, seed) | no_masking


def _system(system: System) -> Json:
    plan = system.folder.manifest.plan
    told: Json = {
        "name": system.name,
        "run": system.folder.label,
        "folder": str(system.folder.path),
        "arm": system.arm,
        "command": plan.command,
    }
    if plan.command.startswith("run "):
        told |= {
            "server": (plan.upstream or {}).get(system.arm),
            "profile": (plan.profile or {}).get(system.arm),
        }
    for run in system.folder.result.get("runs", ()):
        if run["run"] == system.arm:
            told |= {"agent": run["agent"], "domain": run["domain"], "trials": run["trials"]}
    return told


def _warnings(systems: Sequence[System]) -> list[str]:
    """What the runs themselves warn of."""
    found = []
    for system in systems:
        result = system.folder.result
        for model in result.get("models", ()):
            partial = [each["category"] for each in model["categories"] if each["partial"]]
            if model["model"] == system.arm and partial:
                found.append(f"{system.name}: partial run of {', '.join(partial)}")
        for run in result.get("runs", ()):
            if run["run"] == system.arm:
                found += [f"{system.name}: {warning}" for warning in run["warnings"]]
    return found
