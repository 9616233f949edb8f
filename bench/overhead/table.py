"""The figures as text."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.overhead.figures import Bar, Long, Loop, Open, Spread

_WIDTH = 150
YARDSTICKS = ("bare", "litellm")
"""What the tables show multiples of; the JSON has all."""


def render(
    loop: Sequence[Loop],
    long: Sequence[Long],
    opened: Sequence[Open],
    bars: Sequence[Bar],
    notes: Sequence[str],
) -> str:
    """Tables of all figures; each is the median over rounds, below it the lowest and the highest round."""
    console = Console(file=io.StringIO(), width=_WIDTH, highlight=False)
    for kind, concurrency in dict.fromkeys((one.kind, one.concurrency) for one in loop):
        title = f"{kind}, concurrency {concurrency:,}"
        own = [one for one in loop if (one.kind, one.concurrency) == (kind, concurrency)]
        console.print(_loops(title, own))
    if long:
        console.print(_longs(long))
    if opened:
        console.print(_opens(opened))
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


def spread_text(spread: Spread) -> tuple[str, str]:
    """The median, and the lowest and the highest round."""
    middle, low, high = (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" for value in spread[:3])
    return middle, f"{low} to {high}"


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("target")
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _loops(title: str, loop: Sequence[Loop]) -> Table:
    others = [one.target for one in loop if one.target in YARDSTICKS]
    streams = any(one.added_first_ms for one in loop)
    first = ["added first ms"] if streams else []
    table = _table(
        title,
        "requests/s",
        *(f"× {other}" for other in others),
        *first,
        "added p50 ms",
        "added p99 ms",
        "CPU µs",
        "peak MB",
    )
    for one in loop:
        added = [*([one.added_first_ms] if streams else []), one.added_p50_ms, one.added_p99_ms]
        table.add_row(
            one.target,
            _cell(one.requests_per_second),
            *(_cell(one.speed.get(other)) for other in others),
            *(_cell(None if one.target == "direct" else spread) for spread in added),
            _cell(one.cpu_us),
            _cell(one.peak_mb),
        )
    return table


def _longs(long: Sequence[Long]) -> Table:
    others = [one.target for one in long if one.target in YARDSTICKS]
    ratios = (f"× {other}" for other in others)
    table = _table("one long stream", "CPU µs/chunk", *ratios, "added ms", "chunks a read")
    for one in long:
        table.add_row(
            one.target,
            _cell(one.cpu_us_per_chunk),
            *(_cell(one.cpu.get(other)) for other in others),
            _cell(None if one.target == "direct" else one.added_ms),
            _cell(one.chunks_per_read),
        )
    return table


def _opens(opened: Sequence[Open]) -> Table:
    title = f"{opened[0].streams:,} open streams"
    table = _table(title, "peak MB", "open at once", "until the last has ended, s", "CPU ms/stream")
    for one in opened:
        cells = f"{one.peak_mb:,.0f}", f"{one.most_open:,}", f"{one.seconds:.1f}", f"{one.cpu_us / 1e3:.1f}"
        table.add_row(one.target, *cells)
    return table


def _cell(spread: Spread | None) -> str:
    return "" if spread is None else "\n".join(spread_text(spread))
