"""The action class of an emission: TOOL_CALL, ASK, REFUSE, CONFIRM or OTHER (calibration.md section 1).

Two classifiers: the *cascade* gives the one class that is logged and counted, the *multi-label* one gives
every class on its own. Each works by one of two sets of cues: `seam`, our rules of English grammar with cues
for other languages, or `published`, the lists of arXiv:2609.00949 as they are, to reproduce its figures.
All look at the text and the structured calls, at nothing else.
"""

from calibrators.actions import published, seam
from calibrators.actions.classes import Action, Cues
from calibrators.actions.wire import is_call_text
from calibrators.actions.wrapped import unwrapped
from calibrators.reply import Choice, Reply

__all__ = ["Action", "Cues", "asks", "is_call_text", "reply_action", "text_action", "text_labels"]


def reply_action(reply: Reply, choice: Choice, cues: Cues = Cues.SEAM) -> Action | None:
    """The class of one choice of a reply.

    None where there is nothing to classify: an error, a body that could not be read, a text that was cut,
    an emission without text or call. A structured call counts even where the reply was cut after it.
    """
    if not reply.good or not reply.readable:
        return None
    if choice.calls:
        return Action.TOOL_CALL
    if choice.cut or not (reply.ended or choice.finish_reason):
        return None
    return text_action(choice.content, cues)


def text_action(text: str, cues: Cues = Cues.SEAM) -> Action | None:
    """The one class of a text reply; None for an empty one.

    A call in a wire form is TOOL_CALL under either set. `published` puts REFUSE before ASK; under `seam` a
    text that says what it can't do and asks for what would let it proceed is ASK.
    """
    if not text.strip():
        return None
    if is_call_text(text):
        return Action.TOOL_CALL
    return published.action(text) if cues is Cues.PUBLISHED else seam.action(unwrapped(text))


def text_labels(text: str, cues: Cues = Cues.SEAM) -> frozenset[Action]:
    """Every class a text reply belongs to, each judged on its own; empty for an empty or OTHER text.

    REFUSE counts only without a substantive ask in the same text, a greeting or closing question is no ASK
    (the multi-label rules of arXiv:2609.00949 for tau2). Never holds OTHER.
    """
    if not text.strip():
        return frozenset()
    if cues is Cues.PUBLISHED:
        # The published detector reads the words of a call as well.
        call = {Action.TOOL_CALL} if is_call_text(text) else set()
        return published.labels(text) | call
    return frozenset({Action.TOOL_CALL}) if is_call_text(text) else seam.labels(unwrapped(text))


def asks(text: str, cues: Cues = Cues.SEAM) -> bool:
    """Whether a text asks the user something, as SRI's gate means it.

    `published`: any question mark or ask cue, which is not the ASK of either published classifier.
    """
    return published.asks(text) if cues is Cues.PUBLISHED else Action.ASK in text_labels(text)
