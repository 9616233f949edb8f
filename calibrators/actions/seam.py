"""Our rules: what the sentences of a text do decides its class.

An ask for what the request needs makes ASK, whatever else is said: "I can't find X; did you mean A or B?".
Else a sentence in which the assistant declines makes REFUSE, else one that reports completion CONFIRM.
Offers and conditions ask, and limits of other things decline, only where nothing of substance comes before:
"Would you like more details?" after an answer asks for nothing, a limit named after the work is a note.
"""

from collections.abc import Iterator

from calibrators.actions import english
from calibrators.actions.classes import Action
from calibrators.actions.kinds import Kind
from calibrators.actions.languages import languages
from calibrators.actions.plain import plain, sentences, spaced


def action(text: str) -> Action:
    """The class of a text that is no call."""
    kinds = []
    for kind in _kinds(text):
        if kind is Kind.ASKS:
            return Action.ASK
        kinds.append(kind)
    if Kind.DECLINES in kinds:
        return Action.REFUSE
    return Action.CONFIRM if Kind.REPORTS in kinds else Action.OTHER


def labels(text: str) -> frozenset[Action]:
    """Each of ASK, REFUSE and CONFIRM on its own; REFUSE only without an ask."""
    kinds = list(_kinds(text))
    found = set()
    if Kind.ASKS in kinds:
        found.add(Action.ASK)
    elif Kind.DECLINES in kinds:
        found.add(Action.REFUSE)
    if Kind.REPORTS in kinds:
        found.add(Action.CONFIRM)
    return frozenset(found)


def _kinds(text: str) -> Iterator[Kind | None]:
    """What the sentences do, in order; MAY_ASK and MAY_DECLINE are settled by the sentences before."""
    spoken = english.singular(spaced(plain(text)))
    words = spoken.split()
    signals = english.signals(words)
    others = languages(spoken, words)
    if not signals and not others and " ? " not in spoken:
        return
    said = sentences(spoken)
    kinds: list[Kind | None] = []
    opening, settled = True, 0
    for at, sentence in enumerate(said):
        kind = english.kind(sentence, signals, said[at + 1] if at + 1 < len(said) else "")
        for other in others:
            kind = other.kind(sentence) or kind
        if kind is Kind.MAY_ASK or kind is Kind.MAY_DECLINE:
            while opening and settled < at:
                opening = not _has_substance(said[settled], kinds[settled])
                settled += 1
            does = Kind.ASKS if kind is Kind.MAY_ASK else Kind.DECLINES
            kind = does if opening else Kind.STATES
        kinds.append(kind)
        yield kind


def _has_substance(sentence: str, kind: Kind | None) -> bool:
    if kind is None:
        return not english.is_courtesy(sentence)
    return kind is not Kind.COURTESY and kind is not Kind.ASKS
