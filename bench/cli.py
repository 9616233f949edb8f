"""`bench`: one subcommand a file, imported when it is called."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn

import click

from bench.errors import BenchError
from bench.group import LazyGroup, Subcommand

SUBCOMMANDS: Mapping[str, Subcommand] = {
    "audit": Subcommand(
        "bench.audit.command:command",
        "Show which entry tokens a teacher's top-K leaves out.",
    ),
    "calibrate": Subcommand(
        "bench.calibrate.command:command",
        "Choose a bias on labelled decisions; write a profile and a report.",
    ),
    "compare": Subcommand(
        "bench.compare.command:command",
        "Compare runs and checkpoints on the same cases, with a page.",
    ),
    "drift": Subcommand(
        "bench.drift.command:command",
        "Show what moved between two windows of a decision log, and why.",
    ),
    "entry": Subcommand(
        "bench.entry:entry",
        "Find and verify a model's tool-entry tokens from the server alone.",
    ),
    "overhead": Subcommand(
        "bench.overhead.command:overhead",
        "Measure the proxy's own cost on a canned upstream.",
    ),
    "report": Subcommand(
        "bench.report.command:command",
        "Make the page of a finished run again.",
    ),
    "run": Subcommand(
        "bench.run:run",
        "Replay a benchmark through the proxy with its own runner and grader.",
    ),
    "score": Subcommand(
        "bench.score:score",
        "Score existing result files, offline.",
    ),
    "setup": Subcommand(
        "bench.setup:setup",
        "Make or repair a benchmark's own environment.",
    ),
    "train": Subcommand(
        "bench.train.command:command",
        "Train an adapter: supervised, or distilled from routed teachers.",
    ),
}


@click.group(cls=LazyGroup, subcommands=SUBCOMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="seam", prog_name="bench")
def bench() -> None:
    """Measure tool-calling models and their calibration.

    Every command takes --json, --seed, --limit and --out DIR, and goes on where it stopped when
    called again with the same --out. Exit codes: 0 done, 1 a check failed, 2 usage or bad input,
    3 server unreachable.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `bench` and exit with its code; the person's mistakes get one line on stderr."""
    # Our matrices are small: on a busy machine numpy's threads wait for each other five times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Without this a terminated bench would leave the servers it started behind.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        # Without standalone mode click returns the code of --help and raises all else.
        code = bench.main(arguments, prog_name="bench", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = error.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "bench"
        what = " ".join(error.format_message().split()).rstrip(".")
        click.echo(f"{path}: {what}; see {path} --help", err=True)
        code = error.exit_code
    except BenchError as error:
        click.echo(f"bench: {error}", err=True)
        code = error.exit_code
    except click.Abort:
        click.echo("bench: interrupted; the same command with the same --out goes on", err=True)
        code = 128 + signal.SIGINT
    sys.exit(code)


def _terminated(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)
