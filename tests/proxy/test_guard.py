"""What a hostile client can send: bounds on heads, bodies and time, and nothing that goes astray.

Time is not waited for: the test tells the guard that it has passed.
"""

import asyncio
import gzip
import itertools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from proxy.guard import Guard, overdue
from tests.proxy.commands import serving
from tests.seam import TOOLS, Seam, chat, eventually, seam, written
from tests.upstream import CHAT, DONE, Reply, Upstream, Wait, chunk, compact, said
from tests.wire import ask, exchange

PLAIN = Reply(body=b"as it came", content_type="text/plain")
LATER = 3600.0


async def raw(port: int, *parts: bytes) -> bytes:
    """Write parts, and return all that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:  # closed while it was being written to
        return b""
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
    return error


def hours_later(proxy: Seam, times: int = 1) -> None:
    for time in range(1, times + 1):
        overdue(proxy.server.server_state, asyncio.get_running_loop().time() + time * LATER)


def connected(proxy: Seam) -> int:
    return len(proxy.server.server_state.connections)


def refused(proxy: Seam, code: int) -> float:
    return proxy.sample("seam_connections_refused_total", status=str(code))


# Heads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Pad: " + b"a" * 3000 + b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Endless: " + b"a" * 3000,
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(500)),
        b"GET /v1/models?" + b"q" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /" + b"p" * 3000,
    ],
    ids=["one header", "an endless header", "many headers", "a query", "an endless path"],
)
async def test_a_head_beyond_the_limit_is_a_431(tmp_path: Path, head: bytes) -> None:
    config = {"limits": {"header_bytes": 2048}}
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        answer = await raw(proxy.port, head)
        assert status(answer) == 431
        assert error_of(answer)["code"] == "head_too_large"
        assert refused(proxy, 431) == 1


async def test_a_large_body_in_one_write_with_a_small_head_is_no_large_head(tmp_path: Path) -> None:
    config = {"limits": {"header_bytes": 2048}}
    async with Upstream([PLAIN] * 2) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        body = b"x" * 50_000
        one = b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" + body
        last = one.replace(b"Host: x", b"Host: x\r\nConnection: close")
        assert (await raw(proxy.port, one + last)).count(b"as it came") == 2
        assert [request.body for request in upstream.requests] == [body, body]


@pytest.mark.parametrize("begun", [b"2;", b"2\r\n{}\r\n0\r\nX-Trailer: "], ids=["extension", "trailer"])
async def test_what_is_written_around_a_body_is_bounded_too(tmp_path: Path, begun: bytes) -> None:
    config = {"limits": {"header_bytes": 2048}}
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        await raw(proxy.port, head, begun, *[b"e" * 100_000] * 20)  # in more than one read
        assert refused(proxy, 431) == 1
        assert upstream.requests == []


async def test_headers_behind_a_body_are_nobodys(tmp_path: Path) -> None:
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url) as proxy:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        behind = b"2\r\n{}\r\n0\r\nX-Calibration: nothing\r\nX-Admin: 1\r\n\r\n"
        assert status(await raw(proxy.port, head.encode() + behind)) == 200
        assert upstream.requests[0].header("x-admin") is None


NO_REQUESTS = {
    "bytes": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "connect": b"CONNECT internal:443 HTTP/1.1\r\nHost: internal:443\r\n\r\n",
    "two lengths": b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "length and chunks": b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "folded": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\r\n b\r\n\r\n",
    "bare cr": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\rX-Admin: 1\r\n\r\n",
    "nul": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\x00b\r\n\r\n",
    "space before colon": b"GET /v1/models HTTP/1.1\r\nHost : x\r\n\r\n",
}


@pytest.mark.parametrize("sent", NO_REQUESTS.values(), ids=NO_REQUESTS.keys())
async def test_what_two_servers_might_read_in_two_ways_is_refused(
    tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        answer = await raw(proxy.port, sent)
        assert status(answer) == 400
        assert error_of(answer)["code"] == "bad_request"
        assert refused(proxy, 400) == 1
        assert upstream.requests == []
        assert caplog.text == ""  # a line for each would be theirs to fill the log with


async def test_an_offer_of_another_protocol_is_answered_in_this_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Upstream([PLAIN]) as upstream, seam(tmp_path, upstream.url) as proxy:
        head = (
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
        )
        assert (await raw(proxy.port, head)).endswith(b"as it came")
        assert upstream.requests[0].header("upgrade") is None
        assert caplog.text == ""


# Where a request goes --------------------------------------------------------------------------------


async def test_no_request_names_another_server(tmp_path: Path) -> None:
    async with (
        Upstream([]) as other,
        Upstream([PLAIN] * 2) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        aim = other.url.removeprefix("http://")
        for line in (f"http://{aim}/v1/models", "/v1/models"):
            head = f"GET {line} HTTP/1.1\r\nHost: {aim}\r\nForwarded: host={aim}\r\nConnection: close"
            assert (await raw(proxy.port, head.encode() + b"\r\n\r\n")).endswith(b"as it came")
        own = upstream.url.removeprefix("http://")
        assert [(r.target, r.header("host")) for r in upstream.requests] == [("/v1/models", own)] * 2
        assert other.requests == []


async def test_a_redirect_is_the_clients_to_follow(tmp_path: Path) -> None:
    away = Reply(status=307, headers={"Location": "http://169.254.169.254/"})
    async with Upstream([away] * 2) as upstream, seam(tmp_path, upstream.url) as proxy:
        assert (await proxy.ask("/v1/models")).header("location") == "http://169.254.169.254/"
        assert (await proxy.chat()).status == 307


@pytest.mark.parametrize(
    "path",
    [
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter/",
        "/v1//load_lora_adapter",
        "/v1/./load_lora_adapter",
        "/v1/%6coad_lora_adapter",
        "/p/off/v1/load_lora_adapter",
        "/sleep",
        "/collective_rpc",
    ],
)
async def test_what_operators_do_to_the_server_needs_forward_all(tmp_path: Path, path: str) -> None:
    async with Upstream([PLAIN]) as upstream:
        async with seam(tmp_path, upstream.url) as proxy:
            assert (await proxy.ask(path, method="POST", body=b"{}")).error["code"] == "not_forwarded"
        async with seam(tmp_path, upstream.url, {"forward": "all"}) as proxy:
            assert (await proxy.ask(path, method="POST", body=b"{}")).body == b"as it came"


# Time ------------------------------------------------------------------------------------------------


async def opened(proxy: Seam, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(sent)
    await eventually(lambda: connected(proxy) == 1, 60)
    return reader, writer


async def test_a_connection_that_asks_nothing_is_closed(tmp_path: Path) -> None:
    async with seam(tmp_path, "http://127.0.0.1:9") as proxy:
        reader, writer = await opened(proxy, b"")
        overdue(proxy.server.server_state, asyncio.get_running_loop().time())
        assert connected(proxy) == 1
        hours_later(proxy)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("rest", [b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Slo", b"GE"])
async def test_a_head_that_never_ends_is_a_408(tmp_path: Path, rest: bytes) -> None:
    async with seam(tmp_path, "http://127.0.0.1:9") as proxy:
        reader, writer = await opened(proxy, rest)
        await asyncio.sleep(0.05)  # until it has come; if it has not, the connection is closed all the same
        hours_later(proxy)
        answer = await reader.read()
        assert answer == b"" or status(answer) == 408
        writer.close()


async def test_a_body_that_never_ends_is_a_408_and_frees_its_place(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode()
        reader, writer = await opened(proxy, head)
        await eventually(lambda: proxy.runtime.in_flight == 1, 60)
        hours_later(proxy)
        answer = await reader.read()
        assert (status(answer), error_of(answer)["code"]) == (408, "request_too_slow")
        await eventually(lambda: proxy.runtime.in_flight == 0, 60)
        assert refused(proxy, 408) == 1
        writer.close()


async def test_a_line_end_now_and_then_keeps_no_connection_open(tmp_path: Path) -> None:
    async with Upstream([PLAIN]) as upstream, seam(tmp_path, upstream.url) as proxy:
        reader, writer = await opened(proxy, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"as it came")
        writer.write(b"\r\n")
        await asyncio.sleep(0.05)
        hours_later(proxy)
        async with asyncio.timeout(60):  # by this, or, where the line end has not come yet, as idle
            assert await reader.read() == b""
        writer.close()


async def test_a_slow_answer_is_no_slow_request(tmp_path: Path) -> None:
    slow = Reply(writes=(chunk(content="Hel"), Wait(0.3), chunk(content="lo."), chunk("stop"), DONE))
    async with (
        Upstream([slow]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
        exchange(proxy.port, "POST", CHAT, {}, compact(chat(stream=True))) as stream,
    ):
        await stream.head()
        hours_later(proxy)
        assert (await stream.rest()).text == "Hello."


def told_to_wait(proxy: Seam) -> bool:
    """Whether the one client there is takes less than is written for it."""
    (guard,) = proxy.server.server_state.connections
    return isinstance(guard, Guard) and guard.flow.write_paused


def long_stream(chunks: int) -> tuple[Reply, bytes]:
    """A stream of chunks of 50 KB, and the request for it."""
    body = compact(chat(stream=True))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return Reply(
        writes=(*[chunk(content="word " * 10_000)] * chunks, chunk("stop"), DONE)
    ), head.encode() + body


async def test_a_client_that_takes_nothing_of_its_stream_is_cut_off_and_frees_its_place(
    tmp_path: Path,
) -> None:
    more_than_buffers_hold, request = long_stream(400)
    async with Upstream([more_than_buffers_hold]) as upstream, seam(tmp_path, upstream.url) as proxy:
        _, writer = await opened(proxy, request)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await eventually(lambda: told_to_wait(proxy))
        hours_later(proxy)  # the first look says nothing yet
        assert proxy.runtime.in_flight == 1
        hours_later(proxy, 2)
        await proxy.idle()
        assert (await proxy.records(1))[0]["outcome"] == "client_gone"
        writer.close()


async def test_a_client_that_leaves_the_rest_of_a_whole_answer_is_cut_off_too(tmp_path: Path) -> None:
    large = Reply(body=b"x" * 20_000_000, content_type="text/plain")
    async with Upstream([large]) as upstream, seam(tmp_path, upstream.url) as proxy:
        _, writer = await opened(proxy, b"GET /v1/files/x HTTP/1.1\r\nHost: x\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await eventually(lambda: told_to_wait(proxy))
        hours_later(proxy, 2)
        await eventually(lambda: connected(proxy) == 0)
        writer.close()


async def test_a_client_that_takes_a_little_now_and_then_gets_all(tmp_path: Path) -> None:
    long, request = long_stream(60)
    async with Upstream([long]) as upstream, seam(tmp_path, upstream.url) as proxy:
        reader, writer = await opened(proxy, request)
        taken = 0
        while some := await reader.read(100_000):
            taken += len(some)
            hours_later(proxy)
        assert taken > 60 * 50_000
        writer.close()


@pytest.mark.whole
async def test_a_crowd_that_dawdles_keeps_nobody_out(tmp_path: Path) -> None:
    limits = {"head_seconds": 0.5, "taking_seconds": 0.5, "concurrency": 1}
    long, request = long_stream(400)
    async with (
        Upstream([said("Hello."), long, said("Hello.")]) as upstream,
        serving(written(tmp_path, upstream.url, {"limits": limits})) as process,
    ):
        crowd = [await asyncio.open_connection("127.0.0.1", process.port) for _ in range(200)]

        async def dawdle(writer: asyncio.StreamWriter) -> None:
            """Send a letter now and then until the connection is ended."""
            with suppress(ConnectionError):
                for letter in itertools.cycle(b"x"):
                    writer.write(bytes([letter]))
                    await writer.drain()
                    await asyncio.sleep(0.1)

        for _, writer in crowd:
            writer.write(b"GET /v1/models HTTP/1.1\r\nX-Slow: ")
        dawdling = asyncio.gather(*(dawdle(writer) for _, writer in crowd))
        assert (await ask(process.port, "POST", CHAT, {}, compact(chat()))).status == 200
        async with asyncio.timeout(60):
            await dawdling
        _, writer = await asyncio.open_connection("127.0.0.1", process.port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request)
        await upstream.until(lambda u: len(u.requests) == 2)
        assert (await ask(process.port, "POST", CHAT, {}, compact(chat()))).status == 503

        async def served() -> bool:
            return (await ask(process.port, "POST", CHAT, {}, compact(chat()))).status == 200

        await eventually(served)
        for _, each in (*crowd, (None, writer)):
            each.close()


# What a body holds -----------------------------------------------------------------------------------


async def test_more_tools_than_the_limit_are_a_400(tmp_path: Path) -> None:
    config = {"limits": {"tools": 2}}
    async with Upstream([said("Hello.")] * 2) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        assert (await proxy.chat(tools=TOOLS * 2)).status == 200
        refused = await proxy.chat(tools=TOOLS * 3)
        assert (refused.status, refused.error["param"]) == (400, "tools")
        assert (await proxy.chat(functions=TOOLS * 3)).status == 400
        assert len(upstream.requests) == 1


UNREADABLE = {
    "utf-16": json.dumps(chat()).encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + compact(chat()),
    "deep": b'{"model":"m","x":' + b"[" * 20_000 + b"]" * 20_000 + b',"messages":[]}',
    "digits": b'{"model":"m","messages":[],"x":' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_no_spelling_of_a_body_evades_a_calibration_that_is_compulsory(
    tmp_path: Path, body: bytes
) -> None:
    config = {"selection": {"locked": True}}
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        assert (await proxy.ask(CHAT, method="POST", body=body)).error["code"] == "bad_request"
        assert upstream.requests == []


# Identifiers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made_up", [b"a\tb", b"a\xe9", b"x" * 300, b"\x9b31m"], ids=["tab", "latin", "long", "csi"]
)
async def test_an_id_that_is_no_plain_word_is_replaced(tmp_path: Path, made_up: bytes) -> None:
    async with Upstream([PLAIN]) as upstream, seam(tmp_path, upstream.url) as proxy:
        head = (
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: "
            + made_up
            + b"\r\n\r\n"
        )
        answer = await raw(proxy.port, head)
        own = upstream.requests[0].header("x-request-id") or ""
        assert len(own) == 32
        assert f"x-request-id: {own}".encode() in answer


async def test_a_case_that_is_no_plain_word_is_a_400(tmp_path: Path) -> None:
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url) as proxy:
        for case in ("x" * 257, "a\tb"):
            assert (await proxy.chat(headers={"X-Case-Id": case})).status == 400
        assert (await proxy.chat(headers={"X-Case-Id": "x" * 256})).status == 200


async def test_a_body_that_takes_seconds_to_read_is_a_400(tmp_path: Path) -> None:
    config = {"limits": {"json_values": 1000}}
    async with Upstream([said("Hello.")] * 2) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        for filling in ("[" * 600 + "]" * 600 + ",0" * 600, "{},[]," * 300):
            body = f'{{"model":"m","messages":[],"x":[{filling}0]}}'.encode()
            told = await proxy.ask(CHAT, method="POST", body=body)
            assert (told.status, "limits.json_values" in told.error["message"]) == (400, True)
        long = chat(messages=[{"role": "user", "content": "word " * 10_000}])
        assert (await proxy.ask(CHAT, method="POST", body=compact(long))).status == 200


async def test_an_object_of_very_many_members_is_the_servers_to_read(tmp_path: Path) -> None:
    body = b'{"model":"m",' + b",".join(b'"%d":0' % number for number in range(20_000)) + b"}"
    async with Upstream([PLAIN]) as upstream, seam(tmp_path, upstream.url) as proxy:
        assert (await proxy.ask(CHAT, method="POST", body=body)).body == b"as it came"
        assert upstream.requests[0].body == body


async def test_a_packed_request_is_nobodys_to_unpack(tmp_path: Path) -> None:
    bomb = gzip.compress(b'{"model":"m","messages":[' + b" " * 50_000_000 + b"]}")
    headers = {"Content-Encoding": "gzip"}
    async with Upstream([PLAIN]) as upstream:
        async with seam(tmp_path, upstream.url) as proxy:
            answer = await proxy.ask(CHAT, method="POST", headers=headers, body=bomb)
            assert (answer.body, upstream.requests[0].body) == (b"as it came", bomb)
        async with seam(tmp_path, upstream.url, {"selection": {"locked": True}}) as proxy:
            answer = await proxy.ask(CHAT, method="POST", headers=headers, body=bomb)
            assert answer.error["code"] == "bad_request"


async def test_a_reply_that_unpacks_to_more_than_can_be_held_passes_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.answer.DECODED_LIMIT", 100_000)
    bomb = gzip.compress(b'{"choices":[' + b" " * 10_000_000 + b"]}")
    packed = Reply(body=bomb, headers={"Content-Encoding": "gzip"})
    large = Reply(body=b" " * 200_000)
    async with Upstream([packed, large]) as upstream, seam(tmp_path, upstream.url) as proxy:
        answer = await proxy.chat(headers={"Accept-Encoding": "gzip"})
        assert (answer.status, answer.body) == (200, bomb)
        assert (await proxy.records(1))[0]["action"] is None
        assert (await proxy.chat()).error["code"] == "upstream_unreachable"
