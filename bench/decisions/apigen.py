"""Decisions out of APIGen-MT: each conversation's final assistant turn, and what came before it.

The file is `apigen-mt_5k.json` of Salesforce/APIGen-MT-5k (CC BY-NC 4.0): ShareGPT form, as JSON or JSONL.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from bench.decisions.example import Example, Json, Split
from bench.decisions.source import openai_tool
from bench.errors import InputError
from calibrators.actions import Action

SHARES = (0.7, 0.1)
"""Training and validation; the rest is test: 3,500, 500 and 1,000 of the 5,000 conversations [D]."""
SEED = 42
_ROLES = {"human": "user", "gpt": "assistant"}
_ASSISTANT = ("gpt", "function_call")


def apigen(path: Path) -> list[Example]:
    """The validation and test conversations; those of the training share are left out.

    The split is the one of arXiv:2607.07050, whatever the run's seed. Raises InputError naming the row.
    """
    rows = _rows(path)
    made = [_example(row, number, path) for number, row in enumerate(rows, 1)]
    order = list(range(len(made)))
    Random(SEED).shuffle(order)
    first = round(len(made) * SHARES[0])
    second = first + round(len(made) * SHARES[1])
    held: dict[Split, list[int]] = {"validation": order[first:second], "test": order[second:]}
    return [replace(made[i], split=split) for split, own in held.items() for i in sorted(own)]


def _rows(path: Path) -> list[Any]:
    mend = "give apigen-mt_5k.json"
    try:
        text = path.read_text("utf-8")
        listed = text.lstrip().startswith("[")
        rows: list[Any] = json.loads(text) if listed else [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), mend=mend) from None
    if not rows:
        raise InputError("holds no conversation", where=str(path), mend=mend)
    return rows


def _example(row: Any, number: int, path: Path) -> Example:
    """The decision at the final assistant turn."""
    try:
        said = row["conversations"]
        last = max(i for i, message in enumerate(said) if message["from"] in _ASSISTANT)
        messages = _messages(said[:last], row.get("system"))
        tools = [openai_tool(tool) for tool in _parsed(row["tools"])]
        gold = [_call(said[last])] if said[last]["from"] == "function_call" else []
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"is no APIGen-MT conversation ({error!r})", where=f"{path} row {number}", mend="mend the row"
        ) from None
    return Example(
        id=f"apigen-{number}",
        source="apigen_mt",
        group=f"apigen-{number}",
        should_call=bool(gold),
        request={"messages": messages, "tools": tools},
        action=Action.TOOL_CALL if gold else None,
        gold=gold,
    )


def _messages(said: Sequence[Mapping[str, str]], system: str | None) -> list[Json]:
    """ShareGPT messages as OpenAI's: calls with ids of our own, results under the call before them."""
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for number, message in enumerate(said):
        if message["from"] == "function_call":
            call = _call(message)
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
            made = {"id": f"call_{number}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        elif message["from"] == "observation":
            result = {"tool_call_id": f"call_{number - 1}", "content": message["value"]}
            messages.append({"role": "tool", **result})
        else:
            messages.append({"role": _ROLES[message["from"]], "content": message["value"]})
    return messages


def _call(message: Mapping[str, str]) -> Json:
    call = _parsed(message["value"])
    return {"name": str(call["name"]), "arguments": dict(call["arguments"])}


def _parsed(value: Any) -> Any:
    """Columns that hold JSON as text, or the values themselves."""
    return json.loads(value) if isinstance(value, str) else value
