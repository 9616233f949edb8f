"""From a profile and what is known of the server to the calibrators that act."""

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from calibrators.bias import Apply, Bias, Idle
from calibrators.contextual import NO_FEATURES, Features
from calibrators.cri import Cri
from calibrators.dialects import CHAT, Dialect
from calibrators.entry import Entry
from calibrators.flow import Calibrator, LateRole
from calibrators.margin import How, Reading
from calibrators.probes import UNKNOWN_ROLES, Seat
from calibrators.resample import Resample, Sampling
from calibrators.shadow import By
from calibrators.skip import Skip
from calibrators.sri import Sri
from proxy.config import Config
from proxy.profiles import Profile
from proxy.upstream import Facts, ModelFacts, Upstream

BiasBy = Bias | Resample | Idle


class Shadow(NamedTuple):
    """A reading by a query of its own."""

    by: By
    entry: Entry


def plan(
    profile: Profile | None,
    model: str | None,
    facts: Facts,
    config: Config,
    dialect: Dialect = CHAT,
    seat: Seat | None = None,
    features: Features = NO_FEATURES,
) -> Sequence[Calibrator]:
    """The calibrators of a profile on this server, innermost first.

    `seat` is where its probes stand, `features` are what a contextual bias is computed from.
    """
    if profile is None:
        return ()
    entry = _entry(profile, model, facts)
    calibrators: list[Calibrator] = []
    bias = None
    if profile.bias is not None:
        value = profile.bias.on(features)
        bias = _bias(profile, profile.bias.apply, value, model, entry, facts, config)
    if isinstance(bias, Resample | Bias) and not _fits(bias, dialect):
        bias = Idle(Skip("route", f"{dialect.route} takes a bias by the processor only"))
    reading = _reading(bias, entry, facts, config)
    if reading is not None and dialect.reads:
        calibrators.append(reading)
    if bias is not None:
        calibrators.append(bias)
    return [*calibrators, *_probes(profile, config, dialect, seat)]


def _probes(
    profile: Profile, config: Config, dialect: Dialect, seat: Seat | None
) -> Iterable[Sri | Cri | Idle]:
    """SRI inside, CRI outside: CRI sees the reply that SRI would serve, and SRI never follows CRI."""
    asked = {"sri": profile.sri, "cri": profile.cri}
    if dialect is not CHAT:
        elsewhere = Skip("route", f"{dialect.route} has no probes yet")
        yield from (Idle(elsewhere, name) for name, setting in asked.items() if setting)
        return
    if seat is None:
        return
    if profile.sri is not None:
        own = profile.sri
        yield Sri(seat, own.variant, own.state, config.cues, own.log_only)
    if profile.cri is not None:
        call = profile.cri
        yield Cri(seat, call.variant, call.detectors, call.state, call.log_only)


def late_roles_of(upstream: Upstream, model: str | None) -> Sequence[LateRole]:
    """Under which roles a message may stand behind the client's own, tried in this order."""
    found = upstream.facts.models.get(model or "")
    if found is not None and found.late is not None:
        return found.late
    learned = upstream.learned.get(model or "")
    return (learned,) if learned else UNKNOWN_ROLES


def _bias(
    profile: Profile,
    apply: Apply,
    value: float,
    model: str | None,
    entry: Entry | Skip,
    facts: Facts,
    config: Config,
) -> BiasBy:
    if value == 0:
        return Idle(Skip("zero_bias", "the bias is 0"))
    if profile.model is not None and profile.model != model:
        return Idle(Skip("other_model", f"the profile is for the model {profile.model}"))
    if config.on_stale == "off" and is_stale(profile, facts.models.get(model or "")):
        return Idle(Skip("stale", "the profile was made for another tokenizer or chat template"))
    if isinstance(entry, Skip):
        return Idle(entry)
    if apply == "auto" and facts.processor is None:
        if value > 0:
            return Idle(_NO_PROCESSOR)
        apply = "resample"
    if apply == "resample":
        return Resample(value, entry, _sampling(model, config))
    scope = profile.entry.scope
    if scope == "everywhere" and entry.scope != "everywhere":
        return Idle(Skip("scope", "scope everywhere needs an opener that is one dedicated token"))
    if apply == "logit_bias":
        if entry.scope != "everywhere":
            return Idle(Skip("scope", "logit_bias acts everywhere, which needs a dedicated opener"))
        if not (entry.verified or profile.entry.tokens):
            return Idle(Skip("unverified", f"logit_bias acts everywhere; {entry.note or 'not verified'}"))
        return Bias(value, entry, "logit_bias", "everywhere")
    if facts.kind != "openai" and facts.processor is None:
        return Idle(_not_probed(facts) or _NO_PROCESSOR)
    return Bias(value, entry, "processor", scope)


