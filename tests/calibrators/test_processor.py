"""The logits processor in a real vLLM server, and against vLLM's own classes."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from bench.lab.server import PYTHON, ROOT
from calibrators.bias import biased
from calibrators.body import Body
from calibrators.entry import Entry
from calibrators.margin import Margin, margin_query, read_margin
from calibrators.reply import Reply

pytestmark = pytest.mark.server

OPENER = 15  # <tool_call> in the lab model's vocabulary
QUESTION = "What is the weather in Paris?"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
        },
    },
}


class Server:
    """Chats with the server, greedily unless told otherwise, and shows token ids."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=300)

    def post(self, bias: dict[str, Any] | None = None, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=body(bias, **fields))

    def choices(self, bias: dict[str, Any] | None = None, **fields: Any) -> list[dict[str, Any]]:
        reply = self.post(bias, **fields)
        assert reply.status_code == 200, reply.text
        choices: list[dict[str, Any]] = reply.json()["choices"]
        return choices

    def tokens(self, bias: dict[str, Any] | None = None, **fields: Any) -> list[int]:
        ids: list[int] = self.choices(bias, **fields)[0]["token_ids"]
        return ids

    def margin(self, **fields: Any) -> Margin:
        entry = Entry((OPENER,))
        query = margin_query(Body.parse(json.dumps(body(None, **fields))), entry)
        as_json = {"Content-Type": "application/json"}
        answer = self.http.post("/v1/chat/completions", content=query.render(), headers=as_json)
        reply = Reply(answer.status_code)
        reply.add(answer.json())
        return read_margin(reply.first, entry)


def body(bias: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    asked = {
        "model": "lab",
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [TOOL],
        "temperature": 0,
        "max_tokens": 12,
        "return_token_ids": True,
        **fields,
    }
    return asked if bias is None else {**asked, "vllm_xargs": bias}


def by(value: float, **more: Any) -> dict[str, Any]:
    return {"seam_bias": value, "seam_entry": [OPENER], **more}


@pytest.fixture(scope="module")
def server(vllm_url: str) -> Iterator[Server]:
    server = Server(vllm_url)
    with server.http:
        yield server


def test_the_unit_tests_in_vllms_own_environment_pass() -> None:
    ran = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "--tb=short", "tests/vllm"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]


def test_a_handshake_tells_name_version_and_interfaces(server: Server) -> None:
    reply = server.post({"seam_hello": 1}, max_tokens=1)
    assert reply.status_code == 400
    name, about = reply.json()["error"]["message"].split(" ", 1)
    assert name == "seam-processor"
    told = json.loads(about)
    assert set(told) == {"name", "version", "interfaces", "runner"}
    assert told["runner"] == "v1"  # vLLM on the CPU has no other


def test_a_strong_bias_forces_or_forbids_the_opener(server: Server) -> None:
    assert server.tokens(by(20))[0] == OPENER
    assert server.tokens(by(-20))[0] != OPENER


def test_greedy_flips_exactly_at_minus_the_gap(server: Server) -> None:
    for question in (QUESTION, "Tell me a joke.", "Is it warm in Oslo?", "Hello!"):
        messages = [{"role": "user", "content": question}]
        gap = server.margin(messages=messages).gap
        assert gap is not None
        above, below = by(-gap + 0.01), by(-gap - 0.01)
        assert server.tokens(above, messages=messages, max_tokens=1) == [OPENER]
        assert server.tokens(below, messages=messages, max_tokens=1) != [OPENER]


