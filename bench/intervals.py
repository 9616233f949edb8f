"""Estimates with their intervals: rates, paired differences, AUC.

Which method when (rigor.md points 2, 3, 8; calibration.md sections 2 and 5):

| figure | method |
| --- | --- |
| rate, one outcome a cluster | Wilson's score interval |
| rate or difference, 50 clusters or more | cluster bootstrap |
| difference, fewer clusters, one binary pair each | Newcombe's paired score interval |
| anything else | no interval, and the reason |

A *cluster* is the sampling unit: the scenario for BFCL, the task for tau2, the source conversation
for single-turn sets. Cases of one cluster are not independent. Values are never NaN: what could not
be measured is left out by the caller, from both arms of a comparison, and counted.

All intervals are two-sided. The bootstrap is the percentile one; its draws depend on the seed and
the data alone, in whatever order the cases come. Tests and multiplicity are in `significance`.
"""

from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
DRAWS = 10_000
# Below this the percentile bootstrap covers too little: 90 % at 20 clusters, 57 % at 7 (rigor.md 8).
MIN_BOOTSTRAP_CLUSTERS = 50
# Numbers in a block of draws: small enough for the processor's cache, where it is several times faster.
_BLOCK = 100_000

Floats = NDArray[np.float64]
Labels = Sequence[Hashable]


class Estimate(NamedTuple):
    """A figure with its interval; `_asdict()` is its JSON form."""

    estimate: float | None
    """The figure; None where no case was scored."""
    low: float | None
    """Lower limit; None where there is no interval."""
    high: float | None
    """Upper limit; None where there is no interval."""
    method: str | None
    """How the interval was made; None where there is none."""
    n: int
    """Cases that the figure rests on."""
    clusters: int
    """Independent units among them; n where each case is its own."""
    reason: str | None = None
    """Why a part is missing; None where nothing is."""
    level: float = LEVEL
    """Nominal coverage."""


def wilson(hits: int, n: int, level: float = LEVEL) -> Estimate:
    """Wilson's score interval for a rate of `hits` in `n` independent cases.

    E. B. Wilson, JASA 22 (1927) 209. Covers 91 to 98.4 % at 95 % nominal, n from 7 to 200, and has
    a width at 0 and at n hits. Raises ValueError unless 0 <= hits <= n.
    """
    if not 0 <= hits <= n:
        raise ValueError(f"{hits} hits in {n} cases")
    if n == 0:
        return Estimate(None, None, None, None, 0, 0, "no case was scored", level)
    low, high = _wilson_limits(hits, n, level)
    return Estimate(hits / n, low, high, "wilson", n, n, level=level)


def newcombe(both: int, gained: int, lost: int, neither: int, level: float = LEVEL) -> Estimate:
    """Newcombe's score interval for the difference of two paired rates.

    The counts are the 2x2 of outcomes: hit in both arms, only in the second (gained), only in the
    first (lost), in neither; the difference is second minus first, (gained - lost) / n.
    R. G. Newcombe, Stat. Med. 17 (1998) 2635, method 10: Wilson's limits of both rates, joined by a
    continuity-corrected phi. Covers 96 to 99.9 % from n = 7 to 200 (rigor.md 8). Raises ValueError
    for a negative count.
    """
    if min(both, gained, lost, neither) < 0:
        raise ValueError("a count is negative")
    n = both + gained + lost + neither
    if n == 0:
        return Estimate(None, None, None, None, 0, 0, "no pair was scored", level)
    first, second = both + lost, both + gained
    rate_1, rate_2 = first / n, second / n
    low_1, high_1 = _wilson_limits(first, n, level)
    low_2, high_2 = _wilson_limits(second, n, level)
    phi = _corrected_phi(both, gained, lost, neither)

    def reach(down: float, up: float) -> float:
        # Rounding may leave a tiny negative where the two cancel at phi = 1.
        return sqrt(max(0.0, down * down - 2 * phi * down * up + up * up))

    difference = rate_2 - rate_1
    return Estimate(
        difference,
        max(-1.0, difference - reach(rate_2 - low_2, high_1 - rate_1)),
        min(1.0, difference + reach(high_2 - rate_2, rate_1 - low_1)),
        "newcombe",
        n,
        n,
        level=level,
    )


