"""`bench report`: the page of a finished run, made again from its files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from bench.errors import InputError
from bench.options import Shared, shared_options
from bench.report import audit, calibration, comparison, drift, overhead, replay
from bench.runs import RunFolder, check_done, read_manifest, result_of

_PAGES: Mapping[str, Callable[[RunFolder, Mapping[str, Any], Path], Path]] = {
    "audit": audit.write_report,
    "calibrate": calibration.write_report,
    "compare": comparison.write_report,
    "drift": drift.write_report,
    "overhead": overhead.write_report,
    **dict.fromkeys(replay.COMMANDS, replay.write_report),
}
"""What writes a page, by the command that made the run."""


@click.command(
    "report", epilog="Examples: bench report runs/compare-1; bench report runs/calibrate-1 --out page"
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="RUN")
@shared_options(
    limit="Limits nothing: the page shows the run as it is.",
    out_help="Folder to write to.  [default: the run's own]",
)
def command(*, shared: Shared, folder: Path) -> None:
    """Make a run's report again: report.html and charts/, in its folder or in --out.

    RUN is the folder of a bench audit, calibrate, compare, drift, overhead or run that is done; nothing is
    measured or drawn anew.
    """
    manifest = read_manifest(folder)
    write = _PAGES.get(manifest.plan.command)
    if write is None:
        raise InputError(
            f"bench {manifest.plan.command} has no report",
            where=str(folder),
            mend=f"give a run of bench {' or '.join(_PAGES)}",
        )
    check_done(manifest, folder)
    try:
        page = write(RunFolder(folder, manifest), result_of(folder), shared.out or folder)
    except KeyError as error:
        raise InputError(
            f"its result has no {error}, as an earlier bench left it",
            where=str(folder),
            mend="repeat its command with another --out",
        ) from error
    shared.show({"report": str(page)}, lambda: f"report   {page}")
