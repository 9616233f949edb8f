"""What is written down of one reply: decision records and metrics."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from calibrators.actions import Action, Cues, reply_action
from calibrators.bias import Bias, biased
from calibrators.case import Case, History
from calibrators.contextual import Features
from calibrators.dialects import Dialect
from calibrators.drift import NONE, Seen, kind_of
from calibrators.flow import Calibrator, Probed, Report, Role
from calibrators.margin import UNREAD, Margin, Reading, read_margin
from calibrators.reply import Choice, Reply
from calibrators.request import REQUEST_FIELDS, Fields, case_of, repeated_calls, tool_choice_of, tools_of
from calibrators.resample import Resample
from proxy.answer import Answer, Clock
from proxy.decisions import SCHEMA
from proxy.runtime import Runtime, Settings
from proxy.selection import Named, Pick
from proxy.tracing import Trace

Outcome = Literal["ok", "upstream_error", "client_gone", "error"]


class Memo(NamedTuple):
    """What is remembered of the case of a request whose probes may act."""

    key: str
    history: History
    case: Case


@dataclass(slots=True)
class Sitting:
    """One request on the calibrated route, from its arrival to its last byte."""

    settings: Settings
    request_id: str
    client: str | None
    case_id: str | None
    dialect: Dialect
    fields: Fields
    model: Named
    pick: Pick
    calibrators: tuple[Calibrator, ...]
    clock: Clock
    arrived: float
    body_came: float
    report: Report = field(default_factory=Report)
    memo: Memo | None = None
    trace: Trace | None = None
    features: Features | None = None
    outcome: Outcome = "ok"
    status: int = 0
    client_seconds: float = 0.0
    first_shown_at: float | None = None
    shadowed: Margin | None = None
    _classes: dict[Choice, Action | None] = field(default_factory=dict)

    @property
    def bias(self) -> Bias | Resample | None:
        """The bias that was picked and can be given on this server."""
        return next((c for c in self.calibrators if isinstance(c, Bias | Resample)), None)

    @property
    def applied_bias(self) -> float:
        """The bias, in nats, that acted on the reply that is served; 0 where none did."""
        acted = "bias" in self.report.applied and self.report.void is None
        return self.bias.value if self.bias and acted else 0.0

    def margin(self, choice: Choice) -> Margin:
        """The margin of one choice, as far as it was read."""
        if self.shadowed is not None:
            return self.shadowed
        reading = next((c for c in self.calibrators if isinstance(c, Reading)), None)
        if reading is None:
            return UNREAD
        return read_margin(choice, reading.entry, sampled=self.fields.get("temperature") != 0)

    def own_seconds(self, now: float) -> float:
        """What the proxy itself added: neither the upstream's time nor the client's."""
        spent = now - self.body_came - self.clock.upstream_seconds - self.client_seconds
        return max(0.0, spent)

    def _decision(self, choice: Choice) -> Mapping[str, Any]:
        """Entry probability and margin before and after the bias; null where they were not read."""
        read = self.margin(choice)
        b = self.applied_bias
        before = {"entry_probability": read.probability, "margin": read.margin, "gap": read.gap}
        if read.probability is None or read.margin is None:
            return {"before": before, "after": None, "entry_probability_at_most": read.bound}
        after = {
            "entry_probability": biased(read.probability, b),
            "margin": read.margin + b,
            "gap": None if read.gap is None else read.gap + b,
        }
        return {"before": before, "after": after}

    def action(self, reply: Reply, choice: Choice | None = None) -> Action | None:
        """The class of one choice of a reply, its first by default.

        Of a complete reply it is worked out once: on a long text nothing else here takes as long.
        """
        choice = choice or reply.first
        if not reply.ended:
            return reply_action(reply, choice, self.settings.config.cues)
        if choice not in self._classes:
            self._classes[choice] = reply_action(reply, choice, self.settings.config.cues)
        return self._classes[choice]

    def told(self, probed: Probed) -> Mapping[str, Any]:
        """A probe's look as the record and the explanation show it."""
        after = None if probed.after is None else self.action(probed.after)
        return {
            "probe": probed.probe,
            "outcome": probed.outcome,
            "why": probed.why,
            "action_before": self.action(probed.before),
            "action_after": after,
            **({"pair_id": probed.pair} if probed.pair else {}),
        }

    def _contextual(self) -> Mapping[str, Any]:
        """What a contextual bias was computed from and what each feature added, in nats; else nothing."""
        bias = self.pick.profile.bias if self.pick.profile else None
        if self.features is None or bias is None or bias.contextual is None:
            return {}
        contextual = bias.contextual.bias
        parts = {name: round(part, 4) for name, part in contextual.parts(self.features).items()}
        range_ = [contextual.low, contextual.high]
        told = {"b0": contextual.b0, "adds": parts, "range": range_, "features": self.features._asdict()}
        return {"contextual": told}

    def explanation(self, served: Answer, queries: int) -> Mapping[str, Any]:
        """The `calibration` object of a reply whose client asked for it."""
        self.report.conclude()
        return {
            "profile": self.pick.label,
            "applied": self.report.header(),
            "action": self.action(served.reply),
            "bias": self.applied_bias,
            **self._contextual(),
            **self._decision(served.reply.first),
            "skipped": {name: why.text for name, why in self.report.skipped.items()},
            "probes": [*map(self.told, self.report.probes)],
            "queries": queries,
            "added_ms": round(self.own_seconds(time.perf_counter()) * 1000, 3),
        }


