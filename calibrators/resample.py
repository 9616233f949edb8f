"""Bias by drawing again: for servers without our processor that return log-probabilities.

calibration.md section 4. With q the entry probability under the request's own sampling and q' the biased
one (b <= 0, so q' <= q), a reply that entered is kept with probability q'/q; otherwise it is drawn again
until its first token is outside E. The entry rate is then q', and replies that do not enter are untouched.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from calibrators.entry import Entry
from calibrators.flow import Ask, Flow, Query, QueryFailed, Report, Role
from calibrators.margin import entry_tokens_of, listed
from calibrators.reply import Choice, Reply
from calibrators.request import choices_of, no_decision
from calibrators.skip import Skip

DRAWS = 3
"""How often a reply is drawn again before E is banned."""


class Sampling(NamedTuple):
    """How a server draws the first token."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0


class Entering(NamedTuple):
    """The entry probability without and with the bias, under the request's own sampling.

    Attributes:
        exact: the list of alternatives covers the support, so that neither is an estimate.
    """

    before: float
    after: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Resample:
    """Applies b <= 0 by keeping or redrawing replies that opened a call.

    Attributes:
        defaults: the server's sampling where a request does not say; None where nobody knows it.
        draw: gives a number in [0, 1); replies are kept by it.
    """

    value: float
    entry: Entry
    defaults: Sampling | None = None
    draw: random.Random = field(default_factory=random.Random)

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        """Ask; where the reply opens a call that the bias would have prevented, ask again."""
        sampling = self._refused(query.fields)
        if isinstance(sampling, Skip):
            report.skipped["bias"] = sampling
            return (yield from ask(query))
        reply = yield from ask(query.until(first_logprobs))
        if not reply.good:
            return reply
        tokens = entry_tokens_of(reply.first, self.entry)
        if not tokens:
            report.skipped["bias"] = Skip(
                "no_logprobs", "the reply shows no log-probabilities to resample by"
            )
            return reply
        report.applied["bias"] = f"{self.value:g}/resample"
        if not _entered(reply.first, tokens):
            return reply
        odds = entering(dict(listed(reply.first.logprobs[0])), tokens, self.value, sampling)
        if not odds.exact:
            report.applied["bias"] += " approximate"
        if odds.before <= 0 or self.draw.random() < odds.after / odds.before:
            return reply
        try:
            return (yield from self._redrawn(query, ask, report, sampling))
        except QueryFailed as error:
            report.void = Skip("resample_failed", f"drawing again failed: {error}")
            return reply

    def _redrawn(self, query: Query, ask: Ask, report: Report, sampling: Sampling) -> Flow:
        # Greedy decoding would only repeat itself: the next best token is what a ban gives.
        for attempt in range(DRAWS if sampling.temperature > 0 else 0):
            reply = yield from _good(ask(_seeded(query, attempt + 1).until(first_logprobs)))
            if not _entered(reply.first, entry_tokens_of(reply.first, self.entry)):
                return reply
        if sampling.temperature > 0:
            report.applied["bias"] = f"{self.value:g}/resample approximate"
        return (yield from _good(ask(self._banned(query))))

    def _banned(self, query: Query) -> Query:
        sent = query.body.fields.get("logit_bias")
        own = dict(sent) if isinstance(sent, Mapping) else {}
        bans = {str(token): -100 for token in self.entry.tokens}
        return _resampling(query.with_body(query.body.with_json(logit_bias={**own, **bans})))

    def _refused(self, fields: Mapping[str, Any]) -> Sampling | Skip:
        """The request's sampling, or why its reply can't be drawn again without changing what it is."""
        if reason := no_decision(fields):
            return reason
        if self.value > 0:
            return Skip("resample", "resample takes no bias above 0")
        if self.entry.after_for(fields):
            return Skip("resample", "resample needs the decision at the first token, not after reasoning")
        if choices_of(fields) > 1:
            return Skip("resample", "resample draws one reply, not n > 1")
        for name, neutral in _NEUTRAL.items():
            if fields.get(name, neutral) not in (neutral, None):
                return Skip("resample", f"resample can't reckon with {name}")
        return self._sampling(fields)

    def _sampling(self, fields: Mapping[str, Any]) -> Sampling | Skip:
        values: list[float] = []
        for name in Sampling._fields:
            given = fields.get(name)
            if isinstance(given, int | float) and not isinstance(given, bool):
                values.append(given)
            elif self.defaults is not None:
                values.append(getattr(self.defaults, name))
            else:
                unknown = f"resample needs to know {name}: send it, or name it in models.*.sampling"
                return Skip("resample", unknown)
        return Sampling(values[0], values[1], int(values[2]))


