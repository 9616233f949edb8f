"""`bench compare`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bench.compare import cases, decisions
from bench.compare.folders import Folder, folders
from bench.compare.published import published
from bench.options import Shared, shared_options
from bench.report.comparison import write_report
from bench.report.words import change_text, p_text, rate_name
from bench.runs import DataFile, Plan, RunFolder

Json = dict[str, Any]


@click.command(
    "compare",
    epilog="Examples: bench compare runs/vanilla runs/union; bench compare vanilla=runs/a union=runs/b "
    "--baseline 'vanilla, b = -1.2'; bench compare runs/run-bfcl --baseline off --again off2",
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN..")
@click.option("--baseline", metavar="NAME",
              help="The system, or run, that all others are compared with.  [default: first]")  # fmt: skip
@click.option("--again", metavar="NAME",
              help="The benchmark run or arm that is the baseline asked again: how often they differ is the "
                   "noise floor.  [default: an arm of the baseline's run with its server and calibration; "
                   "bench calibrate asks twice itself]")  # fmt: skip
@shared_options(limit="Only the first N cases that are compared, of each category.")
def command(*, shared: Shared, runs: tuple[str, ...], baseline: str | None, again: str | None) -> None:
    """Compare checkpoints and calibrations on the same cases: differences with intervals, and a page.

    RUN is the folder of a bench calibrate, bench run, or bench score bfcl or tau2, all of one kind, with a
    name before it if you like: NAME=DIR. Every arm in a folder is a system of its own.
    """
    found = folders(runs)
    kind = found[0].kind
    compared = decisions.compare if kind == "decisions" else cases.compare
    told, measures = compared(found, baseline, again, shared.limit, shared.seed)
    result = {**told, "published": published(kind)}
    with RunFolder.open(shared.folder("compare"), _plan(shared, found, baseline, again)) as run:
        records = run.records()
        for measure in measures:
            for row in measure.rows():
                if row["key"] not in records:
                    records.append(row["key"], row)
        write_report(run, result, run.path)
        run.finish(result)
    shared.show(result, lambda: summary(result, run.path))


def _plan(shared: Shared, found: list[Folder], baseline: str | None, again: str | None) -> Plan:
    return Plan(
        command="compare",
        arguments={
            "runs": {folder.label: str(folder.path) for folder in found},
            "baseline": baseline,
            "again": again,
        },
        seed=shared.seed,
        limit=shared.limit,
        data={str(file): DataFile.of(file) for folder in found for file in folder.files},
    )


def summary(result: Mapping[str, Any], folder: Path) -> str:
    """The result for a person at the terminal."""
    claims = [claim for claim in result["claims"] if not claim["mean"]]
    tested = sum(claim["test"] is not None for claim in claims)
    lines = [f"baseline {result['baseline']}; differences are on the same cases, p adjusted for {tested}"]
    lines += [f"warning: {warning}" for warning in result["warnings"]]
    names = [f"  {claim['system']}: {rate_name(claim['figure'])}" for claim in claims]
    width, part = max(map(len, names), default=0), None
    for name, claim in zip(names, claims, strict=True):
        if claim["part"] != part:
            part = claim["part"]
            lines += [
                "",
                f"{part:{width}} {'n':>5} {'change, points':>26} {'p (Holm)':>9}  gained/lost  floor",
            ]
        lines.append(
            f"{name:{width}} {claim['n']:>5} {change_text(claim):>26} {_p(claim):>9}  "
            f"{_moved(claim['outcomes']):>11}  {_floor(claim['floor'])}"
        )
    return "\n".join([*lines, "", f"report   {folder / 'report.html'}"])


def _p(claim: Mapping[str, Any]) -> str:
    return p_text(claim["test"]["p_holm"]) if claim["test"] else "–"


def _moved(pairs: Mapping[str, int] | None) -> str:
    return f"{pairs['gained']}/{pairs['lost']}" if pairs else "–"


def _floor(floor: Mapping[str, Any] | None) -> str:
    return f"{100 * floor['estimate']:.1f} %" if floor else "not measured"
