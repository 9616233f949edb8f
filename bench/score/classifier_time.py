"""What the action classifier costs: on replies of 1,000 characters, and on hostile text of growing length."""

import random
import time
from collections.abc import Sequence
from statistics import mean
from typing import Any, Final

from calibrators.actions import Cues, text_action

Json = dict[str, Any]

LENGTH: Final = 1_000
_REPLIES: Final = 60
_TRIES: Final = 150
_HOSTILE: Final = 16_000
"""Characters of the shorter of two hostile texts; the longer has twice as many."""
_UNITS: Final = (
    "a", " ", "?", "? ", ". ", "\n", "\n|", "\n> ", "#", "*", '"', ' "', "'", " '", "`", "```", "(", "「", "http://",
    "i ", "i can't ", "i don't have ", "i'm not ", "could you ", "please ", "let me know if ", "if you ",
    "the tools ", "no ", "has been ", "sorry , ", "unfortunately ", "what is ", "would you like ", "ably ",
    "我", "。", "？", "no puedo ", "ich kann ", "{", '{"a":', "[f(",
)  # fmt: skip


def classifier_time(texts: Sequence[str], cues: Cues, seed: int) -> Json:
    """Microseconds a reply, each the best of several tries, and the worst growth when hostile text doubles.

    The replies are the texts in a drawn order, joined and cut to 1,000 characters. A ratio of 2 is linear.
    """
    joined = [_reply(texts, random.Random(f"{seed}/{number}")) for number in range(_REPLIES)]
    micros = [_seconds(reply, cues, _TRIES) * 1e6 for reply in joined]
    growth = {unit: _growth(unit, cues) for unit in _UNITS}
    worst = max(growth, key=lambda unit: growth[unit])
    return {
        "characters": LENGTH,
        "replies": len(joined),
        "microseconds_mean": mean(micros),
        "microseconds_max": max(micros),
        "doubling_ratio_worst": growth[worst],
        "doubling_ratio_of": worst,
    }


def _reply(texts: Sequence[str], draw: random.Random) -> str:
    reply = ""
    while len(reply) < LENGTH:
        reply += draw.choice(texts) + " "
    return reply[:LENGTH]


def _growth(unit: str, cues: Cues) -> float:
    once, twice = (unit * (length // len(unit)) for length in (_HOSTILE, 2 * _HOSTILE))
    return _seconds(twice, cues, 9) / _seconds(once, cues, 9)


def _seconds(text: str, cues: Cues, tries: int) -> float:
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        text_action(text, cues)
        best = min(best, time.perf_counter() - start)
    return best
