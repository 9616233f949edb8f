"""What is known of vLLM's tool parsers by name: data/entry_tokens.yaml, 54 of them (vLLM 0.32)."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from calibrators.entry import NoEntry


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to open a call.

    Attributes:
        text: up to the function's name, or as far as it is known.
        named: whether the function's name follows directly.
    """

    text: str
    named: bool


@dataclass(frozen=True, slots=True)
class Parser:
    """One row of the data.

    Attributes:
        name: what vLLM's --tool-call-parser takes.
        families: of models that it is for.
        spellings: of the opener; empty where only the checkpoint's metadata knows it.
        dedicated: whether the opener begins with a vocabulary entry of its own: true, likely, varies, unknown
            or false.
        scope: first, all or none, as the data has it; a ceiling.
        thinking: the texts that open and close the reasoning, "" for none.
    """

    name: str
    families: tuple[str, ...]
    spellings: tuple[Spelling, ...]
    dedicated: str
    scope: str
    thinking: tuple[str, str]


def parser(name: str) -> Parser:
    """The parser of that name.

    Raises:
        NoEntry: none is known; names the nearest.
    """
    for known in parsers():
        if known.name == name:
            return known
    nearest = difflib.get_close_matches(name, [known.name for known in parsers()], n=1, cutoff=0)[0]
    raise NoEntry(f"no tool parser {name!r} is known; the nearest is {nearest!r}")


def matching(opener: str) -> Sequence[Parser]:
    """The parsers whose calls open with this text (up to the function's name), in the data's order."""
    return [known for known in parsers() if known.spellings and _opens(known.spellings[0], opener)]


def matches(known: Parser, opener: str) -> bool:
    """Whether a parser knows this opener in any of its spellings."""
    return any(_opens(spelling, opener) for spelling in known.spellings)


@cache
def parsers() -> tuple[Parser, ...]:
    """All of them."""
    source = resources.files("calibrators").joinpath("data/entry_tokens.yaml").read_text("utf-8")
    return tuple(map(_parser, yaml.safe_load(source)))


def _parser(row: dict[str, Any]) -> Parser:
    return Parser(
        name=row["parser"],
        families=tuple(row["families"]),
        spellings=tuple(map(_spelling, row["opener"].split("  or  "))) if row["parser"] != "hf" else (),
        dedicated=str(row["special_token"]).lower(),
        scope=row["scope"],
        thinking=(row["think_start"] or "", row["think_end"] or ""),
    )


_VERSIONS = re.compile(r"\s*\((?:[\d.]+\+?|before v\d+)\)$")
_NAME = re.compile(r"NAME|TOOL(?=<)")


def _spelling(text: str) -> Spelling:
    text = _VERSIONS.sub("", text)
    before, *after = _NAME.split(text, maxsplit=1)
    return Spelling(before, bool(after))


def _opens(spelling: Spelling, opener: str) -> bool:
    """Whether an opener found on a server is this spelling, whatever the whitespace."""
    known, found = _squeezed(spelling.text), _squeezed(opener)
    return found == known if spelling.named else found.startswith(known)


def _squeezed(text: str) -> str:
    return "".join(text.split())
