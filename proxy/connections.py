"""HTTP/1.1 connections to one upstream: what every reply passes through, so it does no more than it must.

httpx stays for our own small requests (upstream.py). Here its layers would cost more than the rest of the
proxy together, and hide what a proxy has to know: whether a connection was reused, whether a byte of the
answer has come, and where one chunk ends. The parser is httptools (llhttp), as in uvicorn.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import httptools

from proxy.errors import TimedOut, Unreachable
from proxy.headers import Headers

BUFFERED = 256 * 1024
"""Bytes of a reply that may wait for the client before reading from the upstream pauses."""
HEAD_LIMIT = 256 * 1024
"""Bytes that the head of an answer may have."""
_QUARTERS = 4


class Address(NamedTuple):
    """Where a server listens; `tls` is the context of an https address."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class Stale(Exception):
    """A reused connection was closed before a byte of the answer had come: the request may be sent again."""


class Response:
    """An answer whose body comes piece by piece.

    Attributes:
        headers: as the server sent them, names in its own spelling.
    """

    def __init__(self, status: int, headers: Headers, let_go: Callable[[], None]) -> None:
        self.status = status
        self.headers = headers
        self._let_go = let_go
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._broken: str | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._resume: Callable[[], None] | None = None

    async def piece(self) -> bytes | None:
        """The next bytes of the body, chunk for chunk as the server wrote them; None at its end.

        Raises:
            Unreachable: the server broke the body off.
        """
        while not self._pieces:
            if self._broken is not None:
                raise Unreachable(self._broken)
            if self._ended:
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        data = self._pieces.popleft()
        self._size -= len(data)
        if self._resume is not None and self._size < BUFFERED // 4:
            self._resume()
            self._resume = None
        return data

    def close(self) -> None:
        """Let the server go; a body that is not at its end is cancelled there."""
        if not self._ended:  # else the connection may be serving another exchange by now
            self._let_go()

    def put(self, data: bytes, pause: Callable[[], Callable[[], None]]) -> None:
        """Take bytes of the body; where too many wait, `pause` reading until they are fewer."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > BUFFERED and self._resume is None:
            self._resume = pause()
        self._wake()

    def end(self, broken: str | None = None) -> None:
        """No more will come; `broken`: why that is too early.

        Not as an error: one that was raised holds the frames it went through, and so the whole request.
        """
        self._ended = True
        self._broken = broken
        self._wake()

    @property
    def ended(self) -> bool:
        """Whether the whole body has come from the server, or broke."""
        return self._ended

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Connection(asyncio.Protocol):
    """One connection, used for one exchange at a time.

    Attributes:
        open: the server has not closed it.
        idle_since: when its last exchange ended, in the loop's time; None before the first one has.
    """

    def __init__(self, pool: "Pool") -> None:
        self.open = False
        self.idle_since: float | None = None
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._heard = 0
        self._head: asyncio.Future[Response] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._response: Response | None = None
        self._headers: Headers = []
        self._bodiless = False
        self._interim = False
        self._keeps = False
        self._paused = False

    async def exchange(self, data: bytes, bodiless: bool, write_seconds: float) -> Response:
        """Send a whole request and return the answer's head.

        `bodiless`: the answer to HEAD, which announces a body that does not come.

        Raises:
            Stale, Unreachable, TimedOut
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._heard, self._bodiless, self._response, self._headers = 0, bodiless, None, []
        self._head = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(data)
            if self._writable is not None:
                await self._written(self._writable, write_seconds)
            return await self._head
        except BaseException:
            self.abort()
            raise

    async def _written(self, writable: asyncio.Future[None], seconds: float) -> None:
        """Wait until the request has been taken, or answered before it was."""
        assert self._head is not None
        either: set[asyncio.Future[Any]] = {writable, self._head}
        done, _ = await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise TimedOut(f"the upstream took no data for {seconds:g} s (write)")

    def abort(self) -> None:
        """Close at once."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # What the event loop tells --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def pause_writing(self) -> None:
        """The server takes the request slower than it is written."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The server has taken enough of it."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def data_received(self, data: bytes) -> None:
        """Bytes from the server."""
        if self._head is None:  # nothing was asked: no HTTP server speaks first
            self.abort()
            return
        self._heard += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(f"the upstream's answer is no HTTP/1.1: {error}")
            self.abort()
            return
        if self._response is None and self._heard > HEAD_LIMIT:
            self._break(f"the head of the upstream's answer has more than {HEAD_LIMIT} bytes")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; what it means depends on how far the answer had come."""
        self.open = False
        self._pool.forget(self)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self._response is not None and exc is None and self._ends_with_connection():
            self._finish()
            return
        reason = str(exc) if exc else "it closed the connection"
        what = "the upstream broke off its answer" if self._response else "the upstream broke the connection"
        self._break(f"{what}: {reason}")

    # What the parser tells ------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the answer."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200
        if self._interim:
            self._headers = []
            return
        self._keeps = self._parser.should_keep_alive() and not self._bodiless
        self._response = Response(status, self._headers, self._let_go)
        if self._head is not None and not self._head.done():
            self._head.set_result(self._response)
        if self._bodiless:
            self._finish()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._response is not None and not self._response.ended:
            self._response.put(data, self._pause)

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if not self._interim:
            self._finish()

    # How an exchange ends -------------------------------------------------------------------------------

    def _finish(self) -> None:
        if self._response is None or self._response.ended:
            return
        self._response.end()
        self._done()

    def _break(self, why: str) -> None:
        if self._head is not None and not self._head.done():
            stale = self._heard == 0 and self.idle_since is not None
            self._head.set_exception(Stale() if stale else Unreachable(why))
            # Whoever waits takes it; an exchange that was cancelled has nobody left.
            self._head.exception()
        if self._response is not None and not self._response.ended:
            self._response.end(why)
        self._done()

    def _let_go(self) -> None:
        """The reader wants no more of an answer that is not at its end."""
        if self._response is not None:
            self._response.end("the answer was cancelled")
        self.abort()
        self._done()

    def _done(self) -> None:
        """The connection is free again, or of no use any more."""
        if self._head is None:
            return
        self._head = None
        self._resume()
        self.idle_since = asyncio.get_running_loop().time()
        self._pool.release(self, self._keeps and self.open)

    def _ends_with_connection(self) -> bool:
        """Whether the answer's body has no announced end but the connection's."""
        names = {name.lower() for name, _ in self._headers}
        return not names & {b"content-length", b"transfer-encoding"}

    def _pause(self) -> Callable[[], None]:
        assert self._transport is not None
        self._transport.pause_reading()
        self._paused = True
        return self._resume

    def _resume(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._paused = False


class Pool:
    """The connections to one address.

    Args:
        most: exchanges at a time; more wait.
        kept: idle connections that are kept.
        idle_seconds: for how long.
        connect_seconds: until a connection must stand, or one must be free.
        write_seconds: until a request must be taken.
    """

    def __init__(
        self,
        address: Address,
        *,
        most: int,
        kept: int,
        idle_seconds: float,
        connect_seconds: float,
        write_seconds: float,
    ) -> None:
        self._address = address
        self._kept = kept
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._write_seconds = write_seconds
        self._places = asyncio.Semaphore(most)
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()

    async def send(self, data: bytes, *, bodiless: bool, repeatable: bool) -> Response:
        """Send a whole request and return the answer's head.

        A request that finds its reused connection closed before a byte of the answer is sent once more, on a
        new one, if it is `repeatable`: servers close idle connections at any time.

        Raises:
            Unreachable, TimedOut
        """
        try:
            return await self._attempt(self._reused(), data, bodiless)
        except Stale:
            if not repeatable:
                raise Unreachable("the upstream closed the connection unanswered") from None
            return await self._attempt(None, data, bodiless)

    async def _attempt(self, connection: Connection | None, data: bytes, bodiless: bool) -> Response:
        await self._take_place()
        try:
            connection = connection or await self._connected()
        except BaseException:
            self._places.release()
            raise
        return await connection.exchange(data, bodiless, self._write_seconds)

    async def _take_place(self) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        try:
            await asyncio.wait_for(self._places.acquire(), self._connect_seconds)
        except TimeoutError:
            raise TimedOut("no free connection to the upstream (connections.max reached)") from None

    async def _connected(self) -> Connection:
        host, port, tls = self._address
        loop = asyncio.get_running_loop()
        try:
            async with _awake(self._connect_seconds):
                _, connection = await loop.create_connection(lambda: Connection(self), host, port, ssl=tls)
        except TimeoutError:
            seconds = self._connect_seconds
            raise TimedOut(f"no connection to the upstream within {seconds:g} s (connect)") from None
        except OSError as error:
            raise Unreachable(f"the upstream can't be reached: {error.strerror or error}") from None
        self._all.add(connection)
        return connection

    def _reused(self) -> Connection | None:
        """The connection that was used last, if it is still good."""
        oldest = asyncio.get_running_loop().time() - self._idle_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.idle_since is not None and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    def release(self, connection: Connection, keep: bool) -> None:
        """An exchange has ended."""
        self._places.release()
        if keep and len(self._idle) < self._kept:
            self._idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._all):
            connection.abort()


@asynccontextmanager
async def _awake(seconds: float) -> AsyncIterator[None]:
    """A timeout of which a standstill of our own loop takes a quarter at most.

    A loop that thousands of requests keep busy for seconds finds the connection standing and the time over in
    the same turn, and the server would be blamed for it.
    """
    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds / _QUARTERS, lambda: passed(1))

    def passed(quarters: int) -> None:
        nonlocal timer
        if quarters == _QUARTERS:
            limit.reschedule(loop.time())
        else:
            timer = loop.call_later(seconds / _QUARTERS, passed, quarters + 1)

    async with asyncio.timeout(None) as limit:
        try:
            yield
        finally:
            timer.cancel()
