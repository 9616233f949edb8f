"""`seam check`: what would go wrong, before a request does."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from proxy.config import Config, State
from proxy.errors import HttpError
from proxy.memory import memory
from proxy.plan import is_stale, plan, reading_of
from proxy.probe import hints_of, probe
from proxy.profiles import Profile
from proxy.runtime import Settings
from proxy.upstream import Facts, ModelFacts, Upstream


@dataclass(slots=True)
class Findings:
    """What was found, row by row, and every problem in one line."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """One document."""
        rows = [{"what": what, "name": name, "finding": finding} for what, name, finding in self.rows]
        return {"ok": not self.problems, "findings": rows, "problems": asdict(self)["problems"]}


async def check(settings: Settings) -> Findings:
    """Probe every upstream, try every profile on the model that it is for, and ask the store of cases."""
    findings = Findings()
    hints = hints_of(settings.profiles.values())
    for upstream in settings.upstreams.values():
        upstream.facts = await probe(upstream, hints)
        _show_upstream(upstream, settings.config, findings)
    for profile in settings.profiles.values():
        await _check_profile(profile, settings, findings)
    await _check_store(settings.config.state, findings)
    for upstream in settings.upstreams.values():
        await upstream.aclose()
    return findings


async def _check_store(state: State, findings: Findings) -> None:
    """Whether the Redis that processes are to share answers: without it each remembers by itself."""
    if state.store == "memory":
        return
    store = memory(state, lambda: None)
    problem = await store.problem()
    await store.aclose()
    findings.rows.append(("state", "Redis", "does not answer" if problem else "answers"))
    if problem:
        findings.problems.append(
            f"state.store: {problem}; start that Redis or name another: until it answers, each process"
            " remembers cases by itself, and a probe may act more than once in a turn"
        )


def _show_upstream(upstream: Upstream, config: Config, findings: Findings) -> None:
    facts = upstream.facts
    findings.rows.append(("upstream", upstream.name, upstream.settings.url))
    if facts.problem:
        findings.problems.append(f"upstream {upstream.name} ({upstream.settings.url}): {facts.problem}")
        return
    findings.rows.append(("", "kind", f"{facts.kind} {facts.version or ''}".strip()))
    if facts.kind == "vllm":
        told = facts.processor
        shown = f"{told.get('name')} {told.get('version')}" if told else "not loaded: no bias by `processor`"
        findings.rows.append(("", "processor", shown))
        runner = (told or {}).get("runner") or "not known: only the processor tells"
        findings.rows.append(("", "model runner", runner))
    findings.rows.append(("", "reading", _reading_words(config, facts)))
    for name, model in facts.models.items():
        _show_entry(f"model {name}", model, findings)
        findings.rows.append(("", "late message", _late_words(model)))
        for hint, hinted in model.hinted.items():
            _show_entry(f"model {name}, parser {hint.parser or 'unset'}", hinted, findings)


def _reading_words(config: Config, facts: Facts) -> str:
    """How the margin is read on this server, and why so."""
    how = reading_of(config, facts)
    if how is None:
        return "off"
    chosen = "chosen by auto" if config.reading.how == "auto" else "as configured"
    costs = {
        "ids": "exact; on the V1 runner it spoils other requests' top_logprobs",
        "top_logprobs": "exact where the entry is among the likeliest tokens, else an upper bound",
        "scoring": "exact, by a query beside each reply; on V1 it spoils others' top_logprobs for one step",
        "prompt": "exact, by a query beside each reply that pays a whole prefill",
    }
    return f"{how}, {chosen} ({costs[how]})"


def _late_words(model: ModelFacts) -> str:
    """Under which role SRI and CRI ask again."""
    if model.late is None:
        return "not known; system, else user"
    return model.late[0] if model.late else "the template takes none: SRI and CRI can only watch"


def _show_entry(name: str, model: ModelFacts, findings: Findings) -> None:
    entry = model.entry
    if entry is None:
        findings.rows.append(("", name, f"no entry tokens: {model.no_entry or 'not probed'}"))
        return
    found = f"entry {list(entry.tokens)} {entry.text!r} by {entry.source}, scope {entry.scope}"
    findings.rows.append(("", name, f"{found}, fingerprint {entry.fingerprint}"))
    findings.rows.append(("", "verified", "yes" if entry.verified else f"not: {entry.note or 'not tried'}"))
    if entry.after:
        findings.rows.append(("", "reasoning", f"closed by {list(entry.after)}, opened by {entry.thinking}"))
    if entry.shared:
        findings.rows.append(("", "shared", "the tokens begin other text too: p is an upper bound"))


async def _check_profile(profile: Profile, settings: Settings, findings: Findings) -> None:
    models = list(_models_of(profile, settings))
    if not models:
        findings.problems.append(f"profile {profile.name}: no upstream lists its model {profile.model!r}")
    for upstream, model in models:
        problems = await _faults(profile, upstream, model, settings)
        bias = f"bias {profile.bias.told}" if profile.bias else "no bias"
        findings.rows.append(
            (f"profile {profile.name}", model, "; ".join([bias, *problems]) if problems else bias)
        )
        findings.problems += [f"profile {profile.name} on {model}: {problem}" for problem in problems]


def _models_of(profile: Profile, settings: Settings) -> Iterable[tuple[Upstream, str]]:
    """Where a profile may act: the model that it names, or every model."""
    for upstream in settings.upstreams.values():
        if upstream.facts.problem is None:
            for model in upstream.facts.models:
                if profile.model in (None, model):
                    yield upstream, model


async def _faults(profile: Profile, upstream: Upstream, model: str, settings: Settings) -> list[str]:
    faults = []
    if is_stale(profile, upstream.facts.models.get(model)):
        faults.append("stale: made for another tokenizer or chat template")
    for calibrator in plan(profile, model, upstream.facts, settings.config):
        reason = getattr(calibrator, "reason", None)
        if reason is not None and reason.code != "zero_bias":
            faults.append(reason.text)
    for token in profile.entry.tokens or ():
        told = await _refusal(upstream, model, token)
        if told is not None:
            faults.append(f"the server refuses entry token {token}: {told}")
    return faults


async def _refusal(upstream: Upstream, model: str, token: int) -> str | None:
    """Why the server takes no bias on a token id; None where it does. Costs one token."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 1,
        "logit_bias": {str(token): 0},
    }
    try:
        status, document = await upstream.get_json("POST", "/v1/chat/completions", json.dumps(body).encode())
    except HttpError as error:
        return error.message
    if status < 400:
        return None
    told = document.get("error") if isinstance(document, dict) else None
    return str(told.get("message")) if isinstance(told, dict) else f"status {status}"


def table(findings: Findings) -> str:
    """The findings in columns, then the problems."""
    widths = [max((len(row[column]) for row in findings.rows), default=0) for column in (0, 1)]
    lines = [f"{what:<{widths[0]}}  {name:<{widths[1]}}  {found}" for what, name, found in findings.rows]
    lines += [f"problem: {problem}" for problem in findings.problems] or ["no problems"]
    return "\n".join(lines)
