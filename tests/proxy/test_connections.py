"""HTTP/1.1 towards the upstream, against a server that writes exact bytes."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from proxy.connections import BUFFERED, Address, Pool, Response
from proxy.errors import TimedOut, Unreachable

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


class Server:
    """Answers the n-th request with the n-th script: bytes to write, a float to wait, None to close."""

    def __init__(self, *scripts: list[bytes | float | None]) -> None:
        self.scripts = list(scripts)
        self.connections = 0
        self.left = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                for step in self.scripts.pop(0):
                    if step is None:
                        return
                    if isinstance(step, float):
                        await asyncio.sleep(step)
                    else:
                        writer.write(step)
                        await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def pool_to(server: Callable[..., object], most: int = 10) -> AsyncIterator[Pool]:
    listening = await asyncio.start_server(server, "127.0.0.1", 0)  # type: ignore[arg-type]
    port = listening.sockets[0].getsockname()[1]
    pool = Pool(
        Address("127.0.0.1", port), most=most, kept=2, idle_seconds=5, connect_seconds=0.3, write_seconds=1
    )
    async with listening:
        yield pool
        pool.close()
        await asyncio.sleep(0)


async def get(pool: Pool, *, repeatable: bool = True, bodiless: bool = False) -> Response:
    return await pool.send(GET, bodiless=bodiless, repeatable=repeatable)


async def body_of(response: Response) -> bytes:
    pieces = []
    while (piece := await response.piece()) is not None:
        pieces.append(piece)
    return b"".join(pieces)


async def test_a_connection_is_used_again() -> None:
    server = Server([HELLO], [HELLO])
    async with pool_to(server) as pool:
        assert [await body_of(await get(pool)) for _ in range(2)] == [b"hello", b"hello"]
    assert server.connections == 1


async def test_a_server_that_wants_to_close_is_not_asked_again_there() -> None:
    closing = HELLO.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    server = Server([closing], [HELLO])
    async with pool_to(server) as pool:
        assert [await body_of(await get(pool)) for _ in range(2)] == [b"hello", b"hello"]
    assert server.connections == 2


async def test_chunks_come_as_they_were_written() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with pool_to(Server([head, 0.02, b"2\r\nab\r\n3\r\ncde\r\n", 0.02, b"0\r\n\r\n"])) as pool:
        response = await get(pool)
        assert response.headers == [(b"Transfer-Encoding", b"chunked")]
        assert [await response.piece() for _ in range(3)] == [b"ab", b"cde", None]


async def test_an_interim_answer_is_none() -> None:
    async with pool_to(Server([b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + HELLO])) as pool:
        response = await get(pool)
        assert (response.status, await body_of(response)) == (200, b"hello")


async def test_the_answer_to_head_has_no_body() -> None:
    async with pool_to(Server([HELLO[:-5]])) as pool:
        response = await get(pool, bodiless=True)
        assert (response.headers, await body_of(response)) == ([(b"content-length", b"5")], b"")


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with pool_to(Server([b"HTTP/1.1 200 OK\r\n\r\nhel", 0.02, b"lo", None])) as pool:
        assert await body_of(await get(pool)) == b"hello"


@pytest.mark.parametrize("head", [b"content-length: 9", b"transfer-encoding: chunked"])
async def test_a_body_that_stops_before_its_end_is_broken(head: bytes) -> None:
    async with pool_to(Server([b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n9\r\nhel", None])) as pool:
        response = await get(pool)
        with pytest.raises(Unreachable, match="broke off its answer"):
            await body_of(response)


async def test_what_is_no_http_is_said_to_be_none() -> None:
    async with pool_to(Server([b"220 smtp ready\r\n"])) as pool:
        with pytest.raises(Unreachable, match="no HTTP"):
            await get(pool)


async def test_an_endless_head_is_refused() -> None:
    async with pool_to(Server([b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 300_000])) as pool:
        with pytest.raises(Unreachable, match="head of the upstream's answer"):
            await get(pool)


async def test_a_closed_idle_connection_costs_one_more_request_and_no_error() -> None:
    server = Server([HELLO], [None], [HELLO])
    async with pool_to(server) as pool:
        assert await body_of(await get(pool)) == b"hello"
        assert await body_of(await get(pool)) == b"hello"
    assert server.connections == 2


async def test_a_request_that_may_not_be_repeated_fails_instead() -> None:
    async with pool_to(Server([HELLO], [None])) as pool:
        await body_of(await get(pool))
        with pytest.raises(Unreachable, match="unanswered"):
            await get(pool, repeatable=False)


async def test_a_reader_that_stops_closes_the_connection() -> None:
    server = Server([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel"], [HELLO])
    async with pool_to(server) as pool:
        response = await get(pool)
        assert await response.piece() == b"hel"
        response.close()
        async with asyncio.timeout(60):
            await server.left.wait()
        assert await body_of(await get(pool)) == b"hello"


async def test_closing_an_answer_that_has_ended_leaves_the_next_one_alone() -> None:
    async with pool_to(Server([HELLO], [HELLO])) as pool:
        first = await get(pool)
        await body_of(first)
        second = await get(pool)
        first.close()
        assert await body_of(second) == b"hello"


async def test_a_fast_server_waits_for_a_slow_reader() -> None:
    size = 40 * BUFFERED
    written = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(bytes(BUFFERED))
            await writer.drain()
            written += BUFFERED
        writer.close()

    async with pool_to(floods) as pool:
        response = await get(pool)
        await asyncio.sleep(0.2)
        assert written < size, "all of it was taken although nobody read"
        assert len(await body_of(response)) == size


async def test_more_exchanges_than_allowed_wait_and_then_say_so() -> None:
    async with pool_to(Server([0.05, HELLO], [HELLO]), most=1) as pool:
        first, second = await asyncio.gather(get(pool), get(pool))
        assert [await body_of(first), await body_of(second)] == [b"hello", b"hello"]
    async with pool_to(Server([1.0, HELLO]), most=1) as pool:
        held = asyncio.create_task(get(pool))
        await asyncio.sleep(0.05)
        with pytest.raises(TimedOut, match=r"connections\.max"):
            await get(pool)
        held.cancel()


async def test_a_cancelled_exchange_gives_its_place_back() -> None:
    async with pool_to(Server([1.0, HELLO], [HELLO]), most=1) as pool:
        cancelled = asyncio.create_task(get(pool))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert await body_of(await get(pool)) == b"hello"


async def test_time_in_which_we_stood_still_ourselves_is_not_held_against_the_server() -> None:
    async with pool_to(Server([HELLO])) as pool:
        asked = asyncio.create_task(get(pool))
        await asyncio.sleep(0)  # it has begun to connect
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - the standstill of a loop that is too busy
        assert await body_of(await asked) == b"hello"


async def test_a_server_that_takes_no_connection_is_given_up_after_its_time() -> None:
    with socket.socket() as full:
        # Its one place is taken, so the kernel lets further clients wait.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        pool = Pool(Address(*address), most=10, kept=2, idle_seconds=5, connect_seconds=0.3, write_seconds=1)
        with pytest.raises(TimedOut, match=r"within 0\.3 s \(connect\)"):
            await get(pool)
        for each in waiting:
            each.close()
