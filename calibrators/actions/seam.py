"""Our rules: what the sentences of a text do decides its class.

An ask for what the request needs makes ASK, whatever else is said: "I can't find X; did you mean A or B?".
Else a sentence in which the assistant declines makes REFUSE, else one that reports completion CONFIRM.
Offers and conditions ask, and limits without a subject decline, only where nothing of substance comes first:
"Would you like more details?" after an answer asks for nothing, and a limit named after the work is a note.
"""

from calibrators.actions import languages
from calibrators.actions.classes import Action
from calibrators.actions.english import Kind, kind
from calibrators.actions.plain import plain, sentences


def action(text: str) -> Action:
    """The class of a text that is no call."""
    kinds = _kinds(text)
    if Kind.ASKS in kinds:
        return Action.ASK
    if Kind.DECLINES in kinds:
        return Action.REFUSE
    if Kind.REPORTS in kinds:
        return Action.CONFIRM
    return Action.ASK if Kind.MAY_ASK in kinds else Action.OTHER


def labels(text: str) -> frozenset[Action]:
    """Each of ASK, REFUSE and CONFIRM on its own; REFUSE only without an ask."""
    found = {action(text)} - {Action.OTHER}
    if Kind.REPORTS in _kinds(text):
        found.add(Action.CONFIRM)
    return frozenset(found)


def _kinds(text: str) -> set[Kind]:
    """What the sentences do, what hangs on the sentences before them resolved."""
    found: set[Kind] = set()
    words = plain(text)
    said = sentences(words)
    foreign = not languages.is_english(words)
    substance = False
    for position, sentence in enumerate(said):
        k = kind(sentence, position + 1 < len(said))
        if foreign and k not in (Kind.DECLINES, Kind.REPORTS):
            k = languages.kind(sentence) or k
        if k is Kind.MAY_DECLINE:
            k = Kind.STATES if substance else Kind.DECLINES
        elif k is Kind.MAY_ASK and substance:
            k = Kind.COURTESY
        substance = substance or k in (Kind.STATES, Kind.REPORTS, Kind.DECLINES)
        found.add(k)
    return found
