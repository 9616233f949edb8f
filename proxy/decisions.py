"""The decision log: one record a reply, written by a thread that no reply waits for."""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proxy.config import Decisions
from proxy.files import locked

Record = Mapping[str, Any]
SCHEMA = 1
"""The version of a record's fields (docs/decision-log.md)."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_BATCH = 1000
_PAUSE_SECONDS = 0.05

logger = logging.getLogger("seam")


class DecisionLog:
    """Appends records as JSON lines, rotates by size, and drops rather than waits.

    Args:
        settings: where and how much.
        dropped: called once for every record that could not be kept.
    """

    def __init__(self, settings: Decisions, dropped: Callable[[], None]) -> None:
        self._settings = settings
        self._dropped = dropped
        self._waiting: deque[Record] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="decision-log", daemon=True)
        self._complained = False

    def start(self) -> None:
        """Start the writer."""
        self._thread.start()

    def put(self, record: Record) -> None:
        """Take a record, never blocking; where too many wait, it is dropped."""
        if len(self._waiting) < self._settings.queue:
            self._waiting.append(record)
        else:
            self._dropped()

    def close(self) -> None:
        """Write what waits and stop."""
        self._closing.set()
        self._thread.join()

    def _write_all(self) -> None:
        # By the clock, not by a signal for each record: waking a thread costs a reply more than that.
        closing = False
        while not closing:
            closing = self._closing.wait(_PAUSE_SECONDS)
            while self._waiting:
                self._write([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))])

    def _write(self, batch: list[Record]) -> None:
        lines = [_encode(record) + "\n" for record in batch]
        try:
            self._rotate()
            # One append of whole lines: a reader, or a second process, never sees half a record.
            with Path(self._settings.path).open("ab") as file:
                file.write("".join(lines).encode("utf-8", "replace"))
            self._complained = False
        except OSError as error:
            for _ in batch:
                self._dropped()
            if not self._complained:  # once per fault, or a full disk fills the program log too
                logger.error("decision log %s: %s; records are dropped", self._settings.path, error.strerror)
            self._complained = True

    def _rotate(self) -> None:
        path = Path(self._settings.path)
        if not self._full(path):
            return
        with locked(path.parent):
            if self._full(path):  # still: another process may have been first
                self._move(path)

    def _full(self, path: Path) -> bool:
        try:
            return path.stat().st_size >= self._settings.max_bytes
        except FileNotFoundError:
            return False

    def _move(self, path: Path) -> None:
        for number in range(self._settings.keep - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        path.replace(path.with_name(f"{path.name}.1"))
