"""The client of a stream that a probe holds: it sees comments, so that nobody takes the stream for dead."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from proxy.client import Client
from proxy.headers import Headers

PENDING = "pending; the last chunk tells"
"""What X-Calibration-Applied says where the head leaves before the outcome is known."""

_EVENTS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_HEARTBEAT = b": held by a probe\n\n"


class Held:
    """Writes comments to a client whose reply has not been decided on.

    Only once the upstream has begun a stream of events: until then its answer may have another status.
    """

    def __init__(self, client: Client, own_headers: Callable[[], Headers], every: float) -> None:
        self._client = client
        self._own_headers = own_headers
        self._every = every
        self._begun = False

    async def comment(self, raw: bytes) -> None:
        """Pass on a comment of the upstream's, which tells that it has begun."""
        self._begun = True
        if not self._client.started:
            await self._client.start(200, [*_EVENTS, *self._own_headers()])
        await self._client.write(raw)

    def begun(self) -> None:
        """The upstream has begun a stream."""
        self._begun = True

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Meanwhile, a heartbeat every so often."""
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            if self._begun:
                await self.comment(_HEARTBEAT)
