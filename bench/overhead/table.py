"""The figures as text."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.overhead.figures import Bar, Loop, Spread, Stream

_WIDTH = 150


def render(loop: Sequence[Loop], stream: Sequence[Stream], bars: Sequence[Bar], notes: Sequence[str]) -> str:
    """Tables of all figures; each is the median over rounds, below it the lowest and the highest round."""
    console = Console(file=io.StringIO(), width=_WIDTH, highlight=False)
    for concurrency in sorted({one.concurrency for one in loop}):
        console.print(_loops(concurrency, [one for one in loop if one.concurrency == concurrency]))
    if stream:
        console.print(_streams(stream))
    for bar in bars:
        if bar.value is not None:
            sign = "at most" if bar.at_most else "at least"
            console.print(
                f"{'met    ' if bar.met else 'NOT MET'} {bar.bar}: {bar.value:.3g} ({sign} {bar.limit:g})"
            )
    for note in notes:
        console.print(f"note: {note}")
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _loops(concurrency: int, loop: Sequence[Loop]) -> Table:
    table = Table(
        title=f"no stream, concurrency {concurrency}: requests/s, and as a multiple of the others'",
        title_justify="left",
        show_lines=True,
    )
    others = [one.target for one in loop]
    table.add_column("target")
    ratios = [f"× {other}" for other in others]
    for name in ("requests/s", *ratios, "added p50 ms", "added p99 ms", "CPU µs/request"):
        table.add_column(name, justify="right")
    for one in loop:
        direct = one.target == "direct"
        table.add_row(
            one.target,
            _cell(one.requests_per_second),
            *(_cell(one.speed.get(other)) for other in others),
            "" if direct else _cell(one.added_p50_ms),
            "" if direct else _cell(one.added_p99_ms),
            _cell(one.cpu_us),
        )
    return table


def _streams(stream: Sequence[Stream]) -> Table:
    table = Table(
        title="one stream: CPU per chunk, and as a multiple of the others'",
        title_justify="left",
        show_lines=True,
    )
    others = [one.target for one in stream]
    table.add_column("target")
    for name in ("CPU µs/chunk", *(f"× {other}" for other in others), "added ms", "chunks a read"):
        table.add_column(name, justify="right")
    for one in stream:
        direct = one.target == "direct"
        table.add_row(
            one.target,
            _cell(one.cpu_us_per_chunk),
            *(_cell(one.cpu.get(other)) for other in others),
            "" if direct else _cell(one.added_ms),
            _cell(one.chunks_per_read),
        )
    return table


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return ""
    middle, low, high = (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" for value in spread[:3])
    return f"{middle}\n{low} to {high}"
