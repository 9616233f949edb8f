"""Entry tokens from a server: by differencing its chat template, by its parser's name, by the user's text.

The method and its traps: entry-tokens B to D.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from calibrators.entry import Entry, NoEntry, Scope
from calibrators.openers.asks import Asking, Tokenizer
from calibrators.openers.candidates import MOST, first_of, first_visible, is_dedicated, openings, spaces
from calibrators.openers.parsers import Parser, Spelling, matches, matching, parser
from calibrators.openers.parting import CONTEXT, Parting, part
from calibrators.openers.reasoning import Reasoning, reasoning
from calibrators.openers.renderings import Rendering, render, render_prompts


class Found(NamedTuple):
    """An entry, and one whole call in the model's own words to verify it with ("" where none is known)."""

    entry: Entry
    call: str = ""


class _Opening(NamedTuple):
    """The entry set of one spelling of the opener.

    Attributes:
        tokens: its ids.
        dedicated: whether its first visible token is a vocabulary entry of its own.
        leads: whether whitespace that belongs to the opener comes before that.
        named: whether its first token may reach into the function's name.
    """

    tokens: tuple[int, ...]
    dedicated: bool = False
    leads: bool = False
    named: bool = False


def by_differencing(model: str) -> Asking[Found]:
    """From how the chat template writes calls and answers.

    Raises:
        NoEntry: the template drops or refuses calls, or no fixed token set opens them.
    """
    tokenizer = Tokenizer(model)
    seen = yield from render(tokenizer)
    parting = yield from part(tokenizer, seen)
    known = matching(parting.opener)
    pairs = {each.thinking for each in known}
    named = pairs.pop() if len(pairs) == 1 else None
    thinking = yield from reasoning(tokenizer, seen.prompts, seen.thoughts, parting.gap, named)
    _refuse_unsafe(parting, known, thinking.closing)
    opening = yield from _rendered(tokenizer, parting)
    if set(opening.tokens) & set(thinking.closing):
        raise NoEntry("calls and answers part before the reasoning is closed")
    if parting.header.strip() and not opening.dedicated:
        raise NoEntry(
            f"the reply's header decides: calls write {parting.opener!r} where answers write "
            f"{parting.header!r}, and an ordinary token there opens other messages too"
        )
    others = yield from _other_spellings(tokenizer, known, opening, parting.endings)
    entry = yield from _entry(
        tokenizer,
        [opening, *others],
        parting.opener,
        parting.context,
        known,
        thinking,
        fingerprint([*seen.calls, *seen.answers]),
    )
    return Found(entry, parting.call)


def by_parser(model: str, name: str) -> Asking[Found]:
    """From the data on vLLM's tool parser of that name, in the server's own ids.

    Raises:
        NoEntry: no such parser, or one whose calls no token set opens, or a marker that is no token here.
    """
    known = parser(name)
    if known.scope == "none":
        raise NoEntry(f"the parser {name} chooses calls in a message's header: no token set opens them")
    if not known.spellings:
        raise NoEntry(f"the parser {name} takes its opener from the checkpoint: name entry.strings")
    found = yield from _spelled(model, known.spellings, known)
    if known.dedicated == "true" and found.entry.shared:
        raise NoEntry(
            f"the parser {name} opens calls with {found.entry.opener!r}, which is no token of this model"
        )
    return found


def by_strings(model: str, strings: Sequence[str]) -> Asking[Found]:
    """From openers that the user gives as text.

    Raises:
        NoEntry: the server does not tokenize, or a text begins with nothing visible.
    """
    return (yield from _spelled(model, [Spelling(text, named=False) for text in strings], None))


class Hint(NamedTuple):
    """What discovery falls back to: a parser of vLLM by name, then openers as text."""

    parser: str | None = None
    strings: tuple[str, ...] = ()


def find(model: str, hint: Hint = Hint()) -> Asking[Found]:  # noqa: B008  (immutable)
    """The entry by the first way that gives one: differencing, the named parser, the user's strings.

    A named parser knows which openers exist, the server which ids they have (entry-tokens D12): where
    differencing shows an opener that the parser does not take, the parser's stands.

    Raises:
        NoEntry: the reason of each way that was tried.
    """
    reasons = []
    try:
        found = yield from by_differencing(model)
        if hint.parser is None or matches(parser(hint.parser), found.entry.opener):
            return found
        reasons.append(f"the template's opener {found.entry.opener!r} is none of the parser {hint.parser}")
    except NoEntry as error:
        reasons.append(str(error))
    return (yield from fall_back(model, hint, reasons))


