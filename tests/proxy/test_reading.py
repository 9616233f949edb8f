"""The margin read through the proxy: what is added to a query, and taken out of what the client sees."""

import math
from pathlib import Path
from typing import Any

import pytest

from proxy.upstream import Facts, ModelFacts
from tests.seam import TOOLS, Seam, eventually, seam
from tests.upstream import DONE, Reply, Upstream, chunk, compact, event, said

BIASED = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "processor"}}
PLAIN = {"name": "plain", "entry": {"tokens": [7]}}
BY_LIST = {"reading": "top_logprobs"}
BY_ID = {"reading": "ids"}
ADDED = {"logprobs": True, "return_tokens_as_token_ids": True}
STRICT = {"model": "m", "profile": "strict"}


def shown(drawn: str, **probabilities: float) -> dict[str, Any]:
    """The log-probabilities of one position, `t7=0.3`: those of token 7."""
    listed = [
        {"token": f"token_id:{name[1:]}", "logprob": math.log(p), "bytes": None}
        for name, p in probabilities.items()
    ]
    own = next(item for item in listed if item["token"] == f"token_id:{drawn[1:]}")
    return {"content": [{**own, "top_logprobs": listed}]}


CALLING = shown("t7", t7=0.6, t1=0.3, t2=0.1)
ANSWERING = shown("t1", t1=0.8, t7=0.2)


def reply(*logprobs: Any, **more: Any) -> Reply:
    """A whole reply of as many choices as there are log-probabilities."""
    choices = [
        {"index": at, "message": {"role": "assistant", "content": "Hello."}, "logprobs": shown_at}
        | {"finish_reason": "stop"}
        for at, shown_at in enumerate(logprobs)
    ]
    document = {"id": "c1", "object": "chat.completion", "model": "m", "choices": choices, **more}
    return Reply(body=compact(document))


