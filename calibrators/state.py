"""The state observed from executed calls: what a probe tells the model of what has been done.

calibration.md section 6. `generic` knows no tool: arguments and the result's scalar fields of any call;
`published` keeps four rules of the code published with arXiv:2609.00949. Results that report an error are
left out in both.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from calibrators.conversation import Pair, loaded

How = Literal["generic", "published"]

BUDGET = 2400
"""Characters of a snapshot [C]."""
LINE = 400
"""Characters of one call in it: one long result is not to push out all others."""
FIELDS = 24
"""Scalar fields of one result."""


def observed(pairs: Sequence[Pair], how: How = "generic", budget: int = BUDGET) -> str:
    """The state as lines, newest call first, in at most `budget` characters; empty where nothing was done."""
    lines = _published(pairs) if how == "published" else map(_line, reversed(pairs))
    return within((line for line in lines if line), budget)


def within(lines: Iterable[str], budget: int) -> str:
    """As many whole lines as fit."""
    kept: list[str] = []
    left = budget
    for line in lines:
        if len(line) > left:
            break
        kept.append(line)
        left -= len(line) + 1
    return "\n".join(kept)


def cut(text: str, most: int) -> str:
    """A text of at most `most` characters that shows where it was cut."""
    return text if len(text) <= most else text[: max(0, most - 1)] + "…"


def _line(pair: Pair) -> str:
    if not pair.executed:
        return ""
    result = " ".join(f"{key}={value}" if key else value for key, value in scalars(loaded(pair.result or "")))
    shown = result or " ".join((pair.result or "").split()) or "(no output)"
    return cut(f"{pair.name}({_arguments(pair)}) -> {shown}", LINE)


def _arguments(pair: Pair) -> str:
    arguments = loaded(pair.arguments)
    if not isinstance(arguments, dict):
        return ""
    return ", ".join(f"{key}={_shown(value)}" for key, value in arguments.items())


def scalars(value: Any, path: str = "", depth: int = 4) -> list[tuple[str, str]]:
    """The scalar fields of a JSON value with their paths (`a.b`, `a[0]`), at most `FIELDS`; no nulls."""
    found: list[tuple[str, str]] = []
    inner: Iterable[tuple[str, Any]]
    if isinstance(value, dict):
        inner = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
    elif isinstance(value, list):
        inner = ((f"{path}[{at}]", item) for at, item in enumerate(value[:FIELDS]))
    else:
        return [] if value is None else [(path, _shown(value))]
    for name, item in inner:
        if depth and len(found) < FIELDS:
            found += scalars(item, name, depth - 1)
    return found[:FIELDS]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value}"
    return "null" if value is None else f"{type(value).__name__} of {len(value)}"


def _published(pairs: Sequence[Pair]) -> Iterable[str]:
    for pair in reversed(pairs):
        rule = _RULES.get(pair.name.rpartition(".")[2])
        if rule and pair.executed:
            arguments = loaded(pair.arguments)
            yield cut(rule(arguments if isinstance(arguments, dict) else {}), LINE)


def _started(arguments: Mapping[str, Any]) -> str:
    return f"engine: {'running' if arguments.get('ignitionMode', 'START') == 'START' else 'stopped'}"


def _locked(arguments: Mapping[str, Any]) -> str:
    doors = arguments.get("door")
    names = ", ".join(map(str, doors)) if isinstance(doors, list) else "all"
    return f"doors {'unlocked' if arguments.get('unlock') else 'locked'}: {names}"


def _moved(arguments: Mapping[str, Any]) -> str:
    return f"moved: {_shown(arguments.get('source'))} to {_shown(arguments.get('destination'))}"


def _sent(arguments: Mapping[str, Any]) -> str:
    return f"message sent to: {_shown(arguments.get('receiver_id'))}"


_RULES = {"startEngine": _started, "lockDoors": _locked, "mv": _moved, "send_message": _sent}
"""The tools that the published state knows; the wording is ours."""
