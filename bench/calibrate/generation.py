"""Full generation: whole replies on the test split, through the proxy, without and with calibration.

Where the first token decides, E1 figures say all; where calls come late, break, or name a wrong tool, only
whole replies do. Replies are greedy. `off` is asked twice: how often it disagrees with itself is the noise
floor, below which no difference is a finding.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bench.calibrate.asking import Answer, Asking
from bench.calibrate.figures import adjusted, paired
from bench.calibrate.margins import Floats, Measured
from bench.decisions.example import Example
from bench.errors import CheckFailed
from bench.intervals import cluster_bootstrap, cluster_ratios
from bench.progress import Advance
from bench.runs import RecordFile
from bench.score.emissions import violates
from calibrators.actions import Action, Cues, reply_action
from calibrators.drift import NONE, Seen, Window, kind_of
from calibrators.reply import Call, Reply
from calibrators.request import case_of, tools_of

Json = dict[str, Any]
Calibration = str | Json
"""What a request's `calibration` field says."""

OFF, AGAIN = "off", "off again"
GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0}


async def generate(
    asking: Asking,
    model: str,
    examples: Sequence[Example],
    arms: Mapping[str, Calibration],
    fields: Mapping[str, Any],
    records: RecordFile,
    advance: Advance,
) -> None:
    """Write one reply for each arm and example that has none yet, arms taking turns.

    fields: added to every request, the sampling among them.
    Raises CheckFailed where the proxy refuses an arm or can't apply it, by the first example;
    ServerUnreachable where it stops answering.
    """

    async def one(task: tuple[str, Example]) -> None:
        arm, example = task
        body = {"model": model, **example.request, **fields, "calibration": arms[arm]}
        answer = await asking.chat(json.dumps(body, ensure_ascii=False))
        records.append(f"{arm}/{example.id}", {"arm": arm, "id": example.id, **replied(answer, example)})
        advance(note=f"{int(asking.pace.limit)} at once")

    tasks = [(arm, example) for example in examples for arm in arms]
    missing = [task for task in tasks if f"{task[0]}/{task[1].id}" not in records]
    # One example under each arm first: a bad arm is told before hours of replies.
    dry = [task for task in missing if task[1] is missing[0][1]]
    await asking.each(dry, one)
    if dry:
        _check_arms(dry[0][1], arms, {record["key"]: record for record in records})
    await asking.each(missing[len(dry) :], one)


def _check_arms(example: Example, arms: Iterable[str], records: Mapping[str, Json]) -> None:
    """Raise CheckFailed for an arm that the proxy refuses, or can't apply, where it answers without one."""
    if records[f"{OFF}/{example.id}"]["status"] != 200:
        return
    for arm in arms:
        record = records[f"{arm}/{example.id}"]
        if record["status"] == 400:
            raise CheckFailed(record["fault"], where=f"arm {arm}", mend="see the proxy's words")
        applied = record.get("applied") or ""
        if applied.startswith("none"):
            raise CheckFailed(f"could not be applied: {applied}", where=f"arm {arm}", mend="see `seam check`")


def replied(answer: Answer, example: Example, cues: Cues = Cues.SEAM) -> Json:
    """What a record says of one answer."""
    if answer.fault is not None:
        return {"status": answer.status, "fault": answer.fault}
    reply = Reply(answer.status, ended=True)
    reply.add(answer.document)
    choice, explained = reply.first, answer.document.get("calibration") or {}
    usage = reply.usage or {}
    return {
        "status": 200,
        "action": reply_action(reply, choice, cues),
        "text": choice.content,
        "calls": [{"name": call.name, "arguments": call.arguments} for call in choice.calls],
        "delayed": choice.delayed,
        "valid": bool(choice.calls) and all(_is_valid(call, example) for call in choice.calls),
        "right_tool": bool(choice.calls) and choice.calls[0].name in {gold["name"] for gold in example.gold},
        "finish_reason": choice.finish_reason,
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "applied": explained.get("applied"),
        "queries": explained.get("queries", 1),
        "retries": answer.retries,
    }


def _is_valid(call: Call, example: Example) -> bool:
    """Whether a call names an offered tool and its arguments fit that tool's schema at the top level."""
    functions = (tool.get("function", {}) for tool in tools_of(example.request))
    schemas = {function.get("name"): function.get("parameters") or {} for function in functions}
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return False
    return (
        call.name in schemas and isinstance(arguments, dict) and not violates(schemas[call.name], arguments)
    )


def figures(examples: Sequence[Example], records: Iterable[Json], arms: Sequence[str], seed: int) -> Json:
    """Each arm's figures with intervals and five counts, the differences to `off`, and the noise floor.

    A call that did not parse is a call, and an invalid one. The right tool is judged where calls are due and
    named: the first call's name is among them.
    """
    by_arm: dict[str, dict[str, Json]] = {arm: {} for arm in arms}
    for record in records:
        by_arm.setdefault(record["arm"], {})[record["id"]] = record
    found: Json = {
        "arms": {arm: arm_figures(examples, by_arm[arm], seed) for arm in arms if arm != AGAIN},
        "changes": {
            arm: changes(examples, by_arm[OFF], by_arm[arm], seed) for arm in arms if arm not in (OFF, AGAIN)
        },
        "noise_floor": disagreement(examples, by_arm[OFF], by_arm[AGAIN], seed),
    }
    return found


