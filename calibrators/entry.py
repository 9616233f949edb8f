"""Tool-entry tokens: which tokens open a call, found from the server alone, and how near it is to calling.

calibration.md section 4; the method is template differencing: the same conversation rendered with calls and
with plain answers differs first where a call opens.
"""

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Scope = Literal["decision", "everywhere"]


@dataclass(frozen=True, slots=True)
class Entry:
    """How a model opens a call.

    Attributes:
        tokens: the entry set E, ids of every token that may open a call.
        text: the opener as text, for people.
        scope: the widest scope that is safe: `everywhere` only for one dedicated token.
        after: the ids that close the reasoning, where the decision comes after it.
        space: whitespace-only ids that may come first and leave the decision open.
        shared: whether E also begins ordinary text, so that p is an upper bound of P(call).
        source: where it is from (differencing, profile).
        fingerprint: of tokenizer and chat template, as far as the probes show them.
    """

    tokens: tuple[int, ...]
    text: str = ""
    scope: Scope = "decision"
    after: tuple[int, ...] = ()
    space: tuple[int, ...] = ()
    shared: bool = False
    source: str = "profile"
    fingerprint: str | None = None


class NoEntry(ValueError):
    """No entry tokens can be named, and why."""


class Ask(NamedTuple):
    """One request to the server: `/tokenize` or `/detokenize` and its JSON body."""

    path: str
    body: dict[str, Any]


Discovery = Generator[Ask, Mapping[str, Any], Entry]
"""Yields requests, is sent the JSON replies, returns the entry; raises NoEntry."""

# Three names that start differently: with one, the function's name would pass for the opener.
_NAMES = ("get_weather", "book_table", "send_email")
# First tokens of ordinary answers, so that no opener is taken for one of them.
_ANSWERS = ("The", "I", "Sure", "{", "[", "Yes", "42")


def discover(model: str) -> Discovery:
    """Find the entry of a served model by template differencing through /tokenize.

    Raises:
        NoEntry: the template drops or refuses calls, or calls and answers open alike.
    """
    calls: list[list[int]] = []
    for name in _NAMES:
        calls.append((yield from _rendered(model, _call_message(name), name)))
    answers: list[list[int]] = []
    for text in _ANSWERS:
        answers.append((yield from _rendered(model, {"role": "assistant", "content": text}, text)))
    at = _first_apart(calls, answers)
    run = _constant_run(calls, at)
    if not run:
        raise NoEntry("calls open with the function's name, which no fixed token set covers")
    text = yield from _text_of(model, run)
    first = yield from _text_of(model, run[:1])
    if not first.strip():
        raise NoEntry(f"the opener {text!r} begins with white space, which answers share")
    dedicated = yield from _stays_whole(model, run[0], first)
    if not dedicated:
        raise NoEntry(f"the opener {text!r} begins with the ordinary token {first!r}")
    return Entry(
        (run[0],), first, "everywhere", source="differencing", fingerprint=_fingerprint([*calls, *answers])
    )


def _fingerprint(renderings: Sequence[Sequence[int]]) -> str:
    """A short hash of the probes' token ids: another tokenizer or template gives other ids."""
    return hashlib.blake2b(json.dumps(renderings).encode(), digest_size=8).hexdigest()


def _rendered(model: str, message: dict[str, Any], mark: str) -> Generator[Ask, Mapping[str, Any], list[int]]:
    reply = yield Ask(
        "/tokenize",
        {
            "model": model,
            "messages": [{"role": "user", "content": "What should I do next?"}, message],
            "tools": [_tool(name) for name in _NAMES],
            "add_generation_prompt": False,
        },
    )
    ids = reply.get("tokens")
    if not isinstance(ids, list) or not ids:
        error = reply.get("error")
        told = error.get("message") if isinstance(error, Mapping) else "no token ids in its answer"
        raise NoEntry(f"/tokenize refused the probe {mark!r}: {told}")
    shown = yield from _text_of(model, ids)
    if mark not in shown:
        raise NoEntry(f"the chat template does not render the probe {mark!r}")
    return ids


def _text_of(model: str, ids: Sequence[int]) -> Generator[Ask, Mapping[str, Any], str]:
    reply = yield Ask("/detokenize", {"model": model, "tokens": list(ids)})
    return str(reply.get("prompt", ""))


def _stays_whole(model: str, token: int, text: str) -> Generator[Ask, Mapping[str, Any], bool]:
    """Whether the token is a vocabulary entry of its own, which no merge with neighbours dissolves."""
    reply = yield Ask("/tokenize", {"model": model, "prompt": f"ab{text}cd", "add_special_tokens": False})
    return len(text) >= 4 and token in (reply.get("tokens") or ())


def _tool(name: str) -> dict[str, Any]:
    place = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    return {
        "type": "function",
        "function": {"name": name, "description": name, "parameters": place},
    }


def _call_message(name: str) -> dict[str, Any]:
    call = {
        "id": "call00001",  # nine alphanumerics: what the strictest templates take
        "type": "function",
        "function": {"name": name, "arguments": '{"place": "Oslo"}'},
    }
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _first_apart(calls: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> int:
    """The first position at which no call shows a token that an answer shows."""
    for at in range(min(map(len, [*calls, *answers]))):
        if {ids[at] for ids in calls}.isdisjoint(ids[at] for ids in answers):
            return at
    raise NoEntry("the chat template renders calls and answers alike")


def _constant_run(calls: Sequence[Sequence[int]], at: int) -> list[int]:
    run: list[int] = []
    for column in zip(*(ids[at:] for ids in calls), strict=False):
        if len(set(column)) > 1:
            break
        run.append(column[0])
    return run
