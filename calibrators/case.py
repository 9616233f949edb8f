"""What is remembered of a case between its requests: which probes acted, and the tools that it began with.

A mark counts only for requests that strictly extend the messages at which it was made: the same messages
again are a fresh attempt (calibration.md section 6). So two runs of one conversation, or two users with the
same first words, never see each other's marks.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, Self

from calibrators.request import Fields, canonical, messages_of, tool_names

MARKS_KEPT = 16
NAMES_KEPT = 16_384
"""Characters of tool names that are remembered of a case; of one that offers more the beginning is not."""
_VERSION = 1


class Point(NamedTuple):
    """A place in a conversation: how many messages it had, and their digest."""

    messages: int
    digest: str


class Mark(NamedTuple):
    """A probe acted here."""

    probe: str
    at: Point
    turn: int


class History:
    """A request's messages, whose beginnings can be recognised."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._messages = messages_of(fields)
        self._read = {0: hashlib.blake2b(digest_size=12)}

    @cached_property
    def tools(self) -> tuple[str, ...]:
        """The names of the offered tools."""
        return tuple(tool_names(self._fields))

    @property
    def start(self) -> str:
        """What stays the same while the conversation grows: up to and including its first user message."""
        first = (at for at, message in enumerate(self._messages, 1) if message.get("role") == "user")
        return self._digest(next(first, len(self._messages)))

    @property
    def turn(self) -> int:
        """User messages so far."""
        return sum(message.get("role") == "user" for message in self._messages)

    @property
    def point(self) -> Point:
        """Where this request stands."""
        return Point(len(self._messages), self._digest(len(self._messages)))

    def extends(self, point: Point) -> bool:
        """Whether it has the messages of `point` and more."""
        return 0 < point.messages < len(self._messages) and self._digest(point.messages) == point.digest

    def _digest(self, count: int) -> str:
        if count not in self._read:
            before = max(read for read in self._read if read < count)
            digest = self._read[before].copy()
            # Of the inside of a list, which is the same in whatever steps it is read; one by one costs twice.
            digest.update(canonical(self._messages[before:count])[1:-1].encode() + b",")
            self._read[count] = digest
        return self._read[count].hexdigest()


@dataclass(frozen=True, slots=True)
class Case:
    """The memory of one case.

    Attributes:
        began: where it was first seen.
        tools: the tools offered there.
        marks: where probes acted, newest last.
    """

    began: Point | None = None
    tools: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()

    def acted(self, probe: str, history: History) -> Literal["turn", "case"] | None:
        """Whether a probe has acted in this turn already, else in this case."""
        found: Literal["turn", "case"] | None = None
        for mark in self.marks:
            if mark.probe == probe and history.extends(mark.at):
                if mark.turn == history.turn:
                    return "turn"
                found = "case"
        return found

    def grown(self, history: History) -> bool:
        """Whether tools are offered that were not there when the case began."""
        return (
            self.began is not None and history.extends(self.began) and not {*history.tools} <= {*self.tools}
        )

    def seen(self, history: History) -> Self:
        """The memory with its beginning: this request, unless it goes on from one that is known."""
        if self.began is not None and history.extends(self.began):
            return self
        if self.began == history.point and self.tools == history.tools:
            return self
        if sum(map(len, history.tools)) > NAMES_KEPT:
            return self
        return replace(self, began=history.point, tools=history.tools)

    def marked(self, probes: Iterable[str], history: History) -> Self:
        """The memory after probes acted on this request."""
        new = tuple(Mark(probe, history.point, history.turn) for probe in probes)
        return replace(self, marks=(*self.marks, *new)[-MARKS_KEPT:]) if new else self

    def joined(self, other: Self) -> Self:
        """What either of two memories of a case holds."""
        if other in (self, NOTHING):
            return self
        start = self if self.began else other
        marks = tuple(dict.fromkeys((*other.marks, *self.marks)))[-MARKS_KEPT:]
        return replace(self, began=start.began, tools=start.tools, marks=marks)

    def dumps(self) -> str:
        """As JSON, for a store."""
        return json.dumps([_VERSION, self.began, self.tools, self.marks], separators=(",", ":"))

    @classmethod
    def loads(cls, text: str | bytes) -> Self:
        """From JSON; empty for anything that was not written by `dumps`."""
        try:
            version, began, tools, marks = json.loads(text)
            if version != _VERSION:
                return cls()
            return cls(
                _point(*began) if began else None,
                tuple(map(str, tools)),
                tuple(Mark(str(probe), _point(*at), int(turn)) for probe, at, turn in marks),
            )
        except (ValueError, TypeError, OverflowError, RecursionError):
            return cls()


def _point(messages: object, digest: object) -> Point:
    if not isinstance(messages, int):
        raise TypeError
    return Point(messages, str(digest))


def key_of(history: History, case_id: str | None) -> str:
    """Under what a case is remembered: the client's id for it, else the conversation's first words."""
    if not case_id:
        return history.start
    return "id:" + hashlib.blake2b(case_id.encode(), digest_size=12).hexdigest()  # however long it is


NOTHING = Case()
"""Of a case that nothing is remembered of."""
