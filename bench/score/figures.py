"""The parts that every scorer's figures are made of.

A figure is null where it cannot be measured, and `NAME_reason` beside it says why. A rate is
`{hits, of, estimate, low, high, method, n, clusters, reason, level}`: `of` is what it was measured on, and
the five counts of its group say what became of the rest.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from bench.intervals import paired_difference, rate

Json = dict[str, Any]


class Counts(NamedTuple):
    """What became of the cases behind a figure; `run` is the sum of the last three."""

    planned: int
    """Cases of the benchmark (or of --limit)."""
    run: int
    """Cases in the files."""
    scored: int
    """Cases that the figure rests on."""
    errored: int
    """Cases that the harness gave up: left out, never a miss."""
    unmeasurable: int
    """Cases that ran, and whose files do not hold what the figure needs."""


def missing(name: str, reason: str) -> Json:
    """A figure that cannot be measured."""
    return {name: None, f"{name}_reason": reason}


def share(
    name: str,
    outcomes: Sequence[bool],
    clusters: Sequence[Hashable],
    seed: int,
    reason: str = "no case was scored",
) -> Json:
    """A rate over cases with its interval; null with the reason where there is no case."""
    if not outcomes:
        return missing(name, reason)
    estimate = rate([float(outcome) for outcome in outcomes], clusters, seed=seed)
    return {name: {"hits": sum(outcomes), "of": len(outcomes), **estimate._asdict()}}


def agreement(pairs: Sequence[tuple[bool, bool]], clusters: Sequence[Hashable], seed: int) -> Json:
    """Recall against accuracy on the same cases: the 2x2 of (gold class emitted, passed), masking and slack.

    difference: GAR - Acc, the papers' printed delta, with its paired interval. Masking is Acc - GAR where
    that is positive (the grader passed cases whose class was wrong), slack GAR - Acc where that is.
    """
    hit, passed = [int(pair[0]) for pair in pairs], [int(pair[1]) for pair in pairs]
    difference = paired_difference(passed, hit, clusters, seed=seed)
    assert difference.estimate is not None
    return {
        "crosstab": {
            "hit_passed": sum(pair == (True, True) for pair in pairs),
            "hit_failed": sum(pair == (True, False) for pair in pairs),
            "miss_passed": sum(pair == (False, True) for pair in pairs),
            "miss_failed": sum(pair == (False, False) for pair in pairs),
        },
        "difference": difference._asdict(),
        "masking": max(0.0, -difference.estimate),
        "slack": max(0.0, difference.estimate),
    }


def no_agreement(reason: str) -> Json:
    """`agreement` where recall and accuracy are not known of the same cases."""
    figures: Json = {}
    for name in ("crosstab", "difference", "masking", "slack"):
        figures |= missing(name, reason)
    return figures
