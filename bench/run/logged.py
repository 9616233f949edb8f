"""What the decision log tells of a run's cases: which calibration was applied, and what they cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.score.lines import Row

Json = dict[str, Any]


def calibrations(logged: Mapping[str, Sequence[Row]]) -> Json | None:
    """How many replies had which calibration, by the words of X-Calibration-Applied; null without a log."""
    counts = Counter(str(record.get("applied")) for replies in logged.values() for record in replies)
    return dict(counts.most_common()) if logged else None


def calibrations_text(applied: Mapping[str, Json | None]) -> str:
    """`calibrations` of all arms, a line each."""
    lines = [f"  {arm}: {_words(counts)}" for arm, counts in applied.items()]
    return "\n".join(["calibration of replies", *lines])


def _words(counts: Json | None) -> str:
    if counts is None:
        return "not known, since there is no decision log"
    shown = [f"{count} × {text}" for text, count in list(counts.items())[:4]]
    rest = sum(list(counts.values())[4:])
    return ", ".join([*shown, *([f"{rest} × others"] if rest else [])])


def cost(records: Sequence[Row]) -> Json:
    """What a case took: upstream queries, their tokens, and seconds; null where the log doesn't have it."""
    if not records:
        return dict.fromkeys(("replies", "queries", "prompt_tokens", "completion_tokens", "seconds"))
    queries = [query for record in records for query in record["queries"]]
    return {
        "replies": len(records),
        "queries": len(queries),
        "prompt_tokens": sum(query.get("prompt_tokens") or 0 for query in queries),
        "completion_tokens": sum(query.get("completion_tokens") or 0 for query in queries),
        "seconds": round(sum(record["ms"]["upstream"] + record["ms"]["own"] for record in records) / 1000, 3),
    }
