"""Tool-entry bias: one number added to the logits of the tokens that open a call.

calibration.md section 4, arXiv:2607.07050. With p = P(E) before the bias b, the model enters with
p' = p e^b / (1 - p + p e^b); greedy decoding enters iff max(l_E) + b > max(l_other).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from calibrators.body import Body, NotAnObject, dumped, set_members
from calibrators.entry import Entry, Scope
from calibrators.flow import Ask, Flow, Query, Report
from calibrators.request import no_decision
from calibrators.skip import Skip

Apply = Literal["auto", "processor", "resample", "logit_bias"]

LIMIT = 100.0
"""The largest bias in nats, in either direction: what OpenAI's logit_bias takes."""


def biased(p: float, b: float, temperature: float = 1.0) -> float:
    """p' = p e^(b/T) / (1 - p + p e^(b/T)), the entry probability under a bias of b nats.

    `p` is P(E) at that temperature, without truncation. Computed as a shift of the log-odds, so that large
    biases neither overflow nor lose what is small.
    """
    if p <= 0.0 or p >= 1.0:
        return p
    shifted = math.log(p) - math.log1p(-p) + b / temperature
    if shifted >= 0:
        return 1.0 / (1.0 + math.exp(-shifted))
    odds = math.exp(shifted)
    return odds / (1.0 + odds)


@dataclass(frozen=True, slots=True)
class Bias:
    """Adds b at the decision position, through the processor we ship or through `logit_bias`.

    Attributes:
        value: b in nats.
        entry: the tokens that open a call.
        apply: how it is applied on this server.
        scope: where; `logit_bias` reaches every position.
    """

    value: float
    entry: Entry
    apply: Literal["processor", "logit_bias"] = "processor"
    scope: Scope = "decision"

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        """Ask with the bias, where the request leaves a decision to bias."""
        if reason := no_decision(query.fields):
            report.skipped["bias"] = reason
            return (yield from ask(query))
        try:
            changed = self._added(query)
        except NotAnObject as error:
            report.skipped["bias"] = Skip("bad_field", f"the request's own field can't be added to: {error}")
            return (yield from ask(query))
        report.applied["bias"] = f"{self.value:g}/{self.apply}"
        return (yield from ask(query.with_body(changed)))

    def _added(self, query: Query) -> Body:
        body = query.body
        if self.apply == "logit_bias":
            return body.with_raw(logit_bias=self._logit_bias(body))
        members = {
            "seam_bias": dumped(self.value),
            "seam_entry": dumped(list(self.entry.tokens)),
        }
        if self.scope != "decision":
            members["seam_scope"] = dumped(self.scope)
        if after := self.entry.after_for(query.fields):
            members["seam_after"] = dumped(list(after))
        if self.entry.space:
            members["seam_space"] = dumped(list(self.entry.space))
        return body.with_raw(vllm_xargs=set_members(body.raw("vllm_xargs"), members))

    def _logit_bias(self, body: Body) -> str:
        sent = body.fields.get("logit_bias")
        own = sent if isinstance(sent, Mapping) else {}
        members: dict[str, str] = {}
        for token in self.entry.tokens:
            before = own.get(str(token), 0)
            if not isinstance(before, int | float):
                raise NotAnObject(f"logit_bias of {token} is no number")
            # A client's ban is never lifted.
            if before > -LIMIT:
                members[str(token)] = dumped(max(-LIMIT, min(LIMIT, before + self.value)))
        return set_members(body.raw("logit_bias"), members)


@dataclass(frozen=True, slots=True)
class Idle:
    """Stands where a calibrator was asked for and cannot act, and says why."""

    reason: Skip
    name: str = "bias"

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        """Ask as it came."""
        report.skipped[self.name] = self.reason
        return (yield from ask(query))
