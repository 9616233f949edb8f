"""The charts of a support audit, from its result alone."""

from collections.abc import Mapping, Sequence
from math import ceil, log2
from typing import Any

from bench.audit.figures import SIDES
from bench.report.charts import Axis, Chart
from bench.report.words import estimate_text

Result = Mapping[str, Any]
_STYLES = {"response": "not-due", "tool": "due"}


class _Doubling(Axis):
    """Powers of two at whole numbers."""

    def ticks(self) -> list[float]:
        """Every one, or every second where there are many."""
        last = int(self.high)
        return [float(power) for power in range(0, last + 1, 1 if last <= 8 else 2)]

    def tick(self, value: float) -> str:
        """The power itself."""
        return f"{2 ** round(value):,}".replace(",", " ")


def charts(result: Result) -> dict[str, Chart]:
    """By name: coverage over K and, where a student was replayed, divergence by position."""
    drawn = {"coverage": _coverage(result)}
    replay = (result["sides"]["response"] or {}).get("replay")
    if replay and replay["prompts"]:
        drawn["replay"] = _replay(replay["positions"])
    return drawn


def _coverage(result: Result) -> Chart:
    sides = {name: side for name in SIDES if (side := result["sides"][name])}
    furthest = max(
        [2 * max(result["tops"]), *(rank for side in sides.values() for rank in side["curve"]["rank"])]
    )
    axis = _Doubling(0, float(ceil(log2(furthest))), "K, tokens of the support")
    about = "The share of prompts whose K likeliest tokens hold an entry token, over K."
    chart = Chart("coverage", "Coverage of the entry token", about, axis, Axis.rate("share of prompts"))
    for name, side in sides.items():
        style = _STYLES[name]
        known = side["curve"]["known"]
        last = axis.high if known is None else log2(known)
        chart.line(_steps(side["curve"]["rank"], side["curve"]["share"], last), style)
        for top in result["tops"]:
            estimate = side["coverage"][str(top)]
            if estimate["estimate"] is None:
                continue
            if estimate["low"] is not None:
                chart.whisker(log2(top), estimate["low"], estimate["high"], style)
            tip = f"{SIDES[name]}, K = {top}\ncoverage {estimate_text(estimate)}, n = {estimate['n']}"
            chart.dot((log2(top), estimate["estimate"]), style, tip)
    chart.legend([(SIDES[name], _STYLES[name]) for name in sides])
    return chart


def _steps(ranks: Sequence[int], shares: Sequence[float], last: float) -> list[tuple[float, float]]:
    points, before = [(0.0, 0.0)], 0.0
    for rank, share in zip(ranks, shares, strict=True):
        points += [(log2(rank), before), (log2(rank), share)]
        before = share
    # Where supports differ in size, some know more than all do.
    return [point for point in [*points, (last, before)] if point[0] <= last]


def _replay(positions: Mapping[str, Sequence[float]]) -> Chart:
    longest = max(map(len, positions.values()))
    most = max(value for values in positions.values() for value in values) * 1.08 or 1.0
    about = "Mean divergence of teacher and student at each token after the decision, for both replies."
    axes = Axis(1, max(2.0, float(longest)), "token after the decision"), Axis(0, most, "divergence, nats")
    chart = Chart("replay", "Divergence along the reply", about, *axes)
    for path, style in (("forced", "not-due"), ("masked", "due")):
        chart.line([(float(i), value) for i, value in enumerate(positions[path], 1)], style)
    chart.legend([("entry forced", "not-due"), ("entry masked", "due")])
    return chart