_NO_PROCESSOR = Skip("no_processor", "the upstream has not loaded Seam's logits processor")


def _fits(bias: Bias | Resample, dialect: Dialect) -> bool:
    """Whether a route carries what a bias needs: all take vllm_xargs, only chat logit_bias and logprobs."""
    return dialect.reads or (isinstance(bias, Bias) and bias.apply == "processor")


def _reading(bias: BiasBy | None, entry: Entry | Skip, facts: Facts, config: Config) -> Reading | None:
    """How the margin is read from a reply's own log-probabilities; None where it is not.

    `auto` reads only where the request is changed anyhow, since a bias of 0 is to change no byte.
    """
    if isinstance(entry, Skip):
        return None
    if isinstance(bias, Resample):
        return Reading(entry, "top_logprobs")
    how = reading_of(config, facts)
    if how not in ("ids", "top_logprobs") or (config.reading.how == "auto" and not isinstance(bias, Bias)):
        return None
    top = config.reading.top if facts.top_logprobs is None else min(config.reading.top, facts.top_logprobs)
    if top == 0 or random.random() >= config.reading.share:
        return None
    return Reading(entry, how, top)


def shadow_of(profile: Profile | None, model: str | None, facts: Facts, config: Config) -> Shadow | None:
    """The reading by a query of its own, beside a reply that picked a profile; None where there is none."""
    how = config.reading.how
    if profile is None or how not in ("scoring", "prompt") or facts.kind != "vllm":
        return None
    entry = _entry(profile, model, facts)
    if isinstance(entry, Skip) or random.random() >= config.reading.share:
        return None
    return Shadow(how, entry)


def reading_of(config: Config, facts: Facts) -> How | By | None:
    """The reading in use on a server.

    On the V1 runner asking for ids spoils the top_logprobs of other requests in the same step (vllm-facts
    4.4), so `auto` does that on V2 alone, and nothing on servers that may not know the field.
    """
    if config.reading.how == "off":
        return None
    if config.reading.how != "auto":
        return config.reading.how
    if facts.kind != "vllm":
        return None
    return "ids" if facts.processor and facts.processor.get("runner") == "v2" else "top_logprobs"


def is_stale(profile: Profile, facts: ModelFacts | None) -> bool:
    """Whether a profile was made for another tokenizer or chat template than the served one."""
    entry = facts.under(profile.entry.hint).entry if facts else None
    if profile.fingerprint is None or entry is None:
        return False
    return entry.fingerprint is not None and entry.fingerprint != profile.fingerprint


def _entry(profile: Profile, model: str | None, facts: Facts) -> Entry | Skip:
    if profile.entry.tokens:
        # Named by the operator, who then also answers for what else these tokens open.
        return Entry(
            profile.entry.tokens,
            text=profile.entry.text,
            scope="everywhere",
            after=profile.entry.after,
            space=profile.entry.space,
        )
    if reason := _not_probed(facts):
        return reason
    found = facts.models.get(model or "")
    if found is None:
        return Skip("no_entry", "no entry tokens are known for this model; name them in the profile")
    found = found.under(profile.entry.hint)
    return found.entry or Skip("no_entry", found.no_entry or "no entry tokens were found")


def _sampling(model: str | None, config: Config) -> Sampling | None:
    settings = config.models[model].sampling if model in config.models else None
    return None if settings is None else Sampling(settings.temperature, settings.top_p, settings.top_k)


def _not_probed(facts: Facts) -> Skip | None:
    if facts.kind is not None:
        return None
    return Skip("not_probed", f"the upstream has not been probed yet: {facts.problem or 'starting'}")
