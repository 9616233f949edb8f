"""Where calls and answers part in the renderings: what the opener is, and what stands before it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibrators.entry import Mode, NoEntry
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
        gap: what history has between the prompt and it, in calls and answers alike: reasoning, whitespace.
        opener: what a call writes from there up to the function's name.
        header: what an answer writes from there up to its text.
        firsts: of each call, its tokens from there.
        endings: tokens that end an answer, in their order.
        call: the first call as written, without what ends the message.
    """

    context: str
    gap: str
    opener: str
    header: str
    firsts: tuple[tuple[int, ...], ...]
    endings: tuple[int, ...]
    call: str


def part(tokenizer: Tokenizer, seen: Renderings) -> Asking[Parting]:
    """Find the parting.

    Raises:
        NoEntry: calls and answers are written alike.
    """
    shared = common_prefix([each.ids for each in (*seen.calls, *seen.answers)])
    before, calls = yield from _replies(tokenizer, seen.calls, seen.prompts, shared)
    _, answers = yield from _replies(tokenizer, seen.answers, seen.prompts, shared)
    # Behind the prompt both may go on alike, and history's tokens then show how.
    at = common_prefix([each.ids for each in (*calls, *answers)])
    gap = yield from tokenizer.text(calls[0].ids[:at])
    calls = tuple(Rendering(each.ids[at:], each.text[len(gap) :]) for each in calls)
    answers = tuple(Rendering(each.ids[at:], each.text[len(gap) :]) for each in answers)
    if any(not each.ids or not each.text for each in calls):
        raise NoEntry("the chat template renders calls and answers alike")
    endings = _endings(answers, seen.followed)
    written = yield from _written(tokenizer, calls[0], endings)
    return Parting(
        context=(before + gap)[-CONTEXT:],
        gap=gap,
        opener=_upto(calls, NAMES),
        header=_upto(answers, ANSWERS),
        firsts=tuple(each.ids for each in calls),
        endings=endings,
        call=written,
    )


def _replies(
    tokenizer: Tokenizer, whole: Sequence[Rendering], prompts: Mapping[Mode, Rendering], shared: int
) -> Asking[tuple[str, tuple[Rendering, ...]]]:
    """What history has behind the prompt, and the text before it.

    The prompt is the longest that all of these renderings continue: some templates put closed reasoning
    before calls and not before answers. Where none fits, it is what calls and answers have in common.
    """
    fitting = [p for p in prompts.values() if all(each.text.startswith(p.text) for each in whole)]
    prompt = max(fitting, key=lambda each: len(each.text), default=None)
    at = len(prompt.ids) if prompt else shared
    if prompt and any(each.ids[:at] != prompt.ids for each in whole):
        # A token of history that reaches over the prompt's end can't be written behind that prompt.
        rests = []
        for each in whole:
            text = each.text[len(prompt.text) :]
            rests.append(Rendering((yield from tokenizer.ids(text)), text))
        return prompt.text, tuple(rests)
    # Cut from the whole text: detokenizing a part may lose its first space.
    before = prompt.text if prompt else (yield from tokenizer.text(whole[0].ids[:at]))
    return before, tuple(Rendering(each.ids[at:], each.text[len(before) :]) for each in whole)


def _upto(renderings: Sequence[Rendering], marks: Sequence[str]) -> str:
    """What stands before each rendering's own mark; the same in all."""
    at = common_prefix([each.text for each in renderings])
    assert all(each.text.startswith(mark, at) for each, mark in zip(renderings, marks, strict=True))
    return renderings[0].text[:at]


def _endings(answers: Sequence[Rendering], followed: bool) -> tuple[int, ...]:
    """The tokens behind an answer; the first alone where another message follows."""
    ids = answers[0].ids
    ends = ids[len(ids) - common_suffix([each.ids for each in answers]) :]
    return ends[:1] if followed else ends


def _written(tokenizer: Tokenizer, call: Rendering, endings: Sequence[int]) -> Asking[str]:
    """The part of a call that the model writes before it ends its message."""
    if endings and len((yield from tokenizer.text(endings[:1])).strip()) >= 4 and endings[0] in call.ids:
        length = call.ids.index(endings[0])
    else:
        length = len(call.ids) - common_suffix([call.ids, endings])
    return call.text.removesuffix((yield from tokenizer.text(call.ids[length:])))
