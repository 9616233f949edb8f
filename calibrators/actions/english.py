"""What an English sentence of the assistant does, by its grammar.

A sentence is judged by three things: who its subject is (the assistant with its tools, the user, or a thing
talked about), whether an ability, permission or availability is negated or information is requested, and
whether a verb of doing stands in the perfect. The rules are in `english_rules`; the first that fits decides.

Most sentences hold no word that any rule waits for. So the words of a text are looked up first (`signals`),
and a sentence is tried only with the rules all of whose signals it holds.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache

from calibrators.actions.english_rules import (
    ADDRESS,
    COURTESY,
    EXPLANATION,
    PLURAL,
    QUESTIONS,
    SIGNALS,
    STATEMENTS,
    VERBLESS,
)
from calibrators.actions.kinds import Kind

_SIGNALLING = frozenset(SIGNALS)


def signals(words: Iterable[str]) -> list[tuple[str, int]]:
    """The words of a text that rules wait for, each between spaces and with its signals."""
    return [(f" {word} ", SIGNALS[word]) for word in _SIGNALLING.intersection(words)]


def singular(spaced_text: str) -> str:
    """The text with I for we: one person for all rules."""
    if " we" in spaced_text:
        for plural, one in PLURAL:
            spaced_text = spaced_text.replace(plural, one)
    return spaced_text


def kind(sentence: str, signals: Sequence[tuple[str, int]], then: str) -> Kind | None:
    """What a sentence does by the rules; None where none fits (see `is_courtesy`).

    signals: those of the whole text. then: the next sentence, empty after the last.
    """
    if sentence.endswith(" ? "):
        return _question_kind(sentence, then)
    held = 0
    for word, signal in signals:
        if word in sentence:
            held |= signal
    for found, pattern in _statement_rules(held):
        if pattern.search(sentence):
            return found
    return None


def is_courtesy(sentence: str) -> bool:
    """Whether a sentence that fits no rule says nothing of substance."""
    return sentence.count(" ") < 4 or _compiled(COURTESY).match(sentence) is not None


def _question_kind(sentence: str, then: str) -> Kind:
    for rule in QUESTIONS:
        if _compiled(rule.pattern).search(sentence):
            return rule.kind
    # "What is a mutex? It is a lock": without the user in it, and answered, it is a heading.
    answered = then and not _compiled(EXPLANATION).match(then) and not is_courtesy(then)
    if answered and (_compiled(VERBLESS).match(sentence) or not _compiled(ADDRESS).search(sentence)):
        return Kind.STATES
    return Kind.ASKS


@cache
def _statement_rules(held: int) -> tuple[tuple[Kind, re.Pattern[str]], ...]:
    """The rules that a statement with these signals may fit, in order."""
    return tuple(
        (rule.kind, _compiled(rule.pattern)) for rule in STATEMENTS if rule.signals & held == rule.signals
    )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
