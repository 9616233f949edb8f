"""What is sent and what comes back: a mid-conversation agent request and vLLM-shaped replies.

The texts are data, in `data/`; they are our own.
"""

import json
from pathlib import Path
from typing import Any

MODEL = "canned"
_DATA = Path(__file__).with_name("data")


def chat_body() -> bytes:
    """A chat completion request: 11 messages, 8 tools, 9 kB of compact JSON."""
    return _compact(_read("request.json"))


def stream_body(chunks: int) -> bytes:
    """The same request as a stream; the canned upstream sends `max_tokens` chunks."""
    return _compact(_read("request.json") | {"stream": True, "max_tokens": chunks})


def replies() -> list[bytes]:
    """Non-stream reply bodies, about 1.5 kB each: one of text, one of two calls."""
    return [_compact(reply) for reply in _read("replies.json")]


def words() -> list[str]:
    """Tokens of the text reply, for the chunks of a stream."""
    text: str = _read("replies.json")[0]["choices"][0]["message"]["content"]
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]


def _read(name: str) -> Any:
    return json.loads((_DATA / name).read_text(encoding="utf-8"))


def _compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
