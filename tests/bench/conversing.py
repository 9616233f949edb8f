"""A stand-in for all models of a tau2-bench run, and tau2's own tasks to make its lines from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.playing import Json, Model, completion

STOP = "###STOP###"
"""What upstream's user simulator says to end a conversation."""
YES = "Yes, please."
MALFORMED = "a call whose arguments are cut"


@dataclass
class Cast(Model):
    """The agent that `plays` by the user's first line, the user behind upstream's simulator, and the judge.

    The judge takes a write for confirmed where the user has said `YES`.
    """

    lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What the user says, by the reason for the call in the task's scenario."""
    simulated: list[dict[str, str]] = field(default_factory=list)
    """The headers of every request of the user simulator."""

    def answer(self, body: Json, headers: Mapping[str, str]) -> tuple[int, Json]:
        """Status and body for a request to any of them."""
        first = body["messages"][0]
        if first["role"] == "user":
            return 200, _completion({"content": json.dumps({"confirmed": YES in first["content"]})})
        system = " ".join(first["content"].split())
        if system.startswith("# User Simulation Guidelines"):
            self.simulated.append({name.lower(): value for name, value in headers.items()})
            if self.gone:
                return 503, {"error": {"message": "nobody is here"}}
            (lines,) = (own for reason, own in self.lines.items() if reason in system)
            said = sum(each["role"] == "assistant" for each in body["messages"])
            return 200, _completion({"content": lines[said]})
        status, document = super().answer(body, headers)
        if status == 200 and document["choices"][0]["message"]["content"] == MALFORMED:
            function = {"name": "transfer_to_human_agents", "arguments": '{"summary": '}
            return 200, _completion({"tool_calls": [{"id": "c", "type": "function", "function": function}]})
        return status, document


def _completion(message: Json) -> Json:
    # Of another length than the agent's, which alone the dry pass tells.
    return completion({"role": "assistant", "content": None, **message}, "stop", prompt_tokens=1300)


class Tau2:
    """A domain's tasks, read from tau2's environment."""

    def __init__(self, site: Path, domain: str) -> None:
        file = site / "tau2" / "data" / "tau2" / "domains" / domain / "tasks.json"
        self._tasks = {task["id"]: task for task in json.loads(file.read_bytes())}

    def reason(self, id: str) -> str:
        """Why the user of a task calls, on one line."""
        return " ".join(self._tasks[id]["user_scenario"]["instructions"]["reason_for_call"].split())

    def gold(self, id: str) -> list[str]:
        """The reference actions of a task as calls."""
        actions = self._tasks[id]["evaluation_criteria"]["actions"]
        return [f"{action['name']}({_written(action['arguments'])})" for action in actions]


def _written(arguments: Json) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
