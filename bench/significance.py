"""Tests of paired differences, many looks, and what a run can show before it is made.

rigor.md points 1, 4, 5; calibration.md section 2: McNemar's exact test per category, a sign-flip
test by scenario over pooled categories, Holm over the family of printed claims.
"""

from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import comb, exp, lgamma, log
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

ALPHA = 0.05
DRAWS = 10_000
# 2 * 0.5**5 = 0.0625: with fewer discordant pairs the exact test cannot reach 0.05.
MIN_DISCORDANT = 6
# Above this total the exact sign-flip distribution would take seconds; outcomes of 0 and 1 stay below.
_EXACT_REACH = 20_000


class PairedTest(NamedTuple):
    """A two-sided test of no difference between two arms; `_asdict()` is its JSON form."""

    p: float
    """Two-sided p value."""
    gained: int
    """Units (pairs, or clusters) where the second arm is above the first."""
    lost: int
    """Units where it is below."""
    method: str
    """Which test."""
    n: int
    """Units compared, concordant ones too."""
    reason: str | None = None
    """Why it could not have reached 0.05; None where it could."""


def mcnemar(gained: int, lost: int, n: int) -> PairedTest:
    """McNemar's exact test: are the discordant pairs split as a fair coin would?

    gained, lost: pairs hit only in the second, only in the first arm; n: all pairs, which must be
    independent (one a cluster). Q. McNemar, Psychometrika 12 (1947) 153, with binomial tails in
    place of chi-square. Raises ValueError for a negative count or more discordant pairs than n.
    """
    if min(gained, lost) < 0 or gained + lost > n:
        raise ValueError(f"{gained} gained and {lost} lost in {n} pairs")
    discordant = gained + lost
    p = min(1.0, 2 * _fair_tail(max(gained, lost), discordant))
    return PairedTest(p, gained, lost, "exact McNemar", n, _unreachable(discordant))


