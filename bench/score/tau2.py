"""Read the results that tau2-bench writes.

    NAME.json or NAME/results.json             {"info", "tasks", "simulations"} in one file
    NAME/results.json, NAME/simulations/*.json  the same with a file for each simulation, since version 2

A simulation is *scored* when its `reward_info` is an object and it did not fall to infrastructure. One that
did, or that the runner skipped, is errored; one without a reward is unmeasurable.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import yaml

from bench.errors import InputError
from bench.score.emissions import Call, Emission, Offered, Turn, structured, text_calls
from calibrators.actions import Action, Cues, is_call_text, text_labels

Json = Mapping[str, Any]
State = Literal["scored", "errored", "unmeasurable"]

# Where a runner's own failure is written: upstream's reason, and the fields of older and of others' runners.
_FAILURES = ("error", "exception", "traceback", "infrastructure_error", "runtime_error")
_FAILED = ("infrastructure", "runtime_error")

_WRITE_TOOLS_FROM: Final = "calibrators/data/published_cues.yaml (commit 5c9ec3df of the published code)"


class WriteTools(NamedTuple):
    """The tools that write to a domain's database."""

    names: frozenset[str]
    source: str
    """Where that is known from."""


class Message(NamedTuple):
    """One message of a simulation."""

    role: str
    text: str
    """Empty where it has none."""
    calls: tuple[Call, ...]
    """The structured ones."""


class Simulation(NamedTuple):
    """One trial of one task."""

    id: str
    task: str
    trial: int | None
    state: State
    termination: str | None
    reward: float | None
    checks: Sequence[Json] | None
    """The reference actions with whether each was found; None where none were checked."""
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    """The agent's emissions, by what the user said last; its scripted greeting is left out."""

    @property
    def called(self) -> frozenset[str]:
        """Names that the agent called."""
        agent = (message for message in self.messages if message.role == "assistant")
        return frozenset(call.name for message in agent for call in message.calls if call.name)


@dataclass
class Run:
    """One results file or folder."""

    label: str
    path: Path
    files: list[Path]
    domain: str | None
    write_tools: WriteTools | None
    """None where it is not known which tools of the domain write."""
    agent: str | None
    trials: int
    """Planned trials of each task."""
    max_steps: int | None
    tasks: Mapping[str, Json]
    simulations: list[Simulation] = field(default_factory=list)
    duplicates: int = 0
    """Simulations of a task and trial that came again; the last one is kept."""
    lost: int = 0
    """Simulations that the run's index names, and no file holds; they count as unmeasurable."""


def read(paths: Sequence[Path], cues: Cues, limit: int | None) -> list[Run]:
    """The runs under some files and folders.

    limit: only the first tasks of each run. Raises InputError where a path is missing, or holds no results.
    """
    found: dict[Path, Json] = {}
    for path in paths:
        before = len(found)
        found |= dict(_documents(path))
        if len(found) == before:
            raise InputError(
                "no results of tau2", where=str(path), mend="give a results.json, or a folder that holds one"
            )
    return [_run(file, _label(file, found), document, cues, limit) for file, document in found.items()]


def _documents(path: Path) -> Iterator[tuple[Path, Json]]:
    """The results documents that a path names; other JSON files in a folder are passed over."""
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            if not _is_part(file):
                document = _load(file, strict=False)
                if _is_results(document):
                    yield file, document
    elif path.is_file():
        document = _load(path, strict=True)
        if not _is_results(document):
            raise InputError(
                "has no tasks and simulations", where=str(path), mend="give a results file of tau2 run"
            )
        yield path, document
    else:
        raise InputError("no such file or folder", where=str(path), mend="give tau2 results files or folders")


def _is_part(file: Path) -> bool:
    """Whether a file is one simulation of a results folder."""
    return file.parent.name == "simulations" and (file.parent.parent / "results.json").is_file()


def _is_results(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and isinstance(document.get("tasks"), list)
        and (isinstance(document.get("simulations"), list) or "simulation_index" in document)
    )


def _load(file: Path, *, strict: bool) -> Any:
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(file), mend="mend that") from error
    except (ValueError, RecursionError) as error:
        if not strict:
            return None
        raise InputError(
            f"is not whole JSON ({error})",
            where=str(file),
            mend="copy it again, or repeat the same tau2 run, which resumes",
        ) from error


def _label(file: Path, files: Mapping[Path, Json]) -> str:
    def name(each: Path) -> str:
        return each.resolve().parent.name if each.name == "results.json" else each.stem

    return str(file) if sum(name(other) == name(file) for other in files) > 1 else name(file)