def test_the_sampled_rate_is_the_formulas(server: Server) -> None:
    asked: dict[str, Any] = {"tools": None, "temperature": 1, "top_p": 1, "top_k": -1, "max_tokens": 1}
    before = server.margin(tools=None)
    assert before.margin is not None
    assert before.probability is not None
    shift = 0.5 - before.margin  # to a probability near .6, where a wrong bias shows best
    count = 400
    drawn = [
        choice["token_ids"][0]
        for _ in range(4)
        for choice in server.choices(by(shift), n=count // 4, **asked)
    ]
    expected = biased(before.probability, shift)
    deviation = math.sqrt(expected * (1 - expected) / count)
    assert abs(drawn.count(OPENER) / count - expected) < 4.5 * deviation


def test_each_of_n_choices_has_its_own_decision(server: Server) -> None:
    choices = server.choices(by(100), n=5, temperature=1, max_tokens=3)
    assert [choice["token_ids"][0] for choice in choices] == [OPENER] * 5
    choices = server.choices(by(-100), n=5, temperature=1, max_tokens=3)
    assert OPENER not in [choice["token_ids"][0] for choice in choices]


def test_scope_everywhere_closes_later_positions_too(server: Server) -> None:
    whole = server.tokens(by(-100, seam_scope="everywhere"), max_tokens=40)
    assert OPENER not in whole
    # A decision that has passed is left alone: the rest is the model's own.
    forced = server.tokens(by(100), max_tokens=8)
    everywhere = server.tokens(by(100, seam_scope="everywhere"), max_tokens=8)
    assert everywhere == [OPENER] * 8
    assert forced[0] == OPENER
    assert forced != everywhere


def test_reasoning_in_the_reply_puts_the_decision_off(server: Server) -> None:
    plain = server.tokens()
    late = server.tokens(by(100, seam_after=plain[:2]))
    assert late[:3] == [*plain[:2], OPENER]
    never = server.tokens(by(100, seam_after=[OPENER + 1, OPENER + 1]))
    assert never == plain


def test_neighbours_in_the_batch_keep_their_tokens(server: Server) -> None:
    questions = [f"Tell me about the number {number}." for number in range(4)]

    def ask(question: str) -> list[int]:
        return server.tokens(messages=[{"role": "user", "content": question}], max_tokens=24)

    alone = [ask(question) for question in questions]
    with ThreadPoolExecutor(8) as pool:
        noise = [pool.submit(server.tokens, by(value), max_tokens=24) for value in (50, -50, 3, -3)]
        beside = list(pool.map(ask, questions))
        for future in noise:
            future.result()
    assert beside == alone


def test_a_grammar_stays_whole(server: Server) -> None:
    strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}
    shape = {"type": "json_schema", "json_schema": {"name": "city", "schema": {"enum": ["Paris", "Oslo"]}}}
    for value in (-50, 50):
        # A forbidden opener is spelled in other tokens, which read the same.
        (forced,) = server.choices(by(value), tools=[strict], tool_choice="required", max_tokens=80)
        (call,) = forced["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Oslo")
        (shaped,) = server.choices(by(value), tools=None, response_format=shape)
        assert json.loads(shaped["message"]["content"]) in ("Paris", "Oslo")


def test_a_stream_says_what_the_whole_reply_says(server: Server) -> None:
    for value in (20, -20):
        asked = body(by(value), stream=True, logprobs=True)
        streamed: list[int] = []
        with server.http.stream("POST", "/v1/chat/completions", json=asked) as lines:
            for line in lines.iter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        streamed += choice.get("token_ids") or []
        assert streamed == server.tokens(by(value))


def test_a_bad_value_is_a_400_that_names_it(server: Server) -> None:
    reply = server.post({"seam_bias": 1000, "seam_entry": [OPENER]})
    assert reply.status_code == 400
    expected = "vllm_xargs.seam_bias must be a number from -100 to 100, not 1000"
    assert reply.json()["error"]["message"] == expected


def test_ids_beyond_the_vocabulary_do_no_harm(server: Server) -> None:
    odd = {"seam_bias": 20, "seam_entry": [OPENER, 10_000_000]}
    assert server.tokens(odd)[0] == OPENER
    nothing = {"seam_bias": 20, "seam_entry": [10_000_000], "seam_scope": "everywhere"}
    assert server.tokens(nothing) == server.tokens()
