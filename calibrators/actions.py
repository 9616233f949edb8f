"""The action class of an emission: TOOL_CALL, ASK, REFUSE, CONFIRM or OTHER.

The cascade of arXiv:2609.00949 (calibration.md section 1): a call, else a refusal, else a question, else a
report of completion, else none of these. It looks at the text and the structured calls, at nothing else.
"""

import ast
import json
import re
import warnings
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

import yaml

from calibrators.reply import Choice, Reply


class Action(StrEnum):
    """The classes of calibration.md section 1; OTHER is none of the framework's four."""

    TOOL_CALL = "tool_call"
    ASK = "ask"
    REFUSE = "refuse"
    CONFIRM = "confirm"
    OTHER = "other"


# U+2018 2019 201A 201B 00B4 02BC -> ', U+201C 201D 201E 201F -> " (published_cues.yaml, header).
_QUOTES = str.maketrans("‘’‚‛´ʼ“”„‟", "''''''\"\"\"\"")


def reply_action(reply: Reply, choice: Choice) -> Action | None:
    """The class of one choice of a reply.

    None where there is nothing to classify: an error, a body that could not be read, a text that was cut,
    an emission without text or call. A structured call counts even where the reply was cut after it.
    """
    if not reply.good or not reply.readable:
        return None
    if choice.calls:
        return Action.TOOL_CALL
    if choice.cut or not (reply.ended or choice.finish_reason):
        return None
    return text_action(choice.content)


def text_action(text: str) -> Action | None:
    """The class of a text reply under the published cue lists; None for an empty one."""
    if not text.strip():
        return None
    if is_call_text(text):
        return Action.TOOL_CALL
    folded = text.translate(_QUOTES).lower()
    cues = _published_cues()
    for action in (Action.REFUSE, Action.ASK, Action.CONFIRM):
        if cues[action].search(folded):
            return action
    return Action.OTHER


@cache
def _published_cues() -> dict[Action, re.Pattern[str]]:
    """The BFCL lists as one pattern a class: substrings, in the published order of classes."""
    source = resources.files("calibrators").joinpath("data/published_cues.yaml").read_text("utf-8")
    lists: dict[str, list[str]] = yaml.safe_load(source)["bfcl"]
    return {
        Action.REFUSE: _any_of(lists["refuse"]),
        Action.ASK: _any_of(["?", *lists["ask"]]),
        Action.CONFIRM: _any_of(lists["confirm"]),
    }


def _any_of(cues: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, cues)))


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
