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
    """A row: an arm, or a category, with two figures; None where they were not measured."""

    label: str
    filled: Json | None
    hollow: Json | None


def pairs(name: str, title: str, rows: Sequence[Pair], names: tuple[str, str] = ("GAR", "Acc")) -> Chart:
    """Two rates of each row, with 95 % intervals; names: what the filled and the hollow mark are."""
    filled, hollow = names
    chart = Chart(
        name,
        title,
        f"Filled: {filled}; hollow: {hollow}; lines are 95 % intervals.",
        Axis.rate("share of cases"),
        Rows(0, len(rows), f"● {filled}   ○ {hollow}"),
        height=_ROW * len(rows) + 92,
    )
    for place, row in enumerate(rows):
        y = len(rows) - place - 0.72
        chart.text(8, chart.py(y + _APART) - 10, row.label, "reference")
        _mark(chart, y + _APART, row.filled, f"{row.label}: {filled}", hollow=False)
        _mark(chart, y - _APART, row.hollow, f"{row.label}: {hollow}", hollow=True)
    return chart


def _mark(chart: Chart, y: float, figure: Json | None, name: str, *, hollow: bool) -> None:
    if figure is None or figure["estimate"] is None:
        return
    if figure["low"] is not None:
        chart.reach(y, figure["low"], figure["high"], "accent")
    tip = f"{name} {estimate_text(figure)}\nof {figure['n']}"
    chart.dot((figure["estimate"], y), "accent", tip, hollow=hollow)