def fall_back(model: str, hint: Hint, reasons: Sequence[str]) -> Asking[Found]:
    """The entry by what a hint says, where differencing gives none for these reasons.

    Raises:
        NoEntry: these reasons, and the hint's own.
    """
    reasons = list(reasons)
    if hint.parser is not None:
        try:
            return (yield from by_parser(model, hint.parser))
        except NoEntry as error:
            reasons.append(str(error))
    if hint.strings:
        try:
            return (yield from by_strings(model, hint.strings))
        except NoEntry as error:
            reasons.append(str(error))
    raise NoEntry("; ".join(reasons))


def for_tools(model: str, entry: Entry, names: Iterable[str]) -> Asking[tuple[int, ...]]:
    """E for a request that offers these functions: where their names may be part of the opener's first token.

    Each name costs two small requests, once: cache by the names.
    """
    tokens = dict.fromkeys(entry.tokens)
    if entry.named:
        tokenizer = Tokenizer(model)
        for name in names:
            token = yield from first_of(tokenizer, entry.context, entry.opener + name)
            if token is not None:
                tokens[token] = None
    return tuple(tokens)[:MOST]


def _refuse_unsafe(parting: Parting, known: Sequence[Parser], closing: Sequence[int]) -> None:
    """What no token set can be right for.

    Raises:
        NoEntry: says which.
    """
    if not parting.opener.strip():
        raise NoEntry("calls open with the function's name, which no fixed token set covers")
    if any(each.scope == "none" for each in known):
        raise NoEntry(f"the opener {parting.opener!r} chooses a message's kind in its header")
    if parting.gap.strip() and not closing:
        raise NoEntry(f"calls and answers share {parting.gap!r}, which the prompt lacks")
    if set(parting.endings[:1]).intersection(closing):
        # Any message's end would pass for the reasoning's, the user's in the prompt too.
        raise NoEntry("the reasoning is a message of its own, and the next one's header decides")


def _rendered(tokenizer: Tokenizer, parting: Parting) -> Asking[_Opening]:
    """The opener's tokens as the template's rendering has them."""
    visible = []
    for ids in parting.firsts:
        visible.append((yield from first_visible(tokenizer, ids)))
    first = visible[0]
    if first is None:
        raise NoEntry(f"the opener {parting.opener!r} shows nothing")
    if first in parting.endings:
        shown = yield from tokenizer.text([first])
        raise NoEntry(f"the opener begins with {shown!r}, which also ends a message")
    whole = len(set(visible)) == 1
    lead = parting.firsts[0][: parting.firsts[0].index(first)]
    if whole and (yield from is_dedicated(tokenizer, first)):
        return _Opening((*lead[:1], first), dedicated=True, leads=bool(lead))
    opening = yield from _of_text(tokenizer, parting.context, parting.opener, lead)
    # The template's own first token is in E, however long it is; one with a part of the name is not.
    own = (*lead[:1], first) if whole else lead[:1]
    return opening._replace(tokens=tuple(dict.fromkeys((*own, *opening.tokens))))


def _of_text(tokenizer: Tokenizer, context: str, opener: str, lead: Sequence[int] = ()) -> Asking[_Opening]:
    """The set of an opener that is ordinary text."""
    space = opener[: len(opener) - len(opener.lstrip())]
    tokens = yield from openings(tokenizer, context, opener, [space] if space else [])
    named = False
    for verb in ("get", "search", "find", "x", "Calculate"):
        # Where a name merges into the first token, each request's own names decide.
        token = yield from first_of(tokenizer, context, opener + verb)
        named |= token is not None and token not in tokens
    if not tokens:
        raise NoEntry(f"the opener {opener!r} merges with what stands before it")
    return _Opening((*lead[:1], *tokens), leads=bool(lead), named=named)


def _typed(tokenizer: Tokenizer, context: str, spelling: Spelling) -> Asking[_Opening]:
    """The tokens of an opener known as text."""
    ids = yield from tokenizer.ids_after(context, spelling.text)
    if ids is None:
        ids = yield from tokenizer.ids(spelling.text)
    first = yield from first_visible(tokenizer, ids)
    if first is None:
        raise NoEntry(f"the opener {spelling.text!r} shows nothing")
    lead = ids[: ids.index(first)] if spelling.text[:1].isspace() else ()
    if (yield from is_dedicated(tokenizer, first, rendered=False)):
        return _Opening((*lead[:1], first), dedicated=True, leads=bool(lead))
    opening = yield from _of_text(tokenizer, context, spelling.text, lead)
    return opening._replace(named=opening.named and spelling.named)


