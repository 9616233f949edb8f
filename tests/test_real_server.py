"""What the proxy promises, on a real vLLM server with our logits processor.

`eager` is a bias of +20 and `shy` one of -20, which decide every reply; where a test is about the edge
between calling and answering, it measures the gap first. The model is weak: a `strict` tool and
`parallel_tool_calls: false` let the server's grammar keep its calls whole.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from calibrators.body import Body
from calibrators.entry import Entry
from calibrators.margin import margin_query, read_margin
from calibrators.reply import Reply
from tests.seam import Seam, seam
from tests.tap import Tap
from tests.upstream import CHAT, compact
from tests.wire import Answer, exchange

pytestmark = pytest.mark.server

PROFILES = (
    {"name": "eager", "bias": 20},
    # Everywhere, so that no call follows the text either.
    {"name": "shy", "bias": -20, "entry": {"scope": "everywhere"}},
)
HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]


def tool(name: str, *choices: str) -> dict[str, Any]:
    """A tool with one argument, which is one of `choices`."""
    parameters = {
        "type": "object",
        "properties": {"of": {"type": "string", "enum": list(choices)}},
        "required": ["of"],
        "additionalProperties": False,
    }
    function = {"name": name, "description": f"{name} of", "strict": True, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [tool("weather", "Oslo", "Rome"), tool("clock", "Oslo", "Rome")]
NAMED = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "reply",
        "schema": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        },
    },
}


def chat(**fields: Any) -> dict[str, Any]:
    """A greedy request that leaves the model the choice between a call and an answer."""
    return {
        "model": "lab",
        "messages": WEATHER,
        "tools": TOOLS,
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 40,
        **fields,
    }


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in names}


async def post(url: str, fields: dict[str, Any] | bytes, calibration: str | None = None) -> Answer:
    """A chat completion; the calibration is picked by a header, which leaves the body as it is."""
    headers = {"Content-Type": "application/json"}
    if calibration is not None:
        headers["X-Calibration"] = calibration
    body = fields if isinstance(fields, bytes) else compact(fields)
    port = int(url.rpartition(":")[2])
    async with asyncio.timeout(300), exchange(port, "POST", CHAT, headers, body) as made:
        await made.head()
        return await made.rest()


@asynccontextmanager
async def calibrating(
    vllm_url: str, folder: Path, more: Mapping[str, Any] | None = None
) -> AsyncIterator[Seam]:
    """A proxy that has found out what the server is, with `more` in its configuration."""
    config = {"upstreams": {"default": {"kind": "vllm"}}, "models": {"lab": {}}, **(more or {})}
    async with seam(folder, vllm_url, config, PROFILES) as proxy, asyncio.timeout(300):
        while proxy.runtime.settings.upstreams["default"].facts.kind is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        yield proxy


def url_of(proxy: Seam) -> str:
    return f"http://127.0.0.1:{proxy.port}"


def read(answer: Answer) -> Reply:
    """A whole reply or a stream, put together."""
    assert answer.status == 200, answer.body
    reply = Reply(answer.status)
    streamed = (answer.header("content-type") or "").startswith("text/event-stream")
    for document in answer.events if streamed else [answer.json]:
        reply.add(document)
    return reply


def entry_of(proxy: Seam) -> Entry:
    entry = proxy.runtime.settings.upstreams["default"].facts.models["lab"].entry
    assert entry is not None
    return entry


# Who leaves is not waited for -----------------------------------------------------------------------------


async def running(vllm_url: str, count: int, seconds: float) -> None:
    """Wait until the server works on so many requests."""
    port = int(vllm_url.rpartition(":")[2])
    async with asyncio.timeout(seconds):
        while True:
            async with exchange(port, "GET", "/metrics") as made:
                await made.head()
                text = (await made.rest()).body.decode()
            found = re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)
            if sum(map(float, found)) == count:
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole reply"])
@pytest.mark.parametrize("calibration", [None, "shy"], ids=["uncalibrated", "calibrated"])
async def test_a_client_that_leaves_frees_the_server(
    vllm_url: str, tmp_path: Path, stream: bool, calibration: str | None
) -> None:
    # More than a minute's work, which the server would go on with for nobody.
    long = compact(chat(stream=stream, ignore_eos=True, max_tokens=4000))
    headers = {"Content-Type": "application/json"}
    if calibration is not None:
        headers["X-Calibration"] = calibration
    async with calibrating(vllm_url, tmp_path) as proxy:
        await running(vllm_url, 0, seconds=60)
        async with exchange(proxy.port, "POST", CHAT, headers, long) as client:
            await running(vllm_url, 1, seconds=60)
            if stream:
                async with asyncio.timeout(300):
                    await client.head()
                    await client.until(b"data: ")
        await running(vllm_url, 0, seconds=15)
        (record,) = await proxy.records(1)
    assert record["outcome"] == "client_gone"
    assert record["action"] is None
    assert record["stream"] is stream


# The bias does what its formula says ----------------------------------------------------------------------

EDGES = {
    "weather": WEATHER,
    "time": [{"role": "user", "content": "What time is it in Rome?"}],
    "greeting": [{"role": "user", "content": "Hello, who are you?"}],
    "sum": [{"role": "user", "content": "How much is two and two?"}],
    "after a result": [
        {"role": "user", "content": "Is it cold in Oslo?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call00001",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"of": "Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call00001", "content": '{"celsius": -3}'},
    ],
}


@pytest.mark.parametrize("messages", EDGES.values(), ids=EDGES.keys())
async def test_a_greedy_reply_turns_into_a_call_where_gap_and_bias_change_sign(
    vllm_url: str, tmp_path: Path, messages: list[dict[str, Any]]
) -> None:
    first = chat(messages=messages, max_tokens=1, logprobs=True, return_tokens_as_token_ids=True)
    async with calibrating(vllm_url, tmp_path) as proxy:
        entry = entry_of(proxy)
        measured = margin_query(Body.parse(compact(first).decode()), entry).render().encode()
        gap = read_margin(read(await post(vllm_url, measured)).choices[0], entry).gap
        assert gap is not None

        async def enters(bias: float) -> bool:
            answer = await post(url_of(proxy), {**first, "calibration": {"bias": bias}})
            assert answer.header("x-calibration-applied") == f"bias={bias:g}/processor"
            shown = answer.json["choices"][0]["logprobs"]["content"][0]["token"]
            return shown in {f"token_id:{token}" for token in entry.tokens}

        assert not await enters(round(-gap - 0.01, 3))
        assert await enters(round(-gap + 0.01, 3))


async def test_the_bias_of_one_request_leaves_those_beside_it_alone(vllm_url: str, tmp_path: Path) -> None:
    questions = ("Count to five.", "Name two colours.", "Where is Rome?")
    neighbours = [chat(messages=[{"role": "user", "content": q}], max_tokens=16) for q in questions]
    async with calibrating(vllm_url, tmp_path) as proxy:

        async def beside(calibration: str) -> list[Any]:
            batch = [post(url_of(proxy), fields) for fields in neighbours]
            answers = await asyncio.gather(post(url_of(proxy), chat(), calibration), *batch)
            return [answer.json["choices"] for answer in answers]

        calm = await beside("off")
        for calibration in ("eager", "shy"):
            assert (await beside(calibration))[1:] == calm[1:]


async def test_each_of_n_choices_gets_the_bias_and_a_class_of_its_own(vllm_url: str, tmp_path: Path) -> None:
    async with calibrating(vllm_url, tmp_path) as proxy:
        answer = await post(url_of(proxy), chat(n=3, temperature=1), "eager")
        reply = read(answer)
        records = await proxy.records(3)
    assert [[call.name in ("weather", "clock") for call in c.calls] for c in reply.choices.values()] == [
        [True]
    ] * 3
    assert answer.header("x-calibration-action") == "tool_call, tool_call, tool_call"
    assert [(r["choice"], r["action"]) for r in records] == [(i, "tool_call") for i in range(3)]
    assert len({r["request_id"] for r in records}) == 1


@pytest.mark.parametrize("calibration", ["eager", "shy", None])
async def test_a_stream_and_a_whole_reply_are_the_same_reply(
    vllm_url: str, tmp_path: Path, calibration: str | None
) -> None:
    async with calibrating(vllm_url, tmp_path) as proxy:
        whole, streamed = [
            read(await post(url_of(proxy), chat(stream=stream), calibration)).choices[0]
            for stream in (False, True)
        ]
        of_whole, of_stream = await proxy.records(2)
    assert streamed.content == whole.content
    assert [(c.name, json.loads(c.arguments)) for c in streamed.calls] == [
        (c.name, json.loads(c.arguments)) for c in whole.calls
    ]
    assert streamed.finish_reason == whole.finish_reason
    for field in ("action", "calls", "delayed_call", "finish_reason", "applied"):
        assert of_stream[field] == of_whole[field]


# What is not asked for does not happen --------------------------------------------------------------------

# What may be asked for beside a bias, to log how near the decision was.
READS_THE_MARGIN = {"logprobs", "top_logprobs", "logprob_token_ids", "return_tokens_as_token_ids"}

UNDECIDED: dict[str, tuple[dict[str, Any], str]] = {
    "tool_choice none": (chat(tool_choice="none", max_tokens=4), "tool_choice is none"),
    "tool_choice required": (chat(tool_choice="required"), "tool_choice is required"),
    "tool_choice named": (chat(tool_choice=NAMED), "tool_choice is named"),
    "json": (
        without(chat(response_format=SCHEMA), "parallel_tool_calls"),
        "response_format fixes the form of the reply",
    ),
    "no tools": (without(chat(max_tokens=4), "tools", "parallel_tool_calls"), "no tools offered"),
    "continued": (
        chat(
            messages=[*HELLO, {"role": "assistant", "content": "Hel"}],
            add_generation_prompt=False,
            continue_final_message=True,
            max_tokens=4,
        ),
        "the reply continues a message",
    ),
}


@pytest.mark.parametrize(("fields", "reason"), UNDECIDED.values(), ids=UNDECIDED.keys())
async def test_where_nothing_is_to_be_decided_the_reply_says_so_and_the_request_goes_on_unchanged(
    vllm_url: str, tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    tap = Tap(vllm_url)
    async with tap.listening() as port, calibrating(f"http://127.0.0.1:{port}", tmp_path) as proxy:
        probing = len(tap.said)
        answer = await post(url_of(proxy), fields, "eager")
        head, _, body = tap.said[probing:].partition(b"\r\n\r\n")
        (record,) = await proxy.records(1)
    assert answer.status == 200, answer.body
    assert answer.header("x-calibration") == "eager"
    assert answer.header("x-calibration-applied") == f"none; reason={reason}"
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert body == compact(fields)
    assert record["applied"] == f"none; reason={reason}"


async def test_where_there_is_a_decision_the_bias_is_spliced_into_the_request(
    vllm_url: str, tmp_path: Path
) -> None:
    tap = Tap(vllm_url)
    async with tap.listening() as port, calibrating(f"http://127.0.0.1:{port}", tmp_path) as proxy:
        probing = len(tap.said)
        await post(url_of(proxy), chat(max_tokens=1), "eager")
        body = tap.said[probing:].partition(b"\r\n\r\n")[2]
        entry = entry_of(proxy)
    sent = compact(chat(max_tokens=1))
    assert body.startswith(sent[:-1] + b",")
    added = json.loads(b"{" + body.removeprefix(sent[:-1] + b","))
    xargs = added.pop("vllm_xargs")
    assert xargs.pop("seam_bias") == 20
    assert xargs.pop("seam_entry") == list(entry.tokens)
    assert set(xargs) <= {"seam_space"}
    assert set(added) <= READS_THE_MARGIN


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole reply"])
@pytest.mark.parametrize(("calibration", "bias"), [("eager", 20), ("shy", -20)])
async def test_the_reply_is_the_servers_own_reply_to_a_request_with_that_bias(
    vllm_url: str, tmp_path: Path, stream: bool, calibration: str, bias: float
) -> None:
    async with calibrating(vllm_url, tmp_path) as proxy:
        xargs: dict[str, Any] = {"seam_bias": bias, "seam_entry": list(entry_of(proxy).tokens)}
        if calibration == "shy":
            xargs["seam_scope"] = "everywhere"
        direct = await post(vllm_url, chat(stream=stream, vllm_xargs=xargs))
        through = await post(url_of(proxy), chat(stream=stream), calibration)
    assert lasting(through) == lasting(direct)


def lasting(answer: Answer) -> list[str]:
    """What an answer says, without what is new in each one."""
    documents = (
        answer.data
        if (answer.header("content-type") or "").startswith("text/event")
        else [answer.body.decode()]
    )
    passing = r'"(id|created)":("[^"]*"|\d+)'
    return [re.sub(passing, r'"\1":…', document) for document in documents]


async def test_a_stream_shows_token_counts_only_to_a_client_that_asks_for_them(
    vllm_url: str, tmp_path: Path
) -> None:
    async with calibrating(vllm_url, tmp_path) as proxy:
        plain = await post(url_of(proxy), chat(stream=True), "eager")
        options = {"include_usage": True}
        counted = await post(url_of(proxy), chat(stream=True, stream_options=options), "eager")
        records = await proxy.records(2)
    assert not any("usage" in event for event in plain.events)
    assert all(event["choices"] for event in plain.events)
    assert counted.events[-1]["choices"] == []
    usage = counted.events[-1]["usage"]
    # The log knows them in both cases.
    assert [r["queries"][0]["completion_tokens"] for r in records] == [usage["completion_tokens"]] * 2


# What is written down is what happened --------------------------------------------------------------------


async def test_log_and_metrics_count_what_was_sent(vllm_url: str, tmp_path: Path) -> None:
    async with calibrating(vllm_url, tmp_path) as proxy:
        url = url_of(proxy)
        mixed = [
            await post(url, chat(), "eager"),
            await post(url, chat(stream=True), "eager"),
            await post(url, chat(max_tokens=4), "shy"),
            await post(url, chat(max_tokens=4)),
            await post(url, chat(max_tokens=4), "off"),
            await post(url, without(chat(max_tokens=4), "tools", "parallel_tool_calls"), "eager"),
            await post(url, chat(temperature=-1), "eager"),
            await post(url, chat(), "nobody"),
            await post(url, {**chat(max_tokens=4), "model": "nobody"}),
            await proxy.ask("/v1/models"),
        ]
        records = await proxy.records(7)
        metrics = await proxy.exposition()
    assert [answer.status for answer in mixed] == [200] * 6 + [400, 400, 404, 200]
    assert counted(metrics, "seam_requests_total", "route", "model", "profile", "status") == {
        ("chat", "lab", "eager", "200"): 3,
        ("chat", "lab", "eager", "400"): 1,
        ("chat", "lab", "shy", "200"): 1,
        ("chat", "lab", "off", "200"): 2,
        ("chat", "other", "off", "404"): 1,
        ("chat", "other", "off", "400"): 1,
        ("forward", "other", "off", "200"): 1,
    }
    actions = counted(metrics, "seam_actions_total", "profile", "action", "tools")
    assert actions.pop(("eager", "tool_call", "yes")) == 2
    assert actions == {("shy", "none", "yes"): 1, ("off", "none", "yes"): 1, ("eager", "none", "no"): 1}
    assert counted(metrics, "seam_interventions_total", "calibrator", "outcome") == {
        ("bias", "applied"): 3,
        ("bias", "skipped"): 1,
        ("bias", "void"): 1,
    }
    assert counted(metrics, "seam_passthrough_total", "reason") == {("no_tools",): 1, ("refused",): 1}
    assert counted(metrics, "seam_queries_per_reply_count", "profile") == {
        ("eager",): 4,
        ("shy",): 1,
        ("off",): 3,
    }
    assert [(r["profile"], r["status"], r["outcome"], r["action"]) for r in records] == [
        ("eager", 200, "ok", "tool_call"),
        ("eager", 200, "ok", "tool_call"),
        ("shy", 200, "ok", None),
        ("off", 200, "ok", None),
        ("eager", 200, "ok", None),
        ("eager", 400, "upstream_error", None),
        ("off", 404, "upstream_error", None),
    ]
    for record in records[:5]:
        (query,) = record["queries"]
        assert query["role"] == "first"
        assert query["upstream_id"] == f"chatcmpl-{record['request_id']}"
        assert query["completion_tokens"] > 0


def counted(exposition: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The samples of a series by some of its labels, added up over the others."""
    found: dict[tuple[str, ...], float] = {}
    for line in exposition.splitlines():
        if match := re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line):
            pairs: Iterable[tuple[str, str]] = re.findall(r'(\w+)="([^"]*)"', match[1])
            given = dict(pairs)
            key = tuple(given[label] for label in labels)
            found[key] = found.get(key, 0) + float(match[2])
    return found