def sign_flip(differences: ArrayLike, clusters: Sequence[Hashable], *, seed: int = 0) -> PairedTest:
    """Sign-flip test that the pooled difference is zero, by cluster.

    differences: (n,), second - first of each case; clusters: one label a case. Under no difference
    the arms of a whole cluster may be exchanged, so the sum over clusters of their summed
    differences is compared with all its sign patterns: exactly where the sums are small whole
    numbers (outcomes of 0 and 1), else by 10,000 seeded patterns, p = (1 + as extreme) / (1 + draws).
    With one pair a cluster this is McNemar's exact test. Raises ValueError on unequal lengths.
    """
    values = np.asarray(differences, float)
    if len(values) != len(clusters):
        raise ValueError(f"{len(clusters)} cluster labels for {len(values)} cases")
    pooled: dict[Hashable, list[float]] = {}
    for label, value in zip(clusters, values.tolist(), strict=True):
        pooled.setdefault(label, []).append(value)
    # Sorted twice, so that neither sums nor draws depend on the order of the cases.
    sums = np.array(sorted(sum(sorted(cases)) for cases in pooled.values()))
    moved = sums[sums != 0]
    exact = bool(np.all(moved == np.round(moved))) and np.abs(moved).sum() <= _EXACT_REACH
    p = _exact_flips(moved.astype(np.int64)) if exact else _drawn_flips(moved, seed)
    method = "exact sign flip" if exact else "sign flip"
    gained, lost = int(np.sum(moved > 0)), int(np.sum(moved < 0))
    return PairedTest(p, gained, lost, method, len(sums), _unreachable(len(moved)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given.

    S. Holm, Scand. J. Stat. 6 (1979) 65: the i-th smallest of m times m - i + 1, never below the
    one before it, at most 1. A claim holds at level a if its adjusted p is at most a.
    """
    m = len(p_values)
    adjusted = [0.0] * m
    floor = 0.0
    for rank, i in enumerate(sorted(range(m), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, (m - rank) * p_values[i]))
        adjusted[i] = floor
    return adjusted


def power(difference: float, discordance: float, n: int, alpha: float = ALPHA) -> float:
    """The chance that McNemar's exact test on n pairs finds a paired difference.

    difference: rate of the second arm minus the first, in absolute value; discordance: share of
    pairs that differ at all. Exact: sums over the number of discordant pairs, and over how they
    split. Raises ValueError unless 0 <= difference <= discordance <= 1.
    """
    if not 0 <= difference <= discordance <= 1:
        raise ValueError(f"difference {difference} with discordance {discordance}")
    if discordance == 0:
        return 0.0
    share = (1 + difference / discordance) / 2
    found = 0.0
    for discordant in range(n + 1):
        chance = _binomial(discordant, n, discordance)
        # Terms this small add up to less than 1e-9 over any n in reach.
        if chance > 1e-13 and (needed := _critical(discordant, alpha)) is not None:
            upper = _binomial_tail(needed, discordant, share)
            lower = _binomial_tail(needed, discordant, 1 - share)
            found += chance * (upper + lower)
    return found


def smallest_detectable(
    discordance: float, n: int, *, wanted: float = 0.8, alpha: float = ALPHA
) -> float | None:
    """The smallest paired difference that n pairs show with power `wanted`; None if they can't.

    discordance: the share of pairs expected to differ, from a pilot or the noise floor. The
    difference is in rates (0.044 is 4.4 points); it can't exceed the discordance. n counts
    independent pairs: clusters where cases share one.
    """
    if power(discordance, discordance, n, alpha) < wanted:
        return None
    low, high = 0.0, discordance
    while high - low > 1e-5:
        middle = (low + high) / 2
        if power(middle, discordance, n, alpha) < wanted:
            low = middle
        else:
            high = middle
    return high


def _exact_flips(sums: NDArray[np.int64]) -> float:
    """Share of sign patterns with a total at least as far from 0: one convolution a cluster."""
    reach = int(np.abs(sums).sum())
    # totals[i]: chance of the total i - reach.
    totals = np.zeros(2 * reach + 1)
    totals[reach] = 1.0
    for step in np.abs(sums).tolist():
        up, down = np.zeros_like(totals), np.zeros_like(totals)
        up[step:], down[:-step] = totals[:-step], totals[step:]
        totals = (up + down) / 2
    distance = np.abs(np.arange(-reach, reach + 1))
    return min(1.0, float(totals[distance >= abs(int(sums.sum()))].sum()))


def _drawn_flips(sums: NDArray[np.float64], seed: int) -> float:
    generator = np.random.default_rng(seed)
    observed = abs(sums.sum())
    extreme = 0
    for _ in range(DRAWS // 100):
        signs = generator.integers(0, 2, size=(100, len(sums))) * 2 - 1
        # A pattern equal to the data's own must count, whatever the rounding.
        extreme += int(np.sum(np.abs(signs @ sums) >= observed * (1 - 1e-12)))
    return (1 + extreme) / (1 + DRAWS)


@lru_cache(maxsize=4096)
def _critical(discordant: int, alpha: float) -> int | None:
    """The smallest majority of the discordant pairs that rejects; None where none does."""
    if 2 * 0.5**discordant > alpha:
        return None
    majority, tail = discordant, 0.5**discordant
    while 2 * (tail + _binomial(majority - 1, discordant, 0.5)) <= alpha:
        majority -= 1
        tail += _binomial(majority, discordant, 0.5)
    return majority


def _fair_tail(hits: int, n: int) -> float:
    """P(X >= hits) of n fair coins, exact in whole numbers."""
    ways: int = sum(comb(n, i) for i in range(hits, n + 1))
    return ways / (1 << n)


def _binomial(hits: int, n: int, p: float) -> float:
    if p in (0.0, 1.0):
        return float(hits == n * p)
    choose = lgamma(n + 1) - lgamma(hits + 1) - lgamma(n - hits + 1)
    return exp(choose + hits * log(p) + (n - hits) * log(1 - p))


def _binomial_tail(hits: int, n: int, p: float) -> float:
    """P(X >= hits), summed from the smallest term."""
    return sum(_binomial(i, n, p) for i in range(n, hits - 1, -1))


def _unreachable(discordant: int) -> str | None:
    if discordant >= MIN_DISCORDANT:
        return None
    return f"{discordant} discordant: fewer than {MIN_DISCORDANT} cannot reach 0.05"
