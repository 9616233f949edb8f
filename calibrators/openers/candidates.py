"""Which tokens may come first in a text that opens a call, and which leave the decision open.

entry-tokens C: without the vocabulary they are found by tokenizing what the opener may begin with, since the
first token of such a text is a token that the opener may begin with.
"""

import itertools
import re
from collections.abc import Iterable, Sequence

from calibrators.openers.asks import Asking, Tokenizer

MOST = 128
"""Ids in a set, as vLLM's logprob_token_ids and Seam's processor take them."""

_PREFIXES = 12
"""How far into an opener its first token may reach."""

_LEADS = ("", " ")
_RARE_LEADS = ("\n", "\t", "  ")
_INSIDE = (
    "\n",
    "\n\n",
    "\n\n\n",
    "\n\n\n\n",
    "\r\n",
    "\r\n\r\n",
    "\r\n\r\n\r\n",
    "\r\r\n",
    " ",
    "  ",
    "   ",
    "\n ",
    "\n  ",
    "\n    ",
    "\t",
    "\n\t",
    " \n",
)
"""Whitespace that a model may write behind a bracket."""

_SPACES = (
    *("\n" * count for count in range(1, 7)),
    *(" " * count for count in range(1, 17)),
    *("\t" * count for count in range(1, 4)),
    *(" \n", "  \n", " \n\n", "\n ", "\n  ", "\n    ", "\n\t", "\r\n", "\r\n\r\n"),
)
_BRACKETS = re.compile(r"[\[{(]+")
# What a token of its own looks like: <tool_call>, <|x|>, [TOOL_CALLS], <｜x｜>; letters within brackets.
_MARKER = re.compile(r"[<>\[\](){}｜|].*\w{2}.*[<>\[\](){}｜|]", re.DOTALL)


def first_visible(tokenizer: Tokenizer, ids: Sequence[int]) -> Asking[int | None]:
    """The first token that shows anything; None where none does."""
    for at, token in enumerate(ids):
        if (yield from tokenizer.text(ids[: at + 1])).strip():
            return token
    return None


def is_dedicated(tokenizer: Tokenizer, token: int, rendered: bool = True) -> Asking[bool]:
    """Whether a token is a vocabulary entry that nothing else uses (entry-tokens D8).

    It looks like a marker, and no merge with its neighbours dissolves it. Tokenizers that split typed markers
    (Mistral's) never make it from text at all: then a chat template's rendering is proof.
    """
    text = yield from tokenizer.text([token])
    if len(text) < 4 or not _MARKER.fullmatch(text):
        return False
    within = yield from tokenizer.ids(f"ab{text}cd")
    return token in within or (rendered and token not in (yield from tokenizer.ids(text)))


def openings(
    tokenizer: Tokenizer, context: str, opener: str, leads: Iterable[str] = ()
) -> Asking[tuple[int, ...]]:
    """The tokens that may come first in an opener of ordinary text, behind a context.

    `leads` is whitespace, besides the usual, that may stand before it.
    """
    opener = opener.lstrip()
    prefixes = [opener[:length] for length in range(1, min(len(opener), _PREFIXES) + 1)]
    texts = [lead + prefix for lead in (*_LEADS, *leads) for prefix in prefixes]
    texts += [lead + opener for lead in _RARE_LEADS]
    if brackets := _BRACKETS.match(opener):
        # Only before the quote or name: whitespace inside a marker is no marker.
        starts = {opener[:length] for length in range(1, brackets.end() + 1)}
        texts += [
            lead + start + space for lead, start, space in itertools.product(_LEADS, sorted(starts), _INSIDE)
        ]
    found: dict[int, None] = {}
    for text in dict.fromkeys(texts):
        token = yield from first_of(tokenizer, context, text)
        if token is not None:
            found[token] = None
    return tuple(found)[:MOST]


def first_of(tokenizer: Tokenizer, context: str, text: str) -> Asking[int | None]:
    """The first visible token of a text behind a context; None where the two merge.

    In context since SentencePiece puts a space before a text that stands alone.
    """
    ids = yield from tokenizer.ids_after(context, text)
    return None if ids is None else (yield from first_visible(tokenizer, ids))


def spaces(tokenizer: Tokenizer) -> Asking[tuple[int, ...]]:
    """Tokens of whitespace alone; not all of a vocabulary's, but what replies begin with."""
    found: dict[int, None] = {}
    for text in _SPACES:
        ids = yield from tokenizer.ids(text)
        if not (yield from tokenizer.text(ids)).strip():
            found.update(dict.fromkeys(ids))
    return tuple(found)[:MOST]
