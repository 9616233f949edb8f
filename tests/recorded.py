"""Recorded exchanges with a real vLLM server: how tests/data/recorded.jsonl is written and read."""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "data" / "recorded.jsonl"

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request and the server's answer to it.

    Attributes:
        headers: of the request, without those that say where and how long (Host, Content-Length).
        reply_headers: to the letter, in the server's order.
        chunks: the reply's body at the edges at which the server wrote it.
    """

    name: str
    method: str
    target: str
    headers: Pairs
    body: bytes
    status: int
    reply_headers: Pairs
    chunks: tuple[bytes, ...]

    @property
    def streamed(self) -> bool:
        """Whether the reply is a stream of events."""
        kinds = [value for key, value in self.reply_headers if key.lower() == "content-type"]
        return any(kind.startswith("text/event-stream") for kind in kinds)

    def line(self) -> str:
        """This exchange as a line of the file."""
        return json.dumps(
            {
                "name": self.name,
                "method": self.method,
                "target": self.target,
                "headers": self.headers,
                "body": _shown(self.body),
                "status": self.status,
                "reply_headers": self.reply_headers,
                "chunks": [_shown(chunk) for chunk in self.chunks],
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )


def read() -> list[Recorded]:
    """Every recorded exchange."""
    return [_recorded(json.loads(line)) for line in FILE.read_text("utf-8").split("\n") if line]


def write(exchanges: Iterable[Recorded]) -> None:
    """Put exchanges in the file, in place of what it held."""
    FILE.write_text("".join(exchange.line() + "\n" for exchange in exchanges), "utf-8")


def _recorded(told: dict[str, Any]) -> Recorded:
    return Recorded(
        name=told["name"],
        method=told["method"],
        target=told["target"],
        headers=_pairs(told["headers"]),
        body=_bytes(told["body"]),
        status=told["status"],
        reply_headers=_pairs(told["reply_headers"]),
        chunks=tuple(map(_bytes, told["chunks"])),
    )


def _pairs(told: list[list[str]]) -> Pairs:
    return tuple((key, value) for key, value in told)


def _shown(data: bytes) -> str | dict[str, str]:
    """Bytes as text, so that a reader sees what was said; in base64 where they are none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(data).decode()}


def _bytes(told: str | dict[str, str]) -> bytes:
    return told.encode() if isinstance(told, str) else base64.b64decode(told["b64"])
