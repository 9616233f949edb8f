"""Reads the margin of a request by queries of its own, beside the reply and without touching it.

For servers where a reply's own log-probabilities don't do: they show too little, or a bias of 0 is to
change no byte. The position is the first token of the reply, so requests whose decision comes after reasoning
are not read this way, nor are entry sets of more than one token.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from calibrators.entry import Entry
from calibrators.margin import UNREAD, Margin, margin_of
from calibrators.openers.asks import Ask, Asking
from calibrators.request import no_decision

By = Literal["scoring", "prompt"]


def shadow_margin(by: By, model: str, fields: Mapping[str, Any], entry: Entry) -> Asking[Margin]:
    """The margin of a chat request, from a second query that generates nothing for the client.

    `scoring` uses /generative_scoring: one step that shares the prefix cache, but on the V1 runner it asks
    for ids and so spoils the top_logprobs of other requests in that step (vllm-facts 4.4, 4.5). `prompt` asks
    for the prompt's own log-probabilities: it harms nobody and shows the gap too, but pays a whole prefill,
    since vLLM does not take those from the prefix cache.
    """
    if no_decision(fields) is not None or len(entry.tokens) != 1 or entry.after_for(fields):
        return UNREAD
    prompt = yield from _prompt(model, fields)
    if not prompt:
        return UNREAD
    return (yield from (_scored if by == "scoring" else _prompted)(model, prompt, entry.tokens[0]))


def _prompt(model: str, fields: Mapping[str, Any]) -> Asking[list[int]]:
    """The ids of the rendered request. What vLLM's /tokenize ignores (documents, efforts) is not in them."""
    kept = ("messages", "tools", "chat_template_kwargs")
    body = {"model": model, **{key: fields[key] for key in kept if key in fields}}
    answer = yield Ask("/tokenize", body)
    ids = answer.get("tokens")
    return ids if isinstance(ids, list) else []


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
    if not isinstance(score, int | float) or not 0 < score <= 1:
        return UNREAD
    return margin_of(math.log(score), None)


def _prompted(model: str, prompt: list[int], token: int) -> Asking[Margin]:
    answer = yield Ask(
        "/v1/completions",
        {"model": model, "prompt": [*prompt, token], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 2},
    )
    choices = answer.get("choices")
    shown = choices[0].get("prompt_logprobs") if isinstance(choices, list) and choices else None
    last = shown[-1] if isinstance(shown, list) and shown else None
    if not isinstance(last, Mapping) or str(token) not in last:
        return UNREAD
    logprobs = {key: float(item["logprob"]) for key, item in last.items()}
    log_p = logprobs.pop(str(token))
    return margin_of(log_p, log_p - max(logprobs.values()) if logprobs else None)
