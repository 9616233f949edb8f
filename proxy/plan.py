"""From a profile and what is known of the server to the calibrators that act."""

from collections.abc import Sequence

from calibrators.bias import Bias, Unbiased
from calibrators.entry import Entry
from calibrators.flow import Calibrator
from calibrators.skip import Skip
from proxy.config import Config
from proxy.profiles import BiasSetting, Profile
from proxy.upstream import Facts, ModelFacts


def plan(profile: Profile | None, model: str | None, facts: Facts, config: Config) -> Sequence[Calibrator]:
    """The calibrators of a profile on this server, innermost first."""
    if profile is None or profile.bias is None:
        return ()
    return (_bias(profile, profile.bias, model, facts, config),)


def _bias(
    profile: Profile, setting: BiasSetting, model: str | None, facts: Facts, config: Config
) -> Bias | Unbiased:
    if setting.value == 0:
        return Unbiased(Skip("zero_bias", "the bias is 0"))
    if profile.model is not None and profile.model != model:
        return Unbiased(Skip("other_model", f"the profile is for the model {profile.model}"))
    if config.on_stale == "off" and is_stale(profile, facts.models.get(model or "")):
        return Unbiased(Skip("stale", "the profile was made for another tokenizer or chat template"))
    entry = _entry(profile, model, facts)
    if isinstance(entry, Skip):
        return Unbiased(entry)
    scope = profile.entry.scope
    if scope == "everywhere" and entry.scope != "everywhere":
        return Unbiased(Skip("scope", "scope everywhere needs an opener that is one dedicated token"))
    apply = setting.apply
    if apply == "auto":
        apply = "processor"
    if apply == "processor" and facts.kind != "openai" and facts.processor is None:
        return Unbiased(_no_processor(facts))
    if apply == "logit_bias" and entry.scope != "everywhere":
        return Unbiased(Skip("scope", "logit_bias acts everywhere, which needs a dedicated opener"))
    return Bias(setting.value, entry, apply, scope)


def is_stale(profile: Profile, facts: ModelFacts | None) -> bool:
    """Whether a profile was made for another tokenizer or chat template than the served one."""
    if profile.fingerprint is None or facts is None or facts.entry is None:
        return False
    return facts.entry.fingerprint is not None and facts.entry.fingerprint != profile.fingerprint


def _entry(profile: Profile, model: str | None, facts: Facts) -> Entry | Skip:
    if profile.entry.tokens:
        # Named by the operator, who then also answers for what else these tokens open.
        return Entry(profile.entry.tokens, scope="everywhere")
    if facts.kind is None:
        return Skip("not_probed", f"the upstream has not been probed yet: {facts.problem or 'starting'}")
    found = facts.models.get(model or "")
    if found is None:
        return Skip("no_entry", "no entry tokens are known for this model; name them in the profile")
    return found.entry or Skip("no_entry", found.no_entry or "no entry tokens were found")


def _no_processor(facts: Facts) -> Skip:
    if facts.kind is None:
        return Skip("not_probed", f"the upstream has not been probed yet: {facts.problem or 'starting'}")
    return Skip("no_processor", "the upstream has not loaded Seam's logits processor")
