"""CONFIRM in tau2 runs (calibration.md section 3): was a write to the database told and approved before it?

tau2's own files don't hold that, and no cue list decides it, so each call of a write tool is one question to
a judge (`bench.score.judge`). Here are the questions and how a reply is read; nothing is asked.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from string import Template
from typing import Final, NamedTuple

import yaml

from bench.score.emissions import Call
from bench.score.tau2 import Message, Run, Simulation

_RESULT_CHARACTERS: Final = 300
"""Shown of a tool's result: whether it was told to the customer does not hang on it."""
_SPEAKERS: Final = {"assistant": "agent", "user": "customer", "tool": "result"}
_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)


class Prompt(NamedTuple):
    """What a judge is asked, with `$dialogue` and `$call` to fill in."""

    version: int
    template: Template


class Write(NamedTuple):
    """One call of a write tool in a scored simulation."""

    simulation: Simulation
    tool: str
    question: str | None
    """The judge's prompt; None where the file lacks words of the user, so that nobody can judge."""


class Verdict(NamedTuple):
    """What a judge's reply says."""

    confirmed: bool | None
    """None where it can't be parsed: that is no verdict, and is never guessed."""
    words: str
    """The reason it gives; where it can't be parsed the reply."""


@cache
def prompt() -> Prompt:
    """The prompt of this version of bench."""
    text = resources.files("bench").joinpath("data/confirm_judge.yaml").read_text("utf-8")
    told = yaml.safe_load(text)
    return Prompt(told["version"], Template(told["prompt"]))


def writes(run: Run) -> list[Write]:
    """The writes of a run's scored simulations, in order; none where it is not known which tools write."""
    names = run.write_tools.names if run.write_tools else frozenset()
    return [write for one in run.simulations if one.state == "scored" for write in _writes(one, names)]


def _writes(one: Simulation, names: frozenset[str]) -> Iterator[Write]:
    for place, message in enumerate(one.messages):
        if message.role == "assistant":
            for call in message.calls:
                if call.name in names:
                    yield Write(one, call.name, _question(one.messages[:place], call))


def _question(before: tuple[Message, ...], call: Call) -> str | None:
    """The prompt, with all that was said before the message that calls."""
    if any(message.role == "user" and not message.text.strip() and not message.calls for message in before):
        return None
    dialogue = "\n".join(line for message in before for line in _lines(message))
    return prompt().template.substitute(dialogue=dialogue, call=_called(call))


def _lines(message: Message) -> Iterator[str]:
    speaker = _SPEAKERS.get(message.role, message.role)
    text = spoken(message.text)
    if message.role == "tool" and len(text) > _RESULT_CHARACTERS:
        text = f"{text[:_RESULT_CHARACTERS]} [..]"
    if text:
        yield f"{speaker}: {text}"
    for call in message.calls:
        yield f"{speaker} calls: {_called(call)}"


def _called(call: Call) -> str:
    return f"{call.name} {json.dumps(call.arguments, ensure_ascii=False, sort_keys=True)}"


def spoken(text: str) -> str:
    """A text without the reasoning before it, which some servers leave in."""
    return text.rpartition("</think>")[2].strip()


def read_verdict(reply: str) -> Verdict:
    """A judge's reply: a JSON object with `confirmed` true or false, alone or fenced, after any reasoning."""
    text = spoken(reply)
    fenced = _FENCED.fullmatch(text)
    try:
        told = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or not isinstance(told.get("confirmed"), bool):
        return Verdict(None, reply)
    return Verdict(told["confirmed"], str(told.get("because", "")))
