"""The charts of what a proxy costs, from the result of `bench overhead` alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

from bench.report.charts import Axis, Chart, Rows

Result = Mapping[str, Any]
Json = Mapping[str, Any]

KINDS = {"reply": "Replies", "stream": "Streams"}
"""The closed loops, as the page calls them."""
STYLES = {
    "direct": "plain",
    "nginx": "run-5",
    "bare": "run-4",
    "litellm": "run-2",
    "seam-off": "run-6",
    "seam": "run-1",
    "seam-probes-log": "run-3 dashed",
    "seam-probes": "run-3",
}
"""Colours of the targets; what is dashed has hollow dots."""
_HEIGHT, _ROW = 390, 34
_FRAME = 86
"""Pixels of a chart's height that its frame doesn't have."""


def charts(result: Result) -> dict[str, Chart]:
    """By name; those whose figures the run did not measure are absent."""
    drawn = []
    for kind in KINDS:
        own = [one for one in result["loops"] if one["kind"] == kind]
        if own:
            drawn += [_speed(kind, own), _tail(kind, own)]
    ratios = [one for one in result["loops"] if one["target"] == "seam" and _yardsticks(one)]
    if ratios:
        drawn.append(_ratios(ratios))
    drawn.append(_cpu(result["loops"]))
    if result["open_streams"]:
        drawn.append(_memory(result["open_streams"]))
    return {chart.name: chart for chart in drawn}


def shown_concurrency(loops: Iterable[Json]) -> int:
    """The concurrency that is shown where only one is: that of the bars, else the least."""
    known = {one["concurrency"] for one in loops}
    return 15 if 15 in known else min(known)


@dataclass(frozen=True, slots=True)
class _Log(Axis):
    """A logarithmic axis: its values are powers of ten."""

    def ticks(self) -> list[float]:
        """Powers of ten; with 2 and 5 between them where there are few."""
        steps = (1,) if self.high - self.low > 2 else (1, 2, 5)
        found = [
            power + log10(step) for power in range(floor(self.low), ceil(self.high) + 1) for step in steps
        ]
        return [value for value in found if self.low - 1e-9 <= value <= self.high + 1e-9]

    def tick(self, value: float) -> str:
        """The number itself, thousands as `k`."""
        number = 10**value
        return f"{number / 1000:.4g}k" if number >= 999.5 else f"{number:.3g}"


@dataclass(frozen=True, slots=True)
class _Measured(_Log):
    """A logarithmic axis with ticks where something was measured."""

    at: tuple[int, ...] = ()

    def ticks(self) -> list[float]:
        """The measured values."""
        return [log10(value) for value in self.at]


def _over_concurrency(loops: Sequence[Json]) -> _Measured:
    at = tuple(sorted({one["concurrency"] for one in loops}))
    return _Measured(log10(at[0]) - 0.15, log10(at[-1]) + 0.15, "concurrent requests", at=at)


def _log(values: Iterable[float], label: str) -> _Log:
    """An axis around values."""
    found = [log10(value) for value in values]
    return _Log(min(found) - 0.08, max(found) + 0.08, label)


def _speed(kind: str, loops: Sequence[Json]) -> Chart:
    title = f"{KINDS[kind]} a second"
    return _lines(f"{kind}-speed", title, "requests/s", loops, lambda one: one["requests_per_second"])


def _tail(kind: str, loops: Sequence[Json]) -> Chart:
    title = f"{KINDS[kind]}: 99th percentile"
    return _lines(f"{kind}-tail", title, "ms to the whole answer", loops, lambda one: one["p99_ms"])


def _lines(name: str, title: str, label: str, loops: Sequence[Json], figure: Callable[[Json], Json]) -> Chart:
    """A figure of each target over concurrency, with the lowest and the highest round."""
    targets = list(dict.fromkeys(one["target"] for one in loops))
    about = f"{title} of each target over the number of concurrent requests; whiskers reach from the "
    about += "lowest to the highest round."
    limits = [figure(one)[end] for one in loops for end in ("low", "high")]
    chart = Chart(name, title, about, _over_concurrency(loops), _log(limits, label), height=_HEIGHT)
    for target in targets:
        style = STYLES[target]
        own = [one for one in loops if one["target"] == target]
        chart.line([(log10(one["concurrency"]), log10(figure(one)["median"])) for one in own], style)
        for one in own:
            spread, x = figure(one), log10(one["concurrency"])
            chart.whisker(x, log10(spread["low"]), log10(spread["high"]), style)
            tip = f"{target}, {one['concurrency']:,} at a time\n{label}: {spread_text(spread)}"
            chart.dot((x, log10(spread["median"])), style, tip, hollow="dashed" in style)
    chart.key([(f"{'○' if 'dashed' in STYLES[one] else '●'} {one}", STYLES[one]) for one in targets])
    return chart


def _yardsticks(one: Json) -> list[tuple[str, str]]:
    """Whose multiple Seam's speed is shown as, with the colour."""
    return [(other, STYLES[other]) for other in ("bare", "litellm") if other in one["speed"]]


