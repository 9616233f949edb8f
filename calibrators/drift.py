"""Whether what replies do has moved since a reference, and how much of that the traffic explains.

A window of replies is two tables, action classes and margins (before any bias), each counted by the kind of
traffic: whether tools were offered, and the turn. Two tables are compared three ways:

- the population stability index, PSI = sum of (q - p) ln(q / p) over categories (B. Yurdakul and J. Naranjo,
  J. Risk Model Validation 14 (2020) 89), with half a reply added to each category on either side, so that a
  category which one window lacks costs no infinity;
- the Jensen-Shannon distance to base 2, from 0 to 1 (D. Endres and J. Schindelin, IEEE Trans. Inf. Theory 49
  (2003) 1858), unsmoothed;
- a chi-square test that both come from one distribution: of classes Pearson's, where those of which fewer
  than five are expected are put together (W. Cochran, Biometrics 10 (1954) 417), of margins that of the mean.
  Replies of one conversation are alike, so counts are first divided by their design effect (J. Rao and
  A. Scott, J. Am. Stat. Assoc. 76 (1981) 221).

PSI and the test are also given *at the same mix*: against the reference reweighted to the current kinds of
traffic (direct standardisation; E. Kitagawa, J. Am. Stat. Assoc. 50 (1955) 1168), so that what is left is the
model's, or Seam's. A kind that the reference hardly saw says nothing of the model: what it does counts as
traffic.

No number is given below `minimum` replies in either window.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import erfc, exp, log, log2, pi, sqrt
from typing import Final, Literal, NamedTuple, Self

EDGES: Final = (-12, -8, -6, -4, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 6, 8, 12)
"""Upper ends of the margin's bins, in nats; what lies above the last is `inf`."""
MINIMUM: Final = 200
"""Replies in either window without which there is no number."""
MOVED_P: Final = 0.001
MOVED_PSI: Final = 0.02
"""A table has moved where it passes both; docs/drift.md says what that misses and how often it errs."""
_SEEN: Final = 20
"""Replies of a kind that the reference needs to say what the model does there."""
_EXPECTED: Final = 5.0

NONE: Final = "none"
"""The class of a cut or empty reply, which has none."""

Counts = Mapping[str, float]
"""Replies by category."""
Verdict = Literal["too few", "steady", "traffic", "model"]


class Seen(NamedTuple):
    """One reply, as drift counts it.

    Attributes:
        case: the conversation, whose replies are alike.
        kind: of traffic, as `kind_of` names it.
        action: the class, or NONE.
        margin: before any bias, in nats; None where it was not read.
    """

    case: Hashable
    kind: str
    action: str
    margin: float | None


def kind_of(tools: bool, turn: int) -> str:
    """The kind of traffic: whether tools were offered, and the turn, long conversations together."""
    when = "6+" if turn > 5 else "3-5" if turn > 2 else str(max(1, turn))
    return f"{'tools' if tools else 'no tools'}, turn {when}"


def bin_of(margin: float) -> str:
    """The margin's bin, named by its upper end as Prometheus names buckets."""
    return BINS[bisect_left(EDGES, margin)]


BINS: Final = (*(f"{edge:g}" for edge in EDGES), "inf")
_MIDDLES: Final = dict(
    zip(
        BINS, (EDGES[0] - 1, *((low + high) / 2 for low, high in pairwise(EDGES)), EDGES[-1] + 1), strict=True
    )
)


@dataclass(frozen=True, slots=True)
class Table:
    """Replies by kind of traffic and category.

    Attributes:
        counts: by kind, then category.
        design: the design effect, 1 or more: so many of these replies say as much as one independent one.
        ordered: the categories are the margin's bins, and the test is of its mean.
    """

    counts: Mapping[str, Mapping[str, int]]
    design: float = 1.0
    ordered: bool = False

    @classmethod
    def of(cls, rows: Sequence[tuple[Hashable, str, str]], ordered: bool = False) -> Self:
        """Count rows of case, kind and category."""
        counts: dict[str, dict[str, int]] = {}
        for (kind, category), count in Counter((kind, category) for _, kind, category in rows).items():
            counts.setdefault(kind, {})[category] = count
        pairs = Counter((case, category) for case, _, category in rows)
        return cls(counts, mean_design(pairs) if ordered else design(pairs), ordered)

    @property
    def n(self) -> int:
        """Replies in all."""
        return sum(sum(row.values()) for row in self.counts.values())

    @property
    def totals(self) -> Counter[str]:
        """Replies by category, all kinds together."""
        found: Counter[str] = Counter()
        for row in self.counts.values():
            found.update(row)
        return found


@dataclass(frozen=True, slots=True)
class Window:
    """Some replies, counted; the margins are of those whose margin was read."""

    classes: Table
    margins: Table

    @classmethod
    def of(cls, seen: Iterable[Seen]) -> Self:
        """Count replies."""
        seen = list(seen)
        margins = [(s.case, s.kind, bin_of(s.margin)) for s in seen if s.margin is not None]
        return cls(Table.of([(s.case, s.kind, s.action) for s in seen]), Table.of(margins, ordered=True))


