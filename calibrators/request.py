"""What a chat request says about its decision, whatever shape the client gave it."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from calibrators.reply import Call
from calibrators.skip import Skip

Fields = Mapping[str, Any]


REQUEST_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "reasoning_effort",
)
"""The members of a chat request that shape its prompt, and so its decision; the rest samples or sends."""


def tools_of(fields: Fields) -> Sequence[Any]:
    """The offered tools, also under their legacy name."""
    for key in ("tools", "functions"):
        offered = fields.get(key)
        if isinstance(offered, list) and offered:
            return offered
    return ()


def tool_names(fields: Fields) -> list[str]:
    """The names of the offered tools, in order, in each API's shape."""
    names = []
    for tool in tools_of(fields):
        if isinstance(tool, Mapping):
            function = tool.get("function", tool.get("custom"))
            name = (function if isinstance(function, Mapping) else tool).get("name")
            names += [name] if isinstance(name, str) else []
    return names


def tool_choice_of(fields: Fields) -> str:
    """`auto`, `none`, `required` or `named`; absent with tools is auto, without tools none."""
    choice = fields.get("tool_choice", fields.get("function_call"))
    if isinstance(choice, Mapping):
        if choice.get("type") == "allowed_tools":  # narrows the tools, and has a mode of its own
            narrowed = choice.get("allowed_tools")
            mode = narrowed.get("mode") if isinstance(narrowed, Mapping) else choice.get("mode")
            return mode if isinstance(mode, str) else "auto"
        return "named"
    if isinstance(choice, str):
        return choice
    return "auto" if tools_of(fields) else "none"


def choices_of(fields: Fields) -> int:
    """How many alternatives are asked for (n)."""
    n = fields.get("n")
    return n if isinstance(n, int) and n > 0 else 1


def no_decision(fields: Fields) -> Skip | None:
    """Why there is no decision between calling and answering to calibrate; None where there is one.

    Where the client, or the server's grammar, has decided already, a bias on the entry would change what we
    promised not to touch (vllm-facts 1.4, 5.3).
    """
    if not tools_of(fields):
        return Skip("no_tools", "no tools offered")
    choice = tool_choice_of(fields)
    if choice != "auto":
        return Skip("tool_choice", f"tool_choice is {_shown(choice)}")
    if fields.get("continue_final_message"):
        return Skip("continues_message", "the reply continues a message")
    if fields.get("use_beam_search"):
        return Skip("beam_search", "beam search drops per-request processors")
    response_format = fields.get("response_format")
    if isinstance(response_format, Mapping) and response_format.get("type") not in (None, "text"):
        return Skip("response_format", "response_format fixes the form of the reply")
    if any(fields.get(key) is not None for key in _STRUCTURED):
        return Skip("structured_outputs", "structured outputs fix the form of the reply")
    return None


_STRUCTURED = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def _shown(choice: str) -> str:
    """A client's word, fit for a header."""
    return choice if choice in ("none", "required", "named") else "another word"


def case_of(fields: Fields) -> tuple[str, int]:
    """The conversation's id and its turn, from the messages alone.

    The id is a hash of what stays the same while a conversation grows: everything up to and including the
    first user message. The turn counts user messages, from 1.
    """
    digest = hashlib.blake2b(digest_size=8)
    turn = 0
    for message in messages_of(fields):
        if turn == 0:
            digest.update(canonical(message).encode())
        turn += message.get("role") == "user"
    return digest.hexdigest(), turn


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def canonical(value: Any) -> str:
    """A JSON value as a text that is the same for the same value; one for all that nest too deep to write."""
    try:
        return _encode(value)
    except RecursionError:  # what was just within a parser's limits may be beyond a writer's
        return "[]"


def messages_of(fields: Fields) -> list[Fields]:
    """The messages that are objects."""
    messages = fields.get("messages")
    # dict and not Mapping: parsed JSON holds nothing else, and the check is made for every message.
    return [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []


def repeated_calls(fields: Fields, calls: Iterable[Call]) -> int:
    """How many calls repeat, by name and arguments, an earlier one of the same turn (calibration.md 2)."""
    calls = list(calls)
    if not calls:
        return 0
    earlier: set[tuple[str, str]] = set()
    for message in reversed(messages_of(fields)):
        if message.get("role") == "user":
            break
        earlier.update(_calls_in(message))
    repeats = 0
    for call in calls:
        key = (call.name, call.arguments)
        repeats += key in earlier
        earlier.add(key)
    return repeats


def _calls_in(message: Fields) -> Iterable[tuple[str, str]]:
    made = message.get("tool_calls")
    for call in made if isinstance(made, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield str(function.get("name")), str(function.get("arguments") or "{}")
