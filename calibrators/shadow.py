"""Reads the margin of a request by queries of its own, beside the reply and without touching it.

For servers where a reply's own log-probabilities don't do: they show too little, or a bias of 0 is to
change no byte. The position is the first token of the reply, so requests whose decision comes after reasoning
are not read this way, nor are entry sets of more than one token.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from calibrators.entry import Entry
from calibrators.margin import UNREAD, Margin, margin_of, nats
from calibrators.openers.asks import Ask, Asking
from calibrators.request import no_decision

By = Literal["scoring", "prompt"]


def can_shadow(fields: Mapping[str, Any], entry: Entry) -> bool:
    """Whether a chat request's margin can be read by a query of its own."""
    decides = no_decision(fields) is None and not entry.after_for(fields)
    return decides and len(entry.tokens) == 1 and not any(fields.get(key) for key in _UNRENDERED)


_UNRENDERED = ("documents", "functions", "chat_template")
"""What /tokenize leaves out of the prompt, or refuses (vllm-facts 6)."""


def shadow_margin(by: By, model: str, fields: Mapping[str, Any], entry: Entry) -> Asking[Margin]:
    """The margin of a chat request, from a second query that generates nothing for the client.

    `scoring` uses /generative_scoring: one step that shares the prefix cache, but on the V1 runner it asks
    for ids and so spoils the top_logprobs of other requests in that step (vllm-facts 4.4, 4.5). `prompt` asks
    for the prompt's own log-probabilities: it harms nobody and shows the gap too, but pays a whole prefill,
    since vLLM does not take those from the prefix cache.
    """
    if not can_shadow(fields, entry):
        return UNREAD
    prompt = yield from _prompt(model, fields)
    if not prompt:
        return UNREAD
    return (yield from (_scored if by == "scoring" else _prompted)(model, prompt, entry.tokens[0]))


def _prompt(model: str, fields: Mapping[str, Any]) -> Asking[list[int]]:
    """The ids of the rendered request."""
    kept = ("messages", "tools", "chat_template_kwargs")
    body = {"model": model, **{key: fields[key] for key in kept if key in fields}}
    effort = fields.get("reasoning_effort")
    if isinstance(effort, str):  # /tokenize takes no effort, but what chat completions make of it
        own = fields.get("chat_template_kwargs")
        made = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        body["chat_template_kwargs"] = {**made, **(own if isinstance(own, Mapping) else {})}
    answer = yield Ask("/tokenize", body)
    ids = answer.get("tokens")
    return ids if isinstance(ids, list) and all(isinstance(token, int) for token in ids) else []


def _scored(model: str, prompt: list[int], token: int) -> Asking[Margin]:
    answer = yield Ask(
        "/generative_scoring",
        {
            "model": model,
            "query": prompt[:-1],
            "items": [prompt[-1:]],
            "label_token_ids": [token],
            "apply_softmax": False,
        },
    )
    data = answer.get("data")
    score = data[0].get("score") if isinstance(data, list) and data and isinstance(data[0], Mapping) else None
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 < score <= 1:
        return UNREAD
    return margin_of(math.log(score), None)


def _prompted(model: str, prompt: list[int], token: int) -> Asking[Margin]:
    answer = yield Ask(
        "/v1/completions",
        {"model": model, "prompt": [*prompt, token], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 2},
    )
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    shown = first.get("prompt_logprobs") if isinstance(first, Mapping) else None
    last = shown[-1] if isinstance(shown, list) and shown else None
    if not isinstance(last, Mapping):
        return UNREAD
    read = {key: nats(item.get("logprob")) for key, item in last.items() if isinstance(item, Mapping)}
    log_p = read.pop(str(token), None)
    if log_p is None:
        return UNREAD
    best = max((logprob for logprob in read.values() if logprob is not None), default=None)
    return margin_of(log_p, None if best is None else log_p - best)
