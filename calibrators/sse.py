"""Server-sent events as bytes: where each event ends and what data it carries.

The bytes of an event are kept beside what it says, so that a stream can be passed on as it came, whatever
the edges of the writes, and single events can be taken out (WHATWG HTML, section 9.2).
"""

import re
from typing import NamedTuple

# A line ends in LF, CRLF or CR; the groups are atomic, so that one CRLF is never taken for two ends.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class Event(NamedTuple):
    """One event: its bytes with the blank line that ends it, and its data (None: a comment or nothing)."""

    raw: bytes
    data: bytes | None


class Splitter:
    """Cuts a stream into events, however it was written.

    `limit` bounds what one event may hold, in bytes: beyond it the splitter stops reading (`blind`) and gives
    the bytes on as they come; the stream itself is nobody's to cut.
    """

    def __init__(self, limit: int = 16 * 2**20) -> None:
        self.blind = False
        self._limit = limit
        self._buffer = bytearray()
        self._ended_on_cr = False

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this piece of the stream completes."""
        if self.blind:
            return [Event(chunk, None)]
        buffer = self._buffer
        if not buffer and not self._ended_on_cr and (event := _whole(chunk)):
            return [event]
        # What was searched before is not searched again; an end of four bytes may begin in it.
        searched = max(0, len(buffer) - 3)
        buffer += chunk
        events: list[Event] = []
        start = 0
        while match := _EVENT_END.search(buffer, max(searched, self._content_start(start))):
            end = match.end()
            events.append(_event(bytes(buffer[start:end])))
            self._ended_on_cr = buffer[end - 1] == 0x0D
            start = end
        del buffer[:start]
        if len(buffer) > self._limit:
            self.blind = True
            events.append(Event(bytes(buffer), None))
            buffer.clear()
        return events

    def flush(self) -> Event | None:
        """What is left at the end of the stream: an event without its blank line, or nothing."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return _event(rest) if rest else None

    def _content_start(self, start: int) -> int:
        # The LF of a CRLF whose CR had ended the event before: no line end of its own.
        if self._ended_on_cr and self._buffer[start : start + 1] == b"\n":
            return start + 1
        return start


def _whole(chunk: bytes) -> Event | None:
    """The one event that a chunk is, as servers mostly write them; None for anything else."""
    if not (chunk.startswith(b"data: ") and chunk.endswith(b"\n\n")) or b"\r" in chunk:
        return None
    data = chunk[6:-2]
    return None if b"\n" in data else Event(chunk, data)


def _event(raw: bytes) -> Event:
    if raw.startswith(b"data:"):
        line = _LINE_END.search(raw)
        end = line.start() if line else len(raw)
        if not raw[end:].strip(b"\r\n"):  # one data line, as servers write them
            return Event(raw, raw[6 if raw[5:6] == b" " else 5 : end])
    lines = [line for line in _LINE_END.split(raw) if line.startswith(b"data:")]
    if not lines:
        return Event(raw, None)
    return Event(raw, b"\n".join(line[5:].removeprefix(b" ") for line in lines))
