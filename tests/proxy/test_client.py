"""The client's side: leaving early, sending too much, and being one too many."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from proxy.client import Client, Message
from tests.seam import Seam, eventually, seam
from tests.upstream import CHAT, DONE, Reply, Upstream, Wait, chunk, said
from tests.wire import exchange

SLOW = Reply(delay=30, body=said("Too late.").body)
ENDLESS = Reply(writes=(*(chunk(content="on "), Wait(0.02)) * 1000,))


async def left(proxy: Seam, upstream: Upstream) -> None:
    """The upstream was let go, and what is written down is final."""
    await upstream.until(lambda server: len(server.left) == 1)
    record = (await proxy.records(1))[0]
    assert (record["outcome"], record["action"]) == ("client_gone", None)
    await proxy.idle()
    assert proxy.sample("seam_requests_in_flight") == 0


async def test_leaving_a_stream_cancels_it_at_the_server(tmp_path: Path) -> None:
    async with Upstream([ENDLESS]) as upstream, seam(tmp_path, upstream.url) as proxy:
        async with proxy.open_chat(stream=True) as open_chat:
            await open_chat.head()
            await open_chat.until(b"on ")
        await left(proxy, upstream)
        assert (
            proxy.sample("seam_requests_total", route="chat", model="other", profile="off", status="200") == 1
        )


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_byte_cancels_at_the_server(tmp_path: Path, stream: bool) -> None:
    async with Upstream([SLOW]) as upstream, seam(tmp_path, upstream.url) as proxy:
        async with proxy.open_chat(stream=stream):
            await upstream.until(lambda server: len(server.requests) == 1)
        await left(proxy, upstream)
        assert (
            proxy.sample("seam_requests_total", route="chat", model="other", profile="off", status="499") == 1
        )


async def test_leaving_a_passed_on_request_cancels_it_too(tmp_path: Path) -> None:
    async with Upstream([SLOW]) as upstream, seam(tmp_path, upstream.url) as proxy:
        async with exchange(proxy.port, "POST", "/v1/completions", {}, b"{}"):
            await upstream.until(lambda server: len(server.requests) == 1)
        await upstream.until(lambda server: len(server.left) == 1)
        await proxy.idle()
        labels = {"route": "forward", "model": "other", "profile": "off"}
        await eventually(lambda: proxy.sample("seam_requests_total", status="499", **labels) == 1)


class Kept:
    """A connection that one request after the other comes on."""

    lost = False
    on_lost: Callable[[], None] | None = None


async def test_a_request_that_ends_late_leaves_the_next_one_attended() -> None:
    async def receive() -> Message:
        raise NotImplementedError

    async def send(message: Message) -> None:
        raise NotImplementedError

    connection = Kept()
    scope = {"headers": [], "state": {"connection": connection}}
    late, following = (Client(scope, receive, send) for _ in range(2))
    first, second = anyio.CancelScope(), anyio.CancelScope()
    ending = late.attended(first)
    ending.__enter__()
    with following.attended(second):
        ending.__exit__(None, None, None)
        assert connection.on_lost is not None
        connection.on_lost()
    assert (late.gone, following.gone) == (False, True)
    assert (first.cancel_called, second.cancel_called) == (False, True)
    assert connection.on_lost is None


async def test_leaving_while_the_body_is_sent_asks_nothing(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        await eventually(lambda: proxy.runtime.in_flight == 1)
        writer.close()
        await proxy.idle()
        assert reader is not None
        assert upstream.requests == []


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
async def test_a_body_beyond_the_limit_is_a_413(tmp_path: Path, path: str) -> None:
    config = {"limits": {"body_bytes": 100}}
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        answer = await proxy.ask(path, method="POST", body=b"x" * 101)
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"
        assert "limits.body_bytes" in answer.error["message"]
        assert (await proxy.ask(path, method="POST", body=b"x" * 100)).status == 200
        assert len(upstream.requests) == 1


async def test_a_body_of_unknown_length_is_bounded_too(tmp_path: Path) -> None:
    config = {"limits": {"body_bytes": 100}}
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        short = await proxy.ask(CHAT, method="POST", headers={"Transfer-Encoding": "chunked"}, body=b"{}")
        assert short.status == 200
        assert upstream.requests[0].body == b"{}"
        assert upstream.requests[0].header("content-length") == "2"
        assert upstream.requests[0].header("transfer-encoding") is None
        long = {"Transfer-Encoding": "chunked"}
        assert (await proxy.ask(CHAT, method="POST", headers=long, body=b"x" * 101)).status == 413


async def test_one_request_too_many_is_a_503_that_says_when_to_come_back(tmp_path: Path) -> None:
    config = {"limits": {"concurrency": 2}}
    async with (
        Upstream([ENDLESS, ENDLESS, said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, config) as proxy,
        proxy.open_chat(stream=True) as first,
    ):
        await first.head()
        async with proxy.open_chat(stream=True) as second:
            await second.head()
            answer = await proxy.chat()
            assert (answer.status, answer.header("retry-after")) == (503, "1")
            assert "limits.concurrency" in answer.error["message"]
            assert (await proxy.ask("/healthz")).status == 200
        await eventually(lambda: proxy.runtime.in_flight == 1)
        assert (await proxy.chat()).status == 200


async def test_a_hundred_continue_is_answered_for_large_bodies(tmp_path: Path) -> None:
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 100")
        await reader.readline()
        writer.write(b"{}")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert upstream.requests[0].body == b"{}"


async def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    words = [chunk(content=f"{number} " + "x" * 20_000) for number in range(200)]
    async with (
        Upstream([Reply(writes=(*words, DONE))]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
        proxy.open_chat(stream=True) as open_chat,
    ):
        await open_chat.head()
        await asyncio.sleep(0.2)
        assert (await open_chat.rest()).body == upstream.last_body
