"""The cue lists of arXiv:2609.00949 as published: substrings of the lower-cased, quote-folded text.

`action` is its BFCL cascade, `labels` its multi-label detector for tau2. The lists and their notice are in
data/published_cues.yaml.
"""

import re
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import yaml

from calibrators.actions.classes import Action

# U+2018 2019 201A 201B 00B4 02BC -> ', U+201C 201D 201E 201F -> " (published_cues.yaml, header).
_QUOTES = str.maketrans("‘’‚‛´ʼ“”„‟", "''''''\"\"\"\"")
_SENTENCE_END = re.compile(r"[.!]+\s*")


class _Lists(NamedTuple):
    """The lists, one pattern each."""

    refuse: re.Pattern[str]
    ask: re.Pattern[str]
    confirm: re.Pattern[str]
    tau2_ask: re.Pattern[str]
    tau2_confirm: re.Pattern[str]
    greeting: re.Pattern[str]


def action(text: str) -> Action:
    """The class of a text that is no call: refuse, then a question mark or ask, then confirm, else other."""
    folded, lists = _folded(text), _lists()
    if lists.refuse.search(folded):
        return Action.REFUSE
    if asks(text):
        return Action.ASK
    return Action.CONFIRM if lists.confirm.search(folded) else Action.OTHER


def asks(text: str) -> bool:
    """The rule of the cascade's ASK, and of SRI's gate: any question mark or ask cue."""
    return "?" in text or _lists().ask.search(_folded(text)) is not None


def labels(text: str) -> frozenset[Action]:
    """Each of ASK, REFUSE and CONFIRM on its own; REFUSE only without an ask."""
    folded, lists = _folded(text), _lists()
    found = set()
    if lists.tau2_ask.search(folded) or _asks(folded, lists.greeting):
        found.add(Action.ASK)
    elif lists.refuse.search(folded):
        found.add(Action.REFUSE)
    if lists.tau2_confirm.search(folded):
        found.add(Action.CONFIRM)
    return frozenset(found)


def _asks(folded: str, greeting: re.Pattern[str]) -> bool:
    """Whether a sentence with a question mark is neither greeting nor closing."""
    return "?" in folded and any(
        "?" in sentence and not greeting.search(sentence) for sentence in _SENTENCE_END.split(folded)
    )


def _folded(text: str) -> str:
    return text.translate(_QUOTES).lower()


@cache
def _lists() -> _Lists:
    source = resources.files("calibrators").joinpath("data/published_cues.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(source)
    bfcl, tau2 = document["bfcl"], document["tau2"]
    return _Lists(
        refuse=_any_of(bfcl["refuse"]),
        ask=_any_of(bfcl["ask"]),
        confirm=_any_of(bfcl["confirm"]),
        tau2_ask=_any_of(bfcl["ask"] + tau2["ask_adds"]),
        tau2_confirm=_any_of(_completions(tau2["confirm_verbs"]) + tau2["confirm_adds"]),
        greeting=_any_of(tau2["greeting"]),
    )


def _completions(verbs: dict[str, Any]) -> list[str]:
    """The perfects that the file's `confirm_verbs` and their note stand for."""
    participles: list[str] = verbs["participles"]
    passive = [f"{have} {verb}" for have in verbs["passive"] for verb in [*participles, "completed"]]
    active = [f"{have} {verb}" for have in verbs["first_person"] for verb in participles]
    return passive + [cue for cue in active if cue not in ("i have added", "i have changed")]


def _any_of(cues: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, cues)))
