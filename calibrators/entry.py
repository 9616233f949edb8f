"""Tool-entry tokens: which tokens open a call, found from the server alone, and how near it is to calling.

calibration.md section 4; the method is template differencing: the same conversation rendered with calls and
with plain answers differs first where a call opens.
"""

import hashlib
import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from calibrators.body import Body
from calibrators.reply import Choice

Scope = Literal["decision", "everywhere"]


@dataclass(frozen=True, slots=True)
class Entry:
    """How a model opens a call.

    Attributes:
        tokens: the entry set E, ids of every token that may open a call.
        text: the opener as text, for people.
        scope: the widest scope that is safe: `everywhere` only for one dedicated token.
        source: where it is from (differencing, profile).
        fingerprint: of tokenizer and chat template, as far as the probes show them.
    """

    tokens: tuple[int, ...]
    text: str = ""
    scope: Scope = "decision"
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
    return Entry((run[0],), first, "everywhere", "differencing", _fingerprint([*calls, *answers]))


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


class Margin(NamedTuple):
    """How near a reply is to opening with a call, before any bias (calibration.md section 4).

    Attributes:
        probability: p = P(E) at the decision position, temperature 1, no truncation.
        margin: m = logit(p), in nats.
        gap: g = max(l_E) - max(l_other), in nats; greedy opens a call iff g + b > 0.
    """

    probability: float
    margin: float
    gap: float


def margin_query(request: Body, entry: Entry) -> Body:
    """The one-token greedy query that shows the entry's probability and the best other token.

    E is banned, so the sampled token is the best other one; E's own log-probabilities are asked for by id.
    They are raw, before bans (vLLM, default logprobs mode). Only for an idle server or one on the V2 runner:
    on V1 it spoils the top_logprobs of requests in the same step (vllm-facts 4.4).
    """
    bans = json.dumps({str(token): -100 for token in entry.tokens})
    return request.with_raw(
        max_tokens="1",
        max_completion_tokens=None,
        temperature="0",
        n=None,
        stream=None,
        stream_options=None,
        logprobs="true",
        top_logprobs=None,
        logprob_token_ids=json.dumps(list(entry.tokens)),
        return_tokens_as_token_ids="true",
        logit_bias=bans,
    )


def read_margin(choice: Choice, entry: Entry) -> Margin | None:
    """The margin from the reply to `margin_query`; None where the server did not answer in its form."""
    shown = choice.first_logprobs or {}
    by_id = {
        item.get("token"): item.get("logprob")
        for item in shown.get("top_logprobs") or ()
        if isinstance(item, Mapping)
    }
    inside = [by_id.get(f"token_id:{token}") for token in entry.tokens]
    best_other = shown.get("logprob")
    if not isinstance(best_other, float | int) or any(not isinstance(value, float | int) for value in inside):
        return None
    logs = [float(value) for value in inside if value is not None]
    top = max(logs)
    log_p = top + math.log(math.fsum(math.exp(value - top) for value in logs))
    return Margin(math.exp(log_p), log_p - _log1m_exp(log_p), top - float(best_other))


def _log1m_exp(log_p: float) -> float:
    """log(1 - exp(log_p)) without loss near 0 and 1."""
    if log_p >= 0:
        return -math.inf
    return math.log(-math.expm1(log_p)) if log_p > -0.693 else math.log1p(-math.exp(log_p))