def record(runtime: Runtime, sitting: Sitting, answers: list[Answer], served: Answer | None) -> None:
    """Count the reply and, unless the client said `off`, keep its decision records: one a choice."""
    now = time.perf_counter()
    reply = served.reply if served else Reply(sitting.status, ended=True)
    sitting.report.conclude()
    whole = sitting.outcome == "ok" and sitting.status < 400
    choices = sorted(reply.choices.items()) if reply.choices else [(0, Choice())]
    _count(runtime, sitting, answers, now)
    if sitting.pick.explicit_off:
        return
    base = _base(sitting, answers, now)
    if sitting.trace is not None:
        sitting.trace.finish(sitting, base, served)
    sampled = runtime.log is not None and random.random() < sitting.settings.config.decisions.sample
    for index, choice in choices:
        action = sitting.action(reply, choice) if whole else None
        repeated = repeated_calls(sitting.fields, choice.calls)
        read = sitting.margin(choice)
        if whole:
            _count_choice(runtime, sitting, base, action, read, choice, repeated)
        written = {**base, **_choice(index, choice, action, read, repeated)}
        text = sitting.settings.config.decisions.text
        words = _said(reply, choice, whole) if text else {}
        runtime.recent.put(written, words)
        if sampled and runtime.log is not None:
            runtime.log.put({**written, "request": _asked(sitting), **words} if text else written)


def _labels(sitting: Sitting) -> tuple[str, str]:
    return sitting.settings.model_label(sitting.model.served), sitting.pick.label


def _count(runtime: Runtime, sitting: Sitting, answers: Sequence[Answer], now: float) -> None:
    metrics = runtime.metrics
    labels = _labels(sitting)
    metrics.requests.labels(sitting.dialect.route, *labels, str(sitting.status or 499)).inc()
    metrics.upstream_seconds.labels(*labels).observe(sitting.clock.upstream_seconds)
    metrics.overhead_seconds.labels(*labels).observe(sitting.own_seconds(now))
    if answers:
        metrics.queries.labels(*labels).observe(len(answers))
    for answer in answers:
        for kind in ("prompt", "completion"):
            tokens = (answer.reply.usage or {}).get(f"{kind}_tokens")
            if isinstance(tokens, int) and tokens > 0:  # what a server writes there is its own affair
                metrics.tokens.labels(*labels, answer.query.role, kind).inc(tokens)
    if sitting.first_shown_at is not None:
        metrics.first_token_seconds.labels(*labels).observe(sitting.first_shown_at - sitting.body_came)
    if sitting.outcome == "upstream_error":
        metrics.upstream_errors.labels(*labels).inc()
    report = sitting.report
    for calibrator in report.applied:
        metrics.interventions.labels(calibrator, "void" if report.void else "applied").inc()
    for calibrator, why in report.skipped.items():
        metrics.interventions.labels(calibrator, "skipped").inc()
        metrics.passthrough.labels(why.code).inc()
    for probed in report.probes:
        metrics.interventions.labels(probed.probe, probed.outcome).inc()
    if report.void:
        metrics.passthrough.labels(report.void.code).inc()


