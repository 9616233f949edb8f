"""A teacher behind a vLLM server: E's exact log-probability and rank, and the top-K that the server gives.

vLLM counts the rank of a prompt's own tokens over the whole vocabulary (`prompt_logprobs`), so E's tokens are
appended to the prompt one at a time. How many alternatives it lists is bounded by its --max-logprobs.
"""

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.calibrate.asking import Answer, Asking, asking
from bench.calibrate.margins import DRY
from bench.decisions.example import Example
from bench.errors import CheckFailed
from bench.served import Served, connected, entry_for
from calibrators.margin import nats
from proxy.upstream import Upstream, base_url

Json = dict[str, Any]
COMPLETIONS = "/v1/completions"
_LISTED = (20, 10, 5)
"""What is tried where a server lists fewer alternatives than the smallest K; 20 is vLLM's default."""
_RENDERED = ("messages", "tools", "chat_template_kwargs")
_NO_RANKS = "the answer shows no rank of the entry token: it takes a vLLM server with prompt_logprobs"


class _Refused(Exception):
    """The server's own words for one prompt."""


async def read(
    url: str,
    api_key_env: str | None,
    known: Served,
    examples: Sequence[Example],
    tops: Sequence[int],
    concurrency: int,
    take: Callable[[str, Mapping[str, Any]], None],
) -> None:
    """Hand each example's record to `take` with its id.

    Raises:
        CheckFailed: none of the first ones can be read.
        ServerUnreachable: the server stops answering; what was taken stays.
    """
    upstream = connected(url, api_key_env)
    upstream.facts = known.facts
    try:
        async with asking(base_url(url), upstream.api_key, concurrency) as server:
            reader = _Reader(server, upstream, known.model, tops)

            async def one(example: Example) -> None:
                take(example.id, await reader.record(example))

            first = {example.id: await reader.record(example) for example in examples[:DRY]}
            reasons = [record.get("errored") or record.get("unmeasurable") for record in first.values()]
            if reasons and all(reasons):
                raise CheckFailed(str(reasons[0]), where=known.model, mend="see to that, and repeat")
            for id, record in first.items():
                take(id, record)
            await server.each(examples[DRY:], one)
    finally:
        await upstream.aclose()


class _Reader:
    def __init__(self, server: Asking, upstream: Upstream, model: str, tops: Sequence[int]) -> None:
        self._server, self._upstream, self._model, self._tops = server, upstream, model, tops
        self._listed: int | None = None
        self._finding = asyncio.Lock()

    async def record(self, example: Example) -> Json:
        """E's log-probability and rank, and the mass at each K that the server lists."""
        entry = await entry_for(self._upstream, self._model, example.request)
        if entry.after_for(example.request):
            return {"unmeasurable": "the model reasons before it decides"}
        try:
            ids = await self._prompt(example.request)
            read = [await self._token(ids, token) for token in entry.tokens]
            kept = await self._top(ids)
        except _Refused as refused:
            return {"errored": str(refused)}
        if None in read:
            return {"unmeasurable": _NO_RANKS}
        shown = [each for each in read if each is not None]
        best = max(logprob for logprob, _ in shown)
        log_p = min(0.0, best + math.log(math.fsum(math.exp(logprob - best) for logprob, _ in shown)))
        mass = {str(top): min(1.0, math.fsum(kept[:top])) if top <= len(kept) else None for top in self._tops}
        return {"log_p": log_p, "rank": min(rank for _, rank in shown), "mass": mass, "tokens": len(ids)}

    async def _prompt(self, request: Mapping[str, Any]) -> list[int]:
        members = {name: request[name] for name in _RENDERED if name in request}
        body = {"model": self._model, **members, "add_generation_prompt": True}
        answer = await self._server.post("/tokenize", json.dumps(body, ensure_ascii=False))
        return list(_fine(answer)["tokens"])

    async def _token(self, ids: Sequence[int], token: int) -> tuple[float, int] | None:
        document = await self._completed([*ids, token], prompt_logprobs=0)
        shown = (document["choices"][0].get("prompt_logprobs") or [{}])[-1] or {}
        own = shown.get(str(token)) or {}
        logprob, rank = nats(own.get("logprob")), own.get("rank")
        return (logprob, rank) if logprob is not None and isinstance(rank, int) else None

    async def _top(self, ids: Sequence[int]) -> list[float]:
        """Probabilities of the likeliest tokens, in order; empty where the server lists none."""
        async with self._finding:
            if self._listed is None:
                self._listed = await self._most(ids)
        if not self._listed:
            return []
        document = await self._completed(ids, logprobs=self._listed)
        return _probabilities(document)[: self._listed]

    async def _most(self, ids: Sequence[int]) -> int:
        for top in sorted({*self._tops, *_LISTED}, reverse=True):
            try:
                await self._completed(ids, logprobs=top)
            except _Refused:
                continue
            return top
        return 0

    async def _completed(self, ids: Sequence[int], **fields: int) -> Json:
        body = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0,
            "return_tokens_as_token_ids": True,
            **fields,
        }
        return _fine(await self._server.post(COMPLETIONS, json.dumps(body)))


def _fine(answer: Answer) -> Json:
    if answer.fault is not None:
        raise _Refused(answer.fault)
    return answer.document


def _probabilities(document: Mapping[str, Any]) -> list[float]:
    shown = (document["choices"][0].get("logprobs") or {}).get("top_logprobs") or [{}]
    read = [nats(value) for value in (shown[0] or {}).values()]
    return sorted((math.exp(value) for value in read if value is not None), reverse=True)
