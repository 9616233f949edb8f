"""Decisions that a bias turns: what a reader wants to see before trusting a number."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.calibrate.generation import OFF
from bench.calibrate.margins import Measured
from bench.decisions.example import question

Json = dict[str, Any]

MOST = 8
"""Shown of each kind: calls that stop or begin, due or not."""


def flips(test: Measured, b: float, replies: Mapping[str, Json]) -> list[Json]:
    """Greedy first-token decisions that b turns, the farthest from their edge first, with both replies.

    replies: records of whole replies by `arm/id`, as far as they were made.
    """
    before, after = (test.entries(bias, "greedy").astype(bool) for bias in (0.0, b))
    shown, kinds = [], Counter[tuple[bool, bool]]()
    for number in np.argsort(-np.abs(test.gap)).tolist():
        example, opens = test.examples[number], bool(after[number])
        if before[number] == opens or kinds[example.should_call, opens] == MOST:
            continue
        kinds[example.should_call, opens] += 1
        shown.append(
            {
                "id": example.id,
                "source": example.source,
                "should_call": example.should_call,
                "opens_call": opens,
                "gap": float(test.gap[number]),
                "question": question(example.request),
                "gold": [call["name"] for call in example.gold],
                "off": _said(replies.get(f"{OFF}/{example.id}")),
                "chosen": _said(replies.get(f"b = {b:g}/{example.id}")),
            }
        )
    return shown


def _said(reply: Json | None) -> str | None:
    """A reply on one line; None where none was made."""
    if reply is None or reply["status"] != 200:
        return None
    calls = [f"{call['name']}({call['arguments']})" for call in reply["calls"]]
    return " ".join(" ".join([*calls, reply["text"]]).split())
