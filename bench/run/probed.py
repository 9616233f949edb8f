"""What probes did to the replies of a run, from its decision log.

A proxy can't keep a reply that a probe took back in a benchmark's result files: these hold what was served.
The log has the class of both, so that recall is known of the reply before a probe and of either reply.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.score.decision_log import last_attempts
from bench.score.lines import Row
from calibrators.actions import Action

Json = dict[str, Any]


def before(record: Row) -> Action | None:
    """The class of a reply as it was before any probe; None where it has none."""
    looks = record["probes"]
    name = looks[0]["action_before"] if looks else record.get("action")
    return Action(name) if name else None


def either(record: Row) -> frozenset[Action]:
    """The classes of the reply that was served and of those that were taken back for it."""
    names = [record.get("action"), *(look["action_before"] for look in record["probes"])]
    return frozenset(Action(name) for name in names if name)


def by_turn(records: Iterable[Row]) -> list[list[Action | None]]:
    """The classes before any probe, by turn as the emissions of a case are."""
    turns: dict[int, list[Action | None]] = {}
    for record in records:
        turns.setdefault(record["turn"], []).append(before(record))
    return list(turns.values())


def hits(records: Sequence[Row], gold: Action) -> Json:
    """Whether the gold class is among a case's replies before probes, and among either; null: no log."""
    if not records:
        return {"hit_before": None, "hit_either": None}
    return {
        "hit_before": any(before(record) is gold for record in records),
        "hit_either": any(gold in either(record) for record in records),
    }


def looks(logged: Mapping[str, Sequence[Row]]) -> Json:
    """`{replies, outcomes, moved}` of an arm: how often each probe looked and what came of it.

    outcomes: by probe and outcome; moved: by `ask → tool_call`, the replies whose class a probe changed.
    """
    outcomes: dict[str, Counter[str]] = {}
    moved: Counter[str] = Counter()
    replies = [record for records in logged.values() for record in records]
    for record in replies:
        for look in record["probes"]:
            outcomes.setdefault(look["probe"], Counter())[look["outcome"]] += 1
        first, last = before(record), record.get("action")
        if record["probes"] and first != last:
            moved[f"{first or 'none'} → {last or 'none'}"] += 1
    return {
        "replies": len(replies),
        "outcomes": {probe: dict(counts.most_common()) for probe, counts in outcomes.items()},
        "moved": dict(moved.most_common()),
    }


def looks_of(logs: Sequence[Path], arms: Iterable[str]) -> dict[str, Json | None]:
    """`looks` by arm; null where the decision logs have nothing of it."""
    every = last_attempts(logs)
    return {arm: looks(every[arm]) if arm in every else None for arm in arms}


def probes_text(probes: Mapping[str, Json | None]) -> str:
    """`looks` of all arms, one line an arm; empty where no probe looked."""
    lines = []
    for arm, told in probes.items():
        for probe, outcomes in (told or {}).get("outcomes", {}).items():
            came = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in outcomes.items())
            moved = ", ".join(f"{count} × {each}" for each, count in told["moved"].items()) if told else ""
            lines.append(f"  {arm}: {probe} {came}{f'; {moved}' if moved else ''}")
    return "\n".join(["what probes did", *lines]) if lines else ""
