"""The calibrated route: what is changed of a request and a reply, and what becomes of failures."""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from calibrators.flow import Ask, Calibrator, Flow, Query, Report, Role, whole
from tests.seam import TOOLS, seam
from tests.upstream import CHAT, DONE, Reply, Upstream, Wait, chunk, compact, event, said, streamed

STRICT = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}
ZERO = {"name": "zero", "entry": {"tokens": [7]}, "bias": 0}
READS = {"name": "reads"}
# Nothing of this survives a parser and a printer.
ODD = b' {"model" : "m","seed":9007199254740993, "temperature":1.10,"tools":[{"type":"function"}],\n'
ODD += b'"x":"\\u00e9","messages":[],"x":1E2 }\n'


@pytest.mark.parametrize("path", [CHAT, f"/p/zero{CHAT}", f"/p/reads{CHAT}", f"/p/off{CHAT}"])
async def test_a_calibration_that_changes_nothing_changes_no_byte(tmp_path: Path, path: str) -> None:
    async with (
        Upstream([said("Hello."), streamed("Hel", "lo.")]) as upstream,
        seam(tmp_path, upstream.url, {}, [ZERO, READS]) as proxy,
    ):
        for body in (ODD, ODD.replace(b'"x":1E2', b'"stream":true')):
            answer = await proxy.ask(path, method="POST", body=body)
            assert upstream.requests[-1].body == body
            assert answer.body == upstream.last_body


async def test_a_bias_of_zero_says_why_nothing_was_applied(tmp_path: Path) -> None:
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url, {}, [ZERO]) as proxy:
        answer = await proxy.chat(calibration="zero", tools=TOOLS)
        assert answer.header("x-calibration-applied") == "none; reason=the bias is 0"
        assert proxy.sample("seam_passthrough_total", reason="zero_bias") == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"model":"m"}x', b"\xff\xfe", b'{"messages":' + b"[" * 5000],
    ids=["empty", "cut", "list", "null", "more", "not-utf8", "deep"],
)
async def test_a_body_that_is_no_json_object_is_the_servers_to_refuse(tmp_path: Path, body: bytes) -> None:
    refusal = Reply(400, body=compact({"error": {"message": "bad body"}}))
    async with Upstream([refusal]) as upstream, seam(tmp_path, upstream.url, {}, [STRICT]) as proxy:
        answer = await proxy.ask(CHAT, method="POST", body=body)
        assert (answer.status, answer.body) == (400, refusal.body)
        assert upstream.requests[0].body == body


async def test_deeply_nested_messages_are_passed_on(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        for depth in (200, 700, 800, 850, 900, 930, 960, 990):
            body = b'{"model":"m","messages":[{"role":"user","content":%s}]}' % (b"[" * depth + b"]" * depth)
            answer = await proxy.ask(CHAT, method="POST", body=body)
            assert answer.status == 200, depth
            assert upstream.requests[-1].body == body


async def test_a_body_that_the_reader_can_not_take_apart_still_passes(tmp_path: Path) -> None:
    odd = Reply(body=b"<html>not JSON</html>")
    async with Upstream([odd]) as upstream, seam(tmp_path, upstream.url, {}, [STRICT]) as proxy:
        answer = await proxy.chat(calibration={"profile": "strict", "explain": True})
        assert answer.body == odd.body
        assert (await proxy.records(1))[0]["action"] is None


async def test_gzip_that_can_not_be_decoded_still_passes_without_a_class(tmp_path: Path) -> None:
    broken = Reply(headers={"Content-Encoding": "gzip"}, body=b"\x1f\x8b\x08 this is no gzip")
    async with Upstream([broken]) as upstream, seam(tmp_path, upstream.url) as proxy:
        answer = await proxy.chat(headers={"Accept-Encoding": "gzip"})
        assert answer.body == broken.body
        assert answer.header("content-encoding") == "gzip"
        assert (await proxy.records(1))[0]["action"] is None


async def test_a_stream_in_an_encoding_that_is_not_ours_to_read_is_not_held(tmp_path: Path) -> None:
    brotli = Reply(headers={"Content-Encoding": "br"}, writes=(b"\x0b\x02", Wait(30), b"\x80"))
    async with (
        Upstream([brotli]) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
        proxy.open_chat(
            stream=True, calibration={"profile": "strict", "explain": True}, tools=TOOLS
        ) as open_chat,
    ):
        assert (await open_chat.head()).header("content-encoding") == "br"
        await open_chat.until(b"\x0b\x02")


async def test_an_edited_stream_whose_encoding_breaks_is_cut_and_not_made_up(tmp_path: Path) -> None:
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(chunk(content="Hel")) + packer.flush(zlib.Z_SYNC_FLUSH)
    broken = Reply(headers={"Content-Encoding": "gzip"}, writes=(packed, b"\xff" * 99, b"\xff" * 99))
    async with Upstream([broken]) as upstream, seam(tmp_path, upstream.url, {}, [STRICT]) as proxy:
        offered = {"Accept-Encoding": "gzip"}
        answer = await proxy.chat(headers=offered, stream=True, calibration={"explain": True})
        assert answer.cut
        assert (await proxy.records(1))[0]["outcome"] == "upstream_error"


@pytest.mark.parametrize(
    ("offered", "asked"),
    [
        ("gzip", "gzip"),
        ("br, gzip;q=0.5", "gzip;q=0.5"),
        ("br", "identity"),
        ("identity", "identity"),
        (None, None),
    ],
)
async def test_the_server_is_asked_for_no_encoding_that_the_client_did_not_offer(
    tmp_path: Path, offered: str | None, asked: str | None
) -> None:
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url) as proxy:
        await proxy.chat(headers={} if offered is None else {"Accept-Encoding": offered})
        assert upstream.requests[0].header("accept-encoding") == asked


