"""The options every subcommand takes, and how its result is shown."""

import functools
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.errors import InputError


class Shared(NamedTuple):
    """The options every subcommand takes."""

    json: bool
    """Print one JSON document to stdout and nothing else there."""
    seed: int
    """Seed of whatever the command draws: order, samples, bootstrap."""
    limit: int | None
    """At most so many items; each command's help says which."""
    out: Path | None
    """The run folder as given."""

    def folder(self, command: str) -> Path:
        """The run folder: as given, or runs/COMMAND-TIME under the working directory."""
        if self.out is not None:
            return self.out
        return Path("runs") / f"{command}-{datetime.now(UTC):%Y%m%d-%H%M%S}"

    def show(self, document: Mapping[str, Any], text: Callable[[], str]) -> None:
        """Print the result: the document under --json, else what `text` renders.

        Raises ValueError for a NaN or infinity, which JSON lacks: say null and the reason.
        """
        click.echo(json.dumps(document, indent=2, allow_nan=False) if self.json else text())


class JsonObject(click.ParamType[dict[str, Any]]):
    """An option's value that is a JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Parse it; a usage error where it is none."""
        try:
            document = json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{value!r} is no JSON ({error})", param, ctx)
        if not isinstance(document, dict):
            self.fail(f"{value!r} is no JSON object", param, ctx)
        return document


def key_of(variable: str | None, option: str) -> str | None:
    """A server's key from the environment variable that an option names; None where it names none.

    Raises InputError where the variable is not set.
    """
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise InputError(f"{variable} is not set", where=option, mend="export it, or name another")
    return key


_OUT = "Run folder; the same command with the same folder resumes.  [default: runs/COMMAND-TIME]"


def shared_options(limit: str, out_help: str = _OUT) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the shared options to a command, which gets them as one `shared` argument.

    limit: help text of --limit, since what it limits differs by command; out_help: that of --out, where it
    is no run folder.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                      help=out_help)  # fmt: skip
        @click.option("--limit", type=click.IntRange(min=1), metavar="N", help=limit)
        @click.option("--seed", type=int, default=0, show_default=True, metavar="N",
                      help="Seed of all that is drawn.")  # fmt: skip
        @click.option("--json", "as_json", is_flag=True,
                      help="Print one JSON document and nothing else.")  # fmt: skip
        @functools.wraps(function)
        def command(*, as_json: bool, seed: int, limit: int | None, out: Path | None, **own: Any) -> None:
            function(shared=Shared(as_json, seed, limit, out), **own)

        return command

    return decorate
