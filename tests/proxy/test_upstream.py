"""Connections to the server: timeouts, breaks, and what is sent a second time."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from calibrators.entry import Entry
from proxy.upstream import Facts, ModelFacts
from tests.seam import TOOLS, seam
from tests.upstream import CHAT, Reply, Upstream, Wait, chunk, compact, said, streamed

LATE = Reply(delay=30, body=said("Too late.").body)


def timeouts(**seconds: float) -> dict[str, Any]:
    return {"upstreams": {"default": {"timeouts": seconds}}}


async def test_a_connection_that_does_not_come_is_a_504_of_its_own(tmp_path: Path) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]  # they fill the queue that nobody empties
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with seam(tmp_path, url, timeouts(connect=0.2)) as proxy:
            for answer in (await proxy.chat(), await proxy.ask("/v1/models")):
                assert answer.status == 504
                assert answer.error["message"].endswith("(connect)")
        for client in waiting:
            client.close()


async def test_a_server_that_takes_no_data_is_a_504_of_its_own(tmp_path: Path) -> None:
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        async with seam(tmp_path, url, timeouts(write=0.3)) as proxy:
            answer = await proxy.ask("/v1/files", method="POST", body=b"x" * 30_000_000)
            assert answer.status == 504
            assert answer.error["message"].endswith("(write)")


async def test_a_stream_without_a_first_token_is_a_504_of_its_own(tmp_path: Path) -> None:
    beats = Reply(writes=(*(b": still working\n\n", Wait(0.1)) * 100,))
    for script in (LATE, beats):
        async with (
            Upstream([script]) as upstream,
            seam(tmp_path, upstream.url, timeouts(first_token=0.3)) as proxy,
        ):
            answer = await proxy.chat(stream=True)
            # Comments may have gone out by then; the stream is broken off and says why.
            assert (answer.status == 504) or (answer.status == 200 and answer.cut)
            assert b"(first_token)" in answer.body
            await upstream.until(lambda server: bool(server.left))
            record = (await proxy.records(1))[0]
            assert (record["outcome"], record["action"]) == ("upstream_error", None)
            proxy.log.unlink()


async def test_a_reply_that_does_not_end_is_a_504_of_its_own(tmp_path: Path) -> None:
    async with (
        Upstream([LATE, LATE]) as upstream,
        seam(tmp_path, upstream.url, timeouts(first_token=0.1, total=0.4)) as proxy,
    ):
        for answer in (await proxy.chat(), await proxy.ask("/v1/models")):
            assert answer.status == 504
            assert answer.error["code"] == "upstream_timeout"
            assert answer.error["message"].endswith("(total)")
        await upstream.until(lambda server: len(server.left) == 2)


async def test_a_stream_that_does_not_end_is_broken_off_and_says_why(tmp_path: Path) -> None:
    endless = Reply(writes=(*(chunk(content="on "), Wait(0.05)) * 200,))
    async with Upstream([endless]) as upstream, seam(tmp_path, upstream.url, timeouts(total=0.4)) as proxy:
        answer = await proxy.chat(stream=True)
        assert (answer.status, answer.cut) == (200, True)
        assert answer.events[-1]["error"]["message"].endswith("(total)")
        assert "[DONE]" not in answer.data
        record = (await proxy.records(1))[0]
        assert (record["outcome"], record["action"]) == ("upstream_error", None)


async def test_no_server_is_a_502(tmp_path: Path) -> None:
    async with seam(tmp_path, "http://127.0.0.1:9") as proxy:
        for answer in (await proxy.chat(), await proxy.chat(stream=True), await proxy.ask("/v1/models")):
            assert answer.status == 502
            assert answer.error["code"] == "upstream_unreachable"
            assert answer.header("content-type") == "application/json"
        assert {record["status"] for record in await proxy.records(2)} == {502}
        assert (
            proxy.sample("seam_requests_total", route="forward", model="other", profile="off", status="502")
            == 1
        )


async def test_a_stream_that_breaks_is_broken_off_with_the_reason(tmp_path: Path) -> None:
    broken = Reply(writes=(chunk(content="Half a "),), end="reset")
    async with Upstream([broken]) as upstream, seam(tmp_path, upstream.url) as proxy:
        answer = await proxy.chat(stream=True)
        assert answer.cut
        assert answer.body.startswith(chunk(content="Half a "))
        assert "broke off" in answer.events[-1]["error"]["message"]
        record = (await proxy.records(1))[0]
        assert (record["outcome"], record["action"]) == ("upstream_error", None)
        assert proxy.sample("seam_upstream_errors_total", model="other", profile="off") == 1


async def test_a_stream_that_breaks_before_its_first_event_is_a_502(tmp_path: Path) -> None:
    async with Upstream([Reply(writes=(), end="reset")]) as upstream, seam(tmp_path, upstream.url) as proxy:
        answer = await proxy.chat(stream=True)
        assert answer.status == 502
        assert answer.error["code"] == "upstream_unreachable"


# Kept connections ------------------------------------------------------------------------------

CLOSES = Reply(close_on_request=True)


async def test_a_connection_is_used_again(tmp_path: Path) -> None:
    async with Upstream([said("Hello.")] * 3) as upstream, seam(tmp_path, upstream.url) as proxy:
        for _ in range(3):
            await proxy.chat()
        assert upstream.connections == 1


async def test_a_kept_connection_that_is_closed_is_no_error(tmp_path: Path) -> None:
    async with (
        Upstream([said("One."), CLOSES, said("Two.")]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        assert [(await proxy.ask("/v1/models")).status for _ in range(2)] == [200, 200]
        assert (len(upstream.requests), upstream.connections) == (3, 2)


async def test_the_second_attempt_is_made_on_a_new_connection(tmp_path: Path) -> None:
    slow = Reply(delay=0.1, body=said("Hello.").body)
    async with (
        Upstream([slow, slow, slow, CLOSES, said("Again.")]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        await asyncio.gather(*(proxy.chat() for _ in range(3)))
        assert upstream.connections == 3
        answer = await proxy.chat()
        assert (answer.status, answer.text) == (200, "Again.")
        assert upstream.requests[-1].connection == 4


async def test_a_request_is_sent_again_at_most_once(tmp_path: Path) -> None:
    slow = Reply(delay=0.1, body=said("Hello.").body)
    async with Upstream([slow, slow, CLOSES, CLOSES]) as upstream, seam(tmp_path, upstream.url) as proxy:
        await asyncio.gather(proxy.chat(), proxy.chat())
        answer = await proxy.chat()
        assert answer.status == 502
        assert answer.error["code"] == "upstream_unreachable"
        assert len(upstream.requests) == 4


async def test_a_first_connection_that_breaks_is_not_tried_again(tmp_path: Path) -> None:
    async with Upstream([CLOSES]) as upstream, seam(tmp_path, upstream.url) as proxy:
        assert (await proxy.chat()).status == 502


async def test_a_stored_response_is_not_asked_for_twice(tmp_path: Path) -> None:
    async with Upstream([said("Hello."), CLOSES]) as upstream, seam(tmp_path, upstream.url) as proxy:
        await proxy.ask("/v1/models")
        assert (await proxy.ask("/v1/responses", method="POST", body=b"{}")).status == 502
        assert len(upstream.requests) == 2


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\nContent-", b"H"])
async def test_nothing_is_sent_again_once_a_byte_of_the_answer_has_come(tmp_path: Path, begun: bytes) -> None:
    async with (
        Upstream([said("Hello."), Reply(raw_then_reset=begun)]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        await proxy.chat()
        assert (await proxy.chat()).status == 502
        assert len(upstream.requests) == 2


async def test_an_idle_connection_is_closed_before_the_server_does(tmp_path: Path) -> None:
    config = {"upstreams": {"default": {"connections": {"idle_seconds": 0.05}}}}
    async with Upstream([said("Hello.")] * 2) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        await proxy.chat()
        await asyncio.sleep(0.1)
        await proxy.chat()
        assert upstream.connections == 2


async def test_a_full_pool_is_a_504_that_names_the_setting(tmp_path: Path) -> None:
    default = {"connections": {"max": 1}, "timeouts": {"connect": 0.3}}
    hanging = Reply(writes=(chunk(content="x"), Wait(30)))
    async with (
        Upstream([hanging]) as upstream,
        seam(tmp_path, upstream.url, {"upstreams": {"default": default}}) as proxy,
        proxy.open_chat(stream=True) as open_chat,
    ):
        await open_chat.head()
        answer = await proxy.chat()
        assert answer.status == 504
        assert "connections.max" in answer.error["message"]


async def test_a_proxy_in_the_environment_is_not_for_the_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with Upstream([streamed("Hello.")]) as upstream, seam(tmp_path, upstream.url) as proxy:
        assert (await proxy.ask(CHAT, method="POST", body=b'{"stream":true}')).status == 200


async def test_an_opener_that_runs_into_the_tools_name_is_tokenized_with_it_once(tmp_path: Path) -> None:
    """A pythonic `[finish(` may begin with a token `[fin` that no other tool shares."""
    asked = [Reply(body=compact({"tokens": [70, 9]})), Reply(body=compact({"prompt": "[fin"}))]
    pythonic = Entry((58,), opener="[", named=True)
    profile = {"name": "strict", "bias": {"value": -1, "apply": "processor"}}
    async with (
        Upstream([*asked, said("Noon."), said("Noon.")]) as upstream,
        seam(tmp_path, upstream.url, profiles=[profile]) as proxy,
    ):
        models = {"m": ModelFacts(pythonic)}
        proxy.runtime.settings.upstreams["default"].facts = Facts("vllm", models=models, processor={})
        for _ in range(2):
            await proxy.chat(calibration="strict", tools=TOOLS)
    biased = [request.json["vllm_xargs"]["seam_entry"] for request in upstream.requests[2:]]
    assert biased == [[58, 70]] * 2
