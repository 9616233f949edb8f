"""Our rules: what the sentences of a text do decides its class.

An ask for what the request needs makes ASK, whatever else is said: "I can't find X; did you mean A or B?".
Else a sentence in which the assistant declines makes REFUSE, else one that reports completion CONFIRM.
Offers and conditions ask, and limits of other things decline, only where nothing of substance comes before:
"Would you like more details?" after an answer asks for nothing, a limit named after the work is a note.
"""

from typing import NamedTuple

from calibrators.actions import english
from calibrators.actions.classes import Action
from calibrators.actions.english_rules import LEADING, QUESTION
from calibrators.actions.kinds import Kind
from calibrators.actions.languages import languages
from calibrators.actions.plain import END, plain, spaced


class _Acts(NamedTuple):
    """What the sentences of a text do."""

    asks: bool = False
    declines: bool = False
    reports: bool = False


def action(text: str) -> Action:
    """The class of a text that is no call."""
    acts = _acts(text, cascade=True)
    if acts.asks:
        return Action.ASK
    if acts.declines:
        return Action.REFUSE
    return Action.CONFIRM if acts.reports else Action.OTHER


def labels(text: str) -> frozenset[Action]:
    """Each of ASK, REFUSE and CONFIRM on its own; REFUSE only without an ask."""
    acts = _acts(text, cascade=False)
    held = {
        Action.ASK: acts.asks,
        Action.REFUSE: acts.declines and not acts.asks,
        Action.CONFIRM: acts.reports,
    }
    return frozenset(label for label, holds in held.items() if holds)


def _acts(text: str, *, cascade: bool) -> _Acts:
    """What the sentences do; under the cascade no more than decides the class."""
    spoken = english.singular(spaced(plain(text)))
    words = spoken.split(" ")
    others = languages(spoken, words)
    said = spoken.split(END)
    kinds: list[Kind | None] = [None] * len(said)
    asks = declines = reports = False
    opening = True
    for at, held in enumerate(english.signals(words)):
        if not held & LEADING and not others:
            continue
        kind: Kind | None
        if held & QUESTION:
            kind = english.question_kind(said[at], _next(said, at))
        else:
            kind = english.statement_kind(said[at], held, declines and cascade)
        for other in others:
            kind = other.kind(said[at]) or kind
        if kind is Kind.MAY_ASK or kind is Kind.MAY_DECLINE:
            does = Kind.ASKS if kind is Kind.MAY_ASK else Kind.DECLINES
            kind = does if opening and _opens(said[:at], kinds) else Kind.STATES
            opening = False
        if kind is Kind.ASKS:
            asks = True
            if cascade:
                break
        declines = declines or kind is Kind.DECLINES
        reports = reports or kind is Kind.REPORTS
        kinds[at] = kind
    return _Acts(asks, declines, reports)


def _next(said: list[str], at: int) -> str:
    """The sentence after that one, past empty lines; empty after the last."""
    at += 1
    while at < len(said) and said[at] == " ":
        at += 1
    return said[at] if at < len(said) else ""


def _opens(before: list[str], kinds: list[Kind | None]) -> bool:
    """Whether nothing of substance is said in these sentences, of these kinds."""
    return all(
        english.is_courtesy(sentence) if kind is None else kind is Kind.COURTESY or kind is Kind.ASKS
        for sentence, kind in zip(before, kinds, strict=False)
    )
