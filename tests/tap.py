"""Stands between a client and a server and keeps what each of them says, to the byte."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Tap:
    """A relay on a port of its own.

    Attributes:
        said: what clients sent, in the order in which it came.
        heard: what the server answered.
    """

    def __init__(self, url: str) -> None:
        self.said = b""
        self.heard = b""
        server = urlsplit(url)
        self._server = (server.hostname, server.port)
        self._sides: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """Listen on a free port, until the context is left."""
        async with await asyncio.start_server(self._join, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]
            for side in self._sides:
                side.cancel()
            await asyncio.gather(*self._sides, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._server)
        self._sides.add(asyncio.create_task(self._relay(reader, back, from_client=True)))
        self._sides.add(asyncio.create_task(self._relay(there, writer, from_client=False)))

    async def _relay(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, from_client: bool
    ) -> None:
        try:
            with suppress(ConnectionError):
                while data := await source.read(65536):
                    if from_client:
                        self.said += data
                    else:
                        self.heard += data
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.close()
