"""Charts as SVG, drawn by hand: crisp at any size, light and dark by CSS, no library.

Colours are near Okabe and Ito's, which colour-blind readers tell apart; marks are labelled where they stand;
every chart has a title and a description for readers who do not see it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import floor, log10
from typing import Self

WIDTH, HEIGHT = 460, 330
_LETTER = 8.0
"""Width of a label's letter, on the safe side."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 20, 42, 44
_LINE = 17
"""Pixels of a legend's line."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear scale from values to pixels.

    Attributes:
        low, high: the values at its ends.
        label: what it shows, with the unit.
        percent: whether ticks are rates.
    """

    low: float
    high: float
    label: str
    percent: bool = False

    @classmethod
    def rate(cls, label: str) -> Self:
        """From 0 to 100 %."""
        return cls(0.0, 1.0, label, percent=True)

    def ticks(self) -> list[float]:
        """About five round values."""
        if self.percent and (self.low, self.high) == (0, 1):
            return [0, 0.25, 0.5, 0.75, 1]
        raw = (self.high - self.low) / 5
        power = 10 ** floor(log10(raw))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
        first = -(-self.low // step)
        count = int((self.high - first * step) / step + 1e-9) + 1
        return [(first + i) * step for i in range(count)]

    def tick(self, value: float) -> str:
        """A tick's text."""
        text = f"{100 * value:.0f} %" if self.percent else f"{round(value, 6):g}"
        return text.replace("-", "−")


class Rows(Axis):
    """Rows from the top, without ticks."""

    def ticks(self) -> list[float]:
        """None: rows carry their labels."""
        return []


@dataclass(slots=True)
class Chart:
    """A chart being drawn; `svg` gives it.

    Attributes:
        name: of its files, and prefix of its ids.
        title: what it shows.
        about: what a reader who does not see it should know.
        height: in pixels without its key, as drawn; its width is always the same.
    """

    name: str
    title: str
    about: str
    x: Axis
    y: Axis
    height: int = HEIGHT
    _marks: list[str] = field(default_factory=list)
    _key_lines: int = 0

    def px(self, x: float) -> float:
        """Pixel of an x value, within the frame."""
        share = (min(max(x, self.x.low), self.x.high) - self.x.low) / (self.x.high - self.x.low)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 2)

    def py(self, y: float) -> float:
        """Pixel of a y value, within the frame."""
        share = (min(max(y, self.y.low), self.y.high) - self.y.low) / (self.y.high - self.y.low)
        return round(self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM), 2)

    def line(self, points: Sequence[Point], style: str) -> None:
        """A line through points; style: `due`, `not-due`, `plain` or `reference`."""
        self._marks.append(f'<polyline class="line {style}" points="{self._path(points)}"/>')

    def band(self, points: Sequence[tuple[float, float | None, float | None]], style: str) -> None:
        """The area between lower and upper limits (x, low, high), where there are limits."""
        known = [(x, low, high) for x, low, high in points if low is not None and high is not None]
        if known:
            outline = [(x, low) for x, low, _ in known] + [(x, high) for x, _, high in reversed(known)]
            self._marks.append(f'<polygon class="band {style}" points="{self._path(outline)}"/>')

    def dot(self, point: Point, style: str, tip: str, hollow: bool = False) -> None:
        """A point that tells `tip` when pointed at."""
        x, y = self.px(point[0]), self.py(point[1])
        kind = "dot hollow" if hollow else "dot"
        told = f'data-tip="{escape(tip)}"'
        self._marks.append(f'<circle class="{kind} {style}" cx="{x}" cy="{y}" r="4.5" {told}/>')

    def whisker(self, x: float, low: float, high: float, style: str) -> None:
        """An interval at an x value."""
        at = self.px(x)
        self._marks.append(
            f'<line class="whisker {style}" x1="{at}" x2="{at}" y1="{self.py(low)}" y2="{self.py(high)}"/>'
        )

    def reach(self, y: float, low: float, high: float, style: str) -> None:
        """An interval of x values at a y value."""
        at = self.py(y)
        self._marks.append(
            f'<line class="whisker {style}" x1="{self.px(low)}" x2="{self.px(high)}" y1="{at}" y2="{at}"/>'
        )

    def bar(self, low: float, high: float, base: float, top: float, style: str, tip: str) -> None:
        """A bar over [low, high] from `base` to `top`."""
        x, width = self.px(low), self.px(high) - self.px(low)
        y, height = sorted((self.py(base), self.py(top)))
        self._marks.append(
            f'<rect class="bar {style}" x="{x}" y="{y}" width="{max(0.5, width - 0.7):.2f}" '
            f'height="{height - y:.2f}" data-tip="{escape(tip)}"/>'
        )

    def rules(self, rules: Sequence[tuple[float, str, str]]) -> None:
        """Vertical lines (x, label, style) with their labels above the frame, apart from each other."""
        placed = sorted((self.px(x), label, style) for x, label, style in rules)
        for number, (at, label, style) in enumerate(placed):
            self._marks.append(
                f'<line class="rule {style}" x1="{at}" x2="{at}" y1="{_TOP}" y2="{self.height - _BOTTOM}"/>'
            )
            near = len(placed) > 1 and placed[1][0] - placed[0][0] < 90
            side = ("end", "start")[number] if near else "middle"
            # As much room as the label takes on either side of its anchor.
            right = _LETTER * len(label) * {"end": 0, "middle": 0.5, "start": 1}[side]
            left = _LETTER * len(label) - right
            self.text(min(max(at, left), WIDTH - right), _TOP - 7, label, style, side)

    def diagonal(self) -> None:
        """The line of equal values."""
        self.line([(self.x.low, self.y.low), (self.x.high, self.y.high)], "reference")

    def label(self, point: Point, text: str, style: str, dx: float = 8, dy: float = 4) -> None:
        """A text beside a point, kept inside the frame."""
        x = self.px(point[0]) + dx
        side = "start" if dx >= 0 else "end"
        width = _LETTER * len(text)
        if side == "start" and x + width > WIDTH - 2:
            side, x = "end", self.px(point[0]) - abs(dx)
        elif side == "end" and x - width < _LEFT:
            side, x = "start", self.px(point[0]) + abs(dx)
        y = min(max(self.py(point[1]) + dy, _TOP + 11), self.height - _BOTTOM - 5)
        self.text(x, y, text, style, side)

    def text(self, x: float, y: float, text: str, style: str, side: str = "start") -> None:
        """A text at pixels."""
        self._marks.append(
            f'<text class="label {style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{side}">{escape(text)}</text>'
        )

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Texts (text, style) in the upper left corner, where marks are too dense for their own."""
        for number, (text, style) in enumerate(entries):
            self.text(_LEFT + 10, _TOP + _LINE + _LINE * number, text, style)

    def key(self, entries: Sequence[tuple[str, str]]) -> None:
        """Texts (text, style) in columns below the frame, where there are too many for it."""
        longest = max(len(text) for text, _ in entries)
        columns = min(3, max(1, int((WIDTH - _RIGHT) / (_LETTER * longest))), len(entries))
        lines = -(-len(entries) // columns)
        for number, (text, style) in enumerate(entries):
            column, line = divmod(number, lines)
            x = 8 + column * (WIDTH - 8) / columns
            self.text(x, self.height + _LINE * (self._key_lines + line + 1), text, style)
        self._key_lines += lines

    def tips(self, tips: Sequence[tuple[float, str]]) -> None:
        """What a reader who points anywhere at an x value is told."""
        edges = [self.px(x) for x, _ in tips]
        for i, (_, tip) in enumerate(tips):
            low = _LEFT if i == 0 else (edges[i - 1] + edges[i]) / 2
            high = WIDTH - _RIGHT if i == len(tips) - 1 else (edges[i] + edges[i + 1]) / 2
            self._marks.append(
                f'<rect class="hit" x="{low:.2f}" y="{_TOP}" width="{max(0, high - low):.2f}" '
                f'height="{self.height - _TOP - _BOTTOM}" data-tip="{escape(tip)}"/>'
            )

    def svg(self, style: str = "") -> str:
        """The chart; `style` is CSS for a file of its own, none inside a page that has it."""
        height = self.height + (_LINE * self._key_lines + 8 if self._key_lines else 0)
        # A file of its own lies on paper, since it may be shown on a dark page.
        paper = f'<style>{style}</style><rect class="paper" width="{WIDTH}" height="{height}"/>'
        css = paper if style else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}" '
            f'role="img" aria-labelledby="{self.name}-title {self.name}-about">'
            f'<title id="{self.name}-title">{escape(self.title)}</title>'
            f'<desc id="{self.name}-about">{escape(self.about)}</desc>{css}'
            f"{self._frame()}{''.join(self._marks)}</svg>"
        )

    def _frame(self) -> str:
        bottom, right = self.height - _BOTTOM, WIDTH - _RIGHT
        parts = []
        for value in self.y.ticks():
            y, text = self.py(value), self.y.tick(value)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{text}</text>')
        for value in self.x.ticks():
            x, text = self.px(value), self.x.tick(value)
            parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>')
            parts.append(f'<text class="tick" x="{x}" y="{bottom + 17}" text-anchor="middle">{text}</text>')
        middle, label = (_LEFT + right) / 2, escape(self.x.label)
        parts.append(
            f'<text class="axis" x="{middle}" y="{self.height - 7}" text-anchor="middle">{label}</text>'
        )
        parts.append(f'<text class="axis" x="8" y="15">{escape(self.y.label)}</text>')
        return "".join(parts)

    def _path(self, points: Sequence[Point]) -> str:
        return " ".join(f"{self.px(x)},{self.py(y)}" for x, y in points)