def _count_choice(
    runtime: Runtime,
    sitting: Sitting,
    base: Mapping[str, Any],
    action: Action | None,
    read: Margin,
    choice: Choice,
    repeated: int,
) -> None:
    labels, tools = _labels(sitting), bool(base["tools"])
    runtime.metrics.actions.labels(*labels, action or NONE, "yes" if tools else "no").inc()
    # The hash: a client's own case id may be as long as a header.
    seen = Seen(hash(base["case_id"]), kind_of(tools, base["turn"]), action or NONE, read.margin)
    runtime.drift.add(*labels, seen)
    if read.probability is not None and read.margin is not None:
        runtime.metrics.entry_probability.labels(*labels).observe(read.probability)
        runtime.metrics.entry_margin.labels(*labels).observe(read.margin)
    if read.gap is not None and (read.gap > 0) != (read.gap + sitting.applied_bias > 0):
        runtime.metrics.flips.labels("to_text" if read.gap > 0 else "to_call").inc()
    if choice.delayed:
        runtime.metrics.delayed_calls.labels(*labels).inc()
    if repeated:
        runtime.metrics.repeated_calls.labels(*labels).inc(repeated)


def _base(sitting: Sitting, answers: list[Answer], now: float) -> dict[str, Any]:
    """The fields that all choices of a reply share (docs/decision-log.md)."""
    case, turn = case_of(sitting.fields)
    bias = sitting.bias
    return {
        "schema": SCHEMA,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": sitting.request_id,
        "client": sitting.client,
        "case_id": sitting.case_id or case,
        "turn": turn,
        "route": sitting.dialect.route,
        "model": sitting.model.served,
        "profile": sitting.pick.label,
        "stream": bool(sitting.fields.get("stream")),
        "tools": len(tools_of(sitting.fields)),
        "tool_choice": tool_choice_of(sitting.fields),
        "status": sitting.status,
        "outcome": sitting.outcome,
        "bias": bias.value if bias else None,
        "scope": bias.scope if isinstance(bias, Bias) else "decision" if bias else None,
        "applied": sitting.report.summary(),
        "probes": [*map(sitting.told, sitting.report.probes)],
        "queries": [*map(_query, answers), *_shadow(sitting.shadowed)],
        "ms": {
            "queue": _ms(sitting.body_came - sitting.arrived),
            "upstream": _ms(sitting.clock.upstream_seconds),
            "own": _ms(sitting.own_seconds(now)),
        },
    }


def _choice(index: int, choice: Choice, action: Action | None, read: Margin, repeated: int) -> dict[str, Any]:
    return {
        "choice": index,
        "entry_probability": read.probability,
        "entry_probability_at_most": read.bound,
        "margin": read.margin,
        "gap": read.gap,
        "action": action,
        "calls": [call.name for call in choice.calls],
        "delayed_call": choice.delayed,
        "repeated_calls": repeated,
        "finish_reason": choice.finish_reason,
    }


def _asked(sitting: Sitting) -> dict[str, Any]:
    """What `decisions.text` adds of the request: what shaped its prompt, so that it can be asked again."""
    fields = sitting.fields
    return {name: fields[name] for name in REQUEST_FIELDS if fields.get(name) is not None}


def _said(reply: Reply, choice: Choice, whole: bool) -> dict[str, Any]:
    """What `decisions.text` adds: the reply itself, and its class by the lists of published figures."""
    return {
        "action_published": reply_action(reply, choice, Cues.PUBLISHED) if whole else None,
        "text": choice.content,
        "arguments": [call.arguments for call in choice.calls],
    }


def _shadow(read: Margin | None) -> list[dict[str, Any]]:
    """The query of a reading beside the reply: it generates nothing, and its tokens are not the reply's."""
    if read is None:
        return []
    return [{"role": Role.SHADOW, "status": None if read.probability is None else 200}]


def _query(answer: Answer) -> dict[str, Any]:
    usage = answer.reply.usage or {}
    return {
        "role": answer.query.role,
        "status": answer.reply.status,
        "upstream_id": answer.reply.id,
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "ms": _ms(answer.seconds),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