def _ratios(loops: Sequence[Json]) -> Chart:
    """Seam's requests per second as a multiple of others', taken within a round."""
    about = "Requests a second of Seam with a bias, as a multiple of the bare forwarder's and of LiteLLM's."
    limits = [one["speed"][other][end] for one in loops for other, _ in _yardsticks(one) for end in _ENDS]
    y = _log([1.0, *limits], "times as many requests/s")
    chart = Chart("ratios", "Seam against others", about, _over_concurrency(loops), y, height=_HEIGHT)
    chart.line([(chart.x.low, 0.0), (chart.x.high, 0.0)], "reference")
    entries = []
    for kind, words in KINDS.items():
        dashed = "" if kind == "reply" else " dashed"
        for other in ("bare", "litellm"):
            own = [one for one in loops if one["kind"] == kind and other in one["speed"]]
            if not own:
                continue
            style = STYLES[other] + dashed
            entries.append((f"{'○' if dashed else '●'} × {other}, {words.lower()}", style))
            points = [(log10(one["concurrency"]), one["speed"][other]) for one in own]
            chart.line([(x, log10(ratio["median"])) for x, ratio in points], style)
            for x, ratio in points:
                chart.whisker(x, log10(ratio["low"]), log10(ratio["high"]), style)
                tip = f"{words}, {10**x:,.0f} at a time\n{spread_text(ratio)} times {other}'s"
                chart.dot((x, log10(ratio["median"])), style, tip, hollow=bool(dashed))
    chart.key(entries)
    return chart


_ENDS = ("low", "high")


def _cpu(loops: Sequence[Json]) -> Chart:
    """CPU of each target per request at one concurrency: replies and streams."""
    at = shown_concurrency(loops)
    own = [one for one in loops if one["concurrency"] == at]
    targets = list(dict.fromkeys(one["target"] for one in own))
    about = f"CPU time of each target's processes per request, {at:,} at a time; hollow dots are streams."
    x = _log((one["cpu_us"][end] for one in own for end in _ENDS), "CPU µs a request; ○ a stream")
    chart = _rows("cpu", f"CPU per request, {at:,} at a time", about, x, targets)
    for one in own:
        y, style = _row(targets, one["target"]), STYLES[one["target"]]
        spread, stream = one["cpu_us"], one["kind"] == "stream"
        chart.reach(y, log10(spread["low"]), log10(spread["high"]), style)
        tip = f"{one['target']}, {KINDS[one['kind']].lower()}\n{spread_text(spread)} µs"
        chart.dot((log10(spread["median"]), y), style, tip, hollow=stream)
    return chart


def _memory(opened: Sequence[Json]) -> Chart:
    """Memory of each target with many open streams."""
    targets = [one["target"] for one in opened]
    streams = opened[0]["streams"]
    about = f"The most that each target's processes had resident with {streams:,} open streams."
    most = max(*(one["peak_mb"] for one in opened), 420.0)
    title = f"Memory with {streams:,} open streams"
    chart = _rows("memory", title, about, Axis(0, most * 1.05, "peak MB resident"), targets)
    for one in opened:
        y, style = _row(targets, one["target"]), STYLES[one["target"]]
        chart.reach(y, 0, one["peak_mb"], style)
        tip = f"{one['target']}: {one['peak_mb']:,.0f} MB\n{one['most_open']:,} were open at once"
        chart.dot((one["peak_mb"], y), style, tip, hollow="dashed" in style)
    chart.rules([(400.0, "Seam's bar", "reference")])
    return chart


def _rows(name: str, title: str, about: str, x: Axis, targets: Sequence[str]) -> Chart:
    """A chart with a named row a target."""
    height = _ROW * len(targets) + _FRAME
    chart = Chart(name, title, about, x, Rows(0, len(targets), ""), height=height)
    for target in targets:
        chart.text(60, chart.py(_row(targets, target)) - 9, target, STYLES[target])
    return chart


def _row(targets: Sequence[str], target: str) -> float:
    return len(targets) - targets.index(target) - 0.7


def spread_text(spread: Json) -> str:
    """A figure with its lowest and highest round."""
    middle, low, high = (figure_text(spread[name]) for name in ("median", *_ENDS))
    return f"{middle} ({low} to {high})"


def figure_text(value: float) -> str:
    """Three digits, or all of a larger whole number."""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return text.replace("-", "−")
