"""The charts of a replayed benchmark."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.report.charts import Axis, Chart, Rows
from bench.report.words import estimate_text

Json = Mapping[str, Any]

_ROW = 46
"""Pixels of a row."""
_APART = 0.13
"""How far a row's two marks are from its middle, of a row."""


class Pair(NamedTuple):
    """A row: an arm, or a category; its figures are estimates, None where they were not measured."""

    label: str
    gar: Json | None
    acc: Json | None


def recall(name: str, title: str, rows: Sequence[Pair]) -> Chart:
    """Recall of the gold class and accuracy, one row each, with 95 % intervals."""
    chart = Chart(
        name,
        title,
        "Filled: gold action recall; hollow: the benchmark's own accuracy; lines are 95 % intervals.",
        Axis.rate("share of cases"),
        Rows(0, len(rows), "● GAR   ○ Acc"),
        height=_ROW * len(rows) + 92,
    )
    for place, row in enumerate(rows):
        y = len(rows) - place - 0.72
        chart.text(8, chart.py(y + _APART) - 10, row.label, "reference")
        _mark(chart, y + _APART, row.gar, f"{row.label}: GAR", "accent", hollow=False)
        _mark(chart, y - _APART, row.acc, f"{row.label}: Acc", "accent", hollow=True)
    return chart


def _mark(chart: Chart, y: float, figure: Json | None, name: str, style: str, *, hollow: bool) -> None:
    if figure is None or figure["estimate"] is None:
        return
    if figure["low"] is not None:
        chart.reach(y, figure["low"], figure["high"], style)
    tip = f"{name} {figure['hits']}/{figure['of']}\n{estimate_text(figure)}"
    chart.dot((figure["estimate"], y), style, tip, hollow=hollow)
