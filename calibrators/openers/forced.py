"""Whether an entry is right: a call that is forced by its tokens must come back as a call.

entry-tokens D9, D10. A server with structured outputs is made to write one known call; another is pushed by
our processor, with a bias that no other token outweighs.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from calibrators.entry import Entry, NoEntry
from calibrators.openers.asks import Answer, Ask, Asking, Tokenizer, told
from calibrators.openers.discovery import Found, Hint, fall_back, find
from calibrators.openers.reasoning import first_choice
from calibrators.openers.renderings import ARGUMENTS, NAMES, QUESTION, SWITCH, tool

_FORCE = 100
"""In nats; the most that logit_bias takes."""
_SAMPLES = 3
_LENGTH = 200


class _Trial(NamedTuple):
    """What came of a forced query: None where it could not tell, and what was seen."""

    passed: bool | None
    seen: str


def verified(model: str, found: Found, processor: bool = False) -> Asking[Entry]:
    """The entry with the outcome of one forced query, or where that can't tell, of up to three more.

    `processor`: whether the server has loaded Seam's. Each query costs one short reply.
    """
    trial = _Trial(None, "no whole call in the model's own form is known")
    if found.call:
        trial = yield from _by_choice(Tokenizer(model), found)
    if trial.passed is None and processor:
        trial = yield from _by_processor(model, found.entry, trial.seen)
    note = "" if trial.passed else trial.seen
    return replace(found.entry, verified=trial.passed, note=note)


def settled(model: str, hint: Hint = Hint(), processor: bool = False) -> Asking[Entry]:  # noqa: B008
    """An entry to act upon: found, and not shown to be wrong by its forced query.

    Raises:
        NoEntry: none was found, or none of those found stands the query.
    """
    entry = yield from verified(model, (yield from find(model, hint)), processor)
    if entry.verified is not False:
        return entry
    reason = f"the opener {entry.opener!r} fails verification: {entry.note}"
    if entry.source != "differencing":
        raise NoEntry(reason)
    found = yield from fall_back(model, hint, [reason])
    entry = yield from verified(model, found, processor)
    if entry.verified is False:
        raise NoEntry(f"{reason}; so does {entry.opener!r}: {entry.note}")
    return entry


def _by_choice(tokenizer: Tokenizer, found: Found) -> Asking[_Trial]:
    """Let the grammar allow nothing but the call, and see whether it begins with E and is parsed."""
    entry = found.entry
    length = len((yield from tokenizer.ids(found.call)))
    choice = {
        **_request(tokenizer.model),
        **SWITCH["off"],
        "structured_outputs": {"choice": [found.call]},
        # A grammar may have the text spelled in small pieces.
        "max_tokens": max(_LENGTH, 3 * length),
    }
    answer = yield Ask(
        "/v1/chat/completions", {**choice, "logit_bias": dict.fromkeys(map(str, entry.tokens), _FORCE)}
    )
    if not first_choice(answer):
        # Speculative decoding refuses any logit_bias.
        answer = yield Ask("/v1/chat/completions", choice)
    reply = first_choice(answer)
    if not reply:
        return _Trial(None, f"the server refused the forced query: {told(answer)}")
    first = _first_token(reply)
    if first is None:
        return _Trial(None, "the server shows no token ids (return_token_ids)")
    if first not in entry.tokens:
        shown = yield from tokenizer.text(entry.tokens[:1])
        # A marker's own token may be out of a grammar's reach, its text is not.
        if not entry.shared and shown.strip() and found.call.lstrip().startswith(shown.strip()):
            return _Trial(
                None, f"the forced call began with token {first}: the grammar can't write {shown!r}"
            )
        return _Trial(False, f"the forced call began with token {first}, which is not in E")
    return _judged(reply, ARGUMENTS)


def _by_processor(model: str, entry: Entry, before: str) -> Asking[_Trial]:
    """Push the entry at the decision alone and let the model write the call; one that parses will do."""
    arguments: dict[str, Any] = {"seam_bias": _FORCE, "seam_entry": list(entry.tokens)}
    if entry.after:
        arguments["seam_after"] = list(entry.after)
    if entry.space:
        arguments["seam_space"] = list(entry.space)
    for _ in range(_SAMPLES):
        request = {**_request(model), "max_tokens": _LENGTH, "temperature": 1, "vllm_xargs": arguments}
        reply = first_choice((yield Ask("/v1/chat/completions", request)))
        if reply and _judged(reply, None).passed:
            return _Trial(True, "")
    return _Trial(None, f"{before}; no call in {_SAMPLES} pushed replies")


def _request(model: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [tool(name) for name in NAMES],
        "temperature": 0,
        "return_token_ids": True,
    }


def _first_token(reply: Answer) -> int | None:
    ids = reply.get("token_ids")
    return ids[0] if isinstance(ids, list) and ids else None


def _judged(reply: Answer, arguments: Mapping[str, Any] | None) -> _Trial:
    """Whether the server took a reply for a call of one of our tools, with these arguments if any."""
    if reply.get("finish_reason") != "tool_calls":
        return _Trial(
            False,
            f"the server's tool parser does not take it for a call (finish {reply.get('finish_reason')})",
        )
    message = reply.get("message")
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    function = calls[0].get("function", {}) if isinstance(calls, list) and calls else {}
    if function.get("name") not in NAMES:
        return _Trial(False, f"the server's tool parser reads the name as {function.get('name')!r}")
    if arguments is not None and _object(function.get("arguments")) != arguments:
        return _Trial(False, f"the server's tool parser reads the arguments as {function.get('arguments')!r}")
    return _Trial(True, "")


def _object(text: object) -> Any:
    try:
        return json.loads(str(text))
    except ValueError:
        return None
