"""/v1/responses and /v1/messages through the proxy: as far as docs/routes.md says."""

from pathlib import Path
from typing import Any

import pytest

from proxy.upstream import Facts, ModelFacts
from tests.seam import seam
from tests.upstream import Reply, Upstream, Wait, compact
from tests.wire import exchange

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
PROFILES = [
    {"name": name, "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": apply}}
    for name, apply in (("strict", "processor"), ("stock", "logit_bias"), ("again", "resample"))
]
# Nothing of these survives a parser and a printer.
ODD: dict[str, bytes] = {
    RESPONSES: b'{"model": "m","x":1.10,"tools":[{"type":"function","name":"ship"}],"input":"Go \\u00e9" }',
    MESSAGES: b'{"model": "m","x":1.10,"max_tokens":9,"tools":[{"name":"ship"}],"messages":[]}',
}
ADDED = b',"vllm_xargs":{"seam_bias":-1.5,"seam_entry":[7]}'

USAGE = {"input_tokens": 12, "output_tokens": 5}
CALL_ITEM: dict[str, Any] = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "ship",
    "arguments": "{}",
}
TEXT_ITEM = {"type": "message", "content": [{"type": "output_text", "text": "I can't do that."}]}


def response(*output: Any, **more: Any) -> dict[str, Any]:
    document = {"id": "resp_1", "object": "response", "model": "m", "status": "completed"}
    return {**document, "output": list(output), "usage": USAGE, **more}


def message(*content: Any, stop_reason: str | None = "end_turn") -> dict[str, Any]:
    document = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    return {**document, "content": list(content), "stop_reason": stop_reason, "usage": USAGE}


CALL_BLOCK: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "ship", "input": {"to": 1}}
TEXT_BLOCK = {"type": "text", "text": "I can't do that."}


def named(document: dict[str, Any]) -> bytes:
    """One event as vLLM writes it for these routes."""
    return f"event: {document['type']}\n".encode() + b"data: " + compact(document) + b"\n\n"


RESPONSE_EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": response(status="in_progress", usage=None)},
    {"type": "response.output_item.added", "output_index": 0, "item": {**CALL_ITEM, "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"to":1}'},
    {"type": "response.output_item.done", "output_index": 0, "item": CALL_ITEM},
    {"type": "response.completed", "response": response(CALL_ITEM)},
]
MESSAGE_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": message(stop_reason=None)},
    {"type": "content_block_start", "index": 0, "content_block": {**CALL_BLOCK, "input": {}}},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": '{"to":1}'},
    },
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": USAGE},
    {"type": "message_stop"},
]
EVENTS = {RESPONSES: RESPONSE_EVENTS, MESSAGES: MESSAGE_EVENTS}
CALLED = {RESPONSES: response(CALL_ITEM), MESSAGES: message(CALL_BLOCK, stop_reason="tool_use")}
SAID = {RESPONSES: response(TEXT_ITEM), MESSAGES: message(TEXT_BLOCK)}
both = pytest.mark.parametrize("path", [RESPONSES, MESSAGES])


def stream_of(path: str) -> Reply:
    return Reply(writes=tuple(map(named, EVENTS[path])))


def asked(path: str, **fields: Any) -> bytes:
    tools = {RESPONSES: [{"type": "function", "name": "ship"}], MESSAGES: [{"name": "ship"}]}[path]
    turn: dict[str, Any] = {"input": "Go on."} if path == RESPONSES else {"messages": [], "max_tokens": 9}
    return compact({"model": "m", **turn, "tools": tools, **fields})


