"""How near a reply is to opening with a call: entry probability, margin and gap.

calibration.md section 4. Read by exact token ids from raw log-probabilities (before any bias), never from a
truncated list as if it were the whole.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from calibrators.body import Body
from calibrators.entry import Entry
from calibrators.flow import Ask, Flow, Query, Report
from calibrators.reply import Choice
from calibrators.request import no_decision

How = Literal["ids", "top_logprobs"]

TOP = 20
"""What vLLM gives at most by default (--max-logprobs)."""


class Margin(NamedTuple):
    """How near a reply is to opening with a call, before any bias (calibration.md section 4).

    Attributes:
        probability: p = P(E) at the decision position, temperature 1, no truncation; null where it could not
            be read exactly.
        margin: m = logit(p), in nats.
        gap: g = max(l_E) - max(l_other), in nats; greedy opens a call iff g + b > 0.
        bound: where p is null, what it is at most.
    """

    probability: float | None
    margin: float | None
    gap: float | None
    bound: float | None = None


UNREAD = Margin(None, None, None)


def margin_query(request: Body, entry: Entry) -> Body:
    """The one-token greedy query that shows the entry's probability and the best other token.

    E is banned, so the sampled token is the best other one; E's own log-probabilities are asked for by id.
    They are raw, before bans (vLLM, default logprobs mode). Only for an idle server or one on the V2 runner:
    on V1 it spoils the top_logprobs of requests in the same step (vllm-facts 4.4).
    """
    return request.with_raw(
        max_completion_tokens=None, n=None, stream=None, stream_options=None, top_logprobs=None, seed=None
    ).with_json(
        max_tokens=1,
        temperature=0,
        logprobs=True,
        logprob_token_ids=list(entry.tokens),
        return_tokens_as_token_ids=True,
        logit_bias={str(token): -100 for token in entry.tokens},
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """Asks each query for the log-probabilities that show the margin.

    Attributes:
        how: `ids` asks for E by id, exact and complete, but on a V1 runner it spoils the top_logprobs of
            other clients in the same step; `top_logprobs` harms nobody and is exact where E is listed.
        top: how many alternatives `top_logprobs` asks for.
    """

    entry: Entry
    how: How
    top: int = TOP

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        """Ask with the fields that show the margin, where there is a decision to read."""
        del report  # a reading changes nothing in the reply
        if no_decision(query.fields) is not None:
            return (yield from ask(query))
        return (yield from ask(query.with_body(self._added(query.body))))

    def _added(self, body: Body) -> Body:
        asked = asked_logprobs(body.fields)
        if asked is None:
            body = body.with_json(logprobs=True, return_tokens_as_token_ids=True)
        if self.how == "ids" and asked is None:
            return body.with_json(logprob_token_ids=list(self.entry.tokens))
        # A client's own list would be replaced by the ids (vllm-facts 4.2): lengthen it instead.
        return body if (asked or 0) >= self.top else body.with_json(top_logprobs=self.top)


def asked_logprobs(fields: Mapping[str, Any]) -> int | None:
    """How many alternatives the client asked for; None where it did not ask for logprobs."""
    if not fields.get("logprobs"):
        return None
    top = fields.get("top_logprobs")
    return top if isinstance(top, int) else 0


def read_margin(choice: Choice, entry: Entry, *, sampled: bool = False) -> Margin:
    """The margin from a reply's own log-probabilities.

    The position is the first token that is not white space which keeps the decision open; a reply that began
    with reasoning is not read, since its decision comes later. A token that was `sampled`, not taken as the
    likeliest, says nothing of the best other token where it is the only other one that is shown.
    """
    if choice.reasoning:
        return UNREAD
    tokens = entry_tokens_of(choice, entry)
    for shown in choice.logprobs:
        if _token_id(shown.get("token")) not in entry.space:
            position = position_of(shown)
            return UNREAD if position is None or not tokens else _margin_at(position, tokens, sampled)
    return UNREAD


def _margin_at(position: "Position", tokens: frozenset[int | str], sampled: bool) -> Margin:
    inside = [position.shown[token] for token in tokens if token in position.shown]
    others = {token: logprob for token, logprob in position.shown.items() if token not in tokens}
    if len(inside) < len(tokens):
        known = math.fsum(map(math.exp, inside))
        unlisted = (len(tokens) - len(inside)) * math.exp(position.floor)
        rest = 1.0 - math.fsum(map(math.exp, others.values()))
        return Margin(None, None, None, max(0.0, min(known + unlisted, rest)))
    top = max(inside)
    log_p = top + math.log(math.fsum(math.exp(logprob - top) for logprob in inside))
    best = None if sampled and others.keys() == {position.drawn} else max(others.values(), default=None)
    return margin_of(log_p, None if best is None else top - best)


def margin_of(log_p: float, gap: float | None) -> Margin:
    """The margin from log P(E) and the gap if it is known.

    Servers compute in float32, where what is nearer to 1 than 2^-24 reads as 1: so m ends at 16.6 and not at
    infinity, which JSON can't carry.
    """
    log_p = min(-(2.0**-24), log_p)
    return Margin(math.exp(log_p), log_p - _log1m_exp(log_p), gap)


class Position(NamedTuple):
    """The raw log-probabilities that a reply shows of one position.

    Attributes:
        shown: by token, the drawn one among them.
        drawn: the token that the reply has there.
        floor: no token that is not shown is likelier than this.
    """

    shown: Mapping[int | str, float]
    drawn: int | str
    floor: float


def position_of(shown: Mapping[str, Any]) -> Position | None:
    """One entry of `logprobs.content`; None where it shows no log-probability.

    vLLM lists the drawn token first and then the likeliest, so that a drawn token may be less likely than
    what its list leaves out: it is no measure of that.
    """
    if nats(shown.get("logprob")) is None:
        return None
    pairs = list(listed(shown))
    drawn = pairs[0][0]
    floor = min((logprob for token, logprob in pairs if token != drawn), default=0.0)
    return Position(dict(pairs), drawn, floor)


def entry_tokens_of(choice: Choice, entry: Entry) -> frozenset[int | str]:
    """E in the form in which a reply names tokens: ids, or the opener's text where it gives texts only.

    Empty where neither is shown, or where other tokens share the opener's text.
    """
    if not choice.logprobs:
        return frozenset()
    if any(isinstance(token, int) for token, _ in listed(choice.logprobs[0])):
        return frozenset(entry.tokens)
    return frozenset((entry.text,)) if entry.text and not entry.shared else frozenset()


def listed(shown: Mapping[str, Any]) -> Iterable[tuple[int | str, float]]:
    """Every token of one position with its log-probability, the drawn one first; by id if it has one."""
    alternatives = shown.get("top_logprobs")
    for item in [shown, *(alternatives if isinstance(alternatives, list) else ())]:
        logprob = nats(item.get("logprob")) if isinstance(item, Mapping) else None
        if logprob is not None:
            number = _token_id(item.get("token"))
            yield (str(item.get("token")) if number is None else number), logprob


def nats(value: object) -> float | None:
    """A log-probability as servers write it, from -9999 (for minus infinity) to 0; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _ROUNDING:
        return None
    return float(max(-9999.0, min(0.0, value)))


_ROUNDING = 1e-3


def _token_id(token: object) -> int | None:
    """The id in `token_id:44`, as servers write tokens with return_tokens_as_token_ids."""
    found = _TOKEN_ID.fullmatch(token) if isinstance(token, str) else None
    return int(found[1]) if found else None


_TOKEN_ID = re.compile("token_id:([0-9]{1,18})")


def _log1m_exp(log_p: float) -> float:
    """log(1 - exp(log_p)) without loss near 0 and 1, for log_p < 0."""
    return math.log(-math.expm1(log_p)) if log_p > -0.693 else math.log1p(-math.exp(log_p))
