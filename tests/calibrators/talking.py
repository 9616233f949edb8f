"""Conversations for tests: messages as clients send them, and as nobody should."""

import json
from typing import Any

from hypothesis import strategies as st

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
"""Any JSON value."""

words = st.text(st.characters(codec="utf-8"), max_size=30)
contents = (
    words
    | st.lists(st.builds(lambda text: {"type": "text", "text": text}, words) | anything, max_size=3)
    | anything
)
names = st.sampled_from(["ship", "cancel", "files.mv", ""])
ids = st.sampled_from(["c1", "c2", "c3", ""])
arguments = st.dictionaries(st.sampled_from(["id", "to", "n"]), anything, max_size=3).map(json.dumps) | words
functions = st.fixed_dictionaries({}, optional={"name": names | anything, "arguments": arguments | anything})
calls = st.fixed_dictionaries(
    {}, optional={"id": ids | anything, "function": functions | anything, "custom": functions}
)
results = words | anything.map(json.dumps) | st.just('{"error": "no such order"}')


def _message(role: str, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"role": st.just(role)}, optional=optional)


messages = st.lists(
    st.one_of(
        _message("user", content=contents),
        _message("system", content=contents),
        _message("developer", content=contents),
        _message("assistant", content=contents, tool_calls=st.lists(calls, max_size=3) | anything),
        _message("assistant", function_call=functions | anything),
        _message("tool", tool_call_id=ids | anything, name=names, content=results | contents),
        _message("function", name=names | anything, content=results | contents),
        anything,
    ),
    max_size=12,
)
"""Message lists, mostly of a shape that some client sends."""


def user(text: Any) -> dict[str, Any]:
    """What the user says."""
    return {"role": "user", "content": text}


def made(*calls: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    """An assistant message that makes calls: id, name, arguments."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for identity, name, given in calls
        ],
    }


def gave(identity: str, content: Any, **more: Any) -> dict[str, Any]:
    """A tool's result."""
    text = content if isinstance(content, str | list) else json.dumps(content)
    return {"role": "tool", "tool_call_id": identity, "content": text, **more}
