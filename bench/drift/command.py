"""`bench drift`: what moved between two windows of a decision log, and why."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.drift.figures import figures
from bench.drift.log import Parts, Span, parted, read
from bench.errors import CheckFailed
from bench.options import Shared, shared_options
from bench.report.drift import group_name, reading, statistics_text, verdict, write_report
from bench.report.words import change_text, nats, nats_text, per_cent
from bench.runs import DataFile, Plan, RunFolder
from calibrators.drift import MINIMUM

Json = dict[str, Any]
_File = click.Path(dir_okay=False, path_type=Path)


class _Span(click.ParamType[Span]):
    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Span:
        try:
            return value if isinstance(value, Span) else Span.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    "drift",
    epilog="Examples: bench drift decisions.jsonl; bench drift decisions.jsonl.1 decisions.jsonl "
    "--window 2026-09-08T06:00..; bench drift today.jsonl --against last-week.jsonl --check",
)
@click.argument("logs", nargs=-1, required=True, type=_File, metavar="LOG..")
@click.option("--against", type=_File, multiple=True, metavar="LOG",
              help="The reference's own decision log; LOG.. are then the window.")  # fmt: skip
@click.option("--reference", type=_Span(), metavar="FROM..TO",
              help="Times of the reference, UTC unless they say otherwise.  [default: what comes before the "
                   "window]")  # fmt: skip
@click.option("--window", type=_Span(), metavar="FROM..TO",
              help="Times of the window.  [default: what comes after the reference; without either the newer "
                   "half of the replies]")  # fmt: skip
@click.option("--minimum", type=click.IntRange(1), default=MINIMUM, show_default=True, metavar="N",
              help="Replies in either window below which no number is given.")  # fmt: skip
@click.option("--check", is_flag=True, help="Exit 1 where classes or margins of any model and profile moved.")
@shared_options(limit="Only the first N records of the logs, and of --against.")
def command(
    *,
    shared: Shared,
    logs: tuple[Path, ...],
    against: tuple[Path, ...],
    reference: Span | None,
    window: Span | None,
    minimum: int,
    check: bool,
) -> None:
    """What moved between two windows of a decision log: action classes, margins, and why.

    For each model and profile: PSI, Jensen-Shannon distance and a chi-square test that heeds conversations;
    how much of the change the mix of traffic explains; what Seam did in either window; and when it began. LOG
    may be the parts of one rotated log. The run folder then has report.html.
    """
    if against and (reference or window):
        raise click.UsageError("--against names the reference already; give it, or --reference and --window")
    files = sorted({*logs, *against})
    plan = Plan(
        command="drift",
        arguments={
            "logs": [*map(str, logs)],
            "against": [*map(str, against)],
            "reference": _words(reference),
            "window": _words(window),
            "minimum": minimum,
        },
        seed=shared.seed,
        limit=shared.limit,
        data={str(file): DataFile.of(file) for file in files},
    )
    with RunFolder.open(shared.folder("drift"), plan) as run:
        replies = read(logs, shared.limit)
        parts = Parts(read(against, shared.limit), replies) if against else parted(replies, reference, window)
        result: Json = {"minimum": minimum, "groups": figures(parts.filled(), minimum, shared.seed)}
        write_report(run, result, run.path)
        run.finish(result)
    shared.show(result, lambda: summary(result, run.path))
    moved = [group_name(group) for group in result["groups"] if verdict(group) in ("traffic", "model")]
    if check and moved:
        raise CheckFailed(f"moved: {', '.join(moved)}", mend=f"see {run.path / 'report.html'}")


def _words(span: Span | None) -> str | None:
    return None if span is None else "..".join(end.isoformat() if end else "" for end in span)


def summary(result: Mapping[str, Any], folder: Path) -> str:
    """The result for a person at the terminal."""
    lines = [line for group in result["groups"] for line in _group(group)]
    return "\n".join([*lines, f"report   {folder / 'report.html'}"])


def _group(group: Json) -> Sequence[str]:
    reference, current = group["reference"], group["current"]
    lines = [
        f"{group_name(group)}: {reading(group)}",
        f"  {current['replies']:,} replies of {current['conversations']:,} conversations against "
        f"{reference['replies']:,} of {reference['conversations']:,}",
        f"  classes  {statistics_text(group['classes'])}",
        f"  margins  {statistics_text(group['margins'])}",
    ]
    changes = group["classes"]["changes"]
    if changes:
        heads = f"{'before':>8} {'after':>8}  {'change, points':22} {'of it the mix':22} at the same mix"
        lines.append(f"  {'':10} {heads}")
        for name, row in changes.items():
            parts = " ".join(f"{change_text(row[part]):22}" for part in ("change", "by_mix", "same_mix"))
            lines.append(
                f"  {name:10} {per_cent(row['before']):>8} {per_cent(row['after']):>8}  {parts.rstrip()}"
            )
    shift = group["margins"]["shift"]
    if shift:
        parts = " ".join(f"{nats_text(shift[part]):22}" for part in ("change", "by_mix", "same_mix"))
        before, after = (nats(shift[end]) for end in ("before", "after"))
        lines.append(f"  {'margin':10} {before:>8} {after:>8}  {parts.rstrip()} nats")
    return [*lines, ""]
