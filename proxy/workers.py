"""Several processes that serve one socket: started, replaced when they end, drained and reloaded together.

They are forked from one parent that serves nothing. What they have in common lies in a private folder: the
counters (metrics.py) and what each publishes on the `Board`.
"""

import json
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

logger = logging.getLogger("seam")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_LIVED_SECONDS = 10.0
"""A worker that ends sooner is replaced later and later."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_GRACE_SECONDS = 20.0
"""How much longer than the drain a worker may take before it is killed."""


class Board:
    """Where workers show each other JSON: each writes its own sheets, all may read them."""

    def __init__(self, folder: Path, slot: int, count: int) -> None:
        self._folder, self._slot, self._count = folder, slot, count

    def publish(self, name: str, value: Any) -> None:
        """Put a sheet in the place of the one before, whole at every moment."""
        draft = self._sheet(name, self._slot).with_suffix(".draft")
        draft.write_text(json.dumps(value), "utf-8")
        draft.replace(self._sheet(name, self._slot))

    def own(self, name: str) -> Any:
        """This worker's sheet, or its predecessor's; None where there is none."""
        return self._read(name, self._slot)

    def others(self, name: str) -> list[Any]:
        """The sheets of the other workers that have one."""
        found = (self._read(name, slot) for slot in range(self._count) if slot != self._slot)
        return [sheet for sheet in found if sheet is not None]

    def _sheet(self, name: str, slot: int) -> Path:
        return self._folder / f"{name}_{slot}.json"

    def _read(self, name: str, slot: int) -> Any:
        try:
            return json.loads(self._sheet(name, slot).read_bytes())
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several processes.

    Attributes:
        slot: its place, which its replacement takes over; from 0.
        count: how many there are.
        folder: what they have in common; private to them.
        lifeline: a descriptor that ends when the parent does.
    """

    slot: int
    count: int
    folder: Path
    lifeline: int

    @property
    def board(self) -> Board:
        """Where it shows things to the others."""
        return Board(self.folder, self.slot, self.count)


@dataclass(slots=True)
class _Place:
    """A worker's place: who has it, since when, and when it is to be filled again."""

    slot: int
    pid: int | None = None
    since: float = 0.0
    due: float = 0.0
    pause: float = 0.0


@dataclass
class Crew:
    """The parent of the workers.

    Attributes:
        work: what a worker does until it is told to stop.
        ready: called once, when signals are heeded.
        drain_seconds: how long they may take to stop.
    """

    count: int
    folder: Path
    work: Callable[[Worker], None]
    ready: Callable[[], None]
    drain_seconds: float
    _places: list[_Place] = field(default_factory=list)
    _kill_at: float | None = None

    def run(self) -> None:
        """Start all, keep them running, and return when all have ended after a signal."""
        self._places = [_Place(slot) for slot in range(self.count)]
        self._alive, self._lifeline = os.pipe()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for handled in _SIGNALS:
            signal.signal(handled, lambda *_: None)  # what it is, the wakeup descriptor tells
        self.ready()
        while self._kill_at is None or any(place.pid for place in self._places):
            self._fill()
            for number in self._signals():
                self._pass_on(number)
            self._reap()

    def _signals(self) -> Iterable[int]:
        """The signals that have come, at the latest when something else is due."""
        now = time.monotonic()
        due = [place.due for place in self._places if place.pid is None and self._kill_at is None]
        due += [self._kill_at] if self._kill_at is not None else []
        select.select([self._woken], [], [], max(0.0, min(due) - now) if due else None)
        try:
            return list(self._woken.recv(1000))
        except BlockingIOError:
            return []

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._tell(signal.SIGHUP)
        elif number in (signal.SIGTERM, signal.SIGINT):
            # The second one breaks off what is open, as in a single process.
            self._kill_at = self._kill_at or time.monotonic() + self.drain_seconds + _GRACE_SECONDS
            self._tell(signal.SIGTERM)

    def _tell(self, number: int) -> None:
        for place in self._places:
            if place.pid is not None:
                os.kill(place.pid, number)

    def _fill(self) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            for place in self._places:
                if place.pid is None and place.due <= now:
                    place.pid, place.since = self._forked(place.slot), now
        elif now >= self._kill_at:
            self._tell(signal.SIGKILL)
            self._kill_at = now + _GRACE_SECONDS

    def _forked(self, slot: int) -> int:
        # Until the child has handlers of its own, a signal must not run the parent's in it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            self._serve(slot)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return pid

    def _serve(self, slot: int) -> None:
        """What a child does; it never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            self._woken.close()
            self._waker.close()
            os.close(self._lifeline)
            os.setpgid(0, 0)  # the terminal's Ctrl-C is the parent's to pass on
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self.work(Worker(slot, self.count, self.folder, self._alive))
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            logger.exception("worker %d: this is a fault of Seam's", slot)
        finally:
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if place.pid is None:
                continue
            pid, status = os.waitpid(place.pid, os.WNOHANG)
            if pid == 0:
                continue
            place.pid = None
            # What it had in flight is lost with it, and counts no more.
            (self.folder / f"gauge_livesum_{place.slot}.db").unlink(missing_ok=True)
            if self._kill_at is not None:
                continue
            soon = now - place.since < _LIVED_SECONDS
            place.pause = min(_LONGEST_PAUSE, place.pause * 2 or _FIRST_PAUSE) if soon else 0.0
            place.due = now + place.pause
            when = f"in {place.pause:g} s" if place.pause else "now"
            logger.error(
                "worker %d (process %d) %s; its open requests are lost, another starts %s",
                place.slot,
                pid,
                _ended(status),
                when,
            )


def _ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with code {os.waitstatus_to_exitcode(status)}"