class Drift(NamedTuple):
    """How far two tables are apart; all None where either has too few replies.

    Attributes:
        psi, jensen_shannon, p_value: as the tables stand.
        psi_same_mix, p_value_same_mix: against the reference at the current mix of traffic; the test leaves
            out the kinds that the reference did not see.
        mix_share: the share of the change that the mix of traffic explains: 0 none, 1 all; outside of that
            where mix and model pull apart. None unless the table has moved: of no change there is no share.
    """

    psi: float | None = None
    jensen_shannon: float | None = None
    p_value: float | None = None
    psi_same_mix: float | None = None
    p_value_same_mix: float | None = None
    mix_share: float | None = None

    @property
    def verdict(self) -> Verdict:
        """In a word: `model` moved (or what Seam does to it), only the `traffic`, or neither."""
        if self.psi is None:
            return "too few"
        if _moved(self.psi_same_mix, self.p_value_same_mix):
            return "model"
        return "traffic" if _moved(self.psi, self.p_value) else "steady"


def compare(reference: Table, current: Table, minimum: int = MINIMUM) -> Drift:
    """How far the current table is from the reference."""
    if min(reference.n, current.n) < max(1, minimum):
        return Drift()
    before, after, expected = reference.totals, current.totals, at_mix_of(current, reference)
    stability, p = psi(before, after), _p_value(reference, current, before, after)
    return Drift(
        stability,
        jensen_shannon(before, after),
        p,
        psi(expected, after),
        _same_mix_p_value(reference, current),
        _mix_share(before, expected, after) if _moved(stability, p) else None,
    )


def _moved(stability: float | None, p: float | None) -> bool:
    return stability is not None and p is not None and stability >= MOVED_PSI and p < MOVED_P


def at_mix_of(current: Table, reference: Table) -> Counts:
    """What the reference would have done on the current traffic, in as many replies as that has."""
    known = comparable(reference, current)
    return _weighted([(reference if kind in known else current, kind) for kind in current.counts], current)


def _weighted(rows: Iterable[tuple[Table, str]], current: Table) -> Counts:
    """The rows of some kinds added up, each as large as the current one."""
    found: dict[str, float] = {}
    for table, kind in rows:
        row = table.counts[kind]
        weight = sum(current.counts[kind].values()) / sum(row.values())
        for category, count in row.items():
            found[category] = found.get(category, 0.0) + weight * count
    return found


def comparable(reference: Table, current: Table) -> list[str]:
    """The kinds of the current traffic that the reference saw enough of."""
    return [kind for kind in current.counts if sum(reference.counts.get(kind, {}).values()) >= _SEEN]


def _same_mix_p_value(reference: Table, current: Table) -> float | None:
    """The test against the reference at the current mix, over the kinds that both saw.

    Weights cost precision: such a reference is worth 1 / sum(w^2 / n) replies, w the current shares of the
    kinds and n the reference's replies of each (L. Kish, Survey Sampling, 1965).
    """
    known = comparable(reference, current)
    after = _weighted([(current, kind) for kind in known], current)
    n = sum(after.values())
    if not n:
        return None
    size = {kind: sum(reference.counts[kind].values()) for kind in known}
    worth = n * n / sum(sum(current.counts[kind].values()) ** 2 / size[kind] for kind in known)
    expected = _weighted([(reference, kind) for kind in known], current)
    return _p_value(reference, current, {name: c * worth / n for name, c in expected.items()}, after)


def shift(reference: Table, current: Table) -> tuple[float, float]:
    """By how many nats the mean margin moved, and moved at the same mix; from the bins' middles.

    A shift of -0.5 does to calls what a bias of -0.5 does.
    """
    before, after, expected = (
        _mean_margin(counts) for counts in (reference.totals, current.totals, at_mix_of(current, reference))
    )
    return after - before, after - expected


def _mean_margin(counts: Counts) -> float:
    return sum(_MIDDLES[name] * count for name, count in counts.items()) / sum(counts.values())


def psi(before: Counts, after: Counts) -> float:
    """Population stability index, with half a reply added to every category of either."""
    names = before.keys() | after.keys()
    p, q = ({name: counts.get(name, 0) + 0.5 for name in names} for counts in (before, after))
    of_p, of_q = sum(p.values()), sum(q.values())
    return sum((q[name] / of_q - p[name] / of_p) * log((q[name] / of_q) / (p[name] / of_p)) for name in names)


def jensen_shannon(before: Counts, after: Counts) -> float:
    """The root of the divergence in bits: 0 for equal shares, 1 for nothing in common."""
    divergence = 0.0
    for name in before.keys() | after.keys():
        p, q = (counts.get(name, 0) / sum(counts.values()) for counts in (before, after))
        divergence += sum(share / 2 * log2(2 * share / (p + q)) for share in (p, q) if share)
    return sqrt(min(1.0, max(0.0, divergence)))


