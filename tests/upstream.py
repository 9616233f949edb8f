"""A scripted upstream: sends exact bytes at exact edges, and keeps what it was asked to the byte.

Its replies are those of tests/cases/README.md, answered in the order in which they are asked for. When they
run out it answers 500, and leaving the context fails the test.
"""

import asyncio
import base64
import json
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

CHAT = "/v1/chat/completions"


def compact(value: Any) -> bytes:
    """JSON without spaces, in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause between two writes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class IfAskedUsage:
    """Written only if the request asks for a stream's token counts."""

    data: bytes


Write = bytes | Wait | IfAskedUsage


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer; the fields are those of the cases."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    writes: tuple[Write, ...] | None = None
    delay: float = 0.0
    end: Literal["ok", "reset", "hang"] = "ok"
    close_on_request: bool = False
    raw_then_reset: bytes | None = None
    refuses_id: str | None = None
    else_body: bytes = b""

    @classmethod
    def of(cls, case: Mapping[str, Any]) -> "Reply":
        """A reply as a case writes it; a key that nobody knows is an error."""
        told = dict(case)
        writes = told.pop("writes", None)
        text = told.pop("text_body", None)
        raw = told.pop("raw_then_reset", None)
        reply = cls(
            status=told.pop("status", 200),
            headers=told.pop("headers", {}),
            body=text.encode() if text is not None else compact(told.pop("body", None)),
            content_type="text/plain" if text is not None else "application/json",
            writes=None if writes is None else tuple(map(_write, writes)),
            delay=told.pop("delay_ms", 0) / 1000,
            end=told.pop("end", "ok"),
            close_on_request=told.pop("close_on_request", False),
            raw_then_reset=None if raw is None else raw.encode(),
            refuses_id=told.pop("refuses_id", None),
            else_body=compact(told.pop("else_body", None)),
        )
        told.pop("body", None)
        assert not told, f"the scripted upstream does not know {sorted(told)}"
        return reply

    def bytes_for(self, request: "Request") -> bytes:
        """The whole body that this request is answered with."""
        if self.writes is None:
            return self.else_body if self._accepts(request) else self.body
        return b"".join(_data(write, request) for write in self.writes)

    def status_for(self, request: "Request") -> int:
        """The status that this request is answered with."""
        if self.refuses_id is None:
            return self.status
        return 200 if self._accepts(request) else 400

    def _accepts(self, request: "Request") -> bool:
        return self.refuses_id is not None and self.refuses_id not in (request.json.get("logit_bias") or {})


def _write(told: str | Mapping[str, Any]) -> Write:
    if isinstance(told, str):
        return told.encode()
    if "b64" in told:
        return base64.b64decode(told["b64"])
    if "wait_ms" in told:
        return Wait(told["wait_ms"] / 1000)
    return IfAskedUsage(told["if_asked_usage"].encode())


def _data(write: Write, request: "Request") -> bytes:
    if isinstance(write, IfAskedUsage):
        options = request.json.get("stream_options") or {}
        return write.data if options.get("include_usage") is True else b""
    return write if isinstance(write, bytes) else b""


def said(text: str | None, **message: Any) -> Reply:
    """A whole chat completion that says `text`."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **message},
        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
    }
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    document = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m"}
    return Reply(body=compact({**document, "choices": [choice], "usage": usage}))


def event(data: Any) -> bytes:
    """One server-sent event as vLLM writes it."""
    return b"data: " + (data if isinstance(data, bytes) else compact(data)) + b"\n\n"


def chunk(finish_reason: str | None = None, **delta: Any) -> bytes:
    """One event of a chat stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return event(
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    )


DONE = event(b"[DONE]")


def streamed(*words: str) -> Reply:
    """A chat stream of these words."""
    return Reply(writes=(*(chunk(content=word) for word in words), chunk("stop"), DONE))


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came: request line, headers in order and to the letter, body."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    @property
    def json(self) -> Mapping[str, Any]:
        """The body, parsed."""
        document = json.loads(self.body)
        assert isinstance(document, dict)
        return document

    def header(self, name: str) -> str | None:
        """The values of a header, joined as HTTP joins them; None where it is absent."""
        values = [value for key, value in self.headers if key.lower() == name]
        return ", ".join(values) if values else None


class _Gone(Exception):
    """The other side closed the connection."""


