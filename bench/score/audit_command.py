"""`bench score audit`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.errors import InputError
from bench.options import Shared, shared_options
from bench.runs import DataFile, Plan, Record, RunFolder, check_done, read_manifest, read_records
from bench.score import audit_labels, tau2_audit
from bench.score.audit import (
    LABELS,
    SECOND_READING,
    Audited,
    Labels,
    agreements,
    rates,
    scenario,
    with_second_reading,
)
from bench.score.bfcl import GOLD
from bench.score.table import rate_text

Json = dict[str, Any]

_MEMBER: Mapping[str, str] = {
    "score bfcl": "model",
    "run bfcl": "model",
    "score tau2": "run",
    "run tau2": "run",
}
"""By the command that wrote a run what of a record names its model, arm or results."""
_VERDICTS = "verdicts.jsonl"
_ALL = "all"


@click.command(
    "audit",
    epilog="Examples: bench score audit runs/bfcl; bench score audit runs/bfcl --labels audit_labels.jsonl "
    "--labelled-model xLAM-2-8b-fc-r --model xlam; bench score audit runs/tau2 --labels judgments.jsonl",
)
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--labels", "file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Labels to agree with: JSON lines of the released forms.")  # fmt: skip
@click.option("--rater", default="final", show_default=True, metavar="NAME",
              help="Whose labels: final, rater_a, rater_b.")  # fmt: skip
@click.option("--labelled-model", metavar="NAME", help="Only the file's labels of this model.")
@click.option("--model", metavar="NAME", help="The run's model, arm or results.  [default: the only one]")
@shared_options(limit="Only the first N entries of each category, or tasks.")
def audit(
    *, shared: Shared, run: Path, file: Path | None, rater: str, labelled_model: str | None, model: str | None
) -> None:
    """Rates of the mechanism audit's labels in a BFCL or tau2 run, and how far they agree with given ones.

    RUN is the folder of a bench run or bench score of bfcl or tau2. For tau2 these are the labels that are
    defined there, and the judge's verdicts on writes.
    """
    name, audited = _audited(run, model, shared.limit)
    theirs = audit_labels.read(file, rater, labelled_model, audited.titles) if file else None
    read = [run / "records.jsonl", run / _VERDICTS, *([file] if file else [])]
    plan = Plan(
        command="score audit",
        arguments={"run": str(run), "model": name, "rater": rater, "labelled_model": labelled_model},
        seed=shared.seed,
        limit=shared.limit,
        data={str(path): DataFile.of(path) for path in read if path == file or path.exists()},
    )
    with RunFolder.open(shared.folder("score-audit"), plan) as folder:
        result: Json = {
            "model": name,
            "titles": dict(audited.titles),
            "rates": _rates(audited, shared.seed),
            "agreement": None,
        }
        if theirs is not None:
            result["agreement"] = _agreement(audited, theirs, shared.seed, str(file))
        folder.finish(result)
    shared.show(result, lambda: "\n".join(_lines(result)))


def _audited(run: Path, model: str | None, limit: int | None) -> tuple[str, Audited]:
    """The labelled cases of one model, arm or results file."""
    manifest = read_manifest(run)
    command = manifest.plan.command
    if command not in _MEMBER:
        raise InputError(
            f"is of bench {command}", where=str(run), mend=f"give one of bench {' or '.join(_MEMBER)}"
        )
    check_done(manifest, run)
    every, member = list(read_records(run / "records.jsonl")), _MEMBER[command]
    if member == "model":
        every = [row for row in every if row.get("category") in GOLD]
    names = list(dict.fromkeys(row[member] for row in every))
    if not names:
        raise InputError(
            "holds no multi-turn case",
            where=str(run),
            mend="give a run of BFCL's multi-turn cases, or of tau2",
        )
    name = _chosen(names, model, run)
    ran = [row for row in every if row[member] == name and "error" not in row]
    if any("audit" not in row for row in ran):
        raise InputError(
            "was scored before there were labels",
            where=str(run),
            mend="score its results again with bench score",
        )
    audited = _bfcl(ran, limit) if member == "model" else _tau2(ran, limit, run / _VERDICTS)
    if not audited.cases:
        raise InputError(
            f"has no labelled case of {name!r}",
            where=str(run),
            mend="give multi-turn cases of BFCL, or scored simulations of tau2's airline or retail",
        )
    return name, audited


def _chosen(names: Sequence[str], model: str | None, run: Path) -> str:
    """The one that was asked for, or the only one."""
    if model not in names and (model is not None or len(names) > 1):
        raise InputError(
            f"has no model {model!r}" if model else "has several models",
            where=str(run),
            mend=f"name one with --model: {', '.join(names)}",
        )
    return model or names[0]


def _bfcl(cases: Sequence[Record], limit: int | None) -> Audited:
    kept = [case for case in cases if limit is None or int(scenario(case["id"])) < limit]
    groups = {name: [case["id"] for case in kept if case["category"] == name] for name in GOLD}
    return Audited(
        titles={**LABELS, SECOND_READING: "B3 where B1a is 0"},
        groups={**{name: ids for name, ids in groups.items() if ids}, _ALL: [case["id"] for case in kept]},
        cases={case["id"]: with_second_reading(case["audit"]) for case in kept},
        units={case["id"]: scenario(case["id"]) for case in kept},
    )


def _tau2(records: Sequence[Record], limit: int | None, verdicts: Path) -> Audited:
    tasks = list(dict.fromkeys(record["task"] for record in records))[:limit]
    judged = read_records(verdicts) if verdicts.exists() else ()
    return tau2_audit.audited(
        [record for record in records if record["task"] in tasks],
        {row["key"]: row["confirmed"] for row in judged},
    )


def _rates(audited: Audited, seed: int) -> Json:
    """By category."""
    return {
        name: {"cases": len(ids), **rates(audited, {id: audited.cases[id] for id in ids}, seed)}
        for name, ids in audited.groups.items()
    }


def _agreement(audited: Audited, theirs: Mapping[str, Labels], seed: int, file: str) -> Json:
    both = [id for id in audited.cases if id in theirs]
    if not both:
        raise InputError("labels none of the run's cases", where=file, mend="give labels of these cases")
    sides = {
        "run": {id: audited.cases[id] for id in both},
        "file": {id: with_second_reading(theirs[id]) for id in both},
    }
    return {
        "cases": len(both),
        "labels": agreements(audited, theirs, seed),
        "rates": {side: rates(audited, cases, seed) for side, cases in sides.items()},
    }


def _lines(result: Json) -> Iterator[str]:
    parts = result["rates"]
    yield f"{'rates':40} " + " ".join(f"{name.removeprefix('multi_turn_'):>26}" for name in parts)
    for name, words in result["titles"].items():
        title = words if name == SECOND_READING else f"{name} {words}"
        yield f"{title:40} " + " ".join(f"{_rate(part, name):>26}" for part in parts.values())
    yield f"{'cases':40} " + " ".join(f"{part['cases']:>26}" for part in parts.values())
    if result["agreement"] is None:
        return
    told = result["agreement"]
    yield f"\n{told['cases']} cases are labelled"
    yield f"{'':10} {'agreement':>26} {'kappa':>24} {'rate, run':>26} {'rate, file':>26}"
    for name, each in told["labels"].items():
        sides = " ".join(f"{_rate(told['rates'][side], name):>26}" for side in ("run", "file"))
        yield f"{name:10} {_rate(each, 'agreement'):>26} {_kappa(each):>24} {sides}"
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
