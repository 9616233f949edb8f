"""Recorded vLLM traffic, replayed: with no calibration picked Seam changes nothing and holds nothing back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.recorded import FILE, Pairs, Recorded, read
from tests.seam import Seam, seam
from tests.wire import Exchange, exchange

HOP_BY_HOP = {"connection", "transfer-encoding"}
SEAMS_OWN = {"x-calibration", "x-calibration-applied", "x-calibration-action", "x-request-id"}

RECORDED = {recorded.name: recorded for recorded in read()}

each_exchange = pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED.keys())


class Replay:
    """A server that gives one recorded answer, each chunk when the test asks for it.

    Attributes:
        headers: of the request, to the letter.
        body: of the request.
    """

    def __init__(self, recorded: Recorded) -> None:
        self.headers: Pairs = ()
        self.body = b""
        self.first_line = ""
        self._recorded = recorded
        self._due = asyncio.Semaphore(0)

    def release(self, chunks: int = 1) -> None:
        """Let so many more chunks go."""
        for _ in range(chunks):
            self._due.release()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen on a free port, until the context is left."""
        answering: list[asyncio.Task[None]] = []

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answering.append(asyncio.create_task(self._answer(reader, writer)))

        async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.first_line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
            self.headers = tuple((key, value.strip()) for key, _, value in (x.partition(":") for x in lines))
            sizes = [int(value) for key, value in self.headers if key.lower() == "content-length"]
            self.body = await reader.readexactly(sizes[0] if sizes else 0)
            told = "".join(f"{key}: {value}\r\n" for key, value in self._recorded.reply_headers)
            writer.write(f"HTTP/1.1 {self._recorded.status} As recorded\r\n{told}\r\n".encode("latin-1"))
            chunked = "transfer-encoding" in told.lower()
            for chunk in self._recorded.chunks:
                await self._due.acquire()
                writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if chunked else chunk)
            writer.write(b"0\r\n\r\n" if chunked else b"")
            await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def replayed(recorded: Recorded, folder: Path) -> AsyncIterator[tuple[Replay, Seam, Exchange]]:
    """A recorded request, sent through Seam to a server that answers as recorded."""
    upstream = Replay(recorded)
    async with (
        asyncio.timeout(120),
        upstream.listening() as url,
        seam(folder, url) as proxy,
        exchange(
            proxy.port, recorded.method, recorded.target, dict(recorded.headers), recorded.body
        ) as client,
    ):
        yield upstream, proxy, client


def lowered(headers: Pairs | list[tuple[str, str]], without: set[str]) -> list[tuple[str, str]]:
    """Headers as HTTP compares them, without the order of their names."""
    return sorted((key.lower(), value) for key, value in headers if key.lower() not in without)


def test_the_recording_holds_fifty_mixed_exchanges_in_a_file_that_git_can_bear() -> None:
    streams = [recorded for recorded in RECORDED.values() if recorded.streamed]
    assert len(RECORDED) >= 50
    assert len(streams) >= 15
    assert {recorded.status for recorded in RECORDED.values()} >= {200, 400, 404, 405}
    assert FILE.stat().st_size < 600_000


@each_exchange
async def test_request_and_reply_cross_unchanged(recorded: Recorded, tmp_path: Path) -> None:
    async with replayed(recorded, tmp_path) as (upstream, _, client):
        upstream.release(len(recorded.chunks))
        await client.head()
        answer = await client.rest()
    assert upstream.first_line == f"{recorded.method} {recorded.target} HTTP/1.1"
    assert upstream.body == recorded.body
    mended = {"host", "content-length", "x-request-id"}
    assert lowered(upstream.headers, mended) == lowered(recorded.headers, mended)
    assert answer.status == recorded.status
    assert answer.body == b"".join(recorded.chunks)
    assert not answer.cut
    came = lowered(answer.headers, HOP_BY_HOP | SEAMS_OWN)
    assert came == lowered(recorded.reply_headers, HOP_BY_HOP)


@pytest.mark.parametrize(
    "recorded",
    [r for r in RECORDED.values() if r.streamed],
    ids=[r.name for r in RECORDED.values() if r.streamed],
)
async def test_each_chunk_of_a_stream_arrives_before_the_next_one_is_sent(
    recorded: Recorded, tmp_path: Path
) -> None:
    async with replayed(recorded, tmp_path) as (upstream, _, client):
        sent = b""
        for number, chunk in enumerate(recorded.chunks):
            upstream.release()
            sent += chunk
            if number == 0:
                await client.head()
            # A proxy that waits for more would never get it: the next chunk is let go only below.
            while len(client.answer.body) < len(sent):
                assert await client.more()
            assert client.answer.body == sent
        assert (await client.rest()).body == sent


@pytest.mark.parametrize(
    ("name", "action", "calls"),
    [
        ("chat-call", "tool_call", ["get_weather"]),
        ("stream-call", "tool_call", ["get_weather"]),
        ("chat-call-named", "tool_call", ["get_weather"]),
        ("stream-call-required", "tool_call", ["get_weather"]),
        ("stream", None, []),  # cut by max_tokens
    ],
)
async def test_the_class_of_a_reply_is_read_while_it_passes(
    name: str, action: str | None, calls: list[str], tmp_path: Path
) -> None:
    recorded = RECORDED[name]
    async with replayed(recorded, tmp_path) as (upstream, proxy, client):
        upstream.release(len(recorded.chunks))
        await client.head()
        await client.rest()
        (record,) = await proxy.records(1)
    assert (record["action"], record["calls"]) == (action, calls)
    assert record["profile"] == "off"
