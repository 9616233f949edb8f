"""In which order arms and cases run, so that drift of the server hits all arms alike."""

from collections.abc import Sequence
from typing import Final, NamedTuple

DRY: Final = 5
"""Cases of the dry pass."""
BLOCK: Final = 20
"""Cases that all arms go through before the next ones begin."""


class Round(NamedTuple):
    """Cases that one arm goes through before another has its turn."""

    arm: str
    cases: list[str]


def rounds(order: Sequence[str], arms: Sequence[str]) -> list[Round]:
    """All rounds: the dry pass of each arm, then blocks of cases, or the rest at once for a single arm.

    order: the cases as they are to come, so that a run that is cut short has whole scenarios. The arm that
    begins moves on from block to block: none is always the first to meet a prompt that the server then has in
    its cache, or a machine that has cooled down.
    """
    rest = order[DRY:]
    size = BLOCK if len(arms) > 1 else max(1, len(rest))
    blocks = [order[:DRY], *(rest[at : at + size] for at in range(0, len(rest), size))]
    return [
        Round(arm, list(block))
        for number, block in enumerate(blocks)
        for arm in (*arms[number % len(arms) :], *arms[: number % len(arms)])
    ]


def dry_cases(order: Sequence[str], arms: Sequence[str]) -> set[tuple[str, str]]:
    """(arm, case) of the dry pass."""
    return {(arm, case) for arm in arms for case in order[:DRY]}
