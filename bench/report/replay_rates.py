"""Rates and counts of a replayed benchmark as cells of a table."""

from collections.abc import Mapping
from html import escape
from typing import Any

from bench.report.page import cell
from bench.report.words import number, per_cent

Json = Mapping[str, Any]

COUNTS = ("planned", "run", "scored", "errored", "unmeasurable")
_FEW = 20


def counts(figures: Json) -> str:
    """The five counts behind a figure."""
    return " ".join(str(figures["counts"][name]) for name in COUNTS)


def rate(figures: Json, name: str) -> str:
    """A rate, below 20 cases the counts first (rigor.md 3); a dash with the reason where there is none."""
    figure = figures[name]
    if figure is None:
        return f'<span title="{escape(figures[f"{name}_reason"])}">–</span>'
    shown = cell(figure)
    return f"{figure['hits']}/{figure['of']} {shown}" if figure["of"] < _FEW else shown


def difference(figures: Json) -> str:
    """GAR - Acc with its interval, and whether it is masking."""
    shown = cell(figures["difference"], "points") if figures["difference"] else "–"
    return shown + ("<small>masking</small>" if figures["masking"] else "")


def crosstab(figures: Json) -> str:
    """Recalled and passed, recalled and failed, missed and passed, missed and failed."""
    return " ".join(map(str, figures["crosstab"].values())) if figures["crosstab"] else "–"


def loop(loops: Json, name: str) -> str:
    """A figure of what goes on inside a turn."""
    figure = loops.get(name)
    if figure is None or figure["estimate"] is None:
        return "–"
    if name == "calls_per_turn":
        return number(figure["estimate"])
    return f"{per_cent(figure['estimate'])}<small>{figure['hits']}/{figure['of']}</small>"
