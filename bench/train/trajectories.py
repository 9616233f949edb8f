"""What is trained on: conversations that end with the reply to be learnt, as JSONL.

    {"messages": [..., {"role": "assistant", ...}], "tools": [...]}

docs/training.md has the schema for people; `Trajectory` is the schema. A reply with tool calls makes a *tool
prompt*, any other a *response prompt*.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bench.errors import InputError
from proxy.config import explain

Json = dict[str, Any]
Only = Literal["all", "tool", "response"]


class Trajectory(BaseModel):
    """One conversation."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    messages: list[dict[str, Any]] = Field(min_length=2)
    tools: list[dict[str, Any]] = []
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def should_call(self) -> bool:
        """Whether the reply calls a tool."""
        return bool(self.messages[-1].get("tool_calls"))

    @property
    def request(self) -> Json:
        """All but the reply, as a chat request's members."""
        return {**self.conversation, "messages": self.messages[:-1]}

    @property
    def conversation(self) -> Json:
        """All of it."""
        switches = {"chat_template_kwargs": self.chat_template_kwargs} if self.chat_template_kwargs else {}
        return {"messages": self.messages, "tools": self.tools, **switches}

    @model_validator(mode="after")
    def _ends_with_a_reply(self) -> Self:
        if self.messages[-1].get("role") != "assistant":
            raise ValueError("the last message is not the assistant's: it is what is learnt")
        return self


def read(path: Path, only: Only = "all") -> list[Trajectory]:
    """The conversations of a file, all or those of one side.

    Raises InputError naming the line that is none, or where none is left.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), mend="give a JSONL file") from None
    found = [_line(text, f"{path} line {number}") for number, text in enumerate(lines, 1) if text.strip()]
    kept = [one for one in found if only == "all" or one.should_call == (only == "tool")]
    if not kept:
        told = "holds no conversation" if not found else f"holds no {only} prompt"
        raise InputError(told, where=str(path), mend="give one conversation a line")
    return kept


def _line(text: str, where: str) -> Trajectory:
    mend = "mend the line; docs/training.md has the schema"
    try:
        return Trajectory.model_validate(json.loads(text))
    except ValidationError as error:
        raise InputError(explain(error, Trajectory), where=where, mend=mend) from None
    except ValueError as error:
        raise InputError(f"is no JSON ({error})", where=where, mend=mend) from None


def write(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Write a file that `read` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(one.model_dump(exclude_none=True), ensure_ascii=False) for one in trajectories)
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