@both
async def test_a_bias_is_all_that_is_added_and_the_reply_stays_as_it_is(tmp_path: Path, path: str) -> None:
    async with (
        Upstream([Reply(body=compact(CALLED[path]))]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await proxy.ask(f"/p/strict{path}", method="POST", body=ODD[path])
        sent = upstream.requests[0]
        assert sent.body.replace(ADDED, b"") == ODD[path]
        assert sent.json["vllm_xargs"] == {"seam_bias": -1.5, "seam_entry": [7]}
        assert sent.target == path
        assert answer.body == upstream.last_body
        assert answer.header("x-calibration-applied") == "bias=-1.5/processor"
        assert answer.header("x-calibration-action") == "tool_call"


@both
async def test_a_stream_passes_byte_for_byte_and_no_counts_are_asked_for(tmp_path: Path, path: str) -> None:
    async with (
        Upstream([stream_of(path)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await proxy.ask(path, method="POST", body=asked(path, calibration="strict", stream=True))
        assert answer.body == upstream.last_body
        assert "stream_options" not in upstream.requests[0].json
        assert "seam_bias" in upstream.requests[0].json["vllm_xargs"]
        record = (await proxy.records(1))[0]
        assert (record["action"], record["calls"], record["delayed_call"]) == ("tool_call", ["ship"], False)
        assert record["finish_reason"] is not None
        assert record["queries"][0]["prompt_tokens"] == 12


@both
async def test_without_a_calibration_no_byte_changes(tmp_path: Path, path: str) -> None:
    async with (
        Upstream([Reply(body=compact(SAID[path])), stream_of(path)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        streaming = ODD[path][:-1] + b',"stream":true}'
        for body in (ODD[path], streaming):
            answer = await proxy.ask(path, method="POST", body=body)
            assert upstream.requests[-1].body == body
            assert answer.body == upstream.last_body
        records = await proxy.records(2)
        assert [record["action"] for record in records] == ["refuse", "tool_call"]


@both
async def test_a_record_tells_the_route_and_what_the_reply_did(tmp_path: Path, path: str) -> None:
    config = {"decisions": {"text": True}, "models": {"m": {}}}
    async with (
        Upstream([Reply(body=compact(CALLED[path]))]) as upstream,
        seam(tmp_path, upstream.url, config, PROFILES) as proxy,
    ):
        await proxy.ask(path, method="POST", body=asked(path, calibration="strict"))
        record = (await proxy.records(1))[0]
        route = path.removeprefix("/v1/")
        assert (record["route"], record["tools"], record["tool_choice"]) == (route, 1, "auto")
        assert (record["bias"], record["applied"]) == (-1.5, "bias=-1.5/processor")
        assert record["arguments"] == ["{}" if path == RESPONSES else '{"to":1}']
        assert record["entry_probability"] is None
        assert record["queries"][0]["completion_tokens"] == 5
        labels = {"route": route, "model": "m", "profile": "strict", "status": "200"}
        assert proxy.sample("seam_requests_total", **labels) == 1


@both
@pytest.mark.parametrize("profile", ["stock", "again"])
async def test_other_ways_of_biasing_are_refused_with_the_reason(
    tmp_path: Path, path: str, profile: str
) -> None:
    async with (
        Upstream([Reply(body=compact(SAID[path]))]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await proxy.ask(f"/p/{profile}{path}", method="POST", body=ODD[path])
        assert (answer.status, answer.body) == (200, upstream.last_body)
        route = path.removeprefix("/v1/")
        told = f"none; reason={route} takes a bias by the processor only"
        assert answer.header("x-calibration-applied") == told
        assert upstream.requests[0].body == ODD[path]
        assert proxy.sample("seam_passthrough_total", reason="route") == 1


@pytest.mark.parametrize(
    ("path", "choice", "reason"),
    [
        (RESPONSES, "required", "tool_choice is required"),
        (RESPONSES, {"type": "function", "name": "ship"}, "tool_choice is named"),
        (MESSAGES, {"type": "any"}, "tool_choice is required"),
        (MESSAGES, {"type": "tool", "name": "ship"}, "tool_choice is named"),
        (MESSAGES, {"type": "none"}, "tool_choice is none"),
    ],
)
async def test_a_request_without_a_decision_goes_on_as_it_came(
    tmp_path: Path, path: str, choice: Any, reason: str
) -> None:
    async with (
        Upstream([Reply(body=compact(CALLED[path]))]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        body = asked(path, tool_choice=choice)
        answer = await proxy.ask(f"/p/strict{path}", method="POST", body=body)
        assert upstream.requests[0].body == body
        assert answer.header("x-calibration-applied") == f"none; reason={reason}"


@both
@pytest.mark.parametrize("reading", ["top_logprobs", "ids", "scoring", "prompt"])
async def test_no_probability_is_read(tmp_path: Path, path: str, reading: str) -> None:
    async with (
        Upstream([Reply(body=compact(SAID[path]))]) as upstream,
        seam(tmp_path, upstream.url, {"reading": reading}, PROFILES) as proxy,
    ):
        proxy.runtime.settings.upstream_of("m").facts = Facts(
            "vllm", "0.32.0", {"m": ModelFacts()}, {"version": "1", "runner": "v2"}
        )
        await proxy.ask(f"/p/strict{path}", method="POST", body=ODD[path])
        await proxy.idle()
        assert [request.target for request in upstream.requests] == [path]
        assert "logprobs" not in upstream.requests[0].json
        queries = (await proxy.records(1))[0]["queries"]
        assert [query["role"] for query in queries] == ["first"]


# What a client sees ----------------------------------------------------------------------------


@both
async def test_the_name_that_the_client_sent_is_shown_back_wherever_a_reply_holds_it(
    tmp_path: Path, path: str
) -> None:
    def own(body: bytes) -> bytes:
        return body.replace(b'"model":"m"', b'"model":"m@strict"')

    async with (
        Upstream([Reply(body=compact(CALLED[path])), stream_of(path)], lists=["m"]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        for stream in (False, True):
            body = asked(path, model="m@strict", stream=stream)
            answer = await proxy.ask(path, method="POST", body=body)
            assert upstream.requests[-1].json["model"] == "m"
            assert upstream.last_body != own(upstream.last_body)
            assert answer.body == own(upstream.last_body)
            assert answer.header("x-calibration") == "strict"


@both
async def test_an_explanation_comes_in_a_whole_reply(tmp_path: Path, path: str) -> None:
    async with (
        Upstream([Reply(body=compact(SAID[path]))]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        body = asked(path, calibration={"profile": "strict", "explain": True})
        answer = await proxy.ask(path, method="POST", body=body)
        told = answer.json["calibration"]
        assert answer.body == upstream.last_body[:-1] + b',"calibration":' + compact(told) + b"}"
        assert (told["action"], told["bias"], told["queries"]) == ("refuse", -1.5, 1)
        assert told["before"]["entry_probability"] is None


@both
async def test_a_stream_carries_no_explanation_that_its_client_would_not_know(
    tmp_path: Path, path: str
) -> None:
    async with (
        Upstream([stream_of(path)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        body = asked(path, calibration={"profile": "strict", "explain": True}, stream=True)
        assert (await proxy.ask(path, method="POST", body=body)).body == upstream.last_body


# Failures --------------------------------------------------------------------------------------

OPENAI_ERROR = {"error": {"message": "no such model", "type": "NotFoundError", "code": 404}}
ANTHROPIC_ERROR = {"type": "error", "error": {"type": "not_found_error", "message": "no such model"}}


@pytest.mark.parametrize(
    ("path", "error"), [(RESPONSES, OPENAI_ERROR), (MESSAGES, OPENAI_ERROR), (MESSAGES, ANTHROPIC_ERROR)]
)
async def test_an_error_keeps_its_status_and_body_and_has_no_class(
    tmp_path: Path, path: str, error: dict[str, Any]
) -> None:
    async with (
        Upstream([Reply(404, body=compact(error))]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await proxy.ask(f"/p/strict{path}", method="POST", body=ODD[path])
        assert (answer.status, answer.body) == (404, upstream.last_body)
        record = (await proxy.records(1))[0]
        assert (record["action"], record["outcome"]) == (None, "upstream_error")


@both
async def test_a_bias_that_is_refused_is_asked_again_without(tmp_path: Path, path: str) -> None:
    refusal = Reply(400, body=compact({"error": {"message": "vllm_xargs: no", "code": 400}}))
    async with (
        Upstream([refusal, Reply(body=compact(SAID[path]))]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await proxy.ask(f"/p/strict{path}", method="POST", body=ODD[path])
        assert (answer.status, answer.body) == (200, upstream.last_body)
        assert upstream.requests[1].body == ODD[path]
        told = answer.header("x-calibration-applied")
        assert told == "none; reason=the upstream refused what was added: vllm_xargs: no"


async def test_a_bias_that_is_refused_inside_a_messages_stream_is_asked_again_without(tmp_path: Path) -> None:
    error = {"type": "error", "error": {"type": "internal_error", "message": "garbled"}}
    async with (
        Upstream([Reply(writes=(named(error),)), stream_of(MESSAGES)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        body = asked(MESSAGES, calibration="strict", stream=True)
        answer = await proxy.ask(MESSAGES, method="POST", body=body)
        assert answer.body == upstream.last_body
        assert "vllm_xargs" not in upstream.requests[1].json


async def test_a_bias_that_makes_the_server_cut_a_responses_stream_is_a_cut_stream(tmp_path: Path) -> None:
    # vLLM opens the stream, then drops the connection (docs/routes.md): nothing to tell it by.
    begun = Reply(writes=(named(RESPONSE_EVENTS[0]),), end="reset")
    async with Upstream([begun]) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        body = asked(RESPONSES, calibration="strict", stream=True)
        answer = await proxy.ask(RESPONSES, method="POST", body=body)
        assert answer.cut or answer.status == 502
        record = (await proxy.records(1))[0]
        assert (record["action"], record["outcome"]) == (None, "upstream_error")


@both
async def test_an_error_in_the_middle_of_a_stream_leaves_no_class(tmp_path: Path, path: str) -> None:
    failure = {"type": "error", "error": {"type": "internal_error", "message": "It broke."}}
    events = [*EVENTS[path][:2], failure]
    async with (
        Upstream([Reply(writes=tuple(map(named, events)))]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        body = asked(path, calibration="strict", stream=True)
        answer = await proxy.ask(path, method="POST", body=body)
        assert answer.body == upstream.last_body
        record = (await proxy.records(1))[0]
        assert (record["action"], record["outcome"]) == (None, "upstream_error")


THOUGHT_BEGINS: dict[str, list[dict[str, Any]]] = {
    RESPONSES: [
        RESPONSE_EVENTS[0],
        {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "Hm."},
    ],
    MESSAGES: [
        MESSAGE_EVENTS[0],
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "Hm."},
        },
    ],
}


@both
async def test_a_biased_stream_that_thinks_first_is_not_held(tmp_path: Path, path: str) -> None:
    script = Reply(writes=(*map(named, THOUGHT_BEGINS[path]), Wait(30)))
    async with Upstream([script]) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        body = asked(path, calibration="strict", stream=True)
        async with exchange(proxy.port, "POST", path, {}, body) as open_stream:
            head = await open_stream.head()
            await open_stream.until(b"Hm.")
        assert head.header("x-calibration-applied") == "bias=-1.5/processor"
