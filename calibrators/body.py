"""A JSON object that can be changed without touching the bytes that stay.

vLLM's prefix cache, integers above 2^53 and `1.10` all depend on a request that goes on as it came. So a
body is never parsed and dumped: its members keep their spans, and a change is spliced in at one of them.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_decode = json.JSONDecoder().raw_decode
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_SPACE = " \t\n\r"
MEMBERS = 10_000
"""Members that an object may have, each of which costs a step of Python; requests have a few dozen."""


class NotAnObject(ValueError):
    """The text is not one JSON object."""


class Span(NamedTuple):
    """One member of an object: where its key and its value stand in the text."""

    key: str
    start: int
    value: int
    end: int


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object as it was sent, with the changes asked for so far.

    Attributes:
        text: the object as it came.
        fields: its parsed values as they came; of repeated keys the last, as servers read them.
        spans: every member in order, repeated keys included.
        edits: raw JSON by key to be put in place, None to take the member out.
    """

    text: str
    fields: Mapping[str, Any]
    spans: tuple[Span, ...]
    edits: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Body":
        """Read an object and the spans of its members.

        Raises:
            NotAnObject: the text is no JSON, another JSON value, nested beyond what a parser takes, or of
                more than MEMBERS members.
        """
        try:
            fields, spans = _members(text)
        except (ValueError, IndexError, RecursionError) as error:
            raise NotAnObject(str(error)) from None
        return cls(text, fields, spans)

    def raw(self, key: str) -> str | None:
        """The member's JSON as it would be sent now; None where it is absent."""
        if key in self.edits:
            return self.edits[key]
        return next((self.text[s.value : s.end] for s in reversed(self.spans) if s.key == key), None)

    def with_raw(self, **raw: str | None) -> "Body":
        """This body with members set to raw JSON, or taken out where the value is None."""
        return Body(self.text, self.fields, self.spans, {**self.edits, **raw})

    def with_json(self, **values: Any) -> "Body":
        """This body with members set to values."""
        return self.with_raw(**{key: dumped(value) for key, value in values.items()})

    def render(self) -> str:
        """The object with its changes spliced in; everything else to the byte as it came."""
        if not self.edits:
            return self.text
        last = {span.key: span for span in self.spans}
        kept: list[str] = []
        previous: Span | None = None
        for span in self.spans:
            member = self._member(span, last[span.key] is span)
            if member is not None:
                # The separator that the client wrote in front of this member goes with it.
                gap = self.text[previous.end : span.start] if kept and previous else ""
                kept.append(gap + member)
            previous = span
        new = [f"{json.dumps(k)}:{v}" for k, v in self.edits.items() if v is not None and k not in last]
        if new:
            kept.append(("," if kept else "") + ",".join(new))
        inside = self.text.index("{") + 1
        head = self.spans[0].start if self.spans else inside
        tail = self.spans[-1].end if self.spans else inside
        return self.text[:head] + "".join(kept) + self.text[tail:]

    def _member(self, span: Span, is_last: bool) -> str | None:
        if span.key not in self.edits:
            return self.text[span.start : span.end]
        value = self.edits[span.key]
        # Of repeated keys servers read the last one, so that is the one to set.
        if value is None or not is_last:
            return None
        return self.text[span.start : span.value] + value


def dumped(value: Any) -> str:
    """A value as compact JSON that UTF-8 can carry."""
    text = _encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON may hold as an escape only
        return json.dumps(value, separators=(",", ":"))
    return text


def set_members(raw: str | None, members: Mapping[str, str]) -> str:
    """A raw JSON object (or none yet) with members set to raw JSON values."""
    body = Body.parse(raw if raw is not None and raw != "null" else "{}")
    return body.with_raw(**members).render()


def map_objects(raw: str, change: Callable[[Body], Body]) -> str:
    """A raw JSON array with its objects changed; other values and any other text stay as they are."""
    elements = elements_of(raw)
    changed = [change(Body.parse(e)).render() if e.startswith("{") else e for e in elements]
    return raw if changed == elements else "[" + ",".join(changed) + "]"


def cut_array(raw: str, count: int) -> str:
    """A raw JSON array without what comes after its first `count` elements; other JSON as it is."""
    elements = elements_of(raw)
    return raw if len(elements) <= count else "[" + ",".join(elements[:count]) + "]"


def appended(raw: str, elements: Iterable[str]) -> str:
    """A raw JSON array with raw elements behind its own, whose bytes stay.

    Raises:
        NotAnObject: `raw` is no array.
    """
    kept = raw.rstrip(_SPACE)
    if not (kept.startswith("[") and kept.endswith("]")):
        raise NotAnObject("an array is due")
    empty = not kept[1:-1].strip(_SPACE)
    new = ",".join(elements)
    return kept[:-1] + (new if empty or not new else "," + new) + "]"


def elements_of(raw: str) -> list[str]:
    """The raw elements of an array; none for any other JSON."""
    elements: list[str] = []
    at = _skip(raw, 0) + 1
    if raw[at - 1] != "[" or raw[_skip(raw, at)] == "]":
        return elements
    while True:
        start = _skip(raw, at)
        _, end = _decode(raw, start)
        elements.append(raw[start:end])
        at = _skip(raw, end) + 1
        if raw[at - 1] != ",":
            return elements


def _members(text: str) -> tuple[dict[str, Any], tuple[Span, ...]]:
    at = _skip(text, 0)
    if text[at] != "{":
        raise ValueError("not a JSON object")
    fields: dict[str, Any] = {}
    spans: list[Span] = []
    at = _skip(text, at + 1)
    if text[at] == "}":
        at += 1
    else:
        while True:
            start = at
            if text[at] != '"':
                raise ValueError(f"a key is due at {at}")
            key, at = _decode(text, at)
            at = _skip(text, at)
            if text[at] != ":":
                raise ValueError(f"':' is due at {at}")
            value_at = _skip(text, at + 1)
            fields[key], at = _decode(text, value_at)
            spans.append(Span(key, start, value_at, at))
            at = _skip(text, at)
            if text[at] == "}":
                at += 1
                break
            if len(spans) == MEMBERS:
                raise ValueError(f"more than {MEMBERS} members")
            if text[at] != ",":
                raise ValueError(f"',' is due at {at}")
            at = _skip(text, at + 1)
    if _skip(text, at, end=True) != len(text):
        raise ValueError("text after the object")
    return fields, tuple(spans)


def _skip(text: str, at: int, *, end: bool = False) -> int:
    size = len(text)
    while at < size and text[at] in _SPACE:
        at += 1
    if at == size and not end:
        raise ValueError("the text ends inside the object")
    return at
