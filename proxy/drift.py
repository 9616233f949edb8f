"""Drift while it runs: the last replies of each model and profile against a reference.

Each proxy compares the replies that it served itself, its workers' together, when it is scraped: the part
of the traffic that a load balancer hands to it looks like all of it, in fewer replies. Pinned references lie
in a file that the proxies of a host have in common: the first to fill a window pins it for all. What is
pinned survives a restart, the sliding windows do not.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prometheus_client import Gauge
from pydantic import ValidationError

from calibrators.drift import Seen, Table, Window, compare, shift
from proxy.config import Drift, Section, explain
from proxy.files import locked
from proxy.metrics import Metrics
from proxy.profiles import Profile, Reference
from proxy.workers import Board

logger = logging.getLogger("seam")


class Series(NamedTuple):
    """Whose replies make one window: labels of the metrics."""

    model: str
    profile: str


class Pin(Section):
    """One pinned window."""

    model: str
    profile: str
    reference: Reference


class Pins(Section):
    """The content of the file."""

    version: Literal[1] = 1
    pins: tuple[Pin, ...] = ()


class PinFile:
    """The pinned windows of a host; a file that was changed or removed from outside is heeded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pins: Mapping[Series, Reference] = {}
        self._read: tuple[int, int] | None = None
        self._sound = True
        self._told = ""

    def pins(self) -> Mapping[Series, Reference]:
        """What is pinned now; where the file can't be read, what was known before."""
        try:
            state = self._state()
            if state != self._read:
                self._read, self._sound = state, False
                self._pins = self._parsed() if state else {}
                self._sound, self._told = True, ""
        except OSError as error:
            self._tell(str(error.strerror))
        except (ValidationError, UnicodeDecodeError) as error:
            fault = explain(error, Pins) if isinstance(error, ValidationError) else "no text"
            self._tell(f"{fault}; mend or remove it")
        return self._pins

    def pin(self, series: Series, window: Window) -> None:
        """Pin a window, unless another process did so meanwhile.

        Where the file can't be written, the window is pinned for this process alone.
        """
        words = f"pinned at {datetime.now(UTC).isoformat(timespec='seconds')}"
        new = {series: Reference.of(window, words)}
        try:
            with locked(self._path.parent):
                self._pins = {**new, **self.pins()}
                if self._sound:
                    self._write()
        except OSError as error:
            self._pins = {**new, **self._pins}
            self._tell(f"{error.strerror}; what is pinned now ends with this process")

    def _state(self) -> tuple[int, int] | None:
        """What tells one content of the file from the next; None where there is no file."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _parsed(self) -> Mapping[Series, Reference]:
        content = Pins.model_validate_json(self._path.read_text("utf-8"))
        return {Series(pin.model, pin.profile): pin.reference for pin in content.pins}

    def _write(self) -> None:
        pins = tuple(Pin(**series._asdict(), reference=own) for series, own in self._pins.items())
        draft = self._path.with_name(f".{self._path.name}.draft")
        draft.write_text(Pins(pins=pins).model_dump_json(indent=1) + "\n", "utf-8")
        draft.replace(self._path)
        self._read = self._state()

    def _tell(self, fault: str) -> None:
        if fault != self._told:  # once per fault, not at every scrape
            logger.error("drift: %s: %s", self._path, fault)
        self._told = fault


class Stamped(NamedTuple):
    """A reply and when it ended, in seconds since 1970: what orders the replies of several workers."""

    at: float
    seen: Seen


class DriftWindows:
    """The last replies of each model and profile, as many as a window has, those of all workers together.

    Args:
        board: where several workers show each other theirs; None for a single process.
    """

    def __init__(self, settings: Drift, board: Board | None = None) -> None:
        self._settings = settings
        self._file = PinFile(settings.path)
        self._board = board
        self._recent: dict[Series, deque[Stamped]] = {}
        self._changed: set[Series] = set()
        self._counted: dict[Series, Window] = {}
        self._begun: dict[Series, float] = {}
        """When the window began that shares no reply with the pinned one."""
        if board is not None and (sheet := board.own(_SHEET)) is not None:
            self._recent = {series: self._bounded(rows) for series, rows in _rows(sheet)}
            self._begun = _begun(sheet)

    def add(self, model: str, profile: str, seen: Seen) -> None:
        """Take one reply; nothing is computed before the next scrape."""
        if self._settings.reference == "off":
            return
        series = Series(model, profile)
        recent = self._recent.get(series)
        if recent is None:
            recent = self._recent[series] = self._bounded()
        recent.append(Stamped(time.time(), seen))
        self._changed.add(series)

    def publish(self) -> None:
        """Show the other workers what has changed since the last time."""
        if self._board is None or not self._changed:
            return
        self._changed.clear()
        rows = [[*series, [[at, *seen] for at, seen in kept]] for series, kept in self._recent.items()]
        begun = [[*series, at] for series, at in self._begun.items()]
        self._board.publish(_SHEET, {"recent": rows, "begun": begun})

    def show(self, metrics: Metrics, profiles: Mapping[str, Profile]) -> None:
        """Compare every window with its reference, and set the gauges; what has no number has no sample."""
        if self._board is not None:
            self._counted = {s: Window.of(r.seen for r in rows) for s, rows in self._joined().items()}
        else:
            for series in self._changed:
                self._counted[series] = Window.of(r.seen for r in self._recent[series])
            self._changed.clear()
        for gauge in (metrics.action_drift, metrics.margin_drift, metrics.action_reference):
            gauge.clear()
        references = self._references(profiles)
        for series, current in self._counted.items():
            if reference := references.get(series):
                _show(metrics, series, reference, current, self._settings.minimum)

    def _bounded(self, rows: Sequence[Stamped] = ()) -> deque[Stamped]:
        return deque(rows, maxlen=self._settings.window)

    def _joined(self) -> Mapping[Series, Sequence[Stamped]]:
        """The last replies of all workers."""
        assert self._board is not None
        together: dict[Series, list[Stamped]] = {s: list(rows) for s, rows in self._recent.items()}
        for sheet in self._board.others(_SHEET):
            for series, rows in _rows(sheet):
                together.setdefault(series, []).extend(rows)
            for series, at in _begun(sheet).items():
                self._begun[series] = max(at, self._begun.get(series, 0.0))
        return {
            series: sorted((r for r in rows if r.at > self._begun.get(series, 0.0)), key=lambda r: r.at)[
                -self._settings.window :
            ]
            for series, rows in together.items()
        }

    def _references(self, profiles: Mapping[str, Profile]) -> Mapping[Series, Window]:
        if self._settings.reference == "profile":
            named = ((series, profiles.get(series.profile)) for series in self._counted)
            return {s: p.reference.value for s, p in named if p is not None and p.reference is not None}
        pins = self._file.pins()
        for series in self._counted.keys() - pins.keys():
            if self._counted[series].classes.n == self._settings.window:
                self._file.pin(series, self._counted.pop(series))
                # What is compared from now on shares no reply with what it is compared with.
                self._begun[series] = time.time()
                self._recent[series] = self._bounded()
                self._changed.add(series)
                self.publish()
        return {series: reference.value for series, reference in self._file.pins().items()}


_SHEET = "drift"
"""The sheet's name on the board."""


def _rows(sheet: Mapping[str, Any]) -> Iterable[tuple[Series, list[Stamped]]]:
    for model, profile, rows in sheet["recent"]:
        yield Series(model, profile), [Stamped(at, Seen(*seen)) for at, *seen in rows]


def _begun(sheet: Mapping[str, Any]) -> dict[Series, float]:
    return {Series(model, profile): at for model, profile, at in sheet["begun"]}


def _show(metrics: Metrics, series: Series, reference: Window, current: Window, minimum: int) -> None:
    _set(metrics.action_drift, series, statistics(reference.classes, current.classes, minimum))
    _set(metrics.margin_drift, series, statistics(reference.margins, current.margins, minimum))
    _set(metrics.action_reference, series, reference.classes.totals)


def _set(gauge: Gauge, series: Series, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        gauge.labels(*series, name).set(value)


def statistics(reference: Table, current: Table, minimum: int) -> Mapping[str, float]:
    """What is known of two tables, by the label `statistic`."""
    drift = compare(reference, current, minimum)
    found = {name: value for name, value in drift._asdict().items() if value is not None}
    if found and current.ordered:
        found["shift"], found["shift_same_mix"] = shift(reference, current)
    return found