def _run(file: Path, label: str, document: Json, cues: Cues, limit: int | None) -> Run:
    info = _object(document.get("info"))
    environment = _object(info.get("environment_info"))
    tasks = {str(task["id"]): task for task in document["tasks"] if isinstance(task, dict) and "id" in task}
    tasks = dict(list(tasks.items())[:limit])
    raw, files, lost = _simulations(file, document)
    kept = [one for one in raw if limit is None or str(one.get("task_id")) in tasks]
    distinct = {_identity(one): one for one in kept}
    trials = info.get("num_trials")
    if not isinstance(trials, int):
        trials = len({one.get("trial") for one in kept}) or 1
    offered = _tools(environment.get("tool_defs"))
    domain = _text(environment.get("domain_name"))
    return Run(
        label=label,
        path=file,
        files=files,
        domain=domain,
        write_tools=_write_tools().get(domain),
        agent=_text(_object(info.get("agent_info")).get("llm")),
        trials=trials,
        max_steps=info.get("max_steps"),
        tasks=tasks,
        simulations=[_simulation(one, offered, cues) for one in distinct.values()],
        duplicates=len(kept) - len(distinct),
        lost=lost,
    )


def _simulations(file: Path, document: Json) -> tuple[list[Json], list[Path], int]:
    """The run's simulations, the files they are in, and how many the index names and no file holds."""
    whole = document.get("simulations")
    if whole:
        return [one for one in whole if isinstance(one, dict)], [file], 0
    parts = sorted((file.parent / "simulations").glob("*.json"))
    found = {part.stem: one for part in parts if isinstance(one := _load(part, strict=False), dict)}
    index = [entry for entry in document.get("simulation_index") or () if isinstance(entry, dict)]
    # The index knows task and trial, so that what its file does not hold can be counted where it belongs.
    lost = [
        {"id": entry.get("id"), "task_id": entry.get("task_id"), "trial": entry.get("trial")}
        for entry in index
        if entry.get("id") not in found
    ]
    return [*found.values(), *lost], [file, *parts], len(lost)


def _identity(one: Json) -> object:
    """Task and trial; runs without trial numbers have their own ids only."""
    if one.get("trial") is None:
        return one.get("id") or id(one)
    return str(one.get("task_id")), one["trial"]


def _simulation(one: Json, offered: Offered | None, cues: Cues) -> Simulation:
    info = one.get("reward_info")
    checks = _object(info).get("action_checks")
    messages = tuple(map(_message, _objects(one.get("messages"))))
    return Simulation(
        id=str(one.get("id")),
        task=str(one.get("task_id")),
        trial=one.get("trial"),
        state=_state(one),
        termination=_text(one.get("termination_reason")),
        reward=_number(_object(info).get("reward")),
        checks=_objects(checks) or None,
        messages=messages,
        turns=_turns(messages, offered, cues),
    )


def _state(one: Json) -> State:
    info = _object(one.get("reward_info"))
    reason = str(one.get("termination_reason") or "").lower()
    if (
        one.get("skipped")
        or any(one.get(name) or info.get(name) for name in _FAILURES)
        or any(word in reason for word in _FAILED)
    ):
        return "errored"
    return "unmeasurable" if _number(info.get("reward")) is None else "scored"


def _message(message: Json) -> Message:
    return Message(str(message.get("role")), _content(message.get("content")), _calls(message))


def _turns(messages: Sequence[Message], offered: Offered | None, cues: Cues) -> tuple[Turn, ...]:
    users = any(message.role == "user" for message in messages)
    turns: list[list[Emission]] = []
    for place, message in enumerate(messages):
        if message.role == "user" and (not turns or turns[-1]):
            turns.append([])  # not where the user only acted with tools of its own in between
        elif message.role == "assistant" and not (place == 0 and users and not message.calls):
            turns = turns or [[]]
            turns[-1].append(_emission(message, offered, cues))
    return tuple(turn for turn in turns if turn)


def _emission(message: Message, offered: Offered | None, cues: Cues) -> Emission:
    text, calls = message.text, message.calls
    called = frozenset({Action.TOOL_CALL} if calls else ())
    actions, published = (text_labels(text, each) | called for each in (cues, Cues.PUBLISHED))
    if not calls and is_call_text(text):
        calls = text_calls(text)
    return Emission(actions, published, calls, text=not calls and bool(text.strip()), offered=offered)


def _calls(message: Json) -> tuple[Call, ...]:
    """The structured calls of a message, as tau2 writes them or as OpenAI's API does."""
    functions = [_object(call.get("function")) or call for call in _objects(message.get("tool_calls"))]
    return tuple(structured(function.get("name"), function.get("arguments")) for function in functions)


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_text(part.get("text")) or "" for part in _objects(content))
    return _text(content) or ""


def _tools(definitions: Any) -> Offered | None:
    if not isinstance(definitions, dict):
        return None
    return {
        name: _object(signature).get("params") if isinstance(signature, dict) else None
        for name, signature in definitions.items()
    }


@cache
def _write_tools() -> Mapping[str | None, WriteTools]:
    """The published table, by domain."""
    text = resources.files("calibrators").joinpath("data/published_cues.yaml").read_text("utf-8")
    table = yaml.safe_load(text)["tau2"]["write_tools"]
    return {domain: WriteTools(frozenset(names), _WRITE_TOOLS_FROM) for domain, names in table.items()}


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
