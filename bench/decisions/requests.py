"""A user's own decisions: JSONL of chat requests with a label, checked line by line.

docs/calibrating.md has the schema for people; `Line` is the schema.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from bench.decisions.example import Example, Json, Split
from bench.errors import InputError
from calibrators.actions import Action
from calibrators.request import REQUEST_FIELDS, no_decision, tool_names
from proxy.config import explain

_MEND = "mend the line; docs/calibrating.md has the schema"


class GoldCall(BaseModel):
    """A call that is due."""

    model_config = ConfigDict(frozen=True)

    name: str
    arguments: dict[str, Any] = {}


class Line(BaseModel):
    """One line: the members of a chat request that shape its prompt, and the label beside them."""

    model_config = ConfigDict(frozen=True, extra="allow")

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] = Field(min_length=1)
    tool_choice: Any = None
    parallel_tool_calls: StrictBool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    should_call: StrictBool | None = None
    action: Action | None = None
    gold: list[GoldCall] = []
    id: str | None = None
    group: str | None = None
    source: str | None = None
    split: Split | None = None

    @property
    def due(self) -> bool | None:
        """The label: whether a call is due; None where the line has none."""
        return self.should_call if self.action is None else self.action is Action.TOOL_CALL

    @property
    def request(self) -> Json:
        """The request's members, those that are set."""
        members = ((name, getattr(self, name)) for name in REQUEST_FIELDS)
        return {name: value for name, value in members if value is not None}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.due is None:
            raise ValueError("no label: give should_call (true or false) or action")
        if self.should_call is not None and self.should_call != self.due:
            raise ValueError(f"should_call is {self.should_call} and action is {self.action}")
        if self.gold and not self.due:
            raise ValueError("gold calls, and none is due")
        if len(tool_names(self.request)) < len(self.tools):
            raise ValueError("a tool has no function.name")
        if self.messages[-1].get("role") == "assistant":
            # The commonest mistake, and a silent one: the reply that was given would be part of the prompt.
            raise ValueError("the last message is the assistant's own reply: leave it out")
        if reason := no_decision(self.request):
            raise ValueError(f"no decision to calibrate: {reason.text}")
        return self


def read_requests(path: Path) -> tuple[list[Example], Counter[str]]:
    """The examples of a file, and the members that were ignored, each with the number of lines.

    Raises InputError for the first line that is none, or whose id stands twice.
    """
    examples: dict[str, Example] = {}
    ignored: Counter[str] = Counter()
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), mend="give a JSONL file") from None
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        where = f"{path} line {number}"
        line = _line(text, where)
        ignored.update(list(line.model_extra or ()))
        example = _example(line, path.stem, number)
        if example.id in examples:
            raise InputError(
                f"the id {example.id!r} stands twice", where=where, mend="give each line its own"
            )
        examples[example.id] = example
    if not examples:
        raise InputError("holds no example", where=str(path), mend="give one request with its label a line")
    return list(examples.values()), ignored


def _line(text: str, where: str) -> Line:
    try:
        return Line.model_validate(json.loads(text))
    except ValidationError as error:
        raise InputError(explain(error, Line), where=where, mend=_MEND) from None
    except ValueError as error:
        raise InputError(f"is no JSON ({error})", where=where, mend=_MEND) from None


def _example(line: Line, stem: str, number: int) -> Example:
    identity = line.id or f"{stem}:{number}"
    return Example(
        id=identity,
        source=line.source or stem,
        group=line.group or identity,
        should_call=bool(line.due),
        request=line.request,
        action=line.action,
        gold=[call.model_dump() for call in line.gold],
        split=line.split,
    )
