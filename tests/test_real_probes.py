"""SRI and CRI on a real vLLM server: what is asked twice, what the client sees, what is written down."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from calibrators.cri import ABSTENTION
from tests.seam import Seam
from tests.test_real_server import calibrating, chat, entry_of, post, read, url_of
from tests.wire import Answer, exchange

pytestmark = pytest.mark.server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            # The grammar lets the model write nothing but a station's number, and nobody has told it one.
            "properties": {
                "city": {"type": "string", "enum": ["Oslo"]},
                "station": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
            },
            "required": ["city", "station"],
            "additionalProperties": False,
        },
    },
}
ASKED = [{"role": "user", "content": "What is the weather in Oslo?"}]
STATION = re.compile(rb"[A-Z]{2}-[0-9]{4}")
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole reply", "stream"])


async def asked(proxy: Seam, calibration: Any, **fields: Any) -> Answer:
    """The reply to a request for the weather."""
    body = chat(messages=ASKED, tools=[WEATHER], calibration=calibration, max_tokens=60, **fields)
    return await post(url_of(proxy), body)


@STREAM
async def test_a_reply_that_halts_is_asked_again_and_the_second_one_served(
    vllm_url: str, tmp_path: Path, stream: bool
) -> None:
    calibration = {"bias": -20, "scope": "everywhere", "sri": True, "explain": True}
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    async with calibrating(vllm_url, tmp_path) as proxy:
        answer = await asked(proxy, calibration, stream=stream, **usage)
        (record,) = await proxy.records(1)
    assert [query["role"] for query in record["queries"]] == ["first", "sri"]
    (probed,) = record["probes"]
    assert (probed["outcome"], probed["why"]) == ("retried", "the reply has no call")
    assert probed["action_before"] != "tool_call"
    reply = read(answer)
    assert reply.usage is not None
    assert reply.usage["prompt_tokens"] == sum(query["prompt_tokens"] for query in record["queries"])
    told = (
        next(event["calibration"] for event in reversed(answer.events))
        if stream
        else answer.json["calibration"]
    )
    assert told["applied"] == "bias=-20/processor; sri=retried"


@STREAM
async def test_an_invented_value_is_taken_back_before_the_client_sees_it(
    vllm_url: str, tmp_path: Path, stream: bool
) -> None:
    async with calibrating(vllm_url, tmp_path) as proxy:
        invented = STATION.search((await asked(proxy, "off")).body)
        answer = await asked(proxy, {"cri": True}, stream=stream)
        (record,) = await proxy.records(1)
    assert invented is not None
    (probed,) = record["probes"]
    assert probed["why"] == "UR: the value of get_weather.station stands nowhere in the conversation"
    assert (probed["outcome"], probed["action_before"]) == ("retried", "tool_call")
    assert probed["action_after"] == record["action"] != "tool_call"
    assert [query["role"] for query in record["queries"]] == ["first", "cri"]
    assert read(answer).first.calls == []
    assert invented[0] not in answer.body


@STREAM
async def test_a_turn_that_must_stay_empty_is_answered_without_the_model(
    vllm_url: str, tmp_path: Path, stream: bool
) -> None:
    body = chat(messages=ASKED, tools=[WEATHER], max_tokens=60, stream=stream)
    body["calibration"] = {"bias": 20, "cri": "bypass"}
    headers = {"Content-Type": "application/json", "X-Case-Marks": "empty_turn"}
    async with calibrating(vllm_url, tmp_path) as proxy:
        async with exchange(
            proxy.port, "POST", "/v1/chat/completions", headers, json.dumps(body).encode()
        ) as made:
            await made.head()
            answer = await made.rest()
        (record,) = await proxy.records(1)
    assert [query["role"] for query in record["queries"]] == ["first"]
    choice = read(answer).first
    assert (choice.content, choice.calls, choice.finish_reason) == (ABSTENTION, [], "stop")
    assert not STATION.search(answer.body)


async def test_the_second_query_lives_off_the_prefix_cache(vllm_url: str, tmp_path: Path) -> None:
    """Above 90 % on vLLM's own counters: it only appends to the first one."""
    story = " ".join(
        f"Line {line} of the order form says that item {line} is in stock." for line in range(60)
    )
    messages = [{"role": "system", "content": story}, *ASKED]
    # Short, and ended by its own words: a reply that is cut is not asked again.
    body = chat(messages=messages, tools=[WEATHER], stop=["\n", " "])
    shy = {"bias": -20, "scope": "everywhere"}
    async with calibrating(vllm_url, tmp_path) as proxy:
        await post(url_of(proxy), {**body, "calibration": shy})
        before = await prefix_cache(vllm_url)
        await post(url_of(proxy), {**body, "calibration": {**shy, "sri": True}})
        first, second = [q["prompt_tokens"] for q in (await proxy.records(2))[1]["queries"]]
        after = await prefix_cache(vllm_url)
    asked_for, hit = (now - then for now, then in zip(after, before, strict=True))
    assert asked_for == first + second
    # The first of the two is all there from the reply before; the rest of the hits are the second's.
    assert (hit - first) / second > 0.9 - 32 / second


async def prefix_cache(vllm_url: str) -> tuple[float, float]:
    """Tokens that the server has looked up in its prefix cache, and found."""
    port = int(vllm_url.rpartition(":")[2])
    async with exchange(port, "GET", "/metrics") as made:
        await made.head()
        text = (await made.rest()).body.decode()
    names = ("queries", "hits")
    found = [
        re.findall(rf"^vllm:prefix_cache_{name}_total\{{.*\}} (\S+)$", text, re.MULTILINE) for name in names
    ]
    return float(found[0][0]), float(found[1][0])


async def test_the_model_s_template_takes_a_late_message(vllm_url: str, tmp_path: Path) -> None:
    async with calibrating(vllm_url, tmp_path) as proxy:
        facts = proxy.runtime.settings.upstreams["default"].facts.models["lab"]
        assert entry_of(proxy).tokens
    assert facts.late == ("system",)
