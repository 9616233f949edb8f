"""Records tests/data/recorded.jsonl: mixed requests to a real vLLM server and its answers, to the byte.

    python -m tests.record http://127.0.0.1:8100

The requests go through a tap, so that what is kept is what was on the wire.
"""

import asyncio
import json
import re
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import h11

from tests.recorded import FILE, Recorded, write
from tests.tap import Tap
from tests.wire import exchange

HEADERS = (("Content-Type", "application/json"), ("Accept", "application/json"), ("User-Agent", "recorder"))
CHAT = "/v1/chat/completions"

HELLO = [{"role": "user", "content": "Say hello."}]
ODD = [{"role": "user", "content": 'Repeat: naïve café — 東京 🦉 \u2028 "quoted" \\ </tool_call>'}]
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            # Both keep a weak model's call whole: the grammar then pins the arguments.
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
LOOSE = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
CALLED = [
    *WEATHER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call00001",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call00001", "content": '{"sky": "clear", "celsius": -3.0}'},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
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
CALL = {"messages": WEATHER, "tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 40}
# The model calls where it is biased to: here by the request itself, as a client without Seam would do it.
BIASED = {**CALL, "vllm_xargs": {"seam_bias": 20, "seam_entry": [15]}}
STREAM = {"stream": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


class Asked(NamedTuple):
    """A request to record."""

    name: str
    method: str
    target: str
    body: bytes = b""


def post(name: str, target: str, body: Any) -> Asked:
    """A request with a body: bytes as they are, all else as JSON."""
    return Asked(name, "POST", target, body if isinstance(body, bytes) else json.dumps(body).encode())


def chat(name: str, **fields: Any) -> Asked:
    """A greedy chat completion of few tokens."""
    return post(name, CHAT, {"model": "lab", "messages": HELLO, "temperature": 0, "max_tokens": 8, **fields})


def said(name: str, text: str) -> Asked:
    """A chat completion whose body is written just so."""
    return post(name, CHAT, text.encode())


REQUESTS = (
    Asked("models", "GET", "/v1/models"),
    Asked("models-with-query", "GET", "/v1/models?limit=2&after=%C3%A9"),
    Asked("health", "GET", "/health"),
    Asked("version", "GET", "/version"),
    Asked("head-of-health", "HEAD", "/health"),
    Asked("unknown-route", "GET", "/v1/nothing"),
    Asked("wrong-method", "GET", CHAT),
    post("tokenize-prompt", "/tokenize", {"model": "lab", "prompt": ODD[0]["content"]}),
    post("tokenize-chat", "/tokenize", {"model": "lab", "messages": CALLED, "tools": TOOLS}),
    post("detokenize", "/detokenize", {"model": "lab", "tokens": [1, 15, 16, 2683, 28]}),
    post("completion", "/v1/completions", {"model": "lab", "prompt": "One, two,", "max_tokens": 6}),
    post(
        "completion-two-with-logprobs",
        "/v1/completions",
        {"model": "lab", "prompt": ["One,", "Un,"], "n": 2, "logprobs": 1, "max_tokens": 3},
    ),
    post(
        "completion-streamed",
        "/v1/completions",
        {"model": "lab", "prompt": "Ein Käse,", "echo": True, "max_tokens": 6, **USAGE},
    ),
    post("responses", "/v1/responses", {"model": "lab", "input": "Say hello.", "max_output_tokens": 8}),
    post(
        "responses-streamed",
        "/v1/responses",
        {"model": "lab", "input": "Say hello.", "max_output_tokens": 8, **STREAM},
    ),
    Asked("responses-unknown", "GET", "/v1/responses/resp_none"),
    post("messages", "/v1/messages", {"model": "lab", "messages": HELLO, "max_tokens": 8}),
    post("messages-streamed", "/v1/messages", {"model": "lab", "messages": HELLO, "max_tokens": 8, **STREAM}),
    post("messages-counted", "/v1/messages/count_tokens", {"model": "lab", "messages": HELLO}),
    chat("chat"),
    chat("chat-unicode", messages=ODD, max_tokens=24),
    chat("chat-sampled", temperature=1.1, top_p=0.9),
    chat("chat-two", n=2, temperature=1),
    chat("chat-logprobs", logprobs=True, top_logprobs=2, max_tokens=4),
    chat("chat-stopped", messages=[{"role": "user", "content": "Count to ten."}], stop=[",", "\n", "2"]),
    chat("chat-developer", messages=[{"role": "developer", "content": "Be brief."}, *HELLO]),
    chat("chat-parts", messages=[{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}]),
    chat(
        "chat-continued",
        messages=[*HELLO, {"role": "assistant", "content": "Hel"}],
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    chat("chat-json", response_format=SCHEMA, max_tokens=16),
    chat("chat-tools", messages=WEATHER, tools=LOOSE),
    chat("chat-call", **BIASED),
    chat("chat-call-required", **CALL, tool_choice="required"),
    chat("chat-call-named", **CALL, tool_choice=NAMED),
    chat("chat-call-forbidden", messages=WEATHER, tools=TOOLS, tool_choice="none"),
    chat("chat-after-call", messages=CALLED, tools=LOOSE),
    chat("chat-token-ids", return_token_ids=True),
    said("chat-without-model", '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":2}'),
    said(
        "chat-odd-numbers-and-unknown-fields",
        '{"model":"lab","messages":[{"role":"user","content":"Hi","weight":1.10}],"max_tokens":4,'
        '"temperature":0.0e0,"top_p":1.00,"trace":9007199254740993,"nested":{"a":[1E400,-0.0,null]}}',
    ),
    said(
        "chat-repeated-keys-and-space",
        '\r\n{ "max_tokens" : 99,\n\t"model":"lab" , "max_tokens":\t3,"messages":[ {"role":"user",'
        '"content":"caf\\u00e9 \\ud83e\\udd89 \\/"} ]\n}\n',
    ),
    chat("stream", **STREAM),
    chat("stream-usage", **USAGE),
    chat(
        "stream-usage-continuous",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    ),
    chat("stream-unicode", messages=ODD, max_tokens=24, **STREAM),
    chat("stream-two", n=2, temperature=1, **USAGE),
    chat("stream-logprobs", logprobs=True, top_logprobs=2, max_tokens=4, **STREAM),
    chat("stream-stopped", messages=[{"role": "user", "content": "Count to ten."}], stop="2", **STREAM),
    chat("stream-json", response_format=SCHEMA, max_tokens=16, **STREAM),
    chat("stream-tools", messages=WEATHER, tools=LOOSE, **USAGE),
    chat("stream-call", **BIASED, **USAGE),
    chat("stream-call-required", **CALL, **STREAM, tool_choice="required"),
    chat("stream-call-named", **CALL, **STREAM, tool_choice=NAMED),
    chat("stream-after-call", messages=CALLED, tools=LOOSE, **STREAM),
    chat("stream-one-token", max_tokens=1, **USAGE),
    chat("stream-refused-late", logit_bias={"9999999": 1}, **STREAM),
    chat("refused-temperature", temperature=-1),
    chat("refused-temperature-streamed", temperature=-1, **STREAM),
    chat("refused-length", max_tokens=10**9),
    chat("refused-no-tools", tools=[]),
    chat("refused-xargs", vllm_xargs={"session": None}),
    chat("unknown-model", model="nobody"),
    said("no-json", '{"model": "lab", "messages": ['),
    said("no-object", '["lab"]'),
    said("empty", ""),
    post("no-utf-8", CHAT, b'{"model":"lab","messages":[{"role":"user","content":"\xff\xfe"}]}'),
)


async def record(asked: Asked, url: str) -> Recorded:
    """Ask through a tap and take the server's answer apart."""
    tap = Tap(url)
    headers = HEADERS if asked.body else HEADERS[1:]
    async with (
        asyncio.timeout(300),  # a first grammar takes its time, on a busy machine
        tap.listening() as tapped,
        exchange(tapped, asked.method, asked.target, dict(headers), asked.body) as client,
    ):
        await client.head()
        await client.rest()
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=asked.method, target=asked.target, headers=[("Host", "seam.test")]))
    connection.receive_data(tap.heard)
    head = connection.next_event()
    assert isinstance(head, h11.Response), head
    return Recorded(
        *(asked.name, asked.method, asked.target, headers, asked.body, head.status_code),
        tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in head.headers.raw_items()),
        tuple(_chunks(connection)),
    )


def _chunks(connection: h11.Connection) -> list[bytes]:
    """The body at the edges of HTTP's chunks, which are the edges of the server's writes."""
    chunks: list[bytes] = []
    while isinstance(event := connection.next_event(), h11.Data):
        if event.chunk_start or not chunks:
            chunks.append(b"")
        chunks[-1] += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage), event
    return chunks


async def main(url: str) -> None:
    """Record every request, and say how each was answered."""
    exchanges = []
    for asked in REQUESTS:
        recorded = await record(asked, url)
        print(f"{recorded.name:40} {recorded.status}  {len(recorded.chunks)} chunks", flush=True)
        exchanges.append(_without_place(recorded))
    write(exchanges)
    print(f"{len(exchanges)} exchanges, {FILE.stat().st_size // 1024} KiB")


def _without_place(recorded: Recorded) -> Recorded:
    """The listing of models tells where the checkpoint lies: a stand-in of the same length does too."""
    place = re.compile(rb'(?<="root":")[^"]*')
    hidden = (place.sub(lambda found: b"x" * len(found[0]), chunk) for chunk in recorded.chunks)
    return replace(recorded, chunks=tuple(hidden))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
