"""Single-turn decisions out of bfcl-eval's package data and When2Call files.

Nothing of bfcl-eval is imported: its wheel (bench/lab/packages.py) is read as the zip file that it is.
"""

import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CALL_CATEGORIES = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
)
RESPOND_CATEGORIES = ("irrelevance", "live_irrelevance")

Json = dict[str, Any]

_LIVE_ID = re.compile(r"(live_\w+?)_\d+-(\d+)-\d+$")
_TYPES = {"dict": "object", "float": "number", "double": "number", "tuple": "array"}
_PLAIN_TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}


class SourceError(Exception):
    """The data can't be had or read; the message names the thing and the mend."""


@dataclass(frozen=True)
class Call:
    """One gold call: for each argument, every value that the source accepts, best first."""

    name: str
    accepted: dict[str, list[Any]]

    @property
    def arguments(self) -> Json:
        """One concrete choice of arguments; those that may be left out are left out."""
        return {name: values[0] for name, values in self.accepted.items() if values and "" not in values}


@dataclass(frozen=True)
class Item:
    """One question with its tools and whether a call is due.

    `tools` are OpenAI tool objects. `gold` is empty where a plain reply is due. `origin` names
    the source's own conversation group, the smallest unit that may be split. `told` is the
    source's own word for what is due, where it has one, and `answers` its text for each such word.
    """

    id: str
    source: str
    origin: str
    question: str
    tools: list[Json]
    gold: list[Call] = field(default_factory=list)
    missing: str = ""
    reply: str = ""
    told: str = ""
    answers: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`call`, `ask` (a required value is missing) or `refuse` (no tool fits)."""
        return "call" if self.gold else ("ask" if self.missing else "refuse")


def bfcl_items(wheel: Path) -> list[Item]:
    """BFCL's single-turn decisions: one user message, at least one tool, no duplicates.

    A second item with the same question and the same tool names is dropped: identical prompts in
    one set would count twice, and their labels sometimes contradict each other.
    """
    seen: set[tuple[str, tuple[str, ...]]] = set()
    items = []
    with zipfile.ZipFile(wheel) as archive:
        for category in CALL_CATEGORIES + RESPOND_CATEGORIES:
            for item in _category(archive, category):
                key = (item.question, tuple(tool_name(tool) for tool in item.tools))
                if key not in seen:
                    seen.add(key)
                    items.append(item)
    return items


def when2call_items(path: Path, *, without_tools: bool = False) -> list[Item]:
    """When2Call's items with their own replies; `direct` ones are refusals to call too.

    without_tools: whether those that offer no tool are wanted; there is no decision to calibrate in them.
    Raises SourceError with the line's number where a line isn't such an item.
    """
    items = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            label, replies = row["correct_answer"], row["answers"]
            tools = [openai_tool(json.loads(tool)) for tool in row["tools"]]
            gold = []
            if label == "tool_call":
                call = json.loads(replies["tool_call"])
                accepted = {name: [value] for name, value in call["arguments"].items()}
                gold = [Call(safe_name(call["name"]), accepted)]
            item = Item(
                id=f"when2call_{row['uuid']}",
                source="when2call",
                origin=_origin(row["source_id"]),
                question=row["question"],
                tools=tools,
                gold=gold,
                missing="unnamed" if label == "request_for_info" else "",
                reply="" if gold else replies[label],
                told=label,
                answers={kind: str(text) for kind, text in replies.items()},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{path}:{number} is no When2Call item ({error!r})") from error
        if item.tools or without_tools:
            items.append(item)
    return items


def openai_tool(function: Json) -> Json:
    """A BFCL function document as an OpenAI tool: JSON-schema types, a name the API accepts."""
    parameters = _schema(function.get("parameters") or {})
    parameters.setdefault("properties", {})
    parameters["type"] = "object"
    return {
        "type": "function",
        "function": {
            "name": safe_name(function["name"]),
            "description": function.get("description", ""),
            "parameters": parameters,
        },
    }


def safe_name(name: str) -> str:
    """The name as OpenAI's API allows it, changed as BFCL's own handlers change it."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]


def tool_name(tool: Json) -> str:
    """The function name of an OpenAI tool object."""
    return str(tool["function"]["name"])


def _category(archive: zipfile.ZipFile, category: str) -> Iterator[Item]:
    answers = {}
    if category in CALL_CATEGORIES:
        rows = _rows(archive, f"possible_answer/BFCL_v4_{category}.json")
        answers = {row["id"]: row["ground_truth"] for row in rows}
    for row in _rows(archive, f"BFCL_v4_{category}.json"):
        messages = row["question"][0]
        # System texts and earlier turns would be a second cue beside the tools: left out.
        if len(row["question"]) != 1 or len(messages) != 1 or not row["function"]:
            continue
        yield Item(
            id=row["id"],
            source=f"bfcl_{category}",
            origin=_origin(row["id"]),
            question=messages[0]["content"].strip(),
            tools=[openai_tool(function) for function in row["function"]],
            gold=[_call(call) for call in answers.get(row["id"], [])],
        )


def _rows(archive: zipfile.ZipFile, name: str) -> list[Json]:
    text = archive.read(f"bfcl_eval/data/{name}").decode("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _origin(source_id: str) -> str:
    """`live_multiple_381-136-2` is variant 2 of conversation 136; others stand alone."""
    live = _LIVE_ID.match(source_id)
    return f"{live[1]}:{live[2]}" if live else source_id


def _call(answer: Json) -> Call:
    ((name, arguments),) = answer.items()
    accepted = {key: [_plain(v) for v in values] for key, values in arguments.items()}
    return Call(safe_name(name), accepted)


def _plain(value: Any) -> Any:
    """An accepted value without BFCL's inner lists of alternatives."""
    if isinstance(value, dict):
        chosen = {key: inner[0] if isinstance(inner, list) else inner for key, inner in value.items()}
        return {key: _plain(inner) for key, inner in chosen.items() if inner != ""}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_schema(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    schema = {key: _schema(inner) for key, inner in value.items()}
    kind = schema.get("type")
    if isinstance(kind, str):
        kind = _TYPES.get(kind.lower(), kind.lower())
        schema["type"] = kind if kind in _PLAIN_TYPES else "string"
    return schema