def arm_figures(examples: Sequence[Example], replies: Mapping[str, Json], seed: int) -> Json:
    """The figures of one arm, from its replies by example id: estimates as dicts, and the five counts."""
    scored = [example for example in examples if is_scored(replies.get(example.id))]
    rows = [(example, replies[example.id]) for example in scored]
    due = np.array([example.should_call for example in scored], float)
    called = np.array([is_call(row) for _, row in rows], float)
    judged = called * np.array([bool(example.gold) for example in scored], float)
    ones = np.ones(len(rows))
    pairs: dict[str, tuple[ArrayLike, ArrayLike]] = {
        "over_calling": (called * (1 - due), 1 - due),
        "call_recall": (called * due, due),
        "delayed_calls": ([float(row["delayed"]) for _, row in rows], ones),
        "valid_calls": ([float(row["valid"]) for _, row in rows], called),
        "right_tool": ([float(row["right_tool"]) for _, row in rows], judged),
    }
    groups = [example.group for example in scored]
    estimates = cluster_ratios(pairs, groups, seed=seed)
    # No rates: a mean of 1 query is no share of 1.
    for name in ("completion_tokens", "queries"):
        told = [(float(row[name]), own) for (_, row), own in zip(rows, groups, strict=True) if row[name]]
        columns = [(value, 1.0) for value, _ in told]
        estimates[name] = cluster_bootstrap(columns, [own for _, own in told], _ratio, seed)
    return {"counts": _counts(examples, replies), **{k: e._asdict() for k, e in estimates.items()}}


def _ratio(sums: Floats) -> Floats:
    return np.asarray(sums[:, 0] / sums[:, 1])


def changes(examples: Sequence[Example], off: Mapping[str, Json], on: Mapping[str, Json], seed: int) -> Json:
    """What an arm changes against another on the same examples: paired, with tests adjusted by Holm."""
    family = {}
    for name, label in (("over_calling", False), ("call_recall", True)):
        both = [
            e for e in examples
            if e.should_call == label and is_scored(off.get(e.id)) and is_scored(on.get(e.id))
        ]  # fmt: skip
        before, after = (np.array([is_call(arm[e.id]) for e in both], float) for arm in (off, on))
        family[name] = paired(before, after, [e.group for e in both], seed)
    return adjusted(family)


def disagreement(
    examples: Sequence[Example], off: Mapping[str, Json], again: Mapping[str, Json], seed: int
) -> Json:
    """How often `off` decides otherwise the second time, and how often it says anything else."""
    both = [e for e in examples if is_scored(off.get(e.id)) and is_scored(again.get(e.id))]
    ones = np.ones(len(both))
    decision = [float(is_call(off[e.id]) != is_call(again[e.id])) for e in both]
    wording = [float(_words(off[e.id]) != _words(again[e.id])) for e in both]
    pairs = {"decision": (decision, ones), "wording": (wording, ones)}
    found = cluster_ratios(pairs, [e.group for e in both], seed=seed)
    return {name: estimate._asdict() for name, estimate in found.items()}


def _counts(examples: Sequence[Example], replies: Mapping[str, Json]) -> Json:
    """rigor.md's five counts; a reply without a class (empty, or cut before it called) is unmeasurable."""
    run = [replies[e.id] for e in examples if e.id in replies]
    answered = [reply for reply in run if reply["status"] == 200]
    scored = [reply for reply in answered if reply["action"] is not None]
    return {
        "planned": len(examples),
        "run": len(run),
        "scored": len(scored),
        "errored": len(run) - len(answered),
        "unmeasurable": len(answered) - len(scored),
    }


def window(test: Measured, replies: Mapping[str, Json], arm: str) -> Window | None:
    """An arm's replies on the test split, as drift counts them; None where it has none."""
    seen = []
    for example, margin in zip(test.examples, test.margin.tolist(), strict=True):
        reply = replies.get(f"{arm}/{example.id}")
        if reply is not None and reply["status"] == 200:
            kind = kind_of(bool(tools_of(example.request)), case_of(example.request)[1])
            seen.append(Seen(example.group, kind, reply["action"] or NONE, margin))
    return Window.of(seen) if seen else None


def is_scored(reply: Json | None) -> bool:
    """Whether a reply was made and has an action class."""
    return reply is not None and reply["status"] == 200 and reply["action"] is not None


def is_call(reply: Json) -> bool:
    """Whether it calls: a structured call, or a text that is one but did not parse: that is no abstention."""
    return bool(reply["action"] == Action.TOOL_CALL)


def _words(reply: Json) -> str:
    return json.dumps([reply["text"], reply["calls"]])
