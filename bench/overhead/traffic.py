"""What is sent and what comes back: a mid-conversation agent request and vLLM-shaped replies.

The texts are data, in `data/`; they are our own.
"""

import json
from pathlib import Path
from typing import Any

MODEL = "canned"
SLOW_MODEL = "canned-slow"
"""The same server; its streams take their time."""
_DATA = Path(__file__).with_name("data")

Json = dict[str, Any]


def chat_body() -> bytes:
    """A chat completion request: 11 messages, 8 tools, 9 kB of compact JSON."""
    return compact(_read("request.json"))


def stream_body(chunks: int, model: str = MODEL) -> bytes:
    """The same request as a stream; the canned upstream sends `max_tokens` chunks."""
    return compact(_read("request.json") | {"model": model, "stream": True, "max_tokens": chunks})


def replies() -> list[bytes]:
    """Non-stream reply bodies, about 1.5 kB each: one of text, which asks the user, and one of two calls."""
    return [compact(reply) for reply in _read("replies.json")[:2]]


def turns() -> list[Json]:
    """Ten replies as they take turns: five ask, four call, and one halts, which neither asks nor calls."""
    asks, calls, halts = _read("replies.json")
    return [*4 * [asks, calls], asks, halts]


def words(text: str | None = None) -> list[str]:
    """Tokens of a text, by default of the reply that asks, for the chunks of a stream."""
    if text is None:
        text = _read("replies.json")[0]["choices"][0]["message"]["content"]
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]


def compact(document: Any) -> bytes:
    """JSON without spaces."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _read(name: str) -> Any:
    return json.loads((_DATA / name).read_text(encoding="utf-8"))
