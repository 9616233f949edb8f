"""The analytic curve against the served model: first tokens asked for again, with the bias applied.

Every figure of a calibration rests on one reading without bias. Here the bias really acts, through the proxy,
at five values: each example's first token once greedily and once at temperature 1. Greedily it must be what
the sign of g + b says; at temperature 1 the calls must be as many as the p' add up to, within binomial error.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.calibrate.asking import Asking
from bench.calibrate.generation import Calibration
from bench.calibrate.margins import Measured
from bench.decisions.example import Example
from bench.errors import CheckFailed
from bench.progress import Advance
from bench.runs import RecordFile
from bench.served import entry_for
from calibrators.reply import Reply
from proxy.upstream import Upstream

Json = dict[str, Any]

POINTS = 5
NEAR = 0.02
"""In nats: so near to its edge a greedy decision may go either way, since batches round differently."""
_REACH = 3.29
"""Standard errors that hold 99.9 % of a binomial count."""


def biases(measured: Measured, most: float) -> list[float]:
    """Five values over what the gaps span, none above `most`."""
    low, high = np.quantile(-measured.gap, (0.05, 0.95))
    high = min(high, most)
    return sorted({round(float(b), 2) for b in np.linspace(min(low, high - 1), high, POINTS)})


async def rerun(
    asking: Asking,
    upstream: Upstream,
    model: str,
    measured: Measured,
    calibrations: Mapping[float, Calibration],
    fields: Mapping[str, Any],
    records: RecordFile,
    advance: Advance,
) -> None:
    """Write whether each example opens a call under each bias, as far as it isn't written yet."""

    async def entered(example: Example, b: float, temperature: int) -> bool:
        body = {"model": model, **example.request, **fields, "calibration": calibrations[b]}
        body |= {"temperature": temperature, "top_p": 1, "top_k": 0, "max_tokens": 1}
        body |= {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
        answer = await asking.chat(json.dumps(body, ensure_ascii=False))
        if answer.fault is not None:
            raise CheckFailed(answer.fault, where=f"b = {b:g}, {example.id}", mend="see the proxy's log")
        reply = Reply(answer.status, ended=True)
        reply.add(answer.document)
        entry = await entry_for(upstream, model, example.request)
        first = reply.first.logprobs[0].get("token") if reply.first.logprobs else None
        return first in {f"token_id:{token}" for token in entry.tokens}

    async def one(task: tuple[float, Example]) -> None:
        b, example = task
        found = {"greedy": await entered(example, b, 0), "sampled": await entered(example, b, 1)}
        records.append(f"{b:g}/{example.id}", {"bias": b, "id": example.id, **found})
        advance(note=f"b = {b:g}")

    tasks = [(b, example) for b in calibrations for example in measured.examples]
    await asking.each([t for t in tasks if f"{t[0]:g}/{t[1].id}" not in records], one)


def agreement(measured: Measured, records: Iterable[Json]) -> list[Json]:
    """Formula and measurement at each bias, and whether they agree."""
    rows = {(row["bias"], row["id"]): row for row in records}
    return [_point(measured, b, rows) for b in sorted({b for b, _ in rows})]


def _point(measured: Measured, b: float, rows: Mapping[tuple[float, str], Json]) -> Json:
    own = [rows[b, example.id] for example in measured.examples]
    greedy = np.array([row["greedy"] for row in own])
    far = np.abs(measured.gap + b) > NEAR
    turned = int(np.sum((greedy != measured.entries(b, "greedy").astype(bool)) & far))
    chances, hits = measured.entries(b, "sampled"), np.array([row["sampled"] for row in own], float)
    point: Json = {"bias": b, "n": len(own), "greedy_turned": turned, "greedy_near": int(np.sum(~far))}
    for name, mask in (("over_calling", ~measured.due), ("call_recall", measured.due)):
        point[name] = _sampled(chances[mask].tolist(), hits[mask].tolist())
    point["agrees"] = not turned and point["over_calling"]["agrees"] and point["call_recall"]["agrees"]
    return point


def _sampled(chances: Sequence[float], hits: Sequence[float]) -> Json:
    """The share of calls against the mean of p', whose standard error is that of a Poisson binomial."""
    n = len(chances)
    formula, measured = sum(chances) / n, sum(hits) / n
    error = math.sqrt(sum(p * (1 - p) for p in chances)) / n
    agrees = abs(measured - formula) <= _REACH * error + 0.5 / n
    return {"formula": formula, "measured": measured, "standard_error": error, "agrees": agrees}
