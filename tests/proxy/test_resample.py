"""A bias by drawing again, through the proxy: for servers that have not loaded our processor."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.seam import TOOLS, seam
from tests.upstream import DONE, Reply, Upstream, Wait, chunk, compact, event, said

AGAIN = {"name": "again", "entry": {"tokens": [7]}, "bias": {"value": -20, "apply": "resample"}}
KNOWN = {"models": {"m": {"sampling": {"temperature": 1.0}}}}


def shown(drawn: int) -> dict[str, Any]:
    """The log-probabilities of a first token, of which 7 opens a call."""
    listed = [{"token": f"token_id:{token}", "logprob": math.log(p)} for token, p in ((7, 0.6), (1, 0.4))]
    own = next(item for item in listed if item["token"] == f"token_id:{drawn}")
    return {"content": [{**own, "top_logprobs": listed}]}


def drew(token: int, text: str = "", *, stream: bool = False, identity: str = "c1") -> Reply:
    """A reply that begins with a token."""
    call = {"id": "t1", "type": "function", "function": {"name": "finish", "arguments": "{}"}}
    message = {"content": None, "tool_calls": [{"index": 0, **call}]} if token == 7 else {"content": text}
    end = "tool_calls" if token == 7 else "stop"
    document = {"id": identity, "object": "chat.completion", "model": "m"}
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    if not stream:
        choice = {"index": 0, "message": message, "logprobs": shown(token), "finish_reason": end}
        return Reply(body=compact({**document, "choices": [choice], "usage": usage}))
    first = {"index": 0, "delta": message, "logprobs": shown(token), "finish_reason": None}
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": end}
    events = [event({**document, "choices": [choice]}) for choice in (first, last)]
    return Reply(writes=(*events, event({**document, "choices": [], "usage": usage}), DONE))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_the_bias_prevents_is_replaced_by_another_draw(
    tmp_path: Path, stream: bool
) -> None:
    script = [drew(7, stream=stream), drew(1, "It is noon.", stream=stream, identity="c2")]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, KNOWN, [AGAIN]) as proxy:
        answer = await proxy.chat(calibration="again", tools=TOOLS, stream=stream)
        assert answer.text == "It is noon."
        assert b"tool_calls" not in answer.body
        assert b"token_id" not in answer.body
        assert answer.header("x-calibration-applied") == "bias=-20/resample"
        record = (await proxy.records(1))[0]
        assert [query["role"] for query in record["queries"]] == ["first", "resample"]
        assert [query["upstream_id"] for query in record["queries"]] == ["c1", "c2"]
        assert (record["action"], record["entry_probability"]) == ("other", pytest.approx(0.6))
        assert proxy.sample("seam_queries_per_reply_sum", model="m", profile="again") == 2


async def test_the_token_counts_of_all_draws_are_added_up(tmp_path: Path) -> None:
    script = [drew(7), drew(7), drew(1, "It is noon.")]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, KNOWN, [AGAIN]) as proxy:
        answer = await proxy.chat(calibration="again", tools=TOOLS)
        usage = answer.json["usage"]
        assert usage == {"prompt_tokens": 36, "completion_tokens": 15, "total_tokens": 51}


async def test_a_draw_that_was_dropped_before_it_was_counted_adds_nothing(tmp_path: Path) -> None:
    first = drew(7, stream=True)
    assert first.writes is not None
    dropped = Reply(writes=(first.writes[0], Wait(30), DONE))
    async with (
        Upstream([dropped, drew(1, "It is noon.", stream=True)]) as upstream,
        seam(tmp_path, upstream.url, KNOWN, [AGAIN]) as proxy,
    ):
        counted = {"include_usage": True}
        answer = await proxy.chat(calibration="again", tools=TOOLS, stream=True, stream_options=counted)
        assert answer.events[-1]["usage"]["total_tokens"] == 17


async def test_a_client_that_asked_for_no_counts_gets_none(tmp_path: Path) -> None:
    async with (
        Upstream([drew(1, "It is noon.", stream=True)]) as upstream,
        seam(tmp_path, upstream.url, KNOWN, [AGAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="again", tools=TOOLS, stream=True)
        assert all("usage" not in event for event in answer.events)
        assert answer.data[-1] == "[DONE]"
        assert upstream.requests[0].json["stream_options"] == {"include_usage": True}


async def test_a_draw_that_is_dropped_is_cancelled_at_its_first_token(tmp_path: Path) -> None:
    first = drew(7, stream=True)
    assert first.writes is not None
    endless = Reply(writes=(first.writes[0], Wait(30), DONE))
    async with (
        Upstream([endless, drew(1, "It is noon.", stream=True)]) as upstream,
        seam(tmp_path, upstream.url, KNOWN, [AGAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="again", tools=TOOLS, stream=True)
        assert answer.text == "It is noon."
        await upstream.until(lambda server: len(server.left) == 1)


async def test_a_stream_is_not_held_beyond_its_first_token(tmp_path: Path) -> None:
    first = drew(1, "It ", stream=True)
    assert first.writes is not None
    script = Reply(writes=(first.writes[0], Wait(30), DONE))
    async with (
        Upstream([script]) as upstream,
        seam(tmp_path, upstream.url, KNOWN, [AGAIN]) as proxy,
        proxy.open_chat(calibration="again", tools=TOOLS, stream=True) as open_chat,
    ):
        await open_chat.head()
        await open_chat.until(b'"It "')


async def test_after_three_draws_the_entry_is_banned(tmp_path: Path) -> None:
    script = [*(drew(7) for _ in range(4)), drew(1, "It is noon.")]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, KNOWN, [AGAIN]) as proxy:
        answer = await proxy.chat(calibration="again", tools=TOOLS, seed=5, logit_bias={"9": 1})
        assert answer.text == "It is noon."
        asked = [request.json for request in upstream.requests]
        assert [fields["seed"] for fields in asked] == [5, 6, 7, 8, 5]
        assert [fields["logit_bias"] for fields in asked] == [{"9": 1}] * 4 + [{"9": 1, "7": -100}]
        assert answer.header("x-calibration-applied") == "bias=-20/resample approximate"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "failure", [Reply(503, body=b"x", headers={"Retry-After": "1"}), Reply(close_on_request=True)]
)
async def test_a_draw_that_fails_serves_the_first_reply_and_says_so(
    tmp_path: Path, stream: bool, failure: Reply
) -> None:
    async with (
        Upstream([drew(7, stream=stream), failure], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, KNOWN, [AGAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="again", tools=TOOLS, stream=stream)
        assert answer.status == 200
        assert b'"finish"' in answer.body
        assert not answer.cut
        told = answer.header("x-calibration-applied") or ""
        assert told.startswith("none; reason=drawing again failed: ")
        record = (await proxy.records(1))[0]
        assert (record["action"], record["outcome"]) == ("tool_call", "ok")
        assert proxy.sample("seam_passthrough_total", reason="resample_failed") == 1


@pytest.mark.parametrize(
    ("config", "fields", "reason"),
    [
        ({}, {}, "resample needs to know temperature: send it, or name it in models.*.sampling"),
        (KNOWN, {"n": 2}, "resample draws one reply, not n > 1"),
        (KNOWN, {"presence_penalty": 1}, "resample can't reckon with presence_penalty"),
        (KNOWN, {"min_p": 0.1}, "resample can't reckon with min_p"),
        (KNOWN, {"calibration": {"profile": "again", "bias": 1}}, "resample takes no bias above 0"),
    ],
)
async def test_what_can_not_be_drawn_again_is_served_with_the_reason(
    tmp_path: Path, config: dict[str, Any], fields: dict[str, Any], reason: str
) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, config, [AGAIN]) as proxy,
    ):
        answer = await proxy.chat(**{"calibration": "again", "tools": TOOLS, **fields})
        assert (answer.status, answer.text) == (200, "Hello.")
        assert answer.header("x-calibration-applied") == f"none; reason={reason}"
        assert "logit_bias" not in upstream.requests[0].json


async def test_a_server_without_log_probabilities_says_so(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, KNOWN, [AGAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="again", tools=TOOLS)
        told = "none; reason=the reply shows no log-probabilities to resample by"
        assert answer.header("x-calibration-applied") == told


async def test_a_stream_that_shows_no_log_probabilities_is_not_held(tmp_path: Path) -> None:
    script = Reply(writes=(chunk(role="assistant", content=""), chunk(content="It is noon."), Wait(30), DONE))
    async with (
        Upstream([script]) as upstream,
        seam(tmp_path, upstream.url, KNOWN, [AGAIN]) as proxy,
        proxy.open_chat(calibration="again", tools=TOOLS, stream=True) as open_chat,
    ):
        head = await open_chat.head()
        await open_chat.until(b"It is noon.")
        told = "none; reason=the reply shows no log-probabilities to resample by"
        assert head.header("x-calibration-applied") == told
