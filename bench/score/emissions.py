"""Emissions as scorers see them: the classes of one reply, its calls, and what is known to be missing.

A *call* is read from BFCL's `[{name: arguments}]`, from an OpenAI or tau2 tool call, or from a text that is a
call in a known wire form. Reading is for counting (repeats, unparsable arguments, unknown names); whether a
reply is a call at all is the classifier's word.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from calibrators.actions import Action

Json = Mapping[str, Any]
Offered = Mapping[str, Json | None]
"""The tools that were offered: name to the JSON schema of the parameters, None where it isn't known."""


class Call(NamedTuple):
    """One tool call as far as it could be read."""

    name: str | None
    """None where the text names no function that could be read."""
    arguments: Json | None
    """None where they are no JSON object, so that nothing can execute the call."""

    @property
    def executable(self) -> bool:
        """Whether a harness can execute it: it has a name and arguments that parse."""
        return self.name is not None and self.arguments is not None


class Emission(NamedTuple):
    """One reply."""

    actions: frozenset[Action]
    """Its classes: at most one by the cascade, any number by the multi-label classifier."""
    published: frozenset[Action]
    """Its classes by the published lists; the same where those were asked for."""
    calls: tuple[Call, ...] = ()
    """What it called; also one that cannot be read, where the text is a call."""
    text: bool = False
    """It said something in words instead of calling."""
    lost: bool = False
    """It was a reply without a call whose text the file does not hold, so its class is unknown."""
    offered: Offered | None = None
    """The tools it could call; None where the file does not say."""


Turn = Sequence[Emission]


def structured(name: Any, arguments: Any) -> Call:
    """A call from its name and its arguments, an object or its JSON text."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    return Call(name if isinstance(name, str) else None, arguments if isinstance(arguments, dict) else None)


_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FENCED = re.compile(r"```[\w-]*\s*(.*?)\s*```\Z", re.DOTALL)
# The parser's own limits are the process's.
_LITERAL_LIMIT = 20_000


def text_calls(text: str) -> tuple[Call, ...]:
    """The calls of a text that the classifier takes for a call; an unreadable one where none can be read."""
    text = text.strip()
    if text.startswith("<tool_call>"):
        parts = _TAGGED.findall(text)
    else:
        fence = _FENCED.match(text)
        parts = [fence[1] if fence else text]
    return tuple(call for part in parts for call in _written(part.strip()))


def _written(text: str) -> Iterable[Call]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _python(text)
    return _named(value)


def _named(value: Any) -> Iterable[Call]:
    """Calls from `{"name": .., "arguments" or "parameters": ..}`, alone or in a list."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield structured(item.get("name"), item.get("arguments", item.get("parameters")))
        else:
            yield Call(None, None)


def _python(text: str) -> Iterable[Call]:
    """Calls from a Python literal of the same objects, or from `[f(x=1), g()]`."""
    tree = _parsed(text)
    if isinstance(tree, ast.List) and any(isinstance(item, ast.Call) for item in tree.elts):
        return map(_called, tree.elts)
    try:
        return _named(ast.literal_eval(tree)) if tree is not None else [Call(None, None)]
    except (ValueError, TypeError, RecursionError, MemoryError):
        return [Call(None, None)]


def _parsed(text: str) -> ast.expr | None:
    if len(text) > _LITERAL_LIMIT:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "\\d" in a model's string is its own business
            return ast.parse(text, mode="eval").body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _called(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call):
        return Call(None, None)
    name = ast.unparse(node.func)
    try:
        # Values by position have no name to go by; BFCL executes them, so the call counts as readable.
        arguments = {str(place): ast.literal_eval(value) for place, value in enumerate(node.args)}
        arguments |= {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
    except (ValueError, TypeError, RecursionError, MemoryError):
        return Call(name, None)
    return Call(name, arguments)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def violates(schema: Json, arguments: Json) -> bool:
    """Whether arguments break the top level of their JSON schema.

    Looks for a required parameter that is missing, a value of another JSON type, one outside of the enum,
    and a parameter that isn't declared where the schema forbids others. Not below the top level.
    """
    declared = schema.get("properties") or {}
    if any(name not in arguments for name in schema.get("required") or ()):
        return True
    if schema.get("additionalProperties") is False and any(name not in declared for name in arguments):
        return True
    return any(name in declared and _mistyped(declared[name], value) for name, value in arguments.items())


def _mistyped(declared: Any, value: Any) -> bool:
    if not isinstance(declared, dict):
        return False
    if isinstance(declared.get("enum"), list) and value not in declared["enum"]:
        return True
    names = declared.get("type")
    kinds = [_TYPES.get(str(name)) for name in (names if isinstance(names, list) else [names])]
    if any(kind is None for kind in kinds):
        return False  # no type, or one that JSON schema does not know
    return not any(
        isinstance(value, kind) and (bool in kind or not isinstance(value, bool)) for kind in kinds if kind
    )
