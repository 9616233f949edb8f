"""What closes a model's reasoning, and who opens it (entry-tokens D3, D4)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibrators.entry import Mode, NoEntry, Opens
from calibrators.openers.asks import Ask, Asking, Tokenizer
from calibrators.openers.candidates import is_dedicated
from calibrators.openers.parsers import parsers
from calibrators.openers.renderings import NAMES, QUESTION, SWITCH, THOUGHT, Rendering, tool
from calibrators.openers.sequences import common_prefix

MOST = 16
"""Ids in the closing sequence, as Seam's processor takes them."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How the reply's reasoning ends.

    Attributes:
        closing: the ids that close it; empty for a model that does not reason.
        opens: who opens it by default.
        without: the modes in which there is none to wait for.
        space: whitespace tokens that the template puts behind it.
    """

    closing: tuple[int, ...] = ()
    opens: Opens = "never"
    without: frozenset[Mode] = frozenset()
    space: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Markers:
    start: str
    end: str
    closing: tuple[int, ...]
    space: tuple[int, ...] = ()


def reasoning(
    tokenizer: Tokenizer,
    prompts: Mapping[Mode, Rendering],
    thoughts: Sequence[Rendering] = (),
    gap: str = "",
    named: tuple[str, str] | None = None,
) -> Asking[Reasoning]:
    """Find the markers in history, or by the known names in the prompts, and how each mode begins.

    `gap` is what history shows between the prompt and the reply, `named` the markers of a known parser.

    Raises:
        NoEntry: the reasoning ends within a token, so that no ids tell its end.
    """
    tails = {mode: prompt.text.rpartition(QUESTION)[2] for mode, prompt in prompts.items()}
    markers = yield from _rendered(tokenizer, thoughts)
    if markers is None:
        markers = yield from _named(tokenizer, [*tails.values(), gap], named)
    if markers is None or not prompts:
        return Reasoning()
    opens: dict[Mode, Opens] = {}
    space: dict[int, None] = dict.fromkeys(markers.space)
    for mode, tail in tails.items():
        opens[mode] = _opens(tail, markers)
        if opens[mode] == "closed":
            behind = yield from _behind(tokenizer, prompts[mode].ids, markers.closing)
            # Spelled in other tokens than history has it: only the reply's first token is sure then.
            opens[mode] = "never" if behind is None else "closed"
            space.update(dict.fromkeys(behind or ()))
    # A prompt or a history that closes what nobody opened shows that the model does.
    itself = "closed" in opens.values() or markers.end in gap
    for mode, who in opens.items():
        if who == "never" and (itself or (yield from _starts_itself(tokenizer, markers, mode))):
            opens[mode] = "model"
    if set(opens.values()) == {"never"}:
        return Reasoning()
    without = frozenset(mode for mode, who in opens.items() if who == "never")
    return Reasoning(markers.closing, opens.get("default", "never"), without, tuple(space))


def _rendered(tokenizer: Tokenizer, thoughts: Sequence[Rendering]) -> Asking[_Markers | None]:
    """The markers around a thought in history: what an answer and a call share behind it closes it."""
    if len(thoughts) < 2:
        return None  # nothing would tell the closing marker from the header of what follows
    ends = []
    for seen in thoughts:
        ends.append((yield from _tokens_of(tokenizer, seen, seen.text.rindex(THOUGHT) + len(THOUGHT))))
    behind = [seen.ids[at:] for seen, at in zip(thoughts, ends, strict=True)]
    shared = behind[0][: common_prefix(behind)]
    closing = yield from _visible(tokenizer, shared)
    if not closing or len(closing) > MOST:
        return None
    space = shared[
        next(at for at in range(len(shared)) if shared[at:][: len(closing)] == closing) + len(closing) :
    ]
    end = (yield from tokenizer.text(closing)).strip()
    if (yield from _goes_on(tokenizer, thoughts, [ids[len(shared) :] for ids in behind], end)):
        raise NoEntry(f"what closes the reasoning ends within a token, behind {end!r}")
    for known in parsers():
        if known.thinking[1].strip() == end:
            return _Markers(known.thinking[0].strip(), end, closing, space)
    at = yield from _tokens_of(tokenizer, thoughts[0], thoughts[0].text.rindex(THOUGHT))
    before = yield from _visible(tokenizer, thoughts[0].ids[:at])
    start = (yield from tokenizer.text(before[-1:])).strip()
    return _Markers(start if len(start) >= 4 else "", end, closing, space)


def _goes_on(
    tokenizer: Tokenizer, thoughts: Sequence[Rendering], rests: Sequence[Sequence[int]], end: str
) -> Asking[bool]:
    """Whether the closing goes on, as text, in tokens that differ with what follows."""
    texts = [seen.text.rpartition(THOUGHT)[2] for seen in thoughts]
    if texts[0][: common_prefix(texts)].strip() == end:
        return False
    for ids in rests:
        # Two markers may begin alike: <|START_TEXT|> and <|START_ACTION|>.
        if ids and not (yield from is_dedicated(tokenizer, ids[0])):
            return True
    return False


def _visible(tokenizer: Tokenizer, ids: Sequence[int]) -> Asking[tuple[int, ...]]:
    """The ids without whitespace tokens at either end."""
    kept = tuple(ids)
    while kept and not (yield from tokenizer.text(kept[:1])).strip():
        kept = kept[1:]
    while kept and not (yield from tokenizer.text(kept[-1:])).strip():
        kept = kept[:-1]
    return kept


def _tokens_of(tokenizer: Tokenizer, seen: Rendering, length: int) -> Asking[int]:
    """How many tokens make up the first `length` characters of a rendering."""
    low, high = 0, len(seen.ids)
    while low < high:
        middle = (low + high) // 2
        if len((yield from tokenizer.text(seen.ids[:middle]))) < length:
            low = middle + 1
        else:
            high = middle
    return low


def _named(
    tokenizer: Tokenizer, texts: Sequence[str], named: tuple[str, str] | None
) -> Asking[_Markers | None]:
    """Markers that are known by name and stand in one of the texts."""
    common = Counter(each.thinking for each in parsers()).most_common()
    for start, end in [*([named] if named else []), *(pair for pair, _ in common)]:
        if not end:
            continue
        shown = any(mark in text for text in texts for mark in (start, end) if mark.strip())
        ids = yield from tokenizer.ids(end.strip())
        # Unseen, a parser's markers count only where this vocabulary has them.
        if (shown and len(ids) <= MOST) or ((start, end) == named and len(ids) == 1):
            return _Markers(start.strip(), end.strip(), ids)
    return None


def _opens(tail: str, markers: _Markers) -> Opens:
    """What a prompt does with the reasoning: leaves it open, closes it, or (never) does not touch it."""
    end = tail.rfind(markers.end)
    start = tail.rfind(markers.start) if markers.start else -1
    if start > end:
        return "prompt"
    return "closed" if end >= 0 else "never"


def _behind(
    tokenizer: Tokenizer, ids: Sequence[int], closing: tuple[int, ...]
) -> Asking[tuple[int, ...] | None]:
    """The whitespace tokens behind the closing at a prompt's end; None where it does not end so."""
    rest = tuple(ids)
    while rest and not (yield from tokenizer.text(rest[-1:])).strip():
        rest = rest[:-1]
    return tuple(ids[len(rest) :]) if rest[-len(closing) :] == closing else None


def _starts_itself(tokenizer: Tokenizer, markers: _Markers, mode: Mode) -> Asking[bool]:
    """Whether the model writes the opening marker of its own accord: one greedy token tells."""
    start = (yield from tokenizer.ids(markers.start)) if markers.start else ()
    if len(start) != 1:
        return False
    body = {
        "model": tokenizer.model,
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [tool(name) for name in NAMES],
        "max_tokens": 1,
        "temperature": 0,
        "return_token_ids": True,
        **SWITCH[mode],
    }
    written = first_choice((yield Ask("/v1/chat/completions", body))).get("token_ids")
    return isinstance(written, list) and written[:1] == [start[0]]


def first_choice(answer: Mapping[str, object]) -> Mapping[str, object]:
    """The first choice of a completion; empty where there is none."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else {}
