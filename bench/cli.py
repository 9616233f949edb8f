"""`bench`: one subcommand a file, imported when it is called."""

import difflib
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import NamedTuple, NoReturn

import click

from bench.errors import BenchError


class Subcommand(NamedTuple):
    """Where a subcommand lives and what it does."""

    target: str
    """`module:attribute` of the click command."""
    summary: str
    """The line under `bench --help`; here so that the help imports no subcommand."""


SUBCOMMANDS: Mapping[str, Subcommand] = {
    "curve": Subcommand(
        "bench.curve:curve",
        "Compare the entry probability over the bias with its formula.",
    ),
    "entry": Subcommand(
        "bench.entry:entry",
        "Find and verify a model's tool-entry tokens from the server alone.",
    ),
    "overhead": Subcommand(
        "bench.overhead.command:overhead",
        "Measure the proxy's own cost on a canned upstream.",
    ),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called, not when the help is shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names of all subcommands, sorted."""
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The subcommand of that name, imported now; None where there is none."""
        if cmd_name not in SUBCOMMANDS:
            return None
        module, _, attribute = SUBCOMMANDS[cmd_name].target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; a usage error names the nearest where there is none."""
        if args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            nearest = difflib.get_close_matches(args[0], SUBCOMMANDS, n=1, cutoff=0)[0]
            ctx.fail(f"No such command '{args[0]}'; the nearest is '{nearest}'.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of subcommands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name].summary) for name in sorted(SUBCOMMANDS)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="seam", prog_name="bench")
def bench() -> None:
    """Measure tool-calling models and their calibration.

    Every command takes --json, --seed, --limit and --out DIR, and goes on where it stopped when
    called again with the same --out. Exit codes: 0 done, 1 a check failed, 2 usage or bad input,
    3 server unreachable.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `bench` and exit with its code; the person's mistakes get one line on stderr."""
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
