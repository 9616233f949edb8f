"""The charts of one model and profile's drift, from its figures alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.report.charts import Axis, Chart
from bench.report.words import number, per_cent
from calibrators.drift import EDGES, MOVED_PSI

Group = Mapping[str, Any]


def charts(group: Group, prefix: str) -> dict[str, Chart]:
    """By name: PSI in steps of time, shares of classes, margins; without numbers the first two are absent.

    prefix: of the names, since a page shows several groups.
    """
    drawn = {}
    if len(group["steps"]) > 1:
        drawn["steps"] = _steps(group["steps"], f"{prefix}-steps")
    if group["classes"]["changes"]:
        drawn["classes"] = _classes(group["classes"]["changes"], f"{prefix}-classes")
    if all(sum(counts) for counts in group["histogram"].values()):
        drawn["margins"] = _margins(group["histogram"], f"{prefix}-margins")
    return drawn


def _steps(steps: Sequence[Mapping[str, Any]], name: str) -> Chart:
    known = [
        (table, style, [(i, step) for i, step in enumerate(steps, 1) if step[table]["psi"] is not None])
        for table, style in (("classes", "due"), ("margins", "not-due"))
    ]
    most = max([2 * MOVED_PSI, *(step[table]["psi"] for table, _, of in known for _, step in of)])
    about = "PSI of each step of the window against the reference, for classes and for margins."
    axes = (
        Axis(0.5, len(steps) + 0.5, "step of the window, in the order of time"),
        Axis(0, most * 1.08, "PSI"),
    )
    chart = Chart(name, "When it moved", about, *axes)
    chart.line([(0.5, MOVED_PSI), (len(steps) + 0.5, MOVED_PSI)], "reference")
    for table, style, of in known:
        chart.line([(i, step[table]["psi"]) for i, step in of], style)
        for i, step in of:
            told = step[table]
            tip = (
                f"{table}, {step['from'][:16]} to {step['to'][:16]}\nPSI {told['psi']:.3f}: {told['verdict']}"
            )
            chart.dot((i, told["psi"]), style, tip, hollow=told["verdict"] == "steady")
    chart.legend([(table, style) for table, style, of in known if of])
    return chart


@dataclass(frozen=True, slots=True)
class _Named(Axis):
    """Names at whole numbers in place of values."""

    names: tuple[str, ...] = ()

    def ticks(self) -> list[float]:
        return [float(i) for i in range(len(self.names))]

    def tick(self, value: float) -> str:
        return self.names[round(value)]


def _classes(changes: Mapping[str, Mapping[str, Any]], name: str) -> Chart:
    about = "The share of each action class in the reference and in the window."
    axis = _Named(-0.5, len(changes) - 0.5, "action class", names=tuple(changes))
    chart = Chart(name, "Action classes", about, axis, Axis.rate("share of replies"))
    for i, (action, row) in enumerate(changes.items()):
        for end, low, style in (("before", -0.36, "plain"), ("after", 0.02, "due")):
            word = "reference" if end == "before" else "window"
            tip = f"{action}, {word}: {per_cent(row[end])}"
            chart.bar(i + low, i + low + 0.34, 0, row[end], style, tip)
    chart.legend([("reference", "plain"), ("window", "due")])
    return chart


@dataclass(frozen=True, slots=True)
class _BothSides(Axis):
    """Shares to both sides of 0."""

    def tick(self, value: float) -> str:
        return f"{100 * abs(value):.0f} %"


def _margins(histogram: Mapping[str, Sequence[int]], name: str) -> Chart:
    edges = (EDGES[0] - 2, *EDGES, EDGES[-1] + 2)
    widths = [high - low for low, high in pairwise(edges)]
    sides = {
        end: [count / sum(counts) / width for count, width in zip(counts, widths, strict=True)]
        for end, counts in histogram.items()
    }
    most = max(share for shares in sides.values() for share in shares) * 1.05
    about = "Shares of the margin's bins: the reference above, the window below."
    axes = (
        Axis(EDGES[0] - 2, EDGES[-1] + 2, "margin, nats"),
        _BothSides(-most, most, "share of replies read, per nat"),
    )
    chart = Chart(name, "Margins before any bias", about, *axes)
    for i, (low, high) in enumerate(pairwise(edges)):
        for end, sign, style in (("reference", 1, "plain"), ("current", -1, "due")):
            word = "reference" if end == "reference" else "window"
            share = sides[end][i] * widths[i]
            tip = f"{number(low)} to {number(high)}, {word}: {per_cent(share)}"
            chart.bar(low, high, 0, sign * sides[end][i], style, tip)
    chart.rules([(0.0, "even odds", "reference")])
    chart.legend([("reference (up)", "plain"), ("window (down)", "due")])
    return chart
