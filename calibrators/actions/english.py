"""What an English sentence of the assistant does, by its grammar.

A sentence is judged by three things: who its subject is (the assistant with its tools, the user, or a thing
talked about), whether an ability, permission or availability is negated or information is requested, and
whether a verb of doing stands in the perfect. The rules are in `english_rules`; the first that fits decides.

Most sentences hold no word that any rule waits for. So the words of a text are looked up first (`signals`),
and a sentence is tried only with the rules all of whose signals it holds.
"""

import re
from collections.abc import Iterable
from functools import cache

from calibrators.actions.english_rules import (
    ADDRESS,
    ASKING,
    COURTESY,
    EXPLANATION,
    LAST,
    PLURAL,
    QUESTIONS,
    SIGNALS,
    STATEMENTS,
    VERBLESS,
)
from calibrators.actions.kinds import Kind


def singular(spaced_text: str) -> str:
    """The text with I for we: one person for all rules."""
    if " we" in spaced_text:
        for plural, one in PLURAL:
            spaced_text = spaced_text.replace(plural, one)
    return spaced_text


def signals(words: Iterable[str]) -> list[int]:
    """The signals that each sentence of a spaced text with these words holds."""
    found, held = [], 0
    for signal in filter(None, map(SIGNALS.get, words)):  # most words have none
        if signal == LAST:
            found.append(held)
            held = 0
        else:
            held |= signal
    return [*found, held]


def question_kind(sentence: str, then: str) -> Kind:
    """What a question does; `then` is the sentence after it, empty after the last."""
    if sentence == " ? ":
        return Kind.COURTESY  # a mark alone, as after code that was taken out
    for found, pattern in _question_rules():
        if pattern.search(sentence):
            return found
    # "What is a mutex? It is a lock": without the user in it, and answered, it is a heading.
    answered = not is_courtesy(then) and not _compiled(EXPLANATION).match(then)
    if answered and (_compiled(VERBLESS).match(sentence) or not _compiled(ADDRESS).search(sentence)):
        return Kind.STATES
    return Kind.ASKS


def statement_kind(sentence: str, held: int, asking: bool = False) -> Kind | None:
    """What a statement with these signals does by the rules; None where none fits (see `is_courtesy`).

    asking: try only the rules for asking.
    """
    for found, pattern in _statement_rules(held, asking):
        if pattern.search(sentence):
            return found
    return None


def is_courtesy(sentence: str) -> bool:
    """Whether a sentence that fits no rule says nothing of substance."""
    return sentence.count(" ") < 4 or _compiled(COURTESY).match(sentence) is not None


_Compiled = tuple[tuple[Kind, re.Pattern[str]], ...]


@cache
def _question_rules() -> _Compiled:
    return tuple((rule.kind, _compiled(rule.pattern)) for rule in QUESTIONS)


@cache
def _statement_rules(held: int, asking: bool) -> _Compiled:
    """The rules that a statement with these signals may fit, in order."""
    rules = ASKING if asking else STATEMENTS
    return tuple(
        (rule.kind, _compiled(rule.pattern)) for rule in rules if rule.signals & held == rule.signals
    )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
