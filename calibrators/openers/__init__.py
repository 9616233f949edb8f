"""How a served model's tool-entry tokens are found and verified, from the server alone.

    found = yield from find(model)
    entry = yield from verified(model, found)

Generators without I/O (`asks`); docs/entry-tokens.md.
"""

from calibrators.openers.asks import Ask, Asking, answered
from calibrators.openers.discovery import Found, by_differencing, by_parser, by_strings, find, for_tools
from calibrators.openers.forced import verified

__all__ = [
    "Ask",
    "Asking",
    "Found",
    "answered",
    "by_differencing",
    "by_parser",
    "by_strings",
    "find",
    "for_tools",
    "verified",
]