def _other_spellings(
    tokenizer: Tokenizer, known: Sequence[Parser], opening: _Opening, endings: Sequence[int]
) -> Asking[list[_Opening]]:
    """What else the parsers of this opener take, where it is one dedicated token: a template shows one."""
    others: list[_Opening] = []
    for spelling in dict.fromkeys(each for row in known for each in row.spellings[1:]):
        marker = _MARKER.match(spelling.text)
        ids = (yield from tokenizer.ids(marker[0])) if marker else ()
        if len(ids) != 1 or ids[0] in (*endings, *opening.tokens):
            continue
        if (yield from is_dedicated(tokenizer, ids[0], rendered=False)):
            others.append(_Opening(ids, dedicated=True))
    return others


def _spelled(model: str, spellings: Sequence[Spelling], known: Parser | None) -> Asking[Found]:
    tokenizer = Tokenizer(model)
    prompts = yield from render_prompts(tokenizer)
    thinking = yield from reasoning(tokenizer, prompts, named=known.thinking if known else None)
    context = prompts["default"].text if "default" in prompts else ""
    if thinking.opens in ("prompt", "model"):
        context += yield from tokenizer.text(thinking.closing)
    context = context[-CONTEXT:]
    made = []
    for spelling in spellings:
        made.append((spelling, (yield from _typed(tokenizer, context, spelling))))
    # A marker that this vocabulary spells in ordinary pieces belongs to another checkpoint, if any is left.
    kept = [pair for pair in made if pair[1].dedicated or not _MARKER.match(pair[0].text)] or made
    entry = yield from _entry(
        tokenizer,
        [opening for _, opening in kept],
        kept[0][0].text,
        context,
        [known] if known else [],
        thinking,
        fingerprint(prompts.values()),
    )
    if known is None:
        return Found(replace(entry, source="profile"))
    # No rendering shows here what else the marker does: GigaChat 3's also ends a message.
    scope: Scope = entry.scope if known.scope == "all" else "decision"
    return Found(replace(entry, scope=scope, source=f"parser {known.name}"))


# <tool_call>, <|python_tag|>, [TOOL_CALLS]; a fence too, which begins every answer in code (entry-tokens C).
_MARKER = re.compile(r"<\S+?>|\[[A-Z_]+\]|```")


def _entry(
    tokenizer: Tokenizer,
    made: Sequence[_Opening],
    opener: str,
    context: str,
    known: Sequence[Parser],
    thinking: Reasoning,
    mark: str,
) -> Asking[Entry]:
    tokens = tuple(dict.fromkeys(token for opening in made for token in opening.tokens))[:MOST]
    space = dict.fromkeys((*thinking.space, *(yield from spaces(tokenizer))))
    alone = len(made) == 1 and made[0].dedicated and not made[0].leads
    # The data knows marks that stand elsewhere in a call too (MiniMax M3), which would break its arguments.
    elsewhere = bool(known) and all(each.dedicated == "false" for each in known)
    scope: Scope = "everywhere" if alone and not elsewhere else "decision"
    return Entry(
        tokens,
        text=(yield from tokenizer.text(tokens)) if len(tokens) == 1 else opener,
        opener=opener,
        scope=scope,
        after=thinking.closing,
        space=tuple(token for token in space if token not in tokens)[:MOST],
        shared=not all(opening.dedicated for opening in made),
        named=any(opening.named for opening in made),
        context=context,
        thinking=thinking.opens,
        without=thinking.without,
        source="differencing",
        fingerprint=mark,
    )


_DATES = re.compile(
    r"\d+|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\b"
)


def fingerprint(seen: Iterable[Rendering]) -> str:
    """A short hash of tokenizer and template, as far as renderings show them.

    Of the text without dates, which some templates take from the clock, and of the last tokens, which
    another vocabulary numbers otherwise.
    """
    shown = [[_DATES.sub("#", each.text), each.ids[-8:]] for each in seen]
    return hashlib.blake2b(json.dumps(shown).encode(), digest_size=8).hexdigest()
