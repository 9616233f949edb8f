"""One labelled decision: a chat request, and whether a call is due in the reply to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from calibrators.actions import Action
from calibrators.margin import Margin

Json = dict[str, Any]
Split = Literal["validation", "test"]


@dataclass(frozen=True, slots=True)
class Example:
    """One decision.

    Attributes:
        id: unique in a run.
        source: the set or category it is from; figures are given for each source too.
        group: the source conversation: the unit of splits and of intervals.
        should_call: whether a call is due.
        request: the members of `REQUEST_FIELDS`; empty where only a log's reading is known.
        action: the gold action class; None where the set says only that no call is due.
        gold: the calls that are due, as `{"name", "arguments"}`; empty where unknown.
        split: where the set itself says so.
        read: the margin, where a decision log has it already.
    """

    id: str
    source: str
    group: str
    should_call: bool
    request: Mapping[str, Any] = field(default_factory=dict)
    action: Action | None = None
    gold: Sequence[Json] = ()
    split: Split | None = None
    read: Margin | None = None

    def row(self) -> Json:
        """The example as a line of a JSONL file, which `bench calibrate --requests` reads again."""
        return {
            "id": self.id,
            "source": self.source,
            "group": self.group,
            "should_call": self.should_call,
            "action": self.action,
            "gold": list(self.gold),
            "split": self.split,
            **self.request,
        }


def question(request: Mapping[str, Any]) -> str:
    """The last user message's text, on one line; "" where there is none."""
    for message in reversed(request.get("messages") or ()):
        if message.get("role") == "user":
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            return " ".join(" ".join(str(part.get("text") or "") for part in parts).split())
    return ""
