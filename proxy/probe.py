"""Finds out what an upstream is: kind, version, models, their entry tokens, and our processor."""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from calibrators.entry import NoEntry
from calibrators.flow import LateRole
from calibrators.late import late_roles
from calibrators.openers import Hint, settled
from proxy.errors import HttpError
from proxy.profiles import Profile
from proxy.upstream import Facts, ModelFacts, Upstream, model_names

logger = logging.getLogger("seam")

RETRY_SECONDS = 2.0
CHECK_SECONDS = 15.0
HANDSHAKE = "seam-processor "
"""How our processor's answer to `seam_hello` begins (calibrators/processor.py)."""


Hints = Mapping[Hint, frozenset[str | None]]
"""What discovery may fall back to, each with the models that it is for (None: any)."""


def hints_of(profiles: Iterable[Profile]) -> Hints:
    """The fallbacks that profiles name."""
    found: dict[Hint, frozenset[str | None]] = {}
    for profile in profiles:
        if any(hint := profile.entry.hint):
            found[hint] = found.get(hint, frozenset()) | {profile.model}
    return found


async def watch(upstream: Upstream, hints: Hints = MappingProxyType({})) -> None:
    """Keep an upstream's facts true: probe it until it answers, and again when it has changed."""
    while True:
        before = upstream.facts
        seen = await glance(upstream)
        if seen.problem is not None:
            if before.problem != seen.problem:
                logger.warning("upstream %s: %s", upstream.name, seen.problem)
            # What was found before still serves: a glance that fails in passing is no other server.
            upstream.facts = replace(before, problem=seen.problem)
        elif _is_news(before, seen) or not _covers(before, hints):
            upstream.facts = await probe(upstream, hints)
            logger.info("upstream %s: %s", upstream.name, summary(upstream.facts))
        await asyncio.sleep(RETRY_SECONDS if upstream.facts.problem else CHECK_SECONDS)


def _is_news(before: Facts, seen: Facts) -> bool:
    return before.problem is not None or before.kind is None or _identity(before) != _identity(seen)


def _covers(facts: Facts, hints: Hints) -> bool:
    """Whether every fallback has been tried on its models; a reloaded profile may name a new one."""
    if facts.kind != "vllm":
        return True
    return all(
        hint in model.hinted
        for name, model in facts.models.items()
        for hint, models in hints.items()
        if models & {name, None}
    )


def _identity(facts: Facts) -> tuple[str | None, frozenset[str], str]:
    return facts.version, frozenset(facts.models), json.dumps(facts.processor)


def summary(facts: Facts) -> str:
    """One line on what was found."""
    processor = f"processor {facts.processor.get('version')}" if facts.processor else "no processor"
    models = ", ".join(
        f"{name} (entry {list(m.entry.tokens)} {m.entry.text!r})"
        if m.entry
        else f"{name} (no entry: {m.no_entry})"
        for name, m in facts.models.items()
    )
    return f"{facts.kind} {facts.version or ''}; {processor}; {models}"


async def glance(upstream: Upstream) -> Facts:
    """Kind, version, model names and processor; no entry tokens."""
    try:
        status, document = await upstream.get_json("GET", "/v1/models")
        if status == 401:
            return Facts(problem="the upstream wants a key: name its variable in upstreams.*.api_key_env")
        names = model_names(document)
        if status != 200 or not names:
            return Facts(problem=f"/v1/models answered {status} and lists no model")
        kind = upstream.settings.kind
        if kind == "auto":
            owners = {item.get("owned_by") for item in document["data"] if isinstance(item, dict)}
            kind = "vllm" if "vllm" in owners else "openai"
        models = {name: ModelFacts() for name in sorted(names)}
        if kind == "openai":
            return Facts("openai", None, models)
        _, version = await upstream.get_json("GET", "/version")
        told = version.get("version") if isinstance(version, dict) else None
        processor = await _processor(upstream, next(iter(models)))
        return Facts("vllm", told, models, processor)
    except HttpError as error:
        return Facts(problem=error.message)


async def probe(upstream: Upstream, hints: Hints = MappingProxyType({})) -> Facts:
    """Everything: what `glance` sees and the entry tokens of each model."""
    facts = await glance(upstream)
    if facts.kind != "vllm":
        return facts
    try:
        models = {
            name: await _model(upstream, name, hints, facts.processor is not None) for name in facts.models
        }
        top = await _top_logprobs(upstream, next(iter(models)))
    except HttpError as error:
        return Facts(problem=error.message)
    return replace(facts, models=models, top_logprobs=top)


async def _top_logprobs(upstream: Upstream, model: str) -> int:
    """How many alternatives the server shows (--max-logprobs); more would be a 400. Costs a token."""
    for count in (20, 5, 1):
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 1,
            "logprobs": True,
            "top_logprobs": count,
        }
        status, _ = await upstream.get_json("POST", "/v1/chat/completions", json.dumps(body).encode())
        if status == 200:
            return count
    return 0


async def _processor(upstream: Upstream, model: str) -> Mapping[str, Any] | None:
    """What our logits processor says of itself: a reserved key makes it refuse with its name.

    Where it is not loaded the key is ignored and one token is made (vllm-facts 3.4).
    """
    hello = {
        "model": model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 1,
        "vllm_xargs": {"seam_hello": 1},
    }
    status, document = await upstream.get_json("POST", "/v1/chat/completions", json.dumps(hello).encode())
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if status != 400 or not isinstance(message, str) or HANDSHAKE not in message:
        return None
    try:
        told, _ = json.JSONDecoder().raw_decode(message.partition(HANDSHAKE)[2])
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


async def _model(upstream: Upstream, name: str, hints: Hints, processor: bool) -> ModelFacts:
    shown = await _entry(upstream, name, Hint(), processor)
    hinted = {
        hint: await _entry(upstream, name, hint, processor)
        for hint, models in hints.items()
        if models & {name, None}
    }
    return replace(shown, hinted=hinted, late=await _late(upstream, name))


async def _late(upstream: Upstream, name: str) -> Sequence[LateRole] | None:
    try:
        return await upstream.answered(late_roles(name))
    except NoEntry:
        return None


async def _entry(upstream: Upstream, name: str, hint: Hint, processor: bool) -> ModelFacts:
    try:
        return ModelFacts(entry=await upstream.answered(settled(name, hint, processor)))
    except NoEntry as error:
        return ModelFacts(no_entry=str(error))
