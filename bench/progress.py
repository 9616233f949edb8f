"""Progress on stderr: a bar with the time left at a terminal, a few lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_WORTH_TELLING = 10.0
"""Seconds left from which on they are told."""


class Advance(Protocol):
    """Reports steps done."""

    def __call__(self, steps: int = 1, note: str = "") -> None:
        """`steps` more are done; `note` says what is being done now."""


@contextmanager
def progress(label: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show the progress of `total` steps, `done` of which an earlier call has made.

    Writes to stderr only, so that stdout stays the command's result. Away from a terminal it
    writes one line a tenth of the way, with the time left.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task(label, total=total, completed=done, note="")
            yield lambda steps=1, note="": bar.update(task, advance=steps, note=note)
    else:
        yield _lines(label, total, done)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
        console=console,
        transient=True,
    )


def _lines(label: str, total: int, done: int) -> Advance:
    began, first = time.monotonic(), done

    def advance(steps: int = 1, note: str = "") -> None:
        nonlocal done
        before, done = done, done + steps
        if before * 10 // total != done * 10 // total:
            left = (time.monotonic() - began) / (done - first) * (total - done)
            told = f", {_span(left)} left" if left >= _WORTH_TELLING else ""
            click.echo(f"{label} {done}/{total}{told} {note}".rstrip(), err=True)

    return advance


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
