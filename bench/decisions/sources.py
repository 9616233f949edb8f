"""The sets of labelled decisions that a command reads, and the options that name them."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.decisions.apigen import apigen
from bench.decisions.benchmarks import bfcl, when2call
from bench.decisions.example import Example
from bench.decisions.requests import read_requests
from bench.errors import InputError

_File = click.Path(dir_okay=False, path_type=Path)


class Sources(NamedTuple):
    """Where the labelled decisions come from."""

    bfcl: bool
    when2call: Path | None
    apigen: Path | None
    requests: tuple[Path, ...]

    @property
    def files(self) -> list[Path]:
        """The files among them."""
        return [path for path in (self.when2call, self.apigen, *self.requests) if path]

    def or_bfcl(self) -> "Sources":
        """These, or BFCL's where none is named."""
        return self if self.files else self._replace(bfcl=True)

    def read(self) -> list[Example]:
        """The decisions of all of them. Raises InputError where a file, or a line of it, is none."""
        examples = bfcl() if self.bfcl else []
        if self.when2call:
            examples += when2call(self.when2call)
        if self.apigen:
            examples += apigen(self.apigen)
        for path in self.requests:
            own, ignored = read_requests(path)
            examples += own
            if ignored:
                told = ", ".join(f"{name} ({count})" for name, count in sorted(ignored.items()))
                click.echo(f"{path}: these members are not part of the request: {told}", err=True)
        seen: set[str] = set()
        for example in examples:
            if example.id in seen:
                raise InputError(
                    f"the id {example.id!r} stands in two sets", mend="give the lines of --requests other ids"
                )
            seen.add(example.id)
        return examples


def source_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets them as one `sources` argument."""

    @click.option("--bfcl", "use_bfcl", is_flag=True,
                  help="BFCL's single-turn decisions; the default where no others are named.")  # fmt: skip
    @click.option("--when2call", "when2call_file", type=_File, help="When2Call's llm_judge file.")
    @click.option("--apigen", "apigen_file", type=_File, help="APIGen-MT's apigen-mt_5k.json.")
    @click.option("--requests", "request_files", type=_File, multiple=True,
                  help="Your own labelled requests, JSONL (docs/calibrating.md).")  # fmt: skip
    @functools.wraps(function)
    def command(
        *,
        use_bfcl: bool,
        when2call_file: Path | None,
        apigen_file: Path | None,
        request_files: tuple[Path, ...],
        **own: Any,
    ) -> None:
        function(sources=Sources(use_bfcl, when2call_file, apigen_file, request_files), **own)

    return command
