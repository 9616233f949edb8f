"""A click group whose subcommands are imported when they are called, so that `--help` is fast."""

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class Subcommand(NamedTuple):
    """Where a subcommand lives and what it does."""

    target: str
    """`module:attribute` of the click command."""
    summary: str
    """The line under `--help`; here so that the help imports no subcommand."""


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called, not when the help is shown.

    subcommands: by name; the group keeps the mapping itself, so that one table is the truth.
    """

    def __init__(self, *args: Any, subcommands: Mapping[str, Subcommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.subcommands = subcommands

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names of all subcommands, sorted."""
        return sorted(self.subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The subcommand of that name, imported now; None where there is none."""
        if cmd_name not in self.subcommands:
            return None
        module, _, attribute = self.subcommands[cmd_name].target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; a usage error names the nearest where there is none."""
        if args[0] not in self.subcommands and not args[0].startswith("-"):
            nearest = difflib.get_close_matches(args[0], self.subcommands, n=1, cutoff=0)[0]
            ctx.fail(f"No such command '{args[0]}'; the nearest is '{nearest}'.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of subcommands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.subcommands[name].summary) for name in sorted(self.subcommands)])