class Upstream:
    """The server: `async with Upstream([said("Hello.")]) as upstream`.

    Args:
        replies: what is answered, in order.
        repeat_last: the last reply repeats instead of running out.
        lists: the models that GET /v1/models lists beside the script; None leaves that path to the script.

    Attributes:
        requests: what was asked, in order; listings of models are not counted where `lists` answers them.
        connections: how many were accepted.
        left: the loop's time at each moment at which the other side closed a connection during an answer.
    """

    def __init__(
        self, replies: Iterable[Reply], *, repeat_last: bool = False, lists: Iterable[str] | None = None
    ) -> None:
        self.requests: list[Request] = []
        self.listings = 0
        self.connections = 0
        self.left: list[float] = []
        self.port = 0
        self._replies = list(replies)
        self._repeat_last = repeat_last
        self._lists = None if lists is None else list(lists)
        self._answered: list[tuple[Reply, Request]] = []
        self._overrun: list[Request] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def last_body(self) -> bytes:
        """The body of the last reply, as it was meant to be sent."""
        reply, request = self._answered[-1]
        return reply.bytes_for(request)

    async def until(self, reached: Callable[["Upstream"], bool], seconds: float = 60.0) -> None:
        """Wait until something has happened here, say `lambda u: len(u.requests) == 1`."""
        async with asyncio.timeout(seconds):
            while not reached(self):
                self._changed.clear()
                await self._changed.wait()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None:
            asked = [f"{r.method} {r.target} {r.body[:300]!r}" for r in self._overrun]
            assert not asked, f"the script of the upstream ran out; it was still asked: {asked}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(_Peer(reader, writer), self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, peer: "_Peer", connection: int) -> None:
        try:
            while (request := await peer.request(connection)) is not None:
                reply = self._next(request)
                self._changed.set()
                try:
                    await peer.answer(reply, request)
                except (_Gone, ConnectionError):
                    self.left.append(asyncio.get_running_loop().time())
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._changed.set()
            peer.writer.close()
            with suppress(ConnectionError):
                await peer.writer.wait_closed()

    def _next(self, request: Request) -> Reply:
        if self._lists is not None and request.target == "/v1/models":
            self.listings += 1
            listed = [{"id": name, "object": "model", "owned_by": "script"} for name in self._lists]
            return Reply(body=compact({"object": "list", "data": listed}))
        self.requests.append(request)
        if not self._replies:
            self._overrun.append(request)
            return Reply(500, body=b"the script ran out", content_type="text/plain")
        last = self._repeat_last and len(self._replies) == 1
        reply = self._replies[0] if last else self._replies.pop(0)
        self._answered.append((reply, request))
        return reply


class _Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self, connection: int) -> Request | None:
        """The next request; None where the other side closed instead."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        method, target, _ = first.split(" ")
        headers = [(key, value.strip()) for key, _, value in (line.partition(":") for line in lines)]
        sizes = [int(value) for key, value in headers if key.lower() == "content-length"]
        body = await self.reader.readexactly(sizes[0]) if sizes else b""
        return Request(method, target, headers, body, connection)

    async def answer(self, reply: Reply, request: Request) -> None:
        """Send a reply write by write; `_Gone` as soon as the other side leaves."""
        if reply.close_on_request:
            raise ConnectionAbortedError
        await self._wait(reply.delay)
        if reply.raw_then_reset is not None:
            await self._send(reply.raw_then_reset)
            await self._reset()
        await self._send(self._head(reply, request))
        if reply.writes is None:
            await self._send(b"" if request.method == "HEAD" else reply.bytes_for(request))
        else:
            for write in reply.writes:
                if isinstance(write, Wait):
                    await self._wait(write.seconds)
                elif data := _data(write, request):
                    await self._send(b"%x\r\n%s\r\n" % (len(data), data))
        if reply.end == "reset":
            await self._reset()
        if reply.end == "hang":
            await self._wait(3600)
        if reply.writes is not None:
            await self._send(b"0\r\n\r\n")

    def _head(self, reply: Reply, request: Request) -> bytes:
        headers = dict(reply.headers)
        given = {name.lower() for name in headers}
        if reply.writes is not None:
            headers["Transfer-Encoding"] = "chunked"
        elif "content-length" not in given:
            headers["Content-Length"] = str(len(reply.bytes_for(request)))
        if "content-type" not in given:
            stream = "text/event-stream; charset=utf-8"
            headers["Content-Type"] = reply.content_type if reply.writes is None else stream
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {reply.status_for(request)} Scripted\r\n{lines}\r\n".encode("latin-1")

    async def _send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        await self._wait(0.001)  # an edge: the next write is another read on the other side

    async def _wait(self, seconds: float) -> None:
        """Pause, but not longer than the other side is there."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            if self.reader.at_eof() or self.reader.exception():
                raise _Gone
            await asyncio.sleep(min(left, 0.005))

    async def _reset(self) -> None:
        """Break the connection off, so that the other side sees a reset and no end."""
        await asyncio.sleep(0.02)  # what was sent is to arrive first
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        raise ConnectionResetError
