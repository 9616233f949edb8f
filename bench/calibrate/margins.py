"""Margins once: one query of one token for each example, which gives every b without another."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bench.calibrate.asking import Asking
from bench.decisions.example import Example
from bench.errors import CheckFailed
from bench.progress import Advance
from bench.runs import RecordFile
from bench.served import entry_for
from calibrators.body import Body
from calibrators.margin import margin_query, read_margin
from calibrators.reply import Reply
from proxy.upstream import Upstream

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

DRY = 5
"""Examples that are asked first: where none of them can be measured, none will be."""


async def measure(
    asking: Asking,
    upstream: Upstream,
    model: str,
    examples: Sequence[Example],
    fields: Mapping[str, Any],
    records: RecordFile,
    advance: Advance,
) -> None:
    """Write the margin of each example that has none yet, or why it can't be measured.

    fields: added to every request. Raises CheckFailed where the first examples all can't be measured, and
    ServerUnreachable where the server stops answering; what was measured stays.
    """

    async def one(example: Example) -> None:
        if example.read is not None:
            record: Mapping[str, Any] = example.read._asdict()
        else:
            record = await _measured(asking, upstream, model, {**example.request, **fields})
        records.append(example.id, record)
        advance(note=f"{int(asking.pace.limit)} at once")

    missing = [example for example in examples if example.id not in records]
    await asking.each(missing[:DRY], one)
    if len(records) <= DRY:
        reasons = [record.get("unmeasurable") or record.get("errored") for record in records]
        if reasons and all(reasons):
            raise CheckFailed(
                f"no margin can be read: {reasons[0]}", where=model, mend=_mend(str(reasons[0]))
            )
    await asking.each(missing[DRY:], one)


async def _measured(
    asking: Asking, upstream: Upstream, model: str, request: Mapping[str, Any]
) -> dict[str, Any]:
    entry = await entry_for(upstream, model, request)
    if entry.after_for(request):
        return {"unmeasurable": _REASONING}
    body = Body.parse(json.dumps({"model": model, **request}, ensure_ascii=False))
    answer = await asking.chat(margin_query(body, entry).render())
    if answer.fault is not None:
        return {"errored": answer.fault}
    reply = Reply(answer.status, ended=True)
    reply.add(answer.document)
    read = read_margin(reply.first, entry)
    if read.margin is None or read.gap is None:
        return {"unmeasurable": "the answer shows no log-probabilities of the entry tokens"}
    return {**read._asdict(), "retries": answer.retries}


_REASONING = "the model reasons before it decides, so that one token does not show the decision"


def _mend(reason: str) -> str:
    if reason == _REASONING:
        return """switch that off with --fields '{"chat_template_kwargs": {"enable_thinking": false}}'"""
    return "serve with vLLM 0.23 or later, without speculative decoding"


@dataclass(frozen=True, slots=True)
class Measured:
    """Examples with their margins and gaps, in one order.

    Attributes:
        examples: n of them.
        margin: m of each, in nats; shape (n,).
        gap: g of each, in nats.
    """

    examples: Sequence[Example]
    margin: Floats
    gap: Floats

    @classmethod
    def of(cls, examples: Sequence[Example], records: Mapping[str, Mapping[str, Any]]) -> Self:
        """The examples that could be measured."""
        kept = [e for e in examples if records.get(e.id, {}).get("margin") is not None]
        read = [records[e.id] for e in kept]
        return cls(kept, np.array([r["margin"] for r in read]), np.array([r["gap"] for r in read]))

    def where(self, mask: Sequence[bool] | Bools) -> Self:
        """Those that a mask keeps."""
        chosen = np.asarray(mask, bool)
        kept = [example for example, keep in zip(self.examples, chosen, strict=True) if keep]
        return type(self)(kept, self.margin[chosen], self.gap[chosen])

    def of_split(self, split: str) -> Self:
        """Those of one split."""
        return self.where([example.split == split for example in self.examples])

    @property
    def due(self) -> Bools:
        """Whether a call is due, for each."""
        return np.array([example.should_call for example in self.examples], bool)

    @property
    def groups(self) -> list[str]:
        """The source conversation of each."""
        return [example.group for example in self.examples]

    @property
    def probability(self) -> Floats:
        """p of each, from its margin."""
        return _logistic(self.margin)

    def entries(self, b: float, decoding: str) -> Floats:
        """How far each opens a call under a bias of b nats: 0 or 1 when greedy, p' at temperature 1.

        calibration.md section 4: greedy enters iff g + b > 0; p' = p e^b / (1 - p + p e^b), which is the
        logistic function of m + b.
        """
        if decoding == "greedy":
            return (self.gap + b > 0).astype(float)
        return _logistic(self.margin + b)


def _logistic(logits: Floats) -> Floats:
    # Either branch is exact where the other would overflow.
    small = np.exp(-np.abs(logits))
    share: Floats = np.where(logits >= 0, 1 / (1 + small), small / (1 + small))
    return share
