"""The charts of a comparison, from its result alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2
from typing import Any

from bench.report.charts import Axis, Chart, Rows
from bench.report.words import NAMES, arm_name, change_text, estimate_text, number, per_cent

Result = Mapping[str, Any]
Json = Mapping[str, Any]

COLOURS = 8
"""Styles `run-1` to `run-8`; the next eight runs are drawn thin."""
_ROW = 42
"""Pixels of a forest's row."""
_STYLES = {"over_calling": "not-due", "call_recall": "due", "gar": "accent", "acc": "due"}


def charts(result: Result) -> dict[str, Chart]:
    """All charts by name: a forest of each part's claims; of decisions the plane and the cost curves too."""
    parts = dict.fromkeys(claim["part"] for claim in result["claims"] if claim["test"])
    drawn = [forest(result, part) for part in parts]
    if result["kind"] == "decisions" and result["costs"]["risk"]:
        drawn = [*drawn, _plane(result), _costs(result)]
    return {chart.name: chart for chart in drawn}


def forest_name(part: str) -> str:
    """The name of a part's forest plot."""
    return f"forest-{part.replace(' ', '-')}"


def styles(result: Result) -> dict[str, str]:
    """The colour of each run, and a thinner line once all were taken."""
    runs = list(dict.fromkeys(system["run"] for system in result["systems"]))
    return {
        run: f"run-{place % COLOURS + 1}" + " thin" * (place >= COLOURS) for place, run in enumerate(runs)
    }


def _names(colours: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(f"{'—' if 'thin' in style else '━'} {run}", style) for run, style in colours.items()]


def letters(rows: Sequence[Json]) -> dict[int, str]:
    """The letters of published rows in the plane, by the row's place: first-token ones with both rates."""
    both = [
        place
        for place, row in enumerate(rows)
        if row["part"] == "first token" and row["call_recall"] is not None
    ]
    return {place: chr(ord("A") + i) for i, place in enumerate(both)}


@dataclass(frozen=True, slots=True)
class _Points(Axis):
    """Differences in points."""

    def tick(self, value: float) -> str:
        """With its sign."""
        return f"{100 * value:+.3g}".replace("-", "−") if round(value, 9) else "0"


def forest(result: Result, part: str) -> Chart:
    """Paired differences of a part with their intervals, one row each, and the noise floor around 0."""
    claims = [claim for claim in result["claims"] if claim["part"] == part and claim["test"]]
    limits = [
        limit
        for claim in claims
        for limit in (claim["estimate"], claim["low"], claim["high"], *_floor_limits(claim))
        if limit is not None
    ]
    low, high = min(*limits, -0.01), max(*limits, 0.01)
    edge = 0.06 * (high - low)
    about = (
        f"Paired differences against {result['baseline']} with 95 % intervals, {part}; the grey band is the "
        "noise floor."
    )
    chart = Chart(
        forest_name(part),
        f"Change against {arm_name(result['baseline'])}, {part.replace('_', ' ')}",
        about,
        _Points(low - edge, high + edge, "change, points"),
        Rows(0, len(claims), ""),
        height=_ROW * len(claims) + 86,
    )
    for row, claim in enumerate(claims):
        _row(chart, claim, len(claims) - row - 0.78, _STYLES.get(claim["figure"], "accent"))
    chart.rules([(0.0, "no change", "reference")])
    return chart


def _row(chart: Chart, claim: Json, y: float, style: str) -> None:
    for reach in _floor_limits(claim):
        chart.bar(min(0.0, reach), max(0.0, reach), y - 0.2, y + 0.2, "floor", _floor_tip(claim))
    if claim["low"] is not None:
        chart.reach(y, claim["low"], claim["high"], style)
    name = f"{arm_name(claim['system'])}: {NAMES[claim['figure']].lower()}"
    chart.dot((claim["estimate"], y), style, f"{name}\n{change_text(claim)} points")
    chart.text(8, chart.py(y) - 11, name, style)


def _floor_limits(claim: Json) -> tuple[float, ...]:
    if not claim["floor"] or not claim["floor"]["estimate"]:
        return ()
    return -claim["floor"]["estimate"], claim["floor"]["estimate"]


def _floor_tip(claim: Json) -> str:
    return f"noise floor {estimate_text(claim['floor'])}"


