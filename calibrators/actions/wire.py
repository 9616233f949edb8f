"""Calls that a model writes as text, in the wire forms that are known."""

import ast
import json
import re
import warnings
from typing import Any

_FENCE = re.compile(r"```[\w-]*\s*(.*?)\s*```\Z", re.DOTALL)


def is_call_text(text: str) -> bool:
    """Whether a whole text is a call in a known wire form, parsable or not.

    The forms: `<tool_call>...`, a JSON object or list of objects with a name beside arguments or parameters,
    a Python call list `[f(x=1)]`, and fenced or python-literal variants of those. A text that only shows
    data, or that speaks before it calls, is none.
    """
    text = text.strip()
    if text.startswith("<tool_call>"):
        return True
    if fence := _FENCE.match(text):
        text = fence[1]
    if not text or text[0] not in "[{":
        return False
    return _is_call_value(_literal(text)) or _is_call_list(text)


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    # Models also write Python literals; bounded, since the parser's own limits are the process's.
    if len(text) > _LITERAL_LIMIT:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "\\d" in a model's string is its own business
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


_LITERAL_LIMIT = 20_000


def _is_call_value(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_call_object, value))
    return _is_call_object(value)


def _is_call_object(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and ("arguments" in value or "parameters" in value)
    )


_CALL_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(.*\)\s*\]\Z", re.DOTALL)


def _is_call_list(text: str) -> bool:
    """`[f(x=1), g()]`: nothing but calls of names inside one list."""
    if len(text) > _LITERAL_LIMIT or not _CALL_LIST.match(text):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text, mode="eval").body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return isinstance(tree, ast.List) and all(
        isinstance(item, ast.Call) and isinstance(item.func, ast.Name | ast.Attribute) for item in tree.elts
    )
