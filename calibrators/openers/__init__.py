"""How a served model's tool-entry tokens are found and verified, from the server alone.

    entry = yield from settled(model)

Generators without I/O (`asks`); docs/entry-tokens.md.
"""

from calibrators.openers.asks import Answer, Ask, Asking, answered
from calibrators.openers.discovery import Found, Hint, by_differencing, by_parser, by_strings, find, for_tools
from calibrators.openers.forced import settled, verified

__all__ = [
    "Answer",
    "Ask",
    "Asking",
    "Found",
    "Hint",
    "answered",
    "by_differencing",
    "by_parser",
    "by_strings",
    "find",
    "for_tools",
    "settled",
    "verified",
]
