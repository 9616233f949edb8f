"""Decisions out of BFCL's single-turn categories and When2Call's judged items."""

from pathlib import Path

from bench.decisions.example import Example
from bench.decisions.source import Item, SourceError, bfcl_items, when2call_items
from bench.errors import InputError
from bench.lab.packages import BFCL, PackageError, fetch
from calibrators.actions import Action

WHEN2CALL = {
    "tool_call": Action.TOOL_CALL,
    "request_for_info": Action.ASK,
    "cannot_answer": Action.REFUSE,
    "direct": Action.OTHER,
}
"""Its labels as action classes."""


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
    return [example for example, _ in when2call_answers(path) if example.request["tools"]]


def when2call_answers(path: Path) -> list[tuple[Example, dict[str, str]]]:
    """All of When2Call's items, those without a tool too, each with its text for each label.

    Raises InputError naming the line.
    """
    try:
        items = when2call_items(path, without_tools=True)
    except (SourceError, OSError, UnicodeDecodeError) as error:
        raise InputError(
            str(error), where="When2Call", mend="give When2Call's mcq or llm_judge file"
        ) from None
    for item in items:
        if item.told not in WHEN2CALL:
            known = ", ".join(WHEN2CALL)
            raise InputError(f"{item.id}: label {item.told!r}", where=str(path), mend=f"known are {known}")
    return [(_example(item, WHEN2CALL[item.told]), item.answers) for item in items]


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
