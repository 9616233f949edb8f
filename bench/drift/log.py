"""The replies of decision logs, as far as drift counts them, and how they are parted into two windows."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

from bench.errors import InputError
from bench.score.lines import Row, each_row
from calibrators.actions import Action
from calibrators.drift import NONE, Seen, kind_of

_MEND = "give a decision log of seam serve"
_CLASSES = frozenset((*Action, NONE))


class Logged(NamedTuple):
    """One reply of a log."""

    time: datetime
    model: str
    profile: str
    seen: Seen
    applied: str
    """What Seam did, in the words of X-Calibration-Applied."""


class Span(NamedTuple):
    """A stretch of time; an end that is None is open."""

    start: datetime | None
    end: datetime | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """`FROM..TO` in ISO 8601, either may be left out; without an offset UTC. Else ValueError."""
        start, dots, end = text.partition("..")
        if not dots or not (start or end):
            raise ValueError(f"{text!r} is no FROM..TO; write 2026-09-01..2026-09-08T12:00")
        return cls(_time(start) if start else None, _time(end) if end else None)

    def __contains__(self, time: object) -> bool:
        """Whether a time lies in it; its end does not."""
        assert isinstance(time, datetime)
        return (self.start is None or self.start <= time) and (self.end is None or time < self.end)


class Parts(NamedTuple):
    """The two windows."""

    reference: Sequence[Logged]
    current: Sequence[Logged]

    def filled(self) -> Self:
        """Themselves. Raises InputError where either holds no reply."""
        for name, part in zip(("reference", "window"), self, strict=True):
            if not part:
                raise InputError(
                    f"the {name} holds no reply", mend="give other times, or a log that holds some"
                )
        return self


def read(files: Iterable[Path], limit: int | None = None) -> list[Logged]:
    """The good replies of logs, in the order of time: those that the proxy counts.

    limit: at most so many records are read. Raises InputError for a line that is no record of a decision log.
    """
    found: list[Logged] = []
    count = 0
    for file in files:
        for number, row in enumerate(each_row(file, mend=_MEND), 1):
            count += 1
            if row is None or (limit is not None and count > limit):
                break
            reply = _logged(row, f"{file} record {number}")
            if reply is not None:
                found.append(reply)
    return sorted(found, key=lambda reply: reply.time)


def _logged(row: Row, where: str) -> Logged | None:
    if row.get("outcome") != "ok" or not isinstance(row.get("status"), int):
        if "outcome" not in row:
            raise InputError("has no outcome", where=where, mend=_MEND)
        return None
    if row["status"] >= 400:
        return None
    action = row.get("action") or NONE
    if action not in _CLASSES:
        raise InputError(f"action {action!r} is no action class", where=where, mend=_MEND)
    try:
        kind = kind_of(bool(row["tools"]), int(row["turn"]))
        margin = row.get("margin")
        seen = Seen(str(row["case_id"]), kind, action, None if margin is None else float(margin))
        return Logged(_time(row["time"]), row["model"] or "", row["profile"], seen, row.get("applied") or "")
    except KeyError as error:
        raise InputError(f"has no {error.args[0]}", where=where, mend=_MEND) from None
    except (TypeError, ValueError) as error:
        raise InputError(str(error), where=where, mend=_MEND) from None


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def parted(replies: Sequence[Logged], reference: Span | None, window: Span | None) -> Parts:
    """The replies of one log in two windows.

    Where only one is named, the other is what comes before it, or after. Where none is, the newer half of the
    replies is compared with the older. Raises InputError where the two overlap.
    """
    if reference is None and window is None:
        half = len(replies) // 2
        return Parts(replies[:half], replies[half:])
    before = reference or Span(None, window.start if window else None)
    after = window or Span(before.end, None)
    if before.end is None or after.start is None or before.end > after.start:
        raise InputError(
            "the two windows overlap",
            where="--reference, --window",
            mend="end the reference before the window starts: --reference ..TIME --window TIME..",
        )
    return Parts([r for r in replies if r.time in before], [r for r in replies if r.time in after])
