"""Run folders made by hand, as the commands leave them, for comparisons."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.runs import DataFile, Manifest, Plan, Session

Json = dict[str, Any]


def folder(
    path: Path,
    command: str,
    result: Json,
    lines: Mapping[str, Iterable[Json]],
    state: str = "done",
    **plan: Any,
) -> Path:
    """A run folder: manifest, result and JSONL files."""
    path.mkdir(parents=True)
    session = Session(started=datetime.now(UTC), versions={"seam": "0"}, git=None)
    made = Plan(command=command, arguments={"fields": {}}, seed=0, **plan)
    manifest = Manifest.model_validate({"state": state, "plan": made, "sessions": [session]})
    (path / "run.json").write_text(manifest.model_dump_json())
    (path / "result.json").write_text(json.dumps(result))
    for name, rows in lines.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def decision(number: int, due: bool, gap: float | None, *, split: str = "test", **more: Any) -> Json:
    """A line of examples.jsonl whose margin is its gap; None for one that could not be measured."""
    read = {"unmeasurable": "no log-probabilities"} if gap is None else {"margin": gap, "gap": gap}
    messages = [{"role": "user", "content": f"Question {number}."}]
    return {
        "id": f"q{number}",
        "source": "made",
        "group": f"c{number}",
        "should_call": due,
        "action": None,
        "gold": [],
        "split": split,
        "messages": messages,
        **read,
        **more,
    }


def reply(arm: str, number: int, calls: bool | None, *, status: int = 200, tokens: int = 3) -> Json:
    """A line of replies.jsonl; calls None: a reply without a class."""
    action = None if calls is None else ("tool_call" if calls else "other")
    said: Json = {"action": action, "text": "", "calls": [], "delayed": False, "valid": bool(calls)}
    said |= {"right_tool": False, "completion_tokens": tokens, "queries": 1}
    fault = {"fault": "too long"} if status != 200 else said
    return {"key": f"{arm}/q{number}", "arm": arm, "id": f"q{number}", "status": status, **fault}


def calibration(
    path: Path,
    rows: Sequence[Json],
    replies: Sequence[Json] = (),
    *,
    bias: float = -1.0,
    decoding: str = "greedy",
    exploratory: bool = False,
    digest: str = "a",
    state: str = "done",
    contextual: Json | None = None,
) -> Path:
    """The folder of a `bench calibrate` run."""
    result = {
        "model": "m",
        "server": {"kind": "vllm", "version": "0.32.0", "processor": None},
        "fingerprint": "f",
        "objective": {"spec": "risk:1"},
        "decoding": decoding,
        "scope": "decision",
        "apply": "auto",
        "choice": {"bias": bias},
        "contextual": contextual or {"fitted": None, "reason": "no feature differs", "offered": False},
        "exploratory": exploratory,
        "generation": {"sampling": {"temperature": 0}} if replies else None,
    }
    data = {"d.jsonl": DataFile(sha256=digest * 64, size=1)}
    lines = {"examples": rows, "replies": replies}
    return folder(path, "calibrate", result, lines, state, data=data)


def bfcl_case(
    model: str, category: str, entry: int, hit: bool | None, passed: bool | None, **more: Any
) -> Json:
    """A record of `bench score bfcl`."""
    id = f"multi_turn_{category}_{entry}"
    outcome = {"hit": hit, "hit_published": hit, "hit_at_gold_turn": None, "passed": passed}
    where = {"model": model, "category": f"multi_turn_{category}", "id": id}
    return {"key": f"{model}/{id}", **where, "emissions": [], **outcome, **more}


def bfcl_run(
    path: Path, records: Sequence[Json], *, command: str = "score bfcl", cues: str = "seam", **plan: Any
) -> Path:
    """The folder of a `bench score bfcl` or `bench run bfcl`."""
    return folder(path, command, {"cues": cues, "models": []}, {"records": records}, **plan)


def tau2_run(path: Path, records: Sequence[Json], *, domain: str = "airline") -> Path:
    """The folder of a `bench score tau2` of one run, `r`."""
    run = {"run": "r", "domain": domain, "agent": "a", "trials": 2, "warnings": []}
    return folder(path, "score tau2", {"cues": "seam", "runs": [run]}, {"records": records})


def tau2_trial(
    task: str, trial: int, passed: bool | None, hits: Mapping[str, bool], state: str = "scored"
) -> Json:
    """A record of `bench score tau2`."""
    scored = state == "scored"
    return {
        "key": f"r/{task}/{trial}",
        "run": "r",
        "task": task,
        "trial": trial,
        "state": state,
        "hits": {label: hit if scored else None for label, hit in hits.items()},
        "passed": passed if scored else None,
    }
