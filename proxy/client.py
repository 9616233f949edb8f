"""The client's side of one request: its ASGI messages, and whether it is still there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from proxy.errors import HttpError, TooLarge
from proxy.headers import Headers, get

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


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

    @asynccontextmanager
    async def attended(self, scope: anyio.CancelScope) -> AsyncIterator[None]:
        """Cancel `scope` when the client leaves."""
        watch = asyncio.create_task(self._until_gone(scope))
        try:
            yield
        finally:
            watch.cancel()

    async def _until_gone(self, scope: anyio.CancelScope) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        scope.cancel()

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
