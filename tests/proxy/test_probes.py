"""SRI and CRI through the proxy: what the client sees of each outcome, as a stream and as a document."""

import asyncio
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrators import cri, sri
from tests.seam import Seam, eventually, seam
from tests.upstream import DONE, IfAskedUsage, Reply, Upstream, Wait, chunk, compact, event
from tests.wire import Answer

ASKED = [{"role": "user", "content": "Ship order A-17."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "ship",
            "parameters": {"properties": {"order": {"type": "string"}}, "required": ["order"]},
        },
    }
]
PROFILES = [
    {"name": "sri", "sri": True},
    {"name": "cri", "cri": True},
    {"name": "both", "sri": True, "cri": True},
    {"name": "biased", "sri": True, "entry": {"tokens": [7]}, "bias": {"value": -2, "apply": "logit_bias"}},
]
HALT = "I will ship it."
USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
TWICE = {"prompt_tokens": 24, "completion_tokens": 10, "total_tokens": 34}


def reply(
    text: str | None = None,
    call: tuple[str, str] | None = None,
    *,
    stream: bool = False,
    identity: str = "c1",
    finish: str | None = None,
) -> Reply:
    """A whole reply: a text, a call (name, order), or a text and then a call."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call is not None:
        function = {"name": call[0], "arguments": json.dumps({"order": call[1]})}
        message["tool_calls"] = [{"id": f"call_{identity}", "type": "function", "function": function}]
    finish = finish or ("stop" if call is None else "tool_calls")
    head = {"id": identity, "object": "chat.completion", "created": 1, "model": "m"}
    if not stream:
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return Reply(body=compact({**head, "choices": [choice], "usage": USAGE}))
    head["object"] = "chat.completion.chunk"
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": word} for word in re.findall(r"\S+ ?", text or "")
    ]
    if call is not None:
        deltas.append({"tool_calls": [{"index": 0, **message["tool_calls"][0]}]})
    events = [event({**head, "choices": [{"index": 0, "delta": d, "finish_reason": None}]}) for d in deltas]
    end = event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    usage = IfAskedUsage(event({**head, "choices": [], "usage": USAGE}))
    return Reply(writes=(*events, end, usage, DONE))


def halt(stream: bool = False) -> Reply:
    return reply(HALT, stream=stream)


def called(name: str = "ship", order: str = "A-17", stream: bool = False, identity: str = "c2") -> Reply:
    return reply(None, (name, order), stream=stream, identity=identity)


def triggering(probe: str, stream: bool = False) -> Reply:
    """A first reply at which a probe acts."""
    return halt(stream) if probe == "sri" else called("refund", stream=stream, identity="c1")


def replacing(probe: str, stream: bool = False) -> Reply:
    """What the second query is answered."""
    return called(stream=stream) if probe == "sri" else reply("Which order?", stream=stream, identity="c2")


async def ask(proxy: Seam, calibration: Any, stream: bool = False, **fields: Any) -> Answer:
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    asked = {"messages": ASKED, "tools": TOOLS, "stream": stream, **usage, **fields}
    return await proxy.chat(calibration=calibration, **asked)


def usage_of(answer: Answer) -> Any:
    if "stream" in (answer.header("content-type") or ""):
        return next(e["usage"] for e in answer.events if e.get("usage"))
    return answer.json["usage"]


def ids_of(answer: Answer) -> set[str]:
    streamed = "stream" in (answer.header("content-type") or "")
    return {e["id"] for e in answer.events} if streamed else {answer.json["id"]}


async def looks(proxy: Seam, count: int = 1) -> list[tuple[str, str]]:
    """The looks that probes took at the last reply, as the record has them."""
    record = (await proxy.records(count))[-1]
    return [(look["probe"], look["outcome"]) for look in record["probes"]]


def appended(upstream: Upstream, number: int = 1) -> dict[str, Any]:
    """Our message in a query."""
    *sent, ours = upstream.requests[number].json["messages"]
    assert sent == ASKED
    return dict(ours)


@pytest.fixture(params=["document", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "stream")


@pytest.fixture(params=["sri", "cri"])
def probe(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Retried ---------------------------------------------------------------------------------------


async def test_the_client_sees_the_second_reply_and_nothing_of_the_first(
    tmp_path: Path, probe: str, stream: bool
) -> None:
    script = [triggering(probe, stream), replacing(probe, stream)]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        answer = await ask(proxy, probe, stream)
        assert answer.header("x-calibration-applied") == f"{probe}=retried"
        assert ids_of(answer) == {"c2"}
        assert usage_of(answer) == TWICE
        for hidden in (b"I will", b"refund", b"Check before", b"calibration"):
            assert hidden not in answer.body
        if stream:
            assert answer.data.count("[DONE]") == 1
        (record,) = await proxy.records(1)
        assert [query["role"] for query in record["queries"]] == ["first", probe]
        assert [query["upstream_id"] for query in record["queries"]] == ["c1", "c2"]
        (look,) = record["probes"]
        classes = {"sri": ("other", "tool_call"), "cri": ("tool_call", "ask")}[probe]
        assert (look["action_before"], look["action_after"]) == classes
        assert record["action"] == classes[1]
        assert proxy.sample("seam_interventions_total", calibrator=probe, outcome="retried") == 1
        assert proxy.sample("seam_queries_per_reply_sum", model="other", profile=probe) == 2


async def test_a_client_that_asked_for_no_counts_gets_none_of_either_query(
    tmp_path: Path, probe: str
) -> None:
    script = [triggering(probe, stream=True), replacing(probe, stream=True)]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        answer = await ask(proxy, probe, stream=True, stream_options=None)
        assert all(e.get("usage") is None for e in answer.events)
        assert all(e["choices"] for e in answer.events)
        assert upstream.requests[1].json["stream_options"] == {"include_usage": True}


async def test_a_second_reply_in_gzip_is_served_whole(tmp_path: Path, probe: str, stream: bool) -> None:
    def packed(plain: Reply) -> Reply:
        packer = zlib.compressobj(wbits=31)
        if plain.writes is None:
            body = packer.compress(plain.body) + packer.flush()
            return replace(plain, headers={"Content-Encoding": "gzip"}, body=body)
        events = [w.data if isinstance(w, IfAskedUsage) else w for w in plain.writes]
        cut = [packer.compress(e) + packer.flush(zlib.Z_SYNC_FLUSH) for e in events if isinstance(e, bytes)]
        return Reply(headers={"Content-Encoding": "gzip"}, writes=(*cut, packer.flush()))

    script = [packed(triggering(probe, stream)), packed(replacing(probe, stream))]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        answer = await ask(proxy, probe, stream, headers={"Accept-Encoding": "gzip"})
        assert ids_of(answer) == {"c2"}
        assert usage_of(answer) == TWICE


# Failed ----------------------------------------------------------------------------------------

SHORT = {"upstreams": {"default": {"timeouts": {"total": 0.6}}}}
ENDLESS = Wait(60)


def broken(probe: str, stream: bool) -> Reply:
    """A second reply that breaks off."""
    second = replacing(probe, stream)
    if second.writes is None:
        return Reply(headers={"Content-Length": "9999"}, body=second.body, end="reset")
    return Reply(writes=second.writes[:1], end="reset")


def erring(stream: bool) -> Reply:
    """An error behind a status of 200."""
    error = {"error": {"message": "boom", "code": 500}}
    return Reply(writes=(event(error), DONE)) if stream else Reply(body=compact(error))


FAILURES: dict[str, Callable[[str, bool], Reply]] = {
    "500": lambda probe, stream: Reply(500, body=compact({"error": {"message": "boom"}})),
    "429": lambda probe, stream: Reply(429, body=b"slow down", headers={"Retry-After": "7"}),
    "closed": lambda probe, stream: Reply(close_on_request=True),
    "broken": broken,
    "late": lambda probe, stream: Reply(delay=60, body=b"{}"),
    "never ends": lambda probe, stream: replace(broken(probe, stream), end="hang"),
    "other form": lambda probe, stream: replacing(probe, not stream),
    "no JSON": lambda probe, stream: Reply(body=b"<html>", content_type="text/html"),
    "no choices": lambda probe, stream: Reply(body=b"{}"),
    "error inside": lambda probe, stream: erring(stream),
    "cut": lambda probe, stream: reply("I will", stream=stream, identity="c2", finish="length"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_second_query_that_fails_leaves_the_first_reply(
    tmp_path: Path, probe: str, stream: bool, failure: str
) -> None:
    script = [triggering(probe, stream), FAILURES[failure](probe, stream)]
    config = SHORT if failure in ("late", "never ends") else {}
    async with (
        Upstream(script, repeat_last=failure == "closed") as upstream,
        seam(tmp_path, upstream.url, config, PROFILES) as proxy,
    ):
        answer = await ask(proxy, probe, stream)
        assert (answer.status, answer.cut, ids_of(answer)) == (200, False, {"c1"})
        assert answer.header("retry-after") is None
        told = answer.header("x-calibration-applied") or ""
        assert told.startswith("none; reason=")
        (record,) = await proxy.records(1)
        (look,) = record["probes"]
        assert (look["outcome"], record["outcome"]) == ("failed", "ok")
        assert look["why"] in told
        assert proxy.sample("seam_interventions_total", calibrator=probe, outcome="failed") == 1
        await proxy.idle()


async def test_a_reply_that_repeats_our_words_is_not_shown(tmp_path: Path, probe: str, stream: bool) -> None:
    """A model that echoes what it was sent last."""
    own = {"sri": sri.HEADER, "cri": cri.HEADER}[probe]
    echoes = reply(f"You said “{own}” and so I go on.", stream=stream, identity="c2")
    async with (
        Upstream([triggering(probe, stream), echoes]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await ask(proxy, probe, stream)
        assert appended(upstream)["content"].startswith(own)
        assert ids_of(answer) == {"c1"}
        assert b"Check before" not in answer.body
        assert await looks(proxy) == [(probe, "failed")]


async def test_a_first_reply_that_fails_is_the_clients_to_see(tmp_path: Path, probe: str) -> None:
    failing = Reply(503, body=b"overloaded", headers={"Retry-After": "7"})
    async with Upstream([failing]) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        answer = await ask(proxy, probe)
        assert (answer.status, answer.body, answer.header("retry-after")) == (503, b"overloaded", "7")
        assert await looks(proxy) == []


# Bypassed --------------------------------------------------------------------------------------

BYPASS = {"cri": "bypass"}
EMPTY_TURN = {"X-Case-Marks": "empty_turn"}


async def test_a_bypassed_call_is_answered_with_an_abstention(tmp_path: Path, stream: bool) -> None:
    async with (
        Upstream([called("refund", stream=stream)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await ask(proxy, BYPASS, stream, headers=EMPTY_TURN)
        assert answer.text == cri.ABSTENTION
        assert b"refund" not in answer.body
        assert answer.header("x-calibration-applied") == "cri=bypassed"
        assert usage_of(answer) == USAGE
        assert ids_of(answer) == {"c2"}
        if stream:
            assert answer.data[-1] == "[DONE]"
            ends = [c["finish_reason"] for e in answer.events for c in e["choices"]]
            assert [end for end in ends if end] == ["stop"]
            assert {e["object"] for e in answer.events} == {"chat.completion.chunk"}
        else:
            assert answer.header("content-length") == str(len(answer.body))
            assert answer.header("x-calibration-action") == "refuse"
        (record,) = await proxy.records(1)
        assert (record["action"], record["calls"]) == ("refuse", [])
        assert record["probes"][0]["action_before"] == "tool_call"


async def test_a_bypassed_reply_in_gzip_is_plain_and_whole(tmp_path: Path, stream: bool) -> None:
    plain = called("refund", stream=stream)
    packer = zlib.compressobj(wbits=31)
    raw = plain.body if plain.writes is None else b"".join(w for w in plain.writes if isinstance(w, bytes))
    packed = packer.compress(raw) + packer.flush()
    content = {"Content-Encoding": "gzip"}
    first = Reply(headers=content, writes=(packed,)) if stream else Reply(headers=content, body=packed)
    async with Upstream([first]) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        marked = {**EMPTY_TURN, "Accept-Encoding": "gzip"}
        answer = await ask(proxy, BYPASS, stream, headers=marked, stream_options=None)
        assert answer.header("content-encoding") is None
        assert answer.text == cri.ABSTENTION


async def test_a_turn_that_is_not_marked_is_not_bypassed(tmp_path: Path, stream: bool) -> None:
    async with (
        Upstream([called("refund", stream=stream)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await ask(proxy, BYPASS, stream)
        assert b"refund" in answer.body
        assert "marks as one to stay empty" in (answer.header("x-calibration-applied") or "")


async def test_a_mark_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        answer = await ask(proxy, BYPASS, headers={"X-Case-Marks": "empty-turn"})
        assert answer.status == 400
        assert "valid marks: miss_param, empty_turn" in answer.error["message"]


# Not acting ------------------------------------------------------------------------------------


async def test_a_reply_that_nothing_objects_to_passes_byte_for_byte(
    tmp_path: Path, probe: str, stream: bool
) -> None:
    good = called(stream=stream) if probe == "sri" else halt(stream)
    async with Upstream([good]) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        answer = await ask(proxy, probe, stream)
        assert answer.body == upstream.last_body
        assert await looks(proxy) == [(probe, "passed")]


async def test_a_gate_lets_a_reply_be_and_says_why(tmp_path: Path, stream: bool) -> None:
    asks = reply("Which order do you mean?", stream=stream)
    async with Upstream([asks]) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        answer = await ask(proxy, {"sri": "gate"}, stream)
        assert answer.body == upstream.last_body
        assert answer.header("x-calibration-applied") == "none; reason=the reply asks"
        assert await looks(proxy) == [("sri", "gated")]


async def test_the_gate_for_missing_parameters_heeds_the_callers_mark(tmp_path: Path) -> None:
    asks = reply("Which order do you mean?")
    async with Upstream([asks, asks, called()]) as upstream, seam(tmp_path, upstream.url) as proxy:
        gated = await ask(proxy, {"sri": "gate_miss_param"}, headers={"X-Case-Marks": "miss_param"})
        assert ids_of(gated) == {"c1"}
        assert ids_of(await ask(proxy, {"sri": "gate_miss_param"})) == {"c2"}


async def test_log_only_holds_no_stream_back(tmp_path: Path, probe: str) -> None:
    begun = b'data: {"id":"c1","choices":[{"index":0,"delta":{"role":"assistant","content":"I"}}]}\n\n'
    async with (
        Upstream([Reply(writes=(begun,), end="hang")]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
        proxy.open_chat(tools=TOOLS, stream=True, calibration={probe: {"log_only": True}}) as answer,
    ):
        await answer.head()
        while not answer.answer.data:
            assert await answer.more()
        assert json.loads(answer.answer.data[0])["choices"][0]["delta"]["content"] == "I"


async def test_log_only_writes_down_what_it_would_do_beside_what_was_done(
    tmp_path: Path, probe: str, stream: bool
) -> None:
    async with (
        Upstream([triggering(probe, stream)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await ask(proxy, {probe: {"log_only": True}}, stream)
        assert answer.body == upstream.last_body
        (record,) = await proxy.records(1)
        (look,) = record["probes"]
        assert (look["probe"], look["outcome"], look["action_after"]) == (probe, "log_only", None)
        assert "would" in look["why"]
        assert look["pair_id"]
        assert look["action_before"] == record["action"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": 2}, "probes act on one reply, not n > 1"),
        ({"tools": []}, "no tools offered"),
        ({"tool_choice": "none"}, "tool_choice is none"),
    ],
)
async def test_where_there_is_no_seam_the_reply_passes_with_the_reason(
    tmp_path: Path, probe: str, fields: dict[str, Any], reason: str
) -> None:
    async with (
        Upstream([triggering(probe)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await ask(proxy, probe, **fields)
        assert answer.body == upstream.last_body
        assert answer.header("x-calibration-applied") == f"none; reason={reason}"
        assert await looks(proxy) == []


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/messages"])
async def test_other_routes_have_no_probes_and_say_so(tmp_path: Path, probe: str, route: str) -> None:
    async with (
        Upstream([Reply(body=b"{}")]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        asked = {"model": "m", "messages": [], "input": "", "tools": TOOLS, "calibration": probe}
        answer = await proxy.ask(route, method="POST", body=compact(asked))
        assert (answer.header("x-calibration-applied") or "").endswith(" has no probes yet")


@pytest.mark.parametrize("messages", ["Ship it.", None, 3, {}, [], [[]], [None], ["x", {"role": 1}]])
async def test_messages_of_any_shape_are_the_servers_to_judge(
    tmp_path: Path, probe: str, messages: Any
) -> None:
    async with (
        Upstream([triggering(probe), replacing(probe)], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        assert (await ask(proxy, probe, messages=messages)).status == 200


@pytest.mark.parametrize("content", [b"%s", b'{"a":%s}', b'[{"type":"text","text":"x","y":%s}]'])
async def test_deeply_nested_messages_are_served_whatever_a_probe_makes_of_them(
    tmp_path: Path, content: bytes
) -> None:
    async with (
        Upstream([called("refund")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        for depth in (200, 700, 850, 900, 930, 950, 960, 970, 980, 985, 990):
            nested = content % (b"[" * depth + b"]" * depth)
            asked = compact({"model": "m", "tools": TOOLS, "calibration": "both"})[:-1]
            asked += b',"messages":[{"role":"user","content":%s}]}' % nested
            answer = await proxy.ask("/v1/chat/completions", method="POST", body=asked)
            assert answer.status == 200, depth


# How is asked again ----------------------------------------------------------------------------

REFUSED = Reply(400, body=compact({"error": {"message": "System message must be at the beginning."}}))


async def test_a_template_that_refuses_a_late_system_message_is_remembered(
    tmp_path: Path, stream: bool
) -> None:
    script = [halt(stream), REFUSED, called(stream=stream), halt(stream), called(stream=stream)]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        assert ids_of(await ask(proxy, "sri", stream)) == {"c2"}
        assert [appended(upstream, number)["role"] for number in (1, 2)] == ["system", "user"]
        # Once a model: the next case asks under the role that was taken, at once.
        assert ids_of(await ask(proxy, "sri", stream)) == {"c2"}
        assert appended(upstream, 4)["role"] == "user"
        (query,) = [q for q in (await proxy.records(2))[0]["queries"] if q["status"] == 400]
        assert query["role"] == "sri"


async def test_lite_has_one_role_and_tells_nothing_of_the_others(tmp_path: Path) -> None:
    async with (
        Upstream([halt(), called(), halt(), called()]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        for variant, number, role in (("lite", 1, "user"), ("v1", 3, "system")):
            await ask(proxy, {"sri": variant})
            assert appended(upstream, number)["role"] == role


async def test_a_bias_acts_inside_each_query(tmp_path: Path, stream: bool) -> None:
    async with (
        Upstream([halt(stream), called(stream=stream)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await ask(proxy, "biased", stream)
        assert [request.json["logit_bias"] for request in upstream.requests] == [{"7": -2}] * 2
        assert answer.header("x-calibration-applied") == "bias=-2/logit_bias; sri=retried"
        assert usage_of(answer) == TWICE


async def test_a_server_that_refuses_the_bias_is_not_probed_with_it(tmp_path: Path, stream: bool) -> None:
    no = Reply(400, body=compact({"error": {"message": "logit_bias is not supported"}}))
    async with (
        Upstream([no, halt(stream)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await ask(proxy, "biased", stream)
        assert answer.body == upstream.last_body
        assert (answer.header("x-calibration-applied") or "").startswith("none; reason=the upstream refused")


async def test_a_refused_bias_is_no_error_where_one_query_may_be_made(tmp_path: Path) -> None:
    no = Reply(400, body=compact({"error": {"message": "logit_bias is not supported"}}))
    one = {"limits": {"max_queries": 1}}
    async with (
        Upstream([no, halt()]) as upstream,
        seam(tmp_path, upstream.url, one, PROFILES) as proxy,
    ):
        assert (await ask(proxy, "biased")).text == HALT


async def test_cri_sees_what_sri_would_serve_and_sri_never_follows_it(tmp_path: Path, stream: bool) -> None:
    script = [
        halt(stream),
        called("refund", stream=stream),
        reply("I can't refund that.", stream=stream, identity="c3"),
    ]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        answer = await ask(proxy, "both", stream)
        assert answer.header("x-calibration-applied") == "sri=retried; cri=retried"
        assert ids_of(answer) == {"c3"}
        assert appended(upstream, 1)["content"].startswith(sri.HEADER)
        assert appended(upstream, 2)["content"].startswith(cri.HEADER)
        assert sum(usage_of(answer).values()) == 3 * sum(USAGE.values())
        assert await looks(proxy) == [("sri", "retried"), ("cri", "retried")]


async def test_a_bias_may_replace_a_reply_before_a_probe_sees_it(tmp_path: Path) -> None:
    profile = {
        "name": "all",
        "cri": True,
        "entry": {"tokens": [7]},
        "bias": {"value": -50, "apply": "resample"},
    }
    shown = {
        "token": "token_id:7",
        "logprob": -0.1,
        "top_logprobs": [{"token": "token_id:1", "logprob": -2.4}],
    }
    entered = json.loads(called("refund").body)
    entered["choices"][0]["logprobs"] = {"content": [shown]}
    drawn = json.loads(reply("Which order?").body)
    drawn["choices"][0]["logprobs"] = {"content": [{**shown, "token": "token_id:1"}]}
    async with (
        Upstream([Reply(body=compact(entered)), Reply(body=compact(drawn))]) as upstream,
        seam(tmp_path, upstream.url, {}, [profile]) as proxy,
    ):
        answer = await ask(proxy, "all", temperature=1.0, top_p=1.0, top_k=0)
        assert answer.text == "Which order?"
        record = (await proxy.records(1))[0]
        assert [query["role"] for query in record["queries"]] == ["first", "resample"]
        assert await looks(proxy) == [("cri", "passed")]


@pytest.mark.parametrize(
    ("most", "tokens", "roles"),
    [
        (2, [1, 7], ["first", "sri"]),
        (6, [1, 7, 7, 1], ["first", "sri", "resample", "resample"]),
        (6, [7, 7, 7, 7, 1, 7], ["first", *["resample"] * 4, "sri"]),
    ],
)
async def test_all_queries_for_a_reply_together_are_bounded(
    tmp_path: Path, most: int, tokens: list[int], roles: list[str]
) -> None:
    """Replies that open a call (token 7) are drawn again by the bias: three times, then with 7 banned."""
    resampled = {"value": -50, "apply": "resample"}
    profile = {"name": "all", "sri": True, "entry": {"tokens": [7]}, "bias": resampled}

    def first_token(token: int) -> Reply:
        document = json.loads((called() if token == 7 else halt()).body)
        both = [{"token": f"token_id:{t}", "logprob": -0.7} for t in (7, 1)]
        own = {"token": f"token_id:{token}", "logprob": -0.7, "top_logprobs": both}
        document["choices"][0]["logprobs"] = {"content": [own]}
        return Reply(body=compact(document))

    async with (
        Upstream(map(first_token, tokens)) as upstream,
        seam(tmp_path, upstream.url, {"limits": {"max_queries": most}}, [profile]) as proxy,
    ):
        answer = await ask(proxy, "all", temperature=1.0, top_p=1.0, top_k=0)
        assert "sri=retried" in (answer.header("x-calibration-applied") or "")
        assert [query["role"] for query in (await proxy.records(1))[0]["queries"]] == roles


# Turns and cases -------------------------------------------------------------------------------

GOES_ON: list[Any] = [
    *ASKED,
    {"role": "assistant", "content": None, "tool_calls": [{"id": "t", "function": {"name": "ship"}}]},
    {"role": "tool", "tool_call_id": "t", "content": "shipped"},
]
NEXT_TURN: list[Any] = [
    *GOES_ON,
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "A-18 too."},
]
COMPACTED: list[Any] = [{"role": "user", "content": "Summary: A-17 was shipped. Ship A-18 too."}]


async def outcomes(proxy: Seam, probe: str, talks: list[list[Any]], **fields: Any) -> list[str]:
    """What a probe makes of one request after the other."""
    for talk in talks:
        await ask(proxy, probe, messages=talk, **fields)
    return [r["probes"][0]["outcome"] for r in await proxy.records(len(talks))]


@pytest.mark.parametrize("headers", [{}, {"X-Case-Id": "case-1"}])
@pytest.mark.parametrize(
    ("probe", "came"),
    [("sri", ["retried", "gated", "retried"]), ("cri", ["retried", "gated", "gated"])],
)
async def test_sri_acts_once_a_turn_and_cri_once_a_case(
    tmp_path: Path, probe: str, came: list[str], headers: dict[str, str]
) -> None:
    script = [triggering(probe), replacing(probe), triggering(probe), triggering(probe), replacing(probe)]
    async with (
        Upstream(script) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        assert await outcomes(proxy, probe, [ASKED, GOES_ON, NEXT_TURN], headers=headers) == came


async def test_the_same_messages_again_are_a_fresh_attempt(tmp_path: Path, probe: str) -> None:
    async with (
        Upstream([triggering(probe), replacing(probe)] * 3) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        assert await outcomes(proxy, probe, [ASKED] * 3, headers={"X-Case-Id": "1"}) == ["retried"] * 3


async def test_a_compacted_history_is_a_fresh_one_also_under_its_clients_id(
    tmp_path: Path, probe: str
) -> None:
    async with (
        Upstream([triggering(probe), replacing(probe)] * 2) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        talks = [ASKED, COMPACTED]
        assert await outcomes(proxy, probe, talks, headers={"X-Case-Id": "1"}) == ["retried"] * 2


async def test_other_cases_have_marks_of_their_own(tmp_path: Path) -> None:
    async with (
        Upstream([halt(), called()] * 2) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        await ask(proxy, "sri", headers={"X-Case-Id": "1"})
        await ask(proxy, "sri", messages=GOES_ON, headers={"X-Case-Id": "2"})
        assert await looks(proxy, 2) == [("sri", "retried")]


async def test_a_probe_that_failed_or_only_logged_is_spent_for_its_turn_too(tmp_path: Path) -> None:
    fails = Reply(500, body=b"{}")
    async with (
        Upstream([halt(), fails, halt()]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        assert await outcomes(proxy, "sri", [ASKED, GOES_ON]) == ["failed", "gated"]


async def test_cri_does_not_act_once_tools_were_added(tmp_path: Path) -> None:
    more = [*TOOLS, {"type": "function", "function": {"name": "track"}}]
    async with (
        Upstream([called(), called("refund"), called("refund"), replacing("cri")]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        await ask(proxy, "cri")
        await ask(proxy, "cri", messages=GOES_ON, tools=more)
        assert await looks(proxy, 2) == [("cri", "gated")]
        await ask(proxy, "cri", messages=GOES_ON)
        assert await looks(proxy, 3) == [("cri", "retried")]


async def test_a_mark_is_not_lost_to_a_request_of_the_same_first_words(tmp_path: Path) -> None:
    """The other one has begun before the mark was made, and ends after."""
    slow = replace(called(), delay=0.2)
    async with (
        Upstream([slow, halt(), called(), halt()]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        other = [*ASKED, {"role": "user", "content": "And quickly."}]
        waiting = asyncio.create_task(ask(proxy, "sri", messages=other))
        await upstream.until(lambda server: len(server.requests) == 1)
        await ask(proxy, "sri")
        await waiting
        await ask(proxy, "sri", messages=GOES_ON)
        assert await looks(proxy, 3) == [("sri", "gated")]


# Streams ---------------------------------------------------------------------------------------


async def test_a_stream_goes_straight_through_once_a_call_has_begun(tmp_path: Path) -> None:
    begun = (called(stream=True).writes or ())[:2]
    async with (
        Upstream([Reply(writes=(chunk(content="On it."), *begun, ENDLESS))]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
        proxy.open_chat(messages=ASKED, tools=TOOLS, stream=True, calibration="sri") as opened,
    ):
        await opened.head()
        await opened.until(b"call_c2")


async def test_a_stream_is_not_held_for_a_probe_that_has_acted(tmp_path: Path, probe: str) -> None:
    words = (chunk(content="It is "), ENDLESS)
    async with (
        Upstream([triggering(probe), replacing(probe), Reply(writes=words)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        await ask(proxy, probe)
        async with proxy.open_chat(messages=GOES_ON, tools=TOOLS, stream=True, calibration=probe) as opened:
            head = await opened.head()
            await opened.until(b"It is ")
            told = f"none; reason={probe.upper()} has acted in this turn"
            assert head.header("x-calibration-applied") == told


BEATING = {"listen": {"heartbeat_seconds": 0.02}}


def paused(plain: Reply, seconds: float = 0.15) -> Reply:
    """A stream that waits behind its first event."""
    first, *rest = plain.writes or ()
    return replace(plain, writes=(first, Wait(seconds), *rest))


async def test_a_held_stream_is_kept_alive_and_its_last_chunk_tells(tmp_path: Path, probe: str) -> None:
    script = [paused(triggering(probe, True)), paused(replacing(probe, True))]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, BEATING, PROFILES) as proxy:
        answer = await ask(proxy, probe, stream=True)
        assert answer.body.startswith(b": held by a probe\n\n")
        assert answer.body.count(b": held by a probe\n\n") >= 4
        assert answer.header("content-type") == "text/event-stream; charset=utf-8"
        assert answer.header("x-calibration-applied") == "pending; the last chunk tells"
        assert answer.data.count("[DONE]") == 1
        assert ids_of(answer) == {"c2"}
        *others, last = answer.events
        assert last["calibration"]["applied"] == f"{probe}=retried"
        assert all("calibration" not in e for e in others)
        assert (await proxy.records(1))[0]["applied"] == f"{probe}=retried"


async def test_a_held_stream_whose_second_query_fails_goes_on_as_a_stream(tmp_path: Path, probe: str) -> None:
    for number, failure in enumerate(("500", "broken", "other form", "error inside"), 1):
        script = [paused(triggering(probe, True)), FAILURES[failure](probe, True)]
        async with Upstream(script) as upstream, seam(tmp_path, upstream.url, BEATING, PROFILES) as proxy:
            answer = await ask(proxy, probe, stream=True)
            assert answer.header("x-calibration-applied") == "pending; the last chunk tells"
            assert ids_of(answer) == {"c1"}
            assert answer.data[-1] == "[DONE]"
            assert answer.events[-1]["calibration"]["probes"][0]["outcome"] == "failed"
            assert (await proxy.records(number))[-1]["outcome"] == "ok"


async def test_a_held_stream_in_gzip_is_plain_behind_a_heartbeat(tmp_path: Path, probe: str) -> None:
    def packed(plain: Reply) -> Reply:
        packer = zlib.compressobj(wbits=31)
        cut = [
            w if isinstance(w, Wait) else packer.compress(w) + packer.flush(zlib.Z_SYNC_FLUSH)
            for w in paused(plain).writes or ()
            if not isinstance(w, IfAskedUsage)
        ]
        return Reply(headers={"Content-Encoding": "gzip"}, writes=(*cut, packer.flush()))

    for second, served in ((packed(replacing(probe, True)), "c2"), (Reply(500, body=b"x"), "c1")):
        script = [packed(triggering(probe, True)), second]
        async with Upstream(script) as upstream, seam(tmp_path, upstream.url, BEATING, PROFILES) as proxy:
            offered = {"Accept-Encoding": "gzip"}
            answer = await ask(proxy, probe, stream=True, stream_options=None, headers=offered)
            assert answer.header("content-encoding") is None
            assert ids_of(answer) == {served}
            assert answer.data[-1] == "[DONE]"


async def test_a_stream_in_an_encoding_that_is_not_ours_to_read_is_not_held(
    tmp_path: Path, probe: str
) -> None:
    brotli = Reply(headers={"Content-Encoding": "br"}, writes=(b"\x0b\x02", ENDLESS))
    async with (
        Upstream([brotli]) as upstream,
        seam(tmp_path, upstream.url, BEATING, PROFILES) as proxy,
        proxy.open_chat(messages=ASKED, tools=TOOLS, stream=True, calibration=probe) as opened,
    ):
        head = await opened.head()
        await opened.until(b"\x0b\x02")
        assert head.header("x-calibration-applied") == "none; reason=the reply could not be read"


async def test_no_heartbeat_comes_before_the_upstream_has_begun(tmp_path: Path, probe: str) -> None:
    """Until then its answer may have another status."""
    late = Reply(503, delay=0.15, body=b"overloaded")
    async with Upstream([late]) as upstream, seam(tmp_path, upstream.url, BEATING, PROFILES) as proxy:
        answer = await ask(proxy, probe, stream=True)
        assert (answer.status, answer.body) == (503, b"overloaded")


async def test_a_bypassed_stream_that_was_kept_alive_is_whole(tmp_path: Path) -> None:
    script = [paused(called("refund", stream=True))]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, BEATING, PROFILES) as proxy:
        answer = await ask(proxy, BYPASS, stream=True, headers=EMPTY_TURN)
        assert answer.text == cri.ABSTENTION
        assert answer.data[-1] == "[DONE]"
        assert answer.events[-1]["calibration"]["applied"] == "cri=bypassed"


@pytest.mark.parametrize("second", [False, True])
async def test_a_client_that_leaves_cancels_the_query(
    tmp_path: Path, probe: str, stream: bool, second: bool
) -> None:
    endless = Reply(writes=(chunk(content="I "), ENDLESS)) if stream else Reply(delay=60, body=b"{}")
    script = [triggering(probe, stream), endless] if second else [endless]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        async with proxy.open_chat(messages=ASKED, tools=TOOLS, stream=stream, calibration=probe):
            await upstream.until(lambda server: len(server.requests) == len(script))
        await upstream.until(lambda server: len(server.left) == 1)
        record = (await proxy.records(1))[0]
        assert (record["outcome"], record["action"]) == ("client_gone", None)
        await proxy.idle()
        await eventually(lambda: proxy.sample("seam_requests_in_flight") == 0)


# Explained, and picked -------------------------------------------------------------------------


async def test_an_explanation_shows_each_look_and_why(tmp_path: Path, probe: str, stream: bool) -> None:
    script = [triggering(probe, stream), replacing(probe, stream)]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        answer = await ask(proxy, {"profile": probe, "explain": True}, stream)
        told = (answer.events[-1] if stream else answer.json)["calibration"]
        whys = {"sri": "the reply has no call", "cri": "MC: refund is not offered"}
        classes = {"sri": ("other", "tool_call"), "cri": ("tool_call", "ask")}
        assert told["probes"] == [
            {
                "probe": probe,
                "outcome": "retried",
                "why": whys[probe],
                "action_before": classes[probe][0],
                "action_after": classes[probe][1],
            }
        ]
        assert (told["queries"], told["action"]) == (2, classes[probe][1])
        assert told["applied"] == f"{probe}=retried"


@pytest.mark.parametrize(
    ("calibration", "queries"),
    [
        ({"sri": True}, 2),
        ({"sri": False}, 1),
        ({"sri": "off"}, 1),
        ({"sri": "lite"}, 2),
        ({"sri": {"variant": "no_state"}}, 2),
        ({"sri": {"log_only": True}}, 1),
        ("sri", 2),
        ({"profile": "sri"}, 2),
        ({"profile": "sri", "sri": False}, 1),
        ({"profile": "sri", "sri": None}, 2),
        ({"profile": "sri", "cri": True}, 2),
        ({"profile": "cri", "sri": True}, 2),
        ("off", 1),
    ],
)
async def test_an_object_goes_over_the_profile(tmp_path: Path, calibration: Any, queries: int) -> None:
    async with (
        Upstream([halt(), called()][:queries]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        assert (await ask(proxy, calibration)).status == 200
        assert len(upstream.requests) == queries


async def test_an_object_changes_only_what_it_names_of_the_profiles_probe(tmp_path: Path) -> None:
    own = {"name": "own", "sri": {"variant": "no_recon", "state": "published"}}
    async with (
        Upstream([halt(), called(), halt()]) as upstream,
        seam(tmp_path, upstream.url, {}, [own]) as proxy,
    ):
        await ask(proxy, {"profile": "own", "sri": {"state": "generic"}})
        assert appended(upstream)["content"].split("\n\n")[1:] == [sri.NO_STATE]  # still no_recon
        await ask(proxy, {"profile": "own", "sri": {"log_only": True}})
        assert await looks(proxy, 2) == [("sri", "log_only")]


@pytest.mark.parametrize(
    "calibration",
    [{"sri": "v2"}, {"sri": {"variant": "v1", "x": 1}}, {"cri": {"detectors": []}}, {"cri": 3}, {"sri": []}],
)
async def test_a_probe_that_nobody_knows_is_refused_with_what_is_valid(
    tmp_path: Path, calibration: Any
) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        answer = await ask(proxy, calibration)
        assert answer.status == 400
        assert answer.error["code"] == "invalid_calibration"


async def test_the_servers_log_tells_the_second_query_from_the_first(
    tmp_path: Path, probe: str, stream: bool
) -> None:
    async with (
        Upstream([triggering(probe, stream), replacing(probe, stream)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        named = {"X-Request-Id": "r1"}
        answer = await proxy.chat(
            headers=named, messages=ASKED, tools=TOOLS, stream=stream, calibration=probe
        )
        assert [request.header("x-request-id") for request in upstream.requests] == ["r1", "r1-2"]
        assert answer.header("x-request-id") == "r1"


async def test_the_tokens_of_every_query_are_written_down_where_the_client_asks_for_none(
    tmp_path: Path, probe: str
) -> None:
    async with (
        Upstream([triggering(probe, True), replacing(probe, True)]) as upstream,
        seam(tmp_path, upstream.url, {}, PROFILES) as proxy,
    ):
        answer = await proxy.chat(messages=ASKED, tools=TOOLS, stream=True, calibration=probe)
        assert all(event.get("usage") is None for event in answer.events)
        (record,) = await proxy.records(1)
        assert all(query["prompt_tokens"] for query in record["queries"])
