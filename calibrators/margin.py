"""How near a reply is to opening with a call: entry probability, margin and gap.

calibration.md section 4. Read by exact token ids, never from a truncated list as if it were the whole.
"""

import json
import math
from collections.abc import Mapping
from typing import NamedTuple

from calibrators.body import Body
from calibrators.entry import Entry
from calibrators.reply import Choice


class Margin(NamedTuple):
    """How near a reply is to opening with a call, before any bias (calibration.md section 4).

    Attributes:
        probability: p = P(E) at the decision position, temperature 1, no truncation.
        margin: m = logit(p), in nats.
        gap: g = max(l_E) - max(l_other), in nats; greedy opens a call iff g + b > 0.
    """

    probability: float
    margin: float
    gap: float


def margin_query(request: Body, entry: Entry) -> Body:
    """The one-token greedy query that shows the entry's probability and the best other token.

    E is banned, so the sampled token is the best other one; E's own log-probabilities are asked for by id.
    They are raw, before bans (vLLM, default logprobs mode). Only for an idle server or one on the V2 runner:
    on V1 it spoils the top_logprobs of requests in the same step (vllm-facts 4.4).
    """
    bans = json.dumps({str(token): -100 for token in entry.tokens})
    return request.with_raw(
        max_tokens="1",
        max_completion_tokens=None,
        temperature="0",
        n=None,
        stream=None,
        stream_options=None,
        logprobs="true",
        top_logprobs=None,
        logprob_token_ids=json.dumps(list(entry.tokens)),
        return_tokens_as_token_ids="true",
        logit_bias=bans,
    )


def read_margin(choice: Choice, entry: Entry) -> Margin | None:
    """The margin from the reply to `margin_query`; None where the server did not answer in its form."""
    shown = choice.first_logprobs or {}
    by_id = {
        item.get("token"): item.get("logprob")
        for item in shown.get("top_logprobs") or ()
        if isinstance(item, Mapping)
    }
    inside = [by_id.get(f"token_id:{token}") for token in entry.tokens]
    best_other = shown.get("logprob")
    if not isinstance(best_other, float | int) or any(not isinstance(value, float | int) for value in inside):
        return None
    logs = [float(value) for value in inside if value is not None]
    top = max(logs)
    log_p = top + math.log(math.fsum(math.exp(value - top) for value in logs))
    return Margin(math.exp(log_p), log_p - _log1m_exp(log_p), top - float(best_other))


def _log1m_exp(log_p: float) -> float:
    """log(1 - exp(log_p)) without loss near 0 and 1."""
    if log_p >= 0:
        return -math.inf
    return math.log(-math.expm1(log_p)) if log_p > -0.693 else math.log1p(-math.exp(log_p))
