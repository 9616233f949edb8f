"""What BFCL's inference log adds to a result: text that the result lost, and the tools that were offered.

    "inference_log": [
        [{"role": "state_info", ..}],
        {"begin_of_turn_query": [..], "step_0": [
            {"role": "inference_input", "content": {"message": "repr of the messages", "tools": [..]}},
            {"role": "assistant", "content": ..}, ..
        ]}, ..
    ]

Inputs are there with `bfcl generate --include-input-log` only. Upstream logs of an assistant's reply what
the result has, so a text that the result lost is found in the input of a later step, or not at all: the last
reply of a case is in no input.
"""

import ast
from collections.abc import Mapping
from typing import Any, NamedTuple

from bench.score.emissions import Offered


class StepLog(NamedTuple):
    """What the log says of one step."""

    text: str | None
    """The reply's text, where the log has one."""
    offered: Offered | None
    """The tools of its query; None where the log doesn't say."""


def step_logs(log: Any, *, texts: bool) -> dict[tuple[int, int], StepLog]:
    """The steps of a case's inference log by turn and step number; empty where there is none.

    texts: look for what the replies said, which takes parsing the inputs.
    """
    steps: dict[tuple[int, int], list[Any]] = {}
    turns = [turn for turn in log if isinstance(turn, dict)] if isinstance(log, list) else []
    for place, turn in enumerate(turns):
        for name, entries in turn.items():
            if name.startswith("step_") and name[5:].isdigit() and isinstance(entries, list):
                steps[place, int(name[5:])] = entries
    order = sorted(steps)
    if not texts and not (order and _content(steps[order[0]], "inference_input")):
        return {}  # inputs are logged for every step or for none, and nothing else is asked for
    sent = [_content(steps[step], "inference_input") for step in order]
    # The last input holds every reply before it, in order.
    inputs = (content["message"] for content in reversed(sent) if texts and _has_message(content))
    said = _said(next(inputs, "[]"))
    replies = dict(zip(order, said, strict=False)) if len(said) < len(order) else {}
    return {
        step: StepLog(_words(_content(steps[step], "assistant")) or replies.get(step), _offered(content))
        for step, content in zip(order, sent, strict=True)
    }


def _content(entries: list[Any], role: str) -> Any:
    found = (each for each in entries if isinstance(each, dict) and each.get("role") == role)
    return next(found, {}).get("content")


def _has_message(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("message"), str)


def _words(content: Any) -> str | None:
    if isinstance(content, list) and content and all(isinstance(part, str) for part in content):
        content = "\n".join(content)
    return content if isinstance(content, str) and content.strip() else None


def _said(messages: str) -> list[str | None]:
    """What the assistant said in the repr of a list of messages, by reply; None for a reply without text.

    The messages are dicts, or objects of the OpenAI package, whose repr is a call.
    """
    try:
        tree = ast.parse(messages, mode="eval").body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    items = tree.elts if isinstance(tree, ast.List) else []
    said = [each for item in items if _literal((each := _fields(item)).get("role")) == "assistant"]
    return [_words(_literal(each.get("content"))) for each in said]


def _fields(node: ast.expr) -> dict[str, ast.expr]:
    if isinstance(node, ast.Call):
        return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    if isinstance(node, ast.Dict):
        return {
            key.value: value
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        }
    return {}


def _literal(node: ast.expr | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _offered(content: Any) -> Offered | None:
    """The tools of a query in the shapes of OpenAI's two APIs and Anthropic's."""
    tools = content.get("tools") if isinstance(content, dict) else None
    if not isinstance(tools, list):
        return None
    offered: dict[str, Mapping[str, Any] | None] = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        schema = function.get("parameters", function.get("input_schema"))
        offered[function["name"]] = schema if isinstance(schema, dict) else None
    return offered
