"""Where calls and answers part in the renderings: what the opener is, and what stands before it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calibrators.entry import NoEntry
from calibrators.openers.asks import Asking, Tokenizer
from calibrators.openers.renderings import ANSWERS, NAMES, Rendering, Renderings
from calibrators.openers.sequences import common_prefix, common_suffix

CONTEXT = 48
"""How many characters before the decision a probe of raw text is given."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The point from which calls and answers differ.

    Attributes:
        context: the end of what stands before it.
        gap: what history has between the prompt and it: closed reasoning, whitespace.
        opener: what a call writes from there up to the function's name.
        header: what an answer writes from there up to its text.
        firsts: of each call, its tokens from there.
        endings: tokens that end an answer.
        call: the first call as written, without what ends the message.
    """

    context: str
    gap: str
    opener: str
    header: str
    firsts: tuple[tuple[int, ...], ...]
    endings: frozenset[int]
    call: str


def part(tokenizer: Tokenizer, seen: Renderings) -> Asking[Parting]:
    """Find the parting.

    Raises:
        NoEntry: calls and answers are written alike.
    """
    everything = [*seen.calls, *seen.answers]
    prompt = _prompt_of(seen, everything)
    if prompt is not None and any(each.ids[: len(prompt.ids)] != prompt.ids for each in everything):
        # A token of history that reaches over the prompt's end can't be written behind that prompt.
        base = prompt.text
        calls = yield from _cut(tokenizer, seen.calls, len(base))
        answers = yield from _cut(tokenizer, seen.answers, len(base))
    else:
        at = common_prefix([each.ids for each in everything])
        base = yield from tokenizer.text(everything[0].ids[:at])
        calls = tuple(Rendering(each.ids[at:], each.text[len(base) :]) for each in seen.calls)
        answers = tuple(Rendering(each.ids[at:], each.text[len(base) :]) for each in seen.answers)
    if any(not each.text or not each.ids for each in calls):
        raise NoEntry("the chat template renders calls and answers alike")
    ends = common_suffix([each.ids for each in answers])
    ending = answers[0].ids[len(answers[0].ids) - ends :]
    written = calls[0].ids[: len(calls[0].ids) - common_suffix([calls[0].ids, ending])]
    return Parting(
        context=base[-CONTEXT:],
        gap=base[len(prompt.text) :] if prompt else "",
        opener=_upto(calls, NAMES),
        header=_upto(answers, ANSWERS),
        firsts=tuple(each.ids for each in calls),
        endings=frozenset(ending),
        call=(yield from _spelled(tokenizer, calls[0], written)),
    )


def _prompt_of(seen: Renderings, everything: Iterable[Rendering]) -> Rendering | None:
    """The longest prompt that history continues; None where thinking or a header makes them differ."""
    texts = [each.text for each in everything]
    fitting = [p for p in seen.prompts.values() if all(text.startswith(p.text) for text in texts)]
    return max(fitting, key=lambda prompt: len(prompt.text), default=None)


def _cut(tokenizer: Tokenizer, whole: Sequence[Rendering], at: int) -> Asking[tuple[Rendering, ...]]:
    """What comes after a position of the text, in tokens of its own."""
    rests = []
    for each in whole:
        text = each.text[at:]
        rests.append(Rendering((yield from tokenizer.ids(text)), text))
    return tuple(rests)


def _upto(renderings: Sequence[Rendering], marks: Sequence[str]) -> str:
    """What stands before each rendering's own mark; the same in all."""
    at = common_prefix([each.text for each in renderings])
    assert all(each.text.startswith(mark, at) for each, mark in zip(renderings, marks, strict=True))
    return renderings[0].text[:at]


def _spelled(tokenizer: Tokenizer, call: Rendering, written: Sequence[int]) -> Asking[str]:
    """The written part of a call; cut from its text, since detokenizing a part may lose its first space."""
    ending = yield from tokenizer.text(call.ids[len(written) :])
    return call.text.removesuffix(ending)
