"""`bench score audit`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.errors import InputError
from bench.options import Shared, shared_options
from bench.runs import DataFile, Plan, RunFolder, check_done, read_manifest, read_records
from bench.score import audit_labels
from bench.score.audit import LABELS, agreements, rates
from bench.score.bfcl import GOLD
from bench.score.table import rate_text

Json = dict[str, Any]

_RUNS = ("score bfcl", "run bfcl")
_ALL = "all"


@click.command(
    "audit",
    epilog="Examples: bench score audit runs/bfcl; bench score audit runs/bfcl --labels audit_labels.jsonl "
    "--labelled-model xLAM-2-8b-fc-r --model xlam",
)
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--labels", "file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Labels to agree with: JSON lines of the released form.")  # fmt: skip
@click.option("--rater", default="final", show_default=True, metavar="NAME",
              help="Whose labels: final, rater_a, rater_b.")  # fmt: skip
@click.option("--labelled-model", metavar="NAME", help="Only the file's labels of this model.")
@click.option("--model", metavar="NAME", help="The run's model or arm.  [default: the only one]")
@shared_options(limit="Only the first N entries of each category.")
def audit(
    *, shared: Shared, run: Path, file: Path | None, rater: str, labelled_model: str | None, model: str | None
) -> None:
    """Rates of the mechanism audit's labels in a BFCL run, and how far they agree with given ones.

    RUN is the folder of a bench run bfcl or bench score bfcl.
    """
    name, cases = _cases(run, model, shared.limit)
    theirs = audit_labels.read(file, rater, labelled_model) if file else None
    plan = Plan(
        command="score audit",
        arguments={"run": str(run), "model": name, "rater": rater, "labelled_model": labelled_model},
        seed=shared.seed,
        limit=shared.limit,
        data={str(path): DataFile.of(path) for path in (run / "records.jsonl", file) if path},
    )
    with RunFolder.open(shared.folder("score-audit"), plan) as folder:
        result: Json = {"model": name, "rates": _rates(cases, shared.seed), "agreement": None}
        if theirs is not None:
            result["agreement"] = _agreement(cases, theirs, shared.seed, str(file))
        folder.finish(result)
    shared.show(result, lambda: "\n".join(_lines(result)))


def _cases(run: Path, model: str | None, limit: int | None) -> tuple[str, list[Json]]:
    """The cases of one model that ran, with their labels."""
    manifest = read_manifest(run)
    if manifest.plan.command not in _RUNS:
        raise InputError(
            f"is of bench {manifest.plan.command}",
            where=str(run),
            mend=f"give one of bench {' or '.join(_RUNS)}",
        )
    check_done(manifest, run)
    every = [row for row in read_records(run / "records.jsonl") if row.get("category") in GOLD]
    names = list(dict.fromkeys(row["model"] for row in every))
    if not names:
        raise InputError(
            "holds no multi-turn case", where=str(run), mend="give a run of BFCL's multi-turn cases"
        )
    if model not in names and (model is not None or len(names) > 1):
        raise InputError(
            f"has no model {model!r}" if model else "has several models",
            where=str(run),
            mend=f"name one with --model: {', '.join(names)}",
        )
    name = model or names[0]
    ran = [row for row in every if row["model"] == name and "error" not in row]
    if any("audit" not in row for row in ran):
        raise InputError(
            "was scored before there were labels", where=str(run), mend="bench score bfcl on its result files"
        )
    first = limit or len(every)
    return name, [row for row in ran if int(row["id"].rpartition("_")[2]) < first]


def _rates(cases: Sequence[Json], seed: int) -> Json:
    """By category, and over all."""
    parts = {name: [case for case in cases if case["category"] == name] for name in GOLD}
    told = {name: {"cases": len(own), **rates(own, seed)} for name, own in parts.items() if own}
    return {**told, _ALL: {"cases": len(cases), **rates(cases, seed)}}


def _agreement(cases: Sequence[Json], theirs: Mapping[str, Json], seed: int, file: str) -> Json:
    both = [case for case in cases if case["id"] in theirs]
    if not both:
        raise InputError("labels none of the run's cases", where=file, mend="give labels of these cases")
    ours = {case["id"]: case["audit"] for case in both}
    labelled = [{"id": id, "audit": {**dict.fromkeys(LABELS), **theirs[id]}} for id in ours]
    return {
        "cases": len(both),
        "labels": agreements(ours, theirs, seed),
        "rates": {"run": rates(both, seed), "file": rates(labelled, seed)},
    }


def _lines(result: Json) -> Iterator[str]:
    parts = result["rates"]
    names = [*LABELS, "B3_without_B1a"]
    yield f"{'rates':40} " + " ".join(f"{name.removeprefix('multi_turn_'):>26}" for name in parts)
    for name in names:
        title = f"{name} {LABELS[name]}" if name in LABELS else "B3 where B1a is 0"
        yield f"{title:40} " + " ".join(f"{_rate(part, name):>26}" for part in parts.values())
    yield f"{'cases':40} " + " ".join(f"{part['cases']:>26}" for part in parts.values())
    if result["agreement"] is None:
        return
    told = result["agreement"]
    yield f"\n{told['cases']} cases are labelled"
    yield f"{'':6} {'agreement':>26} {'kappa':>24} {'rate, run':>26} {'rate, file':>26}"
    for name, each in told["labels"].items():
        sides = " ".join(f"{_rate(told['rates'][side], name):>26}" for side in ("run", "file"))
        yield f"{name:6} {_rate(each, 'agreement'):>26} {_kappa(each):>24} {sides}"
    for name, each in told["labels"].items():
        if each["disagreements"]:
            yield f"{name} differs: {', '.join(each['disagreements'][:10])}"


def _rate(figures: Json, name: str) -> str:
    return rate_text(figures[name]) if figures[name] else "–"


def _kappa(figures: Json) -> str:
    kappa = figures["kappa"]
    if not kappa:
        return "–"
    span = "" if kappa["low"] is None else f" [{kappa['low']:.3f}–{kappa['high']:.3f}]"
    return f"{kappa['estimate']:.3f}{span}"
