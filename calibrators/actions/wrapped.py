"""What a reply says that is written as a JSON object, as agents with structured output write all they say."""

import json
from collections.abc import Iterator
from typing import Any


def unwrapped(text: str) -> str:
    """The strings of a text that is one JSON object, a line each; any other text as it is.

    `{"message": "Sure.", "questions": ["Which city?"]}` says "Sure." and "Which city?".
    """
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        return text
    try:
        value = json.loads(inner)
        return "\n".join(_strings(value))
    except (ValueError, RecursionError):
        return text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