async def test_each_choice_has_a_class_of_its_own(tmp_path: Path) -> None:
    texts = ["I can't.", "Which one?", "All done."]
    choices = [{"index": i, "message": {"content": t}, "finish_reason": "stop"} for i, t in enumerate(texts)]
    async with (
        Upstream([Reply(body=compact({"choices": choices}))]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        answer = await proxy.chat(n=3)
        assert answer.header("x-calibration-action") == "refuse, ask, confirm"
        records = await proxy.records(3)
        assert [(r["choice"], r["action"]) for r in records] == [(0, "refuse"), (1, "ask"), (2, "confirm")]


async def test_a_stream_comes_event_by_event_and_is_not_held(tmp_path: Path) -> None:
    script = Reply(writes=(chunk(content="Hel"), Wait(30), chunk(content="lo."), DONE))
    async with (
        Upstream([script]) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
        proxy.open_chat(stream=True, calibration="strict", tools=TOOLS) as open_chat,
    ):
        await open_chat.head()
        await open_chat.until(b"Hel")
        assert open_chat.answer.header("x-calibration-applied") == "bias=-1.5/logit_bias"
        assert open_chat.answer.header("x-calibration-action") is None


async def test_the_servers_fingerprint_outlives_the_usage_chunk_that_is_hidden(tmp_path: Path) -> None:
    """vLLM moves it from the finishing chunk to the usage chunk when that is asked for."""
    usage = event({"choices": [], "usage": {"prompt_tokens": 3}, "system_fingerprint": "fp"})
    stream = Reply(writes=(chunk(content="Noon."), chunk("stop"), usage, DONE))
    async with Upstream([stream]) as upstream, seam(tmp_path, upstream.url, profiles=[STRICT]) as proxy:
        answer = await proxy.chat(calibration="strict", tools=TOOLS, stream=True)
    assert [list(e["choices"]) != [] for e in answer.events] == [True, True]
    assert answer.events[-1]["system_fingerprint"] == "fp"
    assert answer.body.startswith(chunk(content="Noon."))
    assert answer.body.endswith(DONE)


async def test_a_finishing_chunk_is_not_lost_with_a_server_that_shows_no_usage(tmp_path: Path) -> None:
    writes = (chunk(content="Noon."), chunk("stop"), DONE)
    async with (
        Upstream([Reply(writes=writes)]) as upstream,
        seam(tmp_path, upstream.url, profiles=[STRICT]) as proxy,
    ):
        answer = await proxy.chat(calibration="strict", tools=TOOLS, stream=True)
    assert answer.body == b"".join(writes)


async def test_a_bias_refused_inside_a_stream_is_asked_again_without(tmp_path: Path) -> None:
    refusal = Reply(writes=(event({"error": {"message": "id out of vocabulary", "code": 400}}),))
    async with (
        Upstream([refusal, streamed("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
    ):
        answer = await proxy.chat(calibration="strict", tools=TOOLS, stream=True)
        assert answer.body == upstream.last_body
        assert (answer.header("x-calibration-applied") or "").startswith("none; reason=")
        assert "logit_bias" not in upstream.requests[1].json
        assert [query["status"] for query in (await proxy.records(1))[0]["queries"]] == [200, 200]


async def test_the_servers_words_do_no_harm_in_a_header(tmp_path: Path) -> None:
    refusal = Reply(400, body=compact({"error": {"message": "bad\r\nX-Evil: 1\u2028☂" + "x" * 5000}}))
    async with (
        Upstream([refusal, said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
    ):
        answer = await proxy.chat(calibration="strict", tools=TOOLS)
        assert answer.status == 200
        assert answer.header("x-evil") is None
        assert "bad  X-Evil: 1" in (answer.header("x-calibration-applied") or "")


# A calibrator that fails -----------------------------------------------------------------------


class Fails:
    """Fails before it has asked anything."""

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        report.applied["fails"] = "x"
        raise ZeroDivisionError


class FailsLate:
    """Fails with a reply in hand."""

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        yield from ask(query.until(whole))
        raise ZeroDivisionError


class Hangs:
    """A probe that asks a second time, say of a server that does not answer."""

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        yield from ask(query.until(whole))
        return (yield from ask(Query(query.body.with_json(again=1), query.fields, Role.SRI)))


@pytest.fixture
def calibrator(monkeypatch: pytest.MonkeyPatch) -> Callable[[Calibrator], None]:
    """Puts a calibrator in the place of those of the profile."""

    def put(calibrator: Calibrator) -> None:
        def planned(*_: Any) -> Sequence[Calibrator]:
            return (calibrator,)

        monkeypatch.setattr("proxy.chat.plan", planned)

    return put


@pytest.mark.parametrize(("failing", "asked"), [(Fails(), 1), (FailsLate(), 2)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failing_calibrator_does_not_fail_the_request(
    tmp_path: Path, calibrator: Callable[[Calibrator], None], failing: Calibrator, asked: int, stream: bool
) -> None:
    calibrator(failing)
    async with (
        Upstream([streamed("Hello.") if stream else said("Hello.")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        answer = await proxy.chat(stream=stream)
        assert (answer.status, answer.text) == (200, "Hello.")
        told = "none; reason=a calibrator failed: ZeroDivisionError"
        assert answer.header("x-calibration-applied") == told
        assert len(upstream.requests) == asked
        record = (await proxy.records(1))[0]
        assert (record["action"], record["outcome"], record["applied"]) == ("other", "ok", told)
        assert proxy.sample("seam_passthrough_total", reason="failed") == 1
        if not stream:
            assert answer.json["usage"]["total_tokens"] == 17 * asked


async def test_a_failing_calibrator_fails_the_request_where_the_operator_wants_that(
    tmp_path: Path, calibrator: Callable[[Calibrator], None]
) -> None:
    calibrator(FailsLate())
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, {"on_error": "fail"}) as proxy,
    ):
        answer = await proxy.chat()
        assert answer.status == 502
        assert answer.error["code"] == "calibration_failed"
        record = (await proxy.records(1))[0]
        assert (record["action"], record["outcome"], record["status"]) == (None, "error", 502)


async def test_no_probe_goes_on_for_a_client_that_has_gone(
    tmp_path: Path, calibrator: Callable[[Calibrator], None]
) -> None:
    calibrator(Hangs())
    slow = Reply(delay=30, body=said("Hello.").body)
    async with Upstream([said("Hello."), slow]) as upstream, seam(tmp_path, upstream.url) as proxy:
        async with proxy.open_chat():
            await upstream.until(lambda server: len(server.requests) == 2)
        await upstream.until(lambda server: len(server.left) == 1)
        record = (await proxy.records(1))[0]
        assert (record["outcome"], record["action"]) == ("client_gone", None)
        assert [query["role"] for query in record["queries"]] == ["first"]
        await proxy.idle()
        assert len(upstream.requests) == 2


async def test_two_requests_at_once_do_not_meet(tmp_path: Path) -> None:
    slow = [Reply(delay=0.05, body=said(text).body) for text in ("I can't.", "Which one?")]
    async with Upstream(slow) as upstream, seam(tmp_path, upstream.url, {}, [STRICT]) as proxy:
        one, two = await asyncio.gather(
            proxy.chat(calibration="strict", tools=TOOLS), proxy.chat(calibration="off", tools=TOOLS)
        )
        biased = ["logit_bias" in request.json for request in upstream.requests]
        assert sorted(biased) == [False, True]
        assert (one.header("x-calibration"), two.header("x-calibration")) == ("strict", "off")


async def test_an_event_that_is_null_leaves_the_reply_its_class(tmp_path: Path) -> None:
    writes = (event(b"null"), chunk(content="Which one?"), chunk("stop"), DONE)
    async with Upstream([Reply(writes=writes)]) as upstream, seam(tmp_path, upstream.url) as proxy:
        await proxy.chat(stream=True, tools=TOOLS)
        (record,) = await proxy.records(1)
    assert record["action"] == "ask"
