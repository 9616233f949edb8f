"""The server's side of a connection, with bounds on what a client may send and how long it may wait.

uvicorn bounds neither the head of a request nor the time that head and body may take, nor the time that an
answer may wait for its client, so one slow or endless client would hold memory and a place for good.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from proxy.errors import BadRequest, HeadTooLarge, HttpError, TooSlow
from proxy.runtime import Runtime


class Guard(HttpToolsProtocol):
    """uvicorn's protocol, which refuses heads that are too long and requests that take too long to come.

    A client that takes nothing of its answer for too long is cut off.

    The time is kept by `overdue`, called every second for all connections: a timer for each request would
    cost every one of them what only few need. To the application it is a `proxy.client.Connection`.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        runtime: Runtime,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.lost = False
        self.on_lost: Callable[[], None] | None = None
        self._runtime = runtime
        self._in_head = True
        self._unread = 0
        self._began: float | None = None
        self._untaken = 0
        self._taken_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects: its first request is due."""
        super().connection_made(transport)
        self._began = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or was let go."""
        super().connection_lost(exc)
        self._lose()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._began is None:  # between two requests
            self._began = self.loop.time()
        # Of the head, or of a body whatever is not its content: extensions of chunks, trailers.
        self._unread += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(BadRequest("this is no HTTP/1.1 request"))
            return
        except httptools.HttpParserUpgrade:
            pass  # who offers another protocol is answered in this one
        if self._unread > self._runtime.settings.config.limits.header_bytes and self._began is not None:
            self._refuse(self._too_long())

    def resume_writing(self) -> None:
        """The client took enough for more to be written."""
        super().resume_writing()
        self._untaken = 0

    def overdue(self, now: float) -> None:
        """End a connection that has been waited on for too long; `now` is the loop's time."""
        if self._stalled(now):
            self.transport.abort()  # to close it would wait until the client has taken the rest
            return
        if self._began is None or self.transport.is_closing() or self.pipeline:
            return
        limits = self._runtime.settings.config.limits
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._in_head and (answering or now - self._began <= limits.head_seconds):
            return
        if not self._in_head and now - self._began <= limits.body_seconds:
            return
        if not answering and (self.cycle is not None or self._unread == 0):
            self.transport.close()  # it has its answer, or never asked for one
            return
        self._refuse(TooSlow("the request took too long (limits.head_seconds, limits.body_seconds)"))

    def _stalled(self, now: float) -> bool:
        """Whether the client has taken nothing for too long of what waits for it.

        That shows where nothing is added meanwhile: the writer has been told to wait, or has ended.
        """
        untaken = self.transport.get_write_buffer_size()
        ended = self.cycle is None or self.cycle.response_complete or self.transport.is_closing()
        if not (self.flow.write_paused or ended) or not 0 < self._untaken <= untaken:
            self._taken_at = now
        self._untaken = untaken
        return now - self._taken_at > self._runtime.settings.config.limits.taking_seconds

    # What the parser tells ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. Those behind a body are dropped: what was decided by the head stays decided."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete; from here on the body is due."""
        limit = self._runtime.settings.config.limits.header_bytes
        # The sum is taken only where a body that came along can make the difference.
        if self._unread > limit and len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers) > limit:
            self._refuse(self._too_long())
            raise ValueError  # the parser's only way to stop
        super().on_headers_complete()
        self._in_head, self._unread, self._began = False, 0, self.loop.time()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete: nothing is due."""
        super().on_message_complete()
        self._in_head, self._unread, self._began = True, 0, None

    # What is answered without the application -----------------------------------------------------------

    def _too_long(self) -> HttpError:
        limit = self._runtime.settings.config.limits.header_bytes
        return HeadTooLarge(f"the head has more than {limit} bytes (limits.header_bytes)")

    def _refuse(self, error: HttpError) -> None:
        """Answer what is no request, or may be none any more, and end the connection; only once."""
        if self.transport.is_closing():
            return
        self._runtime.metrics.refused.labels(str(error.status)).inc()
        started = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not started:  # else the connection ends in the middle of an answer, as it has to be seen
            body = error.body()
            length = (b"content-length", b"%d" % len(body))
            lines = [STATUS_LINE[error.status]]
            for name, value in (*error.headers(), length, (b"connection", b"close")):
                lines += (name, b": ", value, b"\r\n")
            self.transport.write(b"".join((*lines, b"\r\n", body)))
        self.transport.close()
        self._lose()

    def _lose(self) -> None:
        self.lost = True
        if self.on_lost is not None:
            self.on_lost()


def overdue(state: ServerState, now: float) -> None:
    """Look at every connection of a server once."""
    for connection in list(state.connections):
        if isinstance(connection, Guard):
            connection.overdue(now)