def _plane(result: Result) -> Chart:
    """Call recall over respond recall: each run's curve over the bias, its systems, and published points."""
    rows, marks = result["published"], letters(result["published"])
    placed = {
        name: _point(own) for name, own in result["first_token"].items() if name in result["costs"]["risk"]
    }
    points = [*placed.values(), *(_published_point(rows[place]) for place in marks)]
    x, y = (
        Axis(*_window([point[axis] for point in points]), label, percent=True)
        for axis, label in enumerate(("respond recall (1 − over-calling)", "call recall"))
    )
    about = (
        "Each line is a checkpoint under all biases; dots are its systems, hollow at b = 0; lettered circles "
        "are published points of other checkpoints on other cases."
    )
    chart = Chart("plane", "Restraint and recall, first token", about, x, y)
    colours = styles(result)
    for run, own in result["runs"].items():
        pairs = zip(*(own["curve"][name] for name in ("over_calling", "call_recall")), strict=True)
        line = [(1 - over, recall) for over, recall in pairs if None not in (over, recall)]
        chart.line([(a, b) for a, b in line if x.low <= a <= x.high and y.low <= b <= y.high], colours[run])
    for place, letter in marks.items():
        row = rows[place]
        told = f"{row['name']}\nfrom {row['from']}: {row['cite']}"
        told += f"\nover-calling {per_cent(row['over_calling'])}, call recall {per_cent(row['call_recall'])}"
        chart.dot(_published_point(row), "paper", told)
        chart.label(_published_point(row), letter, "reference", dx=7, dy=-3)
    for system in result["systems"]:
        if system["name"] in placed:
            own = result["first_token"][system["name"]]
            tip = f"{arm_name(system['name'])}\nover-calling {estimate_text(own['over_calling'])}"
            tip += f"\ncall recall {estimate_text(own['call_recall'])}"
            chart.dot(placed[system["name"]], colours[system["run"]], tip, hollow=system["bias"] == 0)
    chart.key(_names(colours))
    key = ["○ b = 0   ● chosen b, b(x)", *(["A, B … from the paper"] if marks else [])]
    chart.key([(text, "reference") for text in key])
    return chart


def _point(own: Json) -> tuple[float, float]:
    return 1 - own["over_calling"]["estimate"], own["call_recall"]["estimate"]


def _published_point(row: Json) -> tuple[float, float]:
    return 1 - row["over_calling"], row["call_recall"]


def _window(values: Sequence[float]) -> tuple[float, float]:
    """The tenths around the values, with some room."""
    return max(0.0, floor(10 * min(values) - 0.5) / 10), min(1.0, ceil(10 * max(values) + 0.2) / 10)


@dataclass(frozen=True, slots=True)
class _Doublings(Axis):
    """A logarithmic axis: values are powers of 2."""

    def ticks(self) -> list[float]:
        """Every doubling."""
        return [self.low + i for i in range(round(self.high - self.low) + 1)]

    def tick(self, value: float) -> str:
        """The number itself."""
        return f"{2**value:g}"


def _costs(result: Result) -> Chart:
    """R(rho) of each system over what an over-call costs."""
    at, curves = [log2(rho) for rho in result["costs"]["rho"]], result["costs"]["risk"]
    about = "Cost-aware risk over the price of an over-call in missed calls; dashed at b = 0, dotted at b(x)."
    most = max(max(curve) for curve in curves.values()) or 1.0
    chart = Chart(
        "costs",
        "Cost-aware risk, first token",
        about,
        _Doublings(at[0], at[-1], "ρ: missed calls that an over-call costs"),
        Axis(0.0, most, "R(ρ), less is better"),
    )
    colours = styles(result)
    for system in result["systems"]:
        if system["name"] in curves:
            how = {0.0: " dashed", None: " dotted"}.get(system["bias"], "")
            chart.line(list(zip(at, curves[system["name"]], strict=True)), colours[system["run"]] + how)
    chart.key(_names(colours))
    chart.key([(text, "reference") for text in ("╌╌ b = 0", "—— chosen b", "···· b(x)")])
    tips = []
    for i, step in enumerate(at):
        told = [
            f"ρ = {number(2**step)}",
            *(f"{arm_name(name)} {number(curve[i])}" for name, curve in curves.items()),
        ]
        tips.append((step, "\n".join(told)))
    chart.tips(tips)
    return chart
