"""One upstream answer: read as far as needed, its bytes kept for the client."""

import json
import math
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import anyio

from calibrators.body import Body, dumped
from calibrators.conversation import loaded
from calibrators.dialects import Dialect, Json
from calibrators.flow import Query, Settled
from calibrators.reply import Reply
from calibrators.sse import Event, Splitter
from proxy import headers as h
from proxy.config import Timeouts
from proxy.connections import Response
from proxy.errors import TimedOut, Unreachable
from proxy.held import Held

_CHUNK_HEAD = ("id", "object", "created", "model", "system_fingerprint")

DECODED_LIMIT = 256 * 2**20
"""The most that one reply may hold, also decoded, to be read: a bound against decompression bombs."""

UNREAD = 64
"""Events of a stream that may wait to be read."""


class Clock:
    """The deadlines of one exchange, as the deadline of one cancel scope.

    While a stream's first event is due the nearer of `first_token` and `total` holds, otherwise `total`.

    Attributes:
        awaiting: nothing of the current answer has come yet.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self.scope = anyio.CancelScope()
        self.upstream_seconds = 0.0
        self._timeouts = timeouts
        self._end = anyio.current_time() + timeouts.total
        self._phase = "total"
        self.awaiting = True
        self.scope.deadline = self._end

    def first_due(self) -> None:
        """A stream was asked for: its first event is due."""
        self.awaiting = True
        first = anyio.current_time() + self._timeouts.first_token
        self._phase = "first_token" if first < self._end else "total"
        self.scope.deadline = min(first, self._end)

    def first_came(self) -> None:
        """The first event, or a whole reply, has come."""
        self.awaiting = False
        if self._phase != "total":
            self._phase = "total"
            self.scope.deadline = self._end

    @contextmanager
    def spare(self) -> Iterator[None]:
        """A shorter time for a query that may fail: what was answered before has still to be served.

        Raises:
            TimedOut: the query took all of it.
        """
        outer, end = self.scope, self._end
        outer.deadline = math.inf
        self._end = end - min(1.0, self._timeouts.total / 10)
        self.scope = anyio.CancelScope(deadline=self._end)
        try:
            with self.scope as inner:
                yield
            if inner.cancelled_caught:
                raise self.timed_out()
        finally:
            self.scope, self._end = outer, end
            outer.deadline = end

    def timed_out(self) -> TimedOut:
        """The error for the deadline that passed."""
        if self._phase == "total":
            return TimedOut(f"the reply did not end within {self._timeouts.total:g} s (total)")
        return TimedOut(f"no first token within {self._timeouts.first_token:g} s (first_token)")


class Piece(NamedTuple):
    """Some bytes of a stream as they came and the events that they completed."""

    raw: bytes
    events: list[Event]


@dataclass(slots=True)
class Answer:
    """What one query was answered.

    Attributes:
        document: the whole body, decoded, where the answer is no stream.
        raw: the whole body as it came.
        opaque: the body's encoding can't be taken apart (unknown, damaged, or beyond the limit); it can only
            be passed on.
        usage_added: the token counts of this stream were asked for by the proxy, not by the client.
        broken: how the answer broke off, where it did.
        own: what is shown is ours, in place of what came.
    """

    query: Query
    dialect: Dialect
    response: Response
    clock: Clock
    started: float
    _reply: Reply
    streamed: bool
    usage_added: bool
    document: bytes = b""
    raw: bytes = b""
    seconds: float = 0.0
    broken: str | None = None
    opaque: bool = False
    own: bool = False
    _splitter: Splitter = field(default_factory=Splitter)
    _pending: list[Piece] = field(default_factory=list)
    _unread: list[bytes] = field(default_factory=list)
    _decoder: Any = None

    @classmethod
    def of(
        cls,
        query: Query,
        dialect: Dialect,
        response: Response,
        clock: Clock,
        started: float,
        usage_added: bool,
    ) -> "Answer":
        """Wrap a response whose body has not been read."""
        kind = h.get(response.headers, b"content-type") or ""
        encoding = (h.get(response.headers, b"content-encoding") or "identity").lower()
        answer = cls(
            query,
            dialect,
            response,
            clock,
            started,
            Reply(response.status),
            usage_added=usage_added,
            streamed=kind.startswith("text/event-stream") and response.status < 400,
        )
        if encoding.encode() not in h.READABLE_ENCODINGS:
            answer.reply.readable, answer.opaque = False, True
        elif encoding != "identity":
            answer._decoder = zlib.decompressobj(wbits=47)  # gzip or zlib, told by their headers
        return answer

    @property
    def reply(self) -> Reply:
        """What has come so far; a stream's grows while it is served.

        The events of a stream are read when somebody wants to know, or many have come: an event alone, a
        millisecond after the last one, costs several times as much to read.
        """
        if self._unread:
            self._read_up()
        return self._reply

    def _read_up(self) -> None:
        unread, self._unread = self._unread, []
        for data in unread:
            self._take(data)

    async def settle(self, settled: Settled, held: Held | None = None) -> None:
        """Read on until the flow has seen enough; an answer that is no stream is read whole.

        A stream that can't be read is not held, since nothing would ever be seen of it. Where `held` is
        given, its client is shown the stream's comments at once.
        """
        if not self.streamed:
            await self._read_document()
            return
        while not self.opaque and not self.reply.ended and not settled(self.reply):
            piece = await self._next()
            if piece is None:
                return
            if held is not None:
                piece = await self._shown(piece, held)
            self._pending.append(piece)

    async def _shown(self, piece: Piece, held: Held) -> Piece:
        """The piece without its comments, which the client has then seen."""
        held.begun()
        for event in piece.events:
            if event.data is None and event.raw.startswith(b":"):
                await held.comment(event.raw)
        return Piece(piece.raw, [e for e in piece.events if e.data is not None or not e.raw.startswith(b":")])

    async def pieces(self) -> AsyncIterator[Piece]:
        """The stream from its beginning: what was held, then the rest as it comes."""
        held, self._pending = self._pending, []
        for piece in held:
            yield piece
        while not self.own and (rest := await self._next()):
            yield rest

    def saying(self, reply: Reply) -> "Answer":
        """This answer, read whole, with a text of ours for the model's; the rest stays the server's."""
        spoken = {"role": "assistant", "content": reply.first.content}
        if not self.streamed:
            choices = [{"index": 0, "message": spoken, "finish_reason": "stop"}]
            document = Body.parse(self.document.decode()).with_json(choices=choices).render().encode()
            return replace(self, _reply=reply, own=True, document=document, raw=document)
        chunks = [loaded(event.data or b"") for piece in self._pending for event in piece.events]
        head = {key: value for key, value in next(filter(None, chunks), {}).items() if key in _CHUNK_HEAD}
        shown: list[Json] = [
            {**head, "choices": [{"index": 0, "delta": spoken, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            *(chunk for chunk in chunks if chunk and not chunk.get("choices")),  # the usage chunk
        ]
        data = [dumped(chunk).encode() for chunk in shown] + [b"[DONE]"]
        events = [Event(b"data: " + item + b"\n\n", item) for item in data]
        self.response.close()
        return replace(
            self, _reply=reply, own=True, _pending=[Piece(b"".join(e.raw for e in events), events)]
        )

    def close(self) -> None:
        """Let the upstream go; an answer that is not at its end is cancelled there."""
        self._over()
        self.response.close()

    def _over(self) -> None:
        """Note how long it took, once: a later query of the same reply is no part of it."""
        self.seconds = self.seconds or time.perf_counter() - self.started

    async def _read_document(self) -> None:
        chunks: list[bytes] = []
        size = 0
        while (chunk := await self._chunk()) is not None:
            chunks.append(chunk)
            size += len(chunk)
            if size > DECODED_LIMIT:
                raise Unreachable(f"the upstream's answer has more than {DECODED_LIMIT} bytes")
        if self.broken:
            raise Unreachable(self.broken)
        self.clock.first_came()
        self.raw = b"".join(chunks)
        self.document = self._decoded(self.raw)
        if self.reply.readable:
            self._take(self.document)
        self.reply.ended = True

    async def _next(self) -> Piece | None:
        chunk = await self._chunk()
        if chunk is None:
            rest = self._splitter.flush()
            if rest is None:
                return None
            self._read_events([rest])
            return Piece(b"", [rest])
        decoded = self._decoded(chunk)
        events = [] if self.opaque else self._splitter.feed(decoded)
        if self.opaque and self.clock.awaiting:
            self.clock.first_came()
        if self._splitter.blind:
            self.reply.readable = False
        self._read_events(events)
        return Piece(chunk, events)

    def _read_events(self, events: list[Event]) -> None:
        for event in events:
            if event.data is None:
                continue
            if self.clock.awaiting:
                self.clock.first_came()
            if event.data == b"[DONE]":
                self.reply.ended = True
                self._over()
            else:
                self._unread.append(event.data)
                if len(self._unread) == UNREAD:
                    self._read_up()

    def _take(self, data: bytes) -> None:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            self._reply.readable = False
            return
        if isinstance(document, dict):
            self._reply.add(self.dialect.reply(document))
            if self.streamed and self.dialect.last_event and document.get("type") == self.dialect.last_event:
                self._reply.ended = True

    def _decoded(self, chunk: bytes) -> bytes:
        if self._decoder is None or self.opaque:
            return chunk
        try:
            decoded = bytes(self._decoder.decompress(chunk, DECODED_LIMIT))
            damaged = bool(self._decoder.unconsumed_tail)  # beyond the limit
        except zlib.error:
            decoded, damaged = b"", True
        if damaged:
            self.opaque, self.reply.readable = True, False
        return decoded

    async def _chunk(self) -> bytes | None:
        """The next bytes of the body; None at its end, and where it broke (`broken` then says how)."""
        waited = time.perf_counter()
        try:
            piece = await self.response.piece()
            if piece is None:
                self._over()
            return piece
        except Unreachable as error:
            self.broken = error.message
            return None
        finally:
            self.clock.upstream_seconds += time.perf_counter() - waited
