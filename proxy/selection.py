"""How a request picks its calibration: six ways, the first that applies (contract.md)."""

import difflib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError

from calibrators.body import Body
from calibrators.probes import Marked
from proxy.config import LONGEST_NAME, Config, explain
from proxy.errors import BadSelection
from proxy.profiles import BiasSetting, Inline, Profile

OFF = "off"
INLINE = "inline"
_MEMBERS = 100
"""Of a calibration object, each of which may be a mistake to be told."""


class Named(NamedTuple):
    """The names of a model: as the client sent it, and as the server knows it."""

    sent: str | None
    served: str | None


@dataclass(frozen=True, slots=True)
class Pick:
    """The calibration of one request.

    Attributes:
        label: a profile's name, `inline` or `off`: the X-Calibration header.
        profile: what to do; None for nothing.
        explicit_off: the client said `off`: no record is kept either.
        explain: the reply is to carry what happened.
    """

    label: str
    profile: Profile | None = None
    explicit_off: bool = False
    explain: bool = False


Lists = Callable[[str], Awaitable[bool]]
"""Whether an upstream lists a model of that name."""


async def names_of(sent: object, config: Config, lists: Lists) -> tuple[Named, str | None]:
    """The model's names, and the calibration that a suffix `MODEL@NAME` picks.

    A name that the configuration or the server knows as it stands has no suffix.
    """
    if not isinstance(sent, str):
        return Named(None, None), None
    served = _unaliased(sent, config)
    model, at, suffix = sent.rpartition("@")
    if not at or not model or served in config.models or await lists(sent):
        return Named(sent, served), None
    return Named(sent, _unaliased(model, config)), suffix


def _unaliased(name: str, config: Config) -> str:
    return next((model for model, m in config.models.items() if name in m.aliases), name)


def pick(
    body: Body,
    header: str | None,
    prefix: str | None,
    suffix: str | None,
    model: str | None,
    config: Config,
    profiles: Mapping[str, Profile],
    allowed: Collection[str] | None = None,
) -> Pick:
    """The calibration of a request, by the first of the ways that applies.

    `allowed`: the names that this client may pick (None: all). The model's default is no pick of its own.

    Raises:
        BadSelection: an unknown name, a bad object, or a way that the operator has closed.
    """
    wanted = body.fields.get("calibration")
    named = [name for name in (header, prefix, suffix) if name]
    if config.selection.locked and (wanted is not None or named):
        raise BadSelection("the operator has locked the calibration; leave it out of the request")
    explaining = False
    offered = menu(profiles, allowed)
    if isinstance(wanted, str):
        return _by_name(wanted, offered, "calibration")
    if wanted is not None:
        inline = _inline(wanted, config.selection.inline and (allowed is None or INLINE in allowed))
        explaining = inline.explain
        chosen = _from_object(inline, offered)
        if needs_redis(config) and chosen and chosen.profile and (chosen.profile.sri or chosen.profile.cri):
            raise BadSelection("probes need a state.store that all workers share", param="calibration")
        if chosen is not None:
            return chosen
    if named:
        chosen = _by_name(named[0], offered, "calibration")
    else:
        default = config.models[model].profile if model in config.models else None
        # The operator's off still observes; only a client's leaves no record.
        chosen = Pick(OFF) if default in (None, OFF) else Pick(default, profiles[default])
    return Pick(chosen.label, chosen.profile, chosen.explicit_off, explaining)


def marks_of(header: str | None) -> frozenset[Marked]:
    """What X-Case-Marks says of a case or turn, separated by commas.

    Raises:
        BadSelection: a mark that nobody knows.
    """
    names = {name.strip() for name in (header or "").split(",")} - {""}
    if unknown := names - set(_MARKS):
        valid = ", ".join(_MARKS)
        raise BadSelection(f"X-Case-Marks: no mark {min(unknown)[:80]!r}; valid marks: {valid}")
    return frozenset(mark for mark in _MARKS if mark in names)


_MARKS: tuple[Marked, ...] = get_args(Marked)


Menu = Mapping[str, Profile | None]
"""The names that a client may pick; `off` stands for no profile."""


def menu(profiles: Mapping[str, Profile], allowed: Collection[str] | None) -> Menu:
    """What a client may pick that is limited to the names `allowed` (None: not limited)."""
    everything: Menu = {**dict(sorted(profiles.items())), OFF: None}
    return {name: p for name, p in everything.items() if allowed is None or name in allowed}


def _by_name(name: str, offered: Menu, param: str) -> Pick:
    if name not in offered:
        near = difflib.get_close_matches(name[:LONGEST_NAME], offered, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadSelection(
            f"no calibration {name[:LONGEST_NAME]!r}; valid names: {', '.join(offered)}{hint}", param=param
        )
    return Pick(name, offered[name], explicit_off=name == OFF)


def _inline(value: Any, allowed: bool) -> Inline:
    if not isinstance(value, Mapping):
        raise BadSelection("calibration must be a profile's name or an object", param="calibration")
    if len(value) > _MEMBERS:
        raise BadSelection(f"calibration has more than {_MEMBERS} members", param="calibration")
    if not allowed:
        raise BadSelection(
            "the operator allows calibrations by name only, not as objects", param="calibration"
        )
    try:
        # Null is unset, as SDKs send it.
        return Inline.model_validate({key: item for key, item in value.items() if item is not None})
    except ValidationError as error:
        raise BadSelection(f"calibration: {explain(error, Inline)}", param="calibration") from None


def _from_object(inline: Inline, offered: Menu) -> Pick | None:
    """What an object picks; None where it only asks for an explanation."""
    named = _by_name(inline.profile, offered, "calibration.profile") if inline.profile else None
    base = (named and named.profile) or Profile(name=INLINE)
    changes = _changes(inline, base)
    if not changes:
        if named is None:
            return None
        return Pick(named.label, named.profile, named.explicit_off, inline.explain)
    return Pick(INLINE, base.model_copy(update=changes), explain=inline.explain)


def needs_redis(config: Config) -> bool:
    """Whether probes can't act: workers that don't know of each other would ask a case twice."""
    return config.listen.workers > 1 and config.state.store == "memory"


def _changes(inline: Inline, base: Profile) -> dict[str, Any]:
    """What an object sets over a profile."""
    changes: dict[str, Any] = {}
    if any(change is not None for change in (inline.bias, inline.scope, inline.apply)):
        bias = base.bias or BiasSetting(value=0.0)
        if inline.bias is not None:
            bias = BiasSetting(value=inline.bias, apply=bias.apply)
        changes["bias"] = bias.model_copy(update={"apply": inline.apply or bias.apply})
        changes["entry"] = base.entry.model_copy(update={"scope": inline.scope or base.entry.scope})
    for name in ("sri", "cri"):
        if name in inline.model_fields_set:
            asked, own = getattr(inline, name), getattr(base, name)
            if asked is not None and own is not None:
                asked = own.model_copy(update={key: getattr(asked, key) for key in asked.model_fields_set})
            changes[name] = asked
    return changes