def resampled_sums(columns: ArrayLike, clusters: Labels, seed: int, draws: int = DRAWS) -> Floats:
    """Sums of each column over `draws` resamples of the clusters, shape (draws, m).

    columns: (n,) or (n, m), one row a case. Every draw takes as many clusters as there are, with
    replacement, each with all of its cases. Any statistic that is a function of sums follows: a
    rate is sum(hit) / sum(1), balanced accuracy the mean of two such ratios, and a whole curve over
    b has one column a point. Memory: draws x m numbers, so use columns by the hundred and no more.
    """
    per_cluster = _cluster_sums(_columns(columns), clusters)
    return np.vstack([w @ per_cluster for w in _weights(len(per_cluster), seed, draws)])


def cluster_bootstrap(
    columns: ArrayLike,
    clusters: Labels,
    statistic: Callable[[Floats], Floats],
    seed: int,
    *,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> Estimate:
    """Percentile interval of a statistic of column sums, by resampling clusters.

    statistic: maps sums (draws, m) to (draws,); it is applied to the data's own sums for the
    estimate. No interval below 50 clusters, nor where a draw leaves the statistic undefined, nor
    where all draws agree (the data then can't show the spread): each with the reason.

        # Balanced accuracy from four columns: hits and cases of each label.
        cluster_bootstrap(
            columns, conversations, lambda s: (s[:, 0] / s[:, 1] + s[:, 2] / s[:, 3]) / 2, seed
        )
    """
    found = cluster_bootstraps(
        columns, clusters, lambda sums: {"": statistic(sums)}, seed, draws=draws, level=level
    )
    return found[""]


def cluster_bootstraps(
    columns: ArrayLike,
    clusters: Labels,
    statistics: Callable[[Floats], Mapping[str, Floats]],
    seed: int,
    *,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> dict[str, Estimate]:
    """`cluster_bootstrap` of many statistics of the same sums, by name, from one set of draws."""
    table = _columns(columns)
    n, k = len(table), len(set(clusters))

    def none(estimate: float | None, reason: str) -> Estimate:
        return Estimate(estimate, None, None, None, n, k, reason, level)

    with np.errstate(divide="ignore", invalid="ignore"):
        sums = _cluster_sums(table, clusters).sum(axis=0)[None, :] if n else np.zeros((1, table.shape[1]))
        values = {name: float(value[0]) for name, value in statistics(sums).items()}
        enough = k >= MIN_BOOTSTRAP_CLUSTERS
        drawn = statistics(resampled_sums(table, clusters, seed, draws)) if enough else {}
    found = {}
    for name, value in values.items():
        if n == 0:
            found[name] = none(None, "no case was scored")
        elif not np.isfinite(value):
            found[name] = none(None, "undefined on these cases")
        elif not enough:
            found[name] = none(value, _too_few(k))
        else:
            found[name] = _percentiles(value, drawn[name], n, k, level)
    return found


def rate(hits: ArrayLike, clusters: Labels | None = None, *, seed: int = 0, level: float = LEVEL) -> Estimate:
    """A rate with the interval that fits its clusters.

    hits: (n,) of 0 and 1. clusters: one label a case; None where each case is its own. Wilson with
    one case a cluster, the cluster bootstrap from 50 clusters up, else no interval and the reason.
    A rate of 0 or 1 in 50 clusters or more, where a bootstrap has no width, gets Wilson's limits
    with the clusters as cases: wider than any truth of within-cluster agreement needs.
    """
    outcomes = _binary(hits)
    n = len(outcomes)
    k = n if clusters is None else len(set(clusters))
    total = int(outcomes.sum())
    if clusters is None or k == n:
        return wilson(total, n, level)
    if k >= MIN_BOOTSTRAP_CLUSTERS and total in (0, n):
        low, high = _wilson_limits(k if total else 0, k, level)
        return Estimate(total / n, low, high, "wilson over clusters", n, k, level=level)
    return cluster_bootstrap(_with_ones(outcomes), clusters, _ratio, seed, level=level)


def cluster_ratios(
    pairs: Mapping[str, tuple[ArrayLike, ArrayLike]],
    clusters: Labels,
    *,
    means: Container[str] = (),
    seed: int = 0,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> dict[str, Estimate]:
    """Many ratios of sums over the same cases, from one set of draws: a whole table for one bootstrap.

    pairs: by name, numerators and denominators (n,) of each case: its looping turns and its turns, its
    calls and its turns. A case whose denominator is 0 does not count. Intervals as `rate` has them: Wilson
    with one outcome a cluster, the cluster bootstrap from 50 clusters up, Wilson's limits with the
    clusters as cases for a share of 0 or 1, else none and the reason. means: the pairs that are no shares,
    calls of a turn, where a numerator may exceed its denominator; Wilson's limits are not for them.
    """
    names = list(pairs)
    table = _columns(np.column_stack([part for name in names for part in pairs[name]]) if names else [])
    drawn = None
    found = {}
    for i, name in enumerate(names):
        top, bottom = table[:, 2 * i], table[:, 2 * i + 1]
        carriers = {label for label, count in zip(clusters, bottom.tolist(), strict=True) if count}
        n, k = int(np.sum(bottom > 0)), len(carriers)
        if not n:
            found[name] = Estimate(None, None, None, None, 0, 0, "no case was scored", level)
            continue
        value = float(top.sum() / bottom.sum())
        share = name not in means
        if share and k == n and _is_binary(top) and _is_binary(bottom):
            found[name] = wilson(int(top.sum()), n, level)
        elif k < MIN_BOOTSTRAP_CLUSTERS:
            found[name] = Estimate(value, None, None, None, n, k, _too_few(k), level)
        elif share and value in (0.0, 1.0):
            low, high = _wilson_limits(k if value else 0, k, level)
            found[name] = Estimate(value, low, high, "wilson over clusters", n, k, level=level)
        else:
            drawn = resampled_sums(table, clusters, seed, draws) if drawn is None else drawn
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = drawn[:, 2 * i] / drawn[:, 2 * i + 1]
            found[name] = _percentiles(value, ratios, n, k, level)
    return found


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    clusters: Labels | None = None,
    *,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """The mean difference second - first over the same cases, with the interval that fits.

    first, second: (n,), the value of each case in either arm: 0 and 1, or any number (tokens, mean
    over trials). Cluster bootstrap from 50 clusters up; below, Newcombe where each cluster is one
    pair of binary outcomes; else no interval and the reason. Where no pair of 50 clusters or more
    differs, a bootstrap has no width: binary outcomes then get the limits of `no_discordance`.
    """
    one, two = np.asarray(first, float), np.asarray(second, float)
    if one.shape != two.shape:
        raise ValueError(f"{one.shape} values against {two.shape}")
    n = len(one)
    labels: Labels = range(n) if clusters is None else clusters
    k = len(set(labels))
    binary = _is_binary(one) and _is_binary(two)
    if binary and k == n and k < MIN_BOOTSTRAP_CLUSTERS:
        a, b = one.astype(bool), two.astype(bool)
        both, gained, lost = int(np.sum(a & b)), int(np.sum(~a & b)), int(np.sum(a & ~b))
        return newcombe(both, gained, lost, n - both - gained - lost, level)
    if binary and k >= MIN_BOOTSTRAP_CLUSTERS and np.array_equal(one, two):
        return no_discordance(n, k, level)
    return cluster_bootstrap(_with_ones(two - one), labels, _ratio, seed, level=level)


def no_discordance(n: int, clusters: int, level: float = LEVEL) -> Estimate:
    """The interval of a paired binary difference when no pair of any cluster differs.

    A share of clusters below Wilson's upper limit for 0 in `clusters` may still differ, each by at
    most 1 either way, so the difference lies within plus or minus that limit.
    """
    reach = _wilson_limits(0, clusters, level)[1]
    return Estimate(0.0, -reach, reach, "no discordance", n, clusters, level=level)


def auc(
    margins: ArrayLike,
    positive: ArrayLike,
    clusters: Labels | None = None,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> Estimate:
    """Boundary AUC: the chance that a positive's margin exceeds a negative's, ties counting half.

    margins: (n,) real; positive: (n,) of 0 and 1 (should-call). Interval by cluster bootstrap; none
    below 50 clusters, for perfect separation (no draw can show its spread), or where a draw holds
    one class only, since then too few clusters carry the other.
    """
    labels, names = _binary(positive), _names(positive, clusters)
    ranking = _Ranking.of(margins, labels, names)
    return _of_rankings(ranking.auc, labels, len(set(names)), seed, draws, level)


def auc_difference(
    first: ArrayLike,
    second: ArrayLike,
    positive: ArrayLike,
    clusters: Labels | None = None,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> Estimate:
    """The boundary AUC of `second` minus that of `first`: two sets of margins of the same cases.

    As `auc`, with both areas of each draw taken from the same clusters, so that what the cases have in common
    does not widen the interval.
    """
    labels, names = _binary(positive), _names(positive, clusters)
    before, after = (_Ranking.of(scores, labels, names) for scores in (first, second))
    return _of_rankings(lambda w: after.auc(w) - before.auc(w), labels, len(set(names)), seed, draws, level)


def equal_recall_difference(
    hits: ArrayLike,
    first: ArrayLike,
    second: ArrayLike,
    positive: ArrayLike,
    clusters: Labels | None = None,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    level: float = LEVEL,
) -> Estimate:
    """The false-positive rate of a threshold on `second` minus that on `first`, both at the recall of `hits`.

    hits: (n,) of 0 and 1, the decisions that set the recall; first, second: (n,) scores of the same cases, of
    which those above a threshold are positives; positive: (n,) labels. Both thresholds are found anew in each
    draw, so that their choice widens the interval and favours neither; between two scores the ROC is a
    straight line (T. Fawcett, Pattern Recognit. Lett. 27 (2006) 861). As `auc` where there is no interval.
    """
    own, labels, names = _binary(hits), _binary(positive), _names(positive, clusters)
    if own.shape != labels.shape:
        raise ValueError(f"{own.shape} decisions for {labels.shape} labels")
    before, after = (_Ranking.of(scores, labels, names) for scores in (first, second))
    member = _cluster_index(names)

    def change(weights: Floats) -> Floats:
        cases = weights[:, member] * labels
        with np.errstate(divide="ignore", invalid="ignore"):
            recall = (cases * own).sum(axis=1) / cases.sum(axis=1)
        return after.false_rate(weights, recall) - before.false_rate(weights, recall)

    return _of_rankings(change, labels, len(set(names)), seed, draws, level)


def _of_rankings(
    area: Callable[[Floats], Floats], labels: Floats, k: int, seed: int, draws: int, level: float
) -> Estimate:
    """A figure of rankings under cluster weights (draws, k), with its interval by cluster bootstrap."""
    n = len(labels)

    def none(estimate: float | None, reason: str) -> Estimate:
        return Estimate(estimate, None, None, None, n, k, reason, level)

    if not 0 < labels.sum() < n:
        return none(None, "one class only")
    value = float(area(np.ones((1, k)))[0])
    if k < MIN_BOOTSTRAP_CLUSTERS:
        return none(value, _too_few(k))
    drawn = np.concatenate([area(w) for w in _weights(k, seed, draws, n)])
    return _percentiles(value, drawn, n, k, level)


class _Ranking:
    """Cases sorted by score once, so that a weighted AUC takes one cumulative sum."""

    def __init__(self, scores: Floats, labels: Floats, member: NDArray[np.int64]) -> None:
        order = np.argsort(scores, kind="stable")
        ordered = scores[order]
        self._member = member[order]
        self._positive = labels[order]
        # First index of each run of tied scores.
        self._starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])

    @classmethod
    def of(cls, scores: ArrayLike, labels: Floats, clusters: Labels) -> Self:
        """Of one score and one label a case. Raises ValueError where their numbers differ."""
        known = np.asarray(scores, float)
        if known.shape != labels.shape:
            raise ValueError(f"{known.shape} margins for {labels.shape} labels")
        return cls(known, labels, _cluster_index(clusters))

    def auc(self, weights: Floats) -> Floats:
        """AUC under cluster weights (draws, k); NaN for a draw without both classes."""
        cases = weights[:, self._member]
        ups = self._by_score(cases * self._positive)
        downs = self._by_score(cases * (1 - self._positive))
        beaten = np.cumsum(downs, axis=1) - downs / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            share: Floats = (ups * beaten).sum(axis=1) / (ups.sum(axis=1) * downs.sum(axis=1))
        return share

    def false_rate(self, weights: Floats, recall: Floats) -> Floats:
        """The share of negatives above the threshold at which a share `recall` (draws,) of positives is.

        NaN for a draw without both classes.
        """
        cases = weights[:, self._member]
        # From the highest score down, and before it the threshold that nothing is above.
        ups, downs = (
            np.cumsum(np.pad(self._by_score(cases * kind)[:, ::-1], ((0, 0), (1, 0))), axis=1)
            for kind in (self._positive, 1 - self._positive)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            hit, false = ups / ups[:, -1:], downs / downs[:, -1:]
            # The two ends of the piece of the ROC that reaches the recall; rounding must not pass the last.
            stop = np.argmax(hit >= np.minimum(recall, 1.0)[:, None] - 1e-12, axis=1)
            row, start = np.arange(len(hit)), np.maximum(stop - 1, 0)
            rise = hit[row, stop] - hit[row, start]
            part = np.where(rise > 0, (recall - hit[row, start]) / rise, 0.0)
            rate = false[row, start] + part * (false[row, stop] - false[row, start])
        reached: Floats = np.where(np.isfinite(recall) & np.isfinite(hit[:, -1]), rate, np.nan)
        return reached

    def _by_score(self, weights: Floats) -> Floats:
        if len(self._starts) == weights.shape[1]:
            return weights
        tied: Floats = np.add.reduceat(weights, self._starts, axis=1)
        return tied


def _wilson_limits(hits: int, n: int, level: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = (hits + z * z / 2) / (n + z * z)
    reach = z * sqrt(hits * (n - hits) / n + z * z / 4) / (n + z * z)
    # Exact at the ends, where rounding would leave 1e-17.
    return (0.0 if hits == 0 else centre - reach, 1.0 if hits == n else centre + reach)


def _corrected_phi(both: int, gained: int, lost: int, neither: int) -> float:
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    if margins == 0:
        return 0.0
    product: float = both * neither - gained * lost
    if product > 0:
        product = max(product - (both + gained + lost + neither) / 2, 0)
    return product / sqrt(margins)


def _weights(k: int, seed: int, draws: int, row: int = 0) -> Iterator[Floats]:
    """How often each of k clusters is drawn, in blocks of draws (rows, k).

    row: numbers that the caller makes of each draw, where they are more than k.
    """
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // max(k, row))
    for start in range(0, draws, block):
        rows = min(block, draws - start)
        picks = generator.integers(0, k, size=(rows, k)) + k * np.arange(rows)[:, None]
        yield np.bincount(picks.ravel(), minlength=rows * k).reshape(rows, k).astype(float)


def _percentiles(value: float, drawn: Floats, n: int, k: int, level: float) -> Estimate:
    undefined = int(np.sum(~np.isfinite(drawn)))
    if undefined:
        reason = f"undefined in {undefined} of {len(drawn)} resamples: too few clusters carry it"
        return Estimate(value, None, None, None, n, k, reason, level)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    if drawn.min() == drawn.max():
        reason = "all clusters agree, so resampling shows no spread"
        return Estimate(value, None, None, None, n, k, reason, level)
    return Estimate(value, float(low), float(high), "cluster bootstrap", n, k, level=level)


def _names(values: ArrayLike, clusters: Labels | None) -> Labels:
    """The clusters, or each case its own."""
    return range(np.size(values)) if clusters is None else clusters


def _cluster_index(clusters: Labels) -> NDArray[np.int64]:
    """The number of each case's cluster, clusters sorted, so that case order doesn't matter."""
    number = {label: i for i, label in enumerate(sorted(set(clusters), key=_sort_key))}
    return np.fromiter((number[label] for label in clusters), np.int64, len(clusters))


def _sort_key(label: Hashable) -> tuple[str, str]:
    return str(label), type(label).__name__


def _cluster_sums(table: Floats, clusters: Labels) -> Floats:
    member = _cluster_index(clusters)
    if len(member) != len(table):
        raise ValueError(f"{len(member)} cluster labels for {len(table)} cases")
    # Sorted within a cluster too: sums of fractions depend on their order in the last bit.
    order = np.lexsort((*table.T, member))
    starts = np.flatnonzero(np.r_[True, np.diff(member[order]) > 0])
    sums: Floats = np.add.reduceat(table[order], starts, axis=0)
    return sums


def _columns(values: ArrayLike) -> Floats:
    table = np.asarray(values, float)
    table = table[:, None] if table.ndim == 1 else table
    if not np.all(np.isfinite(table)):
        raise ValueError("a value is not finite; leave unmeasurable cases out and count them")
    return table


def _binary(values: ArrayLike) -> Floats:
    outcomes = np.asarray(values, float)
    if not _is_binary(outcomes):
        raise ValueError("an outcome is neither 0 nor 1")
    return outcomes


def _is_binary(values: Floats) -> bool:
    return bool(np.all((values == 0) | (values == 1)))


def _with_ones(values: Floats) -> Floats:
    return np.column_stack((values, np.ones(len(values))))


def _ratio(sums: Floats) -> Floats:
    share: Floats = sums[:, 0] / sums[:, 1]
    return share


def _too_few(clusters: int) -> str:
    return f"{clusters} clusters, and a cluster bootstrap needs {MIN_BOOTSTRAP_CLUSTERS}"