def chi_square(before: Counts, after: Counts) -> tuple[float, int]:
    """Pearson's statistic of two rows of counts being alike, and its degrees of freedom.

    Rare categories are put together until five are expected on either side; 0 degrees where that leaves one.
    """
    of = sum(before.values()), sum(after.values())
    if not min(of):
        return 0.0, 0
    least = _EXPECTED * sum(of) / min(of)
    groups: list[tuple[float, float]] = []
    for name in sorted(
        before.keys() | after.keys(), key=lambda name: before.get(name, 0) + after.get(name, 0)
    ):
        pair = before.get(name, 0), after.get(name, 0)
        if groups and sum(groups[-1]) < least:  # only what came before, rarer, can be too small
            groups[-1] = groups[-1][0] + pair[0], groups[-1][1] + pair[1]
        else:
            groups.append(pair)
    if len(groups) > 1 and sum(groups[-1]) < least:
        last = groups.pop()
        groups[-1] = groups[-1][0] + last[0], groups[-1][1] + last[1]
    statistic = 0.0
    for group in groups:
        for seen, side in zip(group, of, strict=True):
            expected = sum(group) * side / sum(of)
            statistic += (seen - expected) ** 2 / expected if expected else 0.0
    return statistic, len(groups) - 1


def mean_chi_square(before: Counts, after: Counts) -> tuple[float, int]:
    """The squared difference of the mean margins over its variance, one degree of freedom.

    The chi-square for trend (P. Armitage, Biometrics 11 (1955) 375), with the bins' middles as scores.
    0 degrees where all margins lie in one bin.
    """
    both = {name: before.get(name, 0) + after.get(name, 0) for name in before.keys() | after.keys()}
    n, mean = sum(both.values()), _mean_margin(both)
    variance = sum(count * (_MIDDLES[name] - mean) ** 2 for name, count in both.items()) / n
    if not variance:
        return 0.0, 0
    moved = _mean_margin(after) - _mean_margin(before)
    return moved**2 / (variance * (1 / sum(before.values()) + 1 / sum(after.values()))), 1


def _p_value(reference: Table, current: Table, before: Counts, after: Counts) -> float | None:
    """Of the table's test, on counts divided by the design effects; None where they are too few for it."""
    effective = (
        {name: count / table.design for name, count in counts.items()}
        for table, counts in ((reference, before), (current, after))
    )
    statistic, freedom = (mean_chi_square if current.ordered else chi_square)(*effective)
    return chi_square_tail(statistic, freedom) if freedom else None


def chi_square_tail(statistic: float, freedom: int) -> float:
    """The chance of a larger value of a chi-square variable (Abramowitz and Stegun 26.4.4 and 26.4.5)."""
    half = statistic / 2
    if freedom % 2:
        tail, term, start = erfc(sqrt(half)), exp(-half) * 2 * sqrt(half / pi), 3
    else:
        tail, term, start = 0.0, exp(-half), 2
    for degrees in range(start, freedom + 1, 2):
        tail += term
        term *= 2 * half / degrees
    return min(1.0, tail)


def design(pairs: Mapping[tuple[Hashable, str], int]) -> float:
    """By how much conversations widen the spread of shares: Rao and Scott's mean over categories, 1 or more.

    pairs: replies by conversation and category. One conversation alone counts as one reply.
    """
    replies, totals = _by_case(pairs), Counter[str]()
    for (_, category), count in pairs.items():
        totals[category] += count
    n = totals.total()
    if len(replies) < 2 or len(totals) < 2:
        return float(max(1, n)) if len(replies) == 1 else 1.0
    # Sum over cases and categories a of (y_a - p_a m)^2 / p_a, where a case has m replies, multiplied out.
    spread = sum(count * count * n / totals[category] for (_, category), count in pairs.items())
    spread -= sum(m * m for m in replies.values())
    return max(1.0, spread / n / (len(totals) - 1) * len(replies) / (len(replies) - 1))


def mean_design(pairs: Mapping[tuple[Hashable, str], int]) -> float:
    """By how much conversations widen the spread of the mean margin, 1 or more; `pairs` as in `design`."""
    replies = _by_case(pairs)
    n = replies.total()
    if len(replies) < 2:
        return float(max(1, n))
    mean = sum(_MIDDLES[name] * count for (_, name), count in pairs.items()) / n
    sums: dict[Hashable, float] = {}
    squares = 0.0
    for (case, name), count in pairs.items():
        off = _MIDDLES[name] - mean
        sums[case] = sums.get(case, 0.0) + count * off
        squares += count * off * off
    spread = sum(each * each for each in sums.values())
    return max(1.0, spread / squares * len(replies) / (len(replies) - 1)) if squares else 1.0


def _by_case(pairs: Mapping[tuple[Hashable, str], int]) -> Counter[Hashable]:
    found = Counter[Hashable]()
    for (case, _), count in pairs.items():
        found[case] += count
    return found


def _mix_share(before: Counts, expected: Counts, after: Counts) -> float | None:
    """The part of the change of shares that lies along the change which the mix alone would have made."""
    names = before.keys() | expected.keys() | after.keys()
    p, e, q = (
        {name: counts.get(name, 0) / sum(counts.values()) for name in names}
        for counts in (before, expected, after)
    )
    whole = sum((q[name] - p[name]) ** 2 for name in names)
    return sum((e[name] - p[name]) * (q[name] - p[name]) for name in names) / whole if whole else None