_NEUTRAL = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_p": 0}


def _good(flow: Flow) -> Flow:
    """The flow's reply, if it is no error."""
    reply = yield from flow
    if not reply.good:
        raise QueryFailed(f"status {reply.status}")
    return reply


def first_logprobs(reply: Reply) -> bool:
    """Settled once the first token's log-probabilities have come."""
    return bool(reply.first.logprobs) or reply.ended or reply.error is not None


def entering(
    shown: Mapping[int | str, float], tokens: frozenset[int | str], b: float, sampling: Sampling
) -> Entering:
    """q and q' from one position's raw log-probabilities (natural log, temperature 1).

    The bias acts on logits, hence before temperature and truncation, as the processor's does.
    """
    if sampling.temperature == 0:
        gap = max((v for k, v in shown.items() if k in tokens), default=-math.inf) - max(
            (v for k, v in shown.items() if k not in tokens), default=-math.inf
        )
        return Entering(1.0, float(gap + b > 0), exact=True)
    before, exact_before = _mass(shown, tokens, 0.0, sampling)
    after, exact_after = _mass(shown, tokens, b, sampling)
    return Entering(before, after, exact_before and exact_after)


def _mass(
    shown: Mapping[int | str, float], tokens: frozenset[int | str], b: float, sampling: Sampling
) -> tuple[float, bool]:
    """P(E) with bias b under temperature, top_k and top_p; and whether the list covers the support."""
    covered = tokens <= shown.keys()
    biased = {k: (v + (b if k in tokens else 0.0)) / sampling.temperature for k, v in shown.items()}
    ranked = sorted(biased.items(), key=lambda item: item[1], reverse=True)
    # At temperature 1 the rest of the vocabulary has a known mass; at others only its share is guessed.
    rest = max(0.0, 1.0 - math.fsum(map(math.exp, shown.values())))
    floor = min(shown.values())
    if 0 < sampling.top_k <= len(ranked) and (
        b == 0 or floor / sampling.temperature <= ranked[sampling.top_k - 1][1]
    ):
        ranked, rest, tail_known = ranked[: sampling.top_k], 0.0, True
    else:
        tail_known = sampling.temperature == 1.0
    weights = [(k, math.exp(v)) for k, v in ranked]
    total = math.fsum(w for _, w in weights) + rest
    kept, reached = _nucleus(weights, sampling.top_p * total)
    if sampling.top_p < 1.0 and not reached and rest > 0:
        covered = False
    mass = total if sampling.top_p >= 1.0 else math.fsum(w for _, w in kept)
    inside = math.fsum(w for k, w in kept if k in tokens)
    return (inside / mass if mass > 0 else 0.0), covered and tail_known


def _nucleus(
    weights: list[tuple[int | str, float]], mass: float
) -> tuple[list[tuple[int | str, float]], bool]:
    """The likeliest tokens that together reach a mass (top_p), and whether the list reaches it."""
    reached = 0.0
    for number, (_, weight) in enumerate(weights, 1):
        reached += weight
        if reached >= mass:
            return weights[:number], True
    return weights, False


def _entered(choice: Choice, tokens: frozenset[int | str]) -> bool:
    """Whether the first token of a reply is in E."""
    return bool(choice.logprobs) and next(iter(listed(choice.logprobs[0])), (None, 0.0))[0] in tokens


def _seeded(query: Query, attempt: int) -> Query:
    """The query drawn anew: a client's seed would draw the same reply again."""
    seed = query.body.fields.get("seed")
    body = query.body.with_json(seed=seed + attempt) if isinstance(seed, int) else query.body
    return _resampling(query.with_body(body))


def _resampling(query: Query) -> Query:
    return replace(query, role=Role.RESAMPLE)
