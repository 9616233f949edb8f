"""The client's side of one request: its ASGI messages, and whether it is still there."""

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Protocol

import anyio

from proxy.errors import HttpError, TooLarge
from proxy.headers import Headers, get

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Connection(Protocol):
    """What the server says of the connection that a request came on, as `connection` in the scope's state.

    ASGI has a message for this, and waiting for that takes a task a request.

    Attributes:
        lost: it is closed, or about to be.
        on_lost: called when it is; one request at a time is answered on it.
    """

    lost: bool
    on_lost: Callable[[], None] | None


class ClientGone(Exception):
    """The client left before its request was complete."""


class Client:
    """Takes the request's body, gives the answer, notices when nobody waits for it any more.

    Attributes:
        started: the answer's head has gone out, so its status can't change.
        gone: the client has left.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers: Headers = scope["headers"]
        self.started = False
        self.gone = False
        self._connection: Connection = scope["state"]["connection"]
        self._receive = receive
        self._send = send
        self._events = False

    async def body(self, limit: int) -> bytes:
        """The whole request body.

        Raises:
            TooLarge: it is longer than `limit` bytes.
            ClientGone
        """
        declared = get(self.headers, b"content-length")
        if declared and declared.isdigit() and int(declared) > limit:
            raise TooLarge(f"the body has {declared} bytes; the limit is {limit} (limits.body_bytes)")
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise TooLarge(f"the body has more than {limit} bytes (limits.body_bytes)")
            chunks.append(chunk)
            if not message.get("more_body"):
                return b"".join(chunks)

    @contextmanager
    def attended(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Cancel `scope` when the client leaves."""

        def leave() -> None:
            self.gone = True
            scope.cancel()

        self._connection.on_lost = leave
        if self._connection.lost:
            leave()
        try:
            yield
        finally:
            if self._connection.on_lost is leave:  # else the next request has put its own there
                self._connection.on_lost = None

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of the answer."""
        self.started = True
        kind = get(headers, b"content-type") or ""
        self._events = kind.startswith("text/event-stream") and get(headers, b"content-encoding") is None
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, chunk: bytes) -> None:
        """Send a part of the body."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self, chunk: bytes = b"") -> None:
        """Send the last part of the body."""
        await self._send({"type": "http.response.body", "body": chunk})

    async def fail(self, error: HttpError, headers: Headers) -> None:
        """Answer with an error; where the answer has begun, break it off so that it can't pass for whole.

        A body that is not ended makes the server close the connection (server.py). A stream of events can
        still say why.
        """
        body = error.body()
        if self.started:
            if self._events:
                await self.write(b"data: " + body + b"\n\n")
            return
        length = (b"content-length", str(len(body)).encode())
        await self.start(error.status, [*error.headers(), *headers, length])
        await self.end(body)
