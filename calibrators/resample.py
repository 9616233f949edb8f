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
from calibrators.margin import Position, entry_tokens_of, position_of
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
        position = _first_position(reply.first)
        if position is None or position.drawn not in tokens:
            if position is None or position.drawn in self.entry.space:
                report.applied["bias"] += " approximate"  # the decision comes later and was not looked at
            return reply
        odds = entering(position, tokens, self.value, sampling)
        if not odds.exact or any(query.fields.get(name) for name in _SHIFTING):
            report.applied["bias"] += " approximate"
        if odds.before <= 0 or self.draw.random() < odds.after / odds.before:
            return reply
        try:
            return (yield from self._redrawn(query, ask, report, sampling))
        except QueryFailed as error:
            del report.applied["bias"]
            report.skipped["bias"] = Skip("resample_failed", f"drawing again failed: {error}")
            return reply

    def _redrawn(self, query: Query, ask: Ask, report: Report, sampling: Sampling) -> Flow:
        # Greedy decoding would only repeat itself: the next best token is what a ban gives.
        for attempt in range(DRAWS if sampling.temperature > 0 else 0):
            reply = yield from _good(ask(_seeded(query, attempt + 1).until(first_logprobs)))
            position = _first_position(reply.first)
            if position is None or position.drawn not in entry_tokens_of(reply.first, self.entry):
                return reply
        # A ban also forbids the calls that would come later in the reply.
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
        if fields.get("temperature") == 0:
            return Sampling(0.0)  # greedy, whatever else is asked for
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
_SHIFTING = ("logit_bias", "allowed_token_ids", "bad_words", "min_tokens")
"""Fields that move logits, which raw log-probabilities don't show."""


def _good(flow: Flow) -> Flow:
    """The flow's reply, if it is no error."""
    reply = yield from flow
    if not reply.good:
        raise QueryFailed(f"status {reply.status}")
    return reply


def first_logprobs(reply: Reply) -> bool:
    """Settled once the first token's log-probabilities have come, or the token without them."""
    first = reply.first
    begun = first.logprobs or first.content or first.reasoning or first.calls
    return bool(begun) or reply.ended or reply.error is not None


def entering(position: Position, tokens: frozenset[int | str], b: float, sampling: Sampling) -> Entering:
    """q and q' (b <= 0) from one position's raw log-probabilities (natural log, temperature 1).

    The bias acts on logits, hence before temperature and truncation, as the processor's does; then comes
    vLLM's order: temperature, top_k, top_p.
    """
    if sampling.temperature == 0:
        best = max((v for k, v in position.shown.items() if k in tokens), default=-math.inf)
        others = [v for k, v in position.shown.items() if k not in tokens]
        gap = best - (max(others) if others else position.floor)
        # Without another token in the list the gap is at least this.
        return Entering(1.0, float(gap + b > 0), exact=bool(others) or gap + b > 0)
    before, exact_before = _mass(position, tokens, 0.0, sampling)
    after, exact_after = _mass(position, tokens, b, sampling)
    return Entering(before, after, exact_before and exact_after)


class _Ranked(NamedTuple):
    """A token that is shown: its logit up to a constant, and whether it is in E."""

    logit: float
    enters: bool


def _mass(
    position: Position, tokens: frozenset[int | str], b: float, sampling: Sampling
) -> tuple[float, bool]:
    """P(E) with bias b under temperature, top_k and top_p; and whether that is no estimate."""
    temperature = max(sampling.temperature, 0.01)  # vLLM's least one above 0
    cutoff = position.floor / temperature
    ranked = sorted(
        (_Ranked((v + b * (k in tokens)) / temperature, k in tokens) for k, v in position.shown.items()),
        reverse=True,
    )
    sure = sum(token.logit > cutoff for token in ranked)  # so many are ranked as in the whole vocabulary
    highest = max(ranked[0].logit, cutoff)
    tail = _tail(position, tokens, temperature, highest)
    if 0 < sampling.top_k <= len(ranked):
        least = ranked[sampling.top_k - 1].logit
        tail = _Tail(0.0, 0.0 if sampling.top_k <= sure else math.inf, 0.0, covered=False)
        ranked = [token for token in ranked if token.logit >= least]  # vLLM keeps all that tie
        sure = len(ranked)
    weights = [math.exp(token.logit - highest) for token in ranked]
    kept, total = len(ranked), math.fsum(weights) + tail.weight
    known = sampling.top_k <= 0 and tail.covered and tail.rounding <= 0.01 * total
    known = known or tail.most <= _NEGLIGIBLE * weights[0]
    if sampling.top_p < 1.0:
        target = sampling.top_p * total
        kept, clear = _nucleus(weights, target)
        known = known and clear and kept <= sure
        total = math.fsum(weights[:kept]) if clear else max(target, math.fsum(weights[:kept]))
    inside = math.fsum(w for w, token in zip(weights[:kept], ranked, strict=False) if token.enters)
    return (inside / total, known) if total > 0 else (0.0, False)


class _Tail(NamedTuple):
    """What the tokens that are not shown weigh at a temperature, over exp(highest).

    Attributes:
        weight: at temperature 1 the mass that is missing. At others it is reckoned as if all of them were as
            likely as the least that is shown: too much below temperature 1, too little above.
        most: an upper bound.
        rounding: how far float32 may have moved `weight`.
        covered: apart from rounding `weight` is no estimate, and no token of E is in it.
    """

    weight: float
    most: float
    rounding: float
    covered: bool


def _tail(position: Position, tokens: frozenset[int | str], temperature: float, highest: float) -> _Tail:
    rest = max(0.0, 1.0 - math.fsum(map(math.exp, position.shown.values())))
    stretch = math.exp(min(50.0, position.floor * (1 / temperature - 1) - highest))
    most = _VOCABULARY * math.exp(min(50.0, position.floor / temperature - highest))
    if temperature <= 1.0:
        most = min(most, (rest + _ROUNDING) * stretch)
    covered = temperature == 1.0 and tokens <= position.shown.keys()
    return _Tail(rest * stretch, most, _ROUNDING * stretch, covered)


_VOCABULARY = 2**18
"""At least as many tokens as any vocabulary has."""
_ROUNDING = 1e-6
"""How far float32 log-probabilities may be from adding up to 1."""
_NEGLIGIBLE = 1e-6


def _nucleus(weights: list[float], mass: float) -> tuple[int, bool]:
    """How many of the likeliest tokens reach a mass (top_p), and whether rounding can't change that."""
    reached = 0.0
    for number, weight in enumerate(weights, 1):
        before, reached = reached, reached + weight
        if reached >= mass:
            near = min(mass - before, reached - mass) <= _NEGLIGIBLE * mass
            tied = number < len(weights) and weights[number] == weight
            return number, not near and not tied
    return len(weights), False


def _first_position(choice: Choice) -> Position | None:
    """The first token of a reply."""
    return position_of(choice.logprobs[0]) if choice.logprobs else None


def _seeded(query: Query, attempt: int) -> Query:
    """The query drawn anew: a client's seed would draw the same reply again."""
    seed = query.body.fields.get("seed")
    body = query.body.with_json(seed=seed + attempt) if isinstance(seed, int) else query.body
    return _resampling(query.with_body(body))


def _resampling(query: Query) -> Query:
    return replace(query, role=Role.RESAMPLE)