def with_logprobs(logprobs: Any, **delta: Any) -> bytes:
    """One event of a stream that shows log-probabilities."""
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}
    return event({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


@pytest.mark.parametrize(
    ("config", "added"), [(BY_LIST, {"top_logprobs": 20}), (BY_ID, {"logprob_token_ids": [7]})]
)
async def test_a_reading_asks_for_log_probabilities_and_shows_the_client_none(
    tmp_path: Path, config: dict[str, Any], added: dict[str, Any]
) -> None:
    async with (
        Upstream([reply(ANSWERING)]) as upstream,
        seam(tmp_path, upstream.url, config, [PLAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="plain", tools=TOOLS)
        sent = dict(upstream.requests[0].json)
        assert {key: sent.pop(key) for key in (*ADDED, *added)} == {**ADDED, **added}
        assert sent == {"model": "m", "messages": sent["messages"], "tools": TOOLS}
        assert answer.body == reply(None).body
        record = (await proxy.records(1))[0]
        assert record["entry_probability"] == pytest.approx(0.2)
        assert record["margin"] == pytest.approx(math.log(0.2 / 0.8))
        assert record["entry_probability_at_most"] is None


async def test_by_default_only_a_request_that_a_bias_changes_anyhow_is_read(tmp_path: Path) -> None:
    async with (
        Upstream([reply(ANSWERING)], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, {}, [PLAIN, BIASED]) as proxy,
    ):
        proxy.runtime.settings.upstream_of("m").facts = Facts(
            "vllm", "0.32.0", {"m": ModelFacts()}, {"version": "1", "runner": "v1"}
        )
        await proxy.chat(calibration="plain", tools=TOOLS)
        assert "logprobs" not in upstream.requests[-1].json
        await proxy.chat(calibration="strict", tools=TOOLS)
        assert upstream.requests[-1].json["top_logprobs"] == 20
        await proxy.chat(calibration="strict", tools=TOOLS, tool_choice="none")
        assert "logprobs" not in upstream.requests[-1].json


async def test_on_a_v2_runner_the_default_asks_by_id(tmp_path: Path) -> None:
    async with (
        Upstream([reply(ANSWERING)]) as upstream,
        seam(tmp_path, upstream.url, {}, [BIASED]) as proxy,
    ):
        proxy.runtime.settings.upstream_of("m").facts = Facts(
            "vllm", "0.32.0", {"m": ModelFacts()}, {"version": "1", "runner": "v2"}
        )
        await proxy.chat(calibration="strict", tools=TOOLS)
        assert upstream.requests[0].json["logprob_token_ids"] == [7]
        assert "top_logprobs" not in upstream.requests[0].json


@pytest.mark.parametrize("reading", ["off", {"how": "top_logprobs", "share": 0}])
async def test_an_operator_may_read_nothing(tmp_path: Path, reading: Any) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, {"reading": reading}, [BIASED]) as proxy,
    ):
        await proxy.chat(calibration="strict", tools=TOOLS)
        assert "logprobs" not in upstream.requests[0].json
        assert (await proxy.records(1))[0]["entry_probability"] is None


async def test_chunks_that_exist_only_to_show_log_probabilities_are_taken_out(tmp_path: Path) -> None:
    kept_back = with_logprobs(ANSWERING)  # a token that the server's tool parser has not let out yet
    told = with_logprobs(ANSWERING, content="Hello.")
    script = Reply(writes=(chunk(role="assistant"), kept_back, told, chunk("stop"), DONE))
    async with (
        Upstream([script]) as upstream,
        seam(tmp_path, upstream.url, BY_LIST, [PLAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="plain", tools=TOOLS, stream=True)
        bare = told.replace(compact(ANSWERING), b"null")
        assert answer.body == chunk(role="assistant") + bare + chunk("stop") + DONE
        assert (await proxy.records(1))[0]["entry_probability"] == pytest.approx(0.2)


async def test_a_chunk_with_the_end_of_the_reply_stays(tmp_path: Path) -> None:
    end = with_logprobs(ANSWERING).replace(b'"finish_reason":null', b'"finish_reason":"stop"')
    async with (
        Upstream([Reply(writes=(chunk(content="Hello."), end, DONE))]) as upstream,
        seam(tmp_path, upstream.url, BY_LIST, [PLAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="plain", tools=TOOLS, stream=True)
        assert [event["choices"][0]["finish_reason"] for event in answer.events] == [None, "stop"]
        assert answer.events[1]["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_has_a_record_with_its_own_margin(tmp_path: Path, stream: bool) -> None:
    one = with_logprobs(ANSWERING, content="Hello.")
    two = with_logprobs(CALLING, content="Hello.").replace(b'"index":0', b'"index":1')
    script = Reply(writes=(two, one, DONE)) if stream else reply(ANSWERING, CALLING)
    async with (
        Upstream([script]) as upstream,
        seam(tmp_path, upstream.url, BY_LIST, [PLAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="plain", tools=TOOLS, n=2, stream=stream)
        assert b"token_id" not in answer.body
        records = await proxy.records(2)
        read = [(record["choice"], record["entry_probability"]) for record in records]
        assert read == [(0, pytest.approx(0.2)), (1, pytest.approx(0.6))]
        assert proxy.sample("seam_entry_probability_count", model="other", profile="plain") == 2


@pytest.mark.parametrize("own", [0, 1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_asked_for_fewer_alternatives_sees_as_many(
    tmp_path: Path, own: int, stream: bool
) -> None:
    long = shown("t1", t1=0.5, t2=0.3, t7=0.1)
    script = Reply(writes=(with_logprobs(long, content="Hello."), DONE)) if stream else reply(long)
    async with (
        Upstream([script]) as upstream,
        seam(tmp_path, upstream.url, BY_LIST, [PLAIN]) as proxy,
    ):
        answer = await proxy.chat(
            calibration="plain", tools=TOOLS, stream=stream, logprobs=True, top_logprobs=own
        )
        sent = upstream.requests[0].json
        assert sent["top_logprobs"] == 20
        assert "return_tokens_as_token_ids" not in sent
        document = answer.events[0] if stream else answer.json
        listed = document["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        assert listed == long["content"][0]["top_logprobs"][:own]
        assert (await proxy.records(1))[0]["entry_probability"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("logprobs", "left"),
    [
        (
            b'{"content": [{"token":"a","logprob":-1e-7, "top_logprobs":[{"logprob":-1e-7}, {}]}]}',
            b'{"content": [{"token":"a","logprob":-1e-7, "top_logprobs":[{"logprob":-1e-7}]}]}',
        ),
        (b'{"content" : null}', b'{"content" : null}'),
        (b'{"tokens":[1.10]}', b'{"tokens":[1.10]}'),
        (b'{"content":[{"top_logprobs":null}, 7]}', b'{"content":[{"top_logprobs":null}, 7]}'),
    ],
)
async def test_the_log_probabilities_that_stay_are_the_servers_own_bytes(
    tmp_path: Path, logprobs: bytes, left: bytes
) -> None:
    script = Reply(body=reply(None).body.replace(b'"logprobs":null', b'"logprobs":' + logprobs))
    async with (
        Upstream([script]) as upstream,
        seam(tmp_path, upstream.url, BY_LIST, [PLAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="plain", tools=TOOLS, logprobs=True, top_logprobs=1)
        assert answer.body == upstream.last_body.replace(logprobs, left)


async def test_a_client_that_asked_for_more_alternatives_gets_its_reply_as_it_came(tmp_path: Path) -> None:
    async with (
        Upstream([reply(ANSWERING)]) as upstream,
        seam(tmp_path, upstream.url, {"reading": {"how": "top_logprobs", "top": 5}}, [PLAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="plain", tools=TOOLS, logprobs=True, top_logprobs=8)
        assert upstream.requests[0].json["top_logprobs"] == 8
        assert answer.body == upstream.last_body
        assert (await proxy.records(1))[0]["entry_probability"] == pytest.approx(0.2)


async def test_a_list_without_the_entry_gives_a_bound_and_no_number(tmp_path: Path) -> None:
    async with (
        Upstream([reply(shown("t1", t1=0.8, t2=0.1, t3=0.01))]) as upstream,
        seam(tmp_path, upstream.url, BY_LIST, [PLAIN]) as proxy,
    ):
        explained = {"profile": "plain", "explain": True}
        told = (await proxy.chat(calibration=explained, tools=TOOLS)).json["calibration"]
        assert told["before"] == {"entry_probability": None, "margin": None, "gap": None}
        assert told["after"] is None
        assert told["entry_probability_at_most"] == pytest.approx(0.01)
        record = (await proxy.records(1))[0]
        assert record["entry_probability"] is None
        assert record["entry_probability_at_most"] == pytest.approx(0.01)
        assert proxy.sample("seam_entry_probability_count", model="other", profile="plain") == 0


REFUSAL = compact({"error": {"message": "top_logprobs must be at most 5", "code": 400}})


@pytest.mark.parametrize(
    ("stream", "refusal"),
    [
        (False, Reply(400, body=REFUSAL)),
        (True, Reply(400, body=REFUSAL)),
        (True, Reply(writes=(event(REFUSAL),))),
    ],
    ids=["whole", "stream", "inside the stream"],
)
async def test_a_server_that_refuses_the_fields_is_asked_again_without(
    tmp_path: Path, stream: bool, refusal: Reply
) -> None:
    good = Reply(writes=(chunk(content="Hello."), chunk("stop"), DONE)) if stream else said("Hello.")
    async with (
        Upstream([refusal, good]) as upstream,
        seam(tmp_path, upstream.url, BY_LIST, [PLAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration="plain", tools=TOOLS, stream=stream)
        assert (answer.status, answer.body) == (200, upstream.last_body)
        assert "logprobs" not in upstream.requests[1].json
        told = answer.header("x-calibration-applied") or ""
        assert told.startswith("none; reason=the upstream refused what was added: top_logprobs must be")
        assert (await proxy.records(1))[0]["entry_probability"] is None
        assert proxy.sample("seam_passthrough_total", reason="refused") == 1


async def test_an_explanation_tells_the_entry_before_and_after_the_bias(tmp_path: Path) -> None:
    async with (
        Upstream([reply(CALLING)]) as upstream,
        seam(tmp_path, upstream.url, BY_LIST, [BIASED]) as proxy,
    ):
        explained = {"profile": "strict", "explain": True}
        told = (await proxy.chat(calibration=explained, tools=TOOLS)).json["calibration"]
        m = math.log(0.6 / 0.4)
        assert told["before"]["entry_probability"] == pytest.approx(0.6)
        assert told["before"]["margin"] == pytest.approx(m)
        assert told["before"]["gap"] == pytest.approx(math.log(2))
        assert told["after"]["entry_probability"] == pytest.approx(1 / (1 + math.exp(1.5 - m)))
        assert told["after"]["margin"] == pytest.approx(m - 1.5)
        assert told["after"]["gap"] == pytest.approx(math.log(2) - 1.5)


async def test_without_a_bias_the_entry_is_the_same_before_and_after(tmp_path: Path) -> None:
    async with (
        Upstream([reply(CALLING)]) as upstream,
        seam(tmp_path, upstream.url, BY_LIST, [PLAIN]) as proxy,
    ):
        explained = {"profile": "plain", "explain": True}
        told = (await proxy.chat(calibration=explained, tools=TOOLS)).json["calibration"]
        assert told["before"] == pytest.approx(told["after"])


async def test_a_certain_call_is_explained_in_json_that_every_client_reads(tmp_path: Path) -> None:
    certain = {"content": [{"token": "token_id:7", "logprob": 0.0, "top_logprobs": []}]}
    async with (
        Upstream([reply(certain)]) as upstream,
        seam(tmp_path, upstream.url, BY_LIST, [PLAIN]) as proxy,
    ):
        answer = await proxy.chat(calibration={"profile": "plain", "explain": True}, tools=TOOLS)
        assert b"Infinity" not in answer.body
        assert answer.json["calibration"]["before"]["margin"] > 16


@pytest.mark.parametrize(
    ("logprobs", "value", "to_text", "to_call"),
    [
        (CALLING, -0.6, 0, 0),  # the gap is log 2
        (CALLING, -0.7, 1, 0),
        (ANSWERING, 1.3, 0, 0),  # minus log 4
        (ANSWERING, 1.4, 0, 1),
    ],
)
async def test_what_is_read_and_what_the_bias_flips_are_counted(
    tmp_path: Path, logprobs: Any, value: float, to_text: int, to_call: int
) -> None:
    profile = {**BIASED, "bias": {"value": value, "apply": "processor"}}
    async with (
        Upstream([reply(logprobs)]) as upstream,
        seam(tmp_path, upstream.url, {**BY_LIST, "models": {"m": {}}}, [profile]) as proxy,
    ):
        await proxy.chat(calibration="strict", tools=TOOLS, temperature=0)
        await proxy.records(1)
        p = 0.6 if logprobs is CALLING else 0.2
        assert proxy.sample("seam_entry_probability_sum", **STRICT) == pytest.approx(p)
        # A histogram that holds negative values has no sum.
        assert proxy.sample("seam_entry_margin_count", **STRICT) == 1
        assert proxy.sample("seam_entry_margin_bucket", **STRICT, le="0.0") == (p < 0.5)
        flips = [proxy.sample("seam_entry_flips_total", direction=way) for way in ("to_text", "to_call")]
        assert flips == [to_text, to_call]


# Beside the reply ------------------------------------------------------------------------------

TOKENS = Reply(body=compact({"count": 3, "tokens": [11, 12, 13]}))
SCORE = Reply(body=compact({"data": [{"index": 0, "score": 0.25}]}))
SHOWN = {"7": {"logprob": math.log(0.25)}, "1": {"logprob": math.log(0.5)}}
PROMPT = Reply(body=compact({"choices": [{"text": "x", "prompt_logprobs": [None, SHOWN]}]}))


def on_vllm(proxy: Seam) -> None:
    proxy.runtime.settings.upstream_of("m").facts = Facts("vllm", "0.32.0", {"m": ModelFacts()})


@pytest.mark.parametrize(
    ("how", "answer", "path", "gap"),
    [
        ("scoring", SCORE, "/generative_scoring", None),
        ("prompt", PROMPT, "/v1/completions", math.log(0.5)),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reading_beside_the_reply_leaves_request_and_reply_as_they_are(
    tmp_path: Path, how: str, answer: Reply, path: str, gap: float | None, stream: bool
) -> None:
    own = Reply(writes=(chunk(content="Hello."), chunk("stop"), DONE)) if stream else said("Hello.")
    async with (
        Upstream([own, TOKENS, answer]) as upstream,
        seam(tmp_path, upstream.url, {"reading": how}, [PLAIN]) as proxy,
    ):
        on_vllm(proxy)
        body = b'{"model": "m", "tools":[{"type":"function"}],"messages":[],"x":1.10, "stream":%s}'
        body %= b"true" if stream else b"false"
        served = await proxy.ask("/p/plain/v1/chat/completions", method="POST", body=body)
        record = (await proxy.records(1))[0]
        assert upstream.requests[0].body == body
        assert served.body == own.bytes_for(upstream.requests[0])
        assert [request.target for request in upstream.requests[1:]] == ["/tokenize", path]
        assert record["entry_probability"] == pytest.approx(0.25)
        assert record["gap"] == (None if gap is None else pytest.approx(gap))
        assert [query["role"] for query in record["queries"]] == ["first", "shadow"]
        assert record["queries"][1]["status"] == 200
        assert proxy.sample("seam_entry_probability_count", model="other", profile="plain") == 1


@pytest.mark.parametrize(
    "failure",
    [
        [Reply(500, body=b"x")],
        [Reply(close_on_request=True)],
        [TOKENS, Reply(400, body=compact({"error": {"message": "no"}}))],
        [TOKENS, Reply(body=b"[1]")],
        [TOKENS, Reply(body=compact({"data": [{"score": "x"}]}))],
        [TOKENS, Reply(close_on_request=True)],
    ],
    ids=["no tokens", "cut", "refused", "list", "no score", "cut later"],
)
async def test_a_reading_that_fails_costs_nothing_but_its_number(
    tmp_path: Path, failure: list[Reply]
) -> None:
    async with (
        Upstream([said("Hello."), *failure], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, {"reading": "scoring"}, [PLAIN]) as proxy,
    ):
        on_vllm(proxy)
        answer = await proxy.chat(calibration="plain", tools=TOOLS)
        assert (answer.status, answer.text) == (200, "Hello.")
        record = (await proxy.records(1))[0]
        assert (record["outcome"], record["action"]) == ("ok", "other")
        assert record["entry_probability"] is None
        assert record["queries"][1] == {"role": "shadow", "status": None}


async def test_a_reading_that_gets_no_answer_ends_with_the_time_for_replies(tmp_path: Path) -> None:
    config = {"reading": "scoring", "upstreams": {"default": {"timeouts": {"total": 0.3}}}}
    async with (
        Upstream([said("Hello."), Reply(delay=30)]) as upstream,
        seam(tmp_path, upstream.url, config, [PLAIN]) as proxy,
    ):
        on_vllm(proxy)
        assert (await proxy.chat(calibration="plain", tools=TOOLS)).text == "Hello."
        assert (await proxy.records(1))[0]["entry_probability"] is None


@pytest.mark.parametrize(
    "fields", [{"tools": TOOLS, "tool_choice": "none"}, {}, {"tools": TOOLS, "calibration": "off"}]
)
async def test_a_reply_without_a_decision_or_a_profile_is_not_read(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, {"reading": "scoring"}, [PLAIN]) as proxy,
    ):
        on_vllm(proxy)
        await proxy.chat(**{"calibration": "plain", **fields})
        await proxy.idle()
        if fields.get("calibration") != "off":
            queries = (await proxy.records(1))[0]["queries"]
            assert [query["role"] for query in queries] == ["first"]
        assert len(upstream.requests) == 1


async def test_a_reply_that_failed_is_not_read(tmp_path: Path) -> None:
    async with (
        Upstream([Reply(500, body=b"x")]) as upstream,
        seam(tmp_path, upstream.url, {"reading": "scoring"}, [PLAIN]) as proxy,
    ):
        on_vllm(proxy)
        assert (await proxy.chat(calibration="plain", tools=TOOLS)).status == 500
        await eventually(lambda: not proxy.runtime.in_flight)
        assert len(upstream.requests) == 1
