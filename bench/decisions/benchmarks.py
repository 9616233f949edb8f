"""Decisions out of BFCL's single-turn categories and When2Call's judged items."""

from pathlib import Path

from bench.decisions.example import Example
from bench.decisions.source import Item, SourceError, bfcl_items, when2call_items
from bench.errors import InputError
from bench.lab.packages import BFCL, PackageError, fetch
from calibrators.actions import Action

_WHEN2CALL = {
    "tool_call": Action.TOOL_CALL,
    "request_for_info": Action.ASK,
    "cannot_answer": Action.REFUSE,
    "direct": Action.OTHER,
}


def bfcl() -> list[Example]:
    """BFCL's single-turn decisions: its call categories, and the two irrelevance ones where none is due.

    Read from the bfcl-eval wheel, which is fetched once and never imported. Items with a system text are
    left out. Raises InputError where the wheel can't be had.
    """
    try:
        items = bfcl_items(fetch(BFCL))
    except (PackageError, OSError) as error:
        raise InputError(str(error), where="BFCL", mend="see to that, or give other decisions") from None
    return [_example(item, Action.TOOL_CALL if item.gold else None) for item in items]


def when2call(path: Path) -> list[Example]:
    """When2Call's items (`test/when2call_test_llm_judge.jsonl`); its four labels are action classes.

    An item belongs to the BFCL conversation that its source_id names. Raises InputError naming the line.
    """
    try:
        items = when2call_items(path)
    except (SourceError, OSError, UnicodeDecodeError) as error:
        raise InputError(str(error), where="--when2call", mend="give When2Call's llm_judge file") from None
    for item in items:
        if item.told not in _WHEN2CALL:
            known = ", ".join(_WHEN2CALL)
            raise InputError(f"{item.id}: label {item.told!r}", where=str(path), mend=f"known are {known}")
    return [_example(item, _WHEN2CALL[item.told]) for item in items]


def _example(item: Item, action: Action | None) -> Example:
    return Example(
        id=item.id,
        source=item.source,
        group=item.origin,
        should_call=bool(item.gold),
        request={"messages": [{"role": "user", "content": item.question}], "tools": item.tools},
        action=action,
        gold=[{"name": call.name, "arguments": call.arguments} for call in item.gold],
    )
