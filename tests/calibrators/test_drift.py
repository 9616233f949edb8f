"""Drift by its definitions, against scipy and by hand."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial import distance

from calibrators.drift import (
    BINS,
    EDGES,
    Seen,
    Table,
    Window,
    at_mix_of,
    bin_of,
    chi_square,
    chi_square_tail,
    compare,
    design,
    jensen_shannon,
    kind_of,
    mean_chi_square,
    mean_design,
    psi,
    shift,
)

CLASSES = ("tool_call", "ask", "refuse", "confirm", "other")
counts = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 400), min_size=1)


def table(kinds: Mapping[str, Mapping[str, int]], design: float = 1.0) -> Table:
    return Table(kinds, design)


# Definitions -----------------------------------------------------------------------------------


@given(counts, counts)
def test_the_distance_is_scipy_s(p: dict[str, int], q: dict[str, int]) -> None:
    first, second = ([side.get(name, 0) for name in CLASSES] for side in (p, q))
    assert jensen_shannon(p, q) == pytest.approx(distance.jensenshannon(first, second, base=2), abs=1e-7)


@given(counts, counts)
def test_psi_is_the_symmetric_divergence_of_the_smoothed_shares(p: dict[str, int], q: dict[str, int]) -> None:
    names = sorted(p.keys() | q.keys())
    first, second = ([side.get(name, 0) + 0.5 for name in names] for side in (p, q))
    first, second = ([x / sum(side) for x in side] for side in (first, second))
    assert psi(p, q) == pytest.approx(stats.entropy(first, second) + stats.entropy(second, first), abs=1e-12)


def test_a_class_that_one_window_lacks_costs_no_infinity() -> None:
    assert math.isfinite(psi({"ask": 500}, {"refuse": 500}))
    assert jensen_shannon({"ask": 500}, {"refuse": 500}) == 1


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 17, 40])
@pytest.mark.parametrize("statistic", [0, 0.01, 1, 5, 20, 80, 900, 4000])
def test_the_tail_is_scipy_s(freedom: int, statistic: float) -> None:
    assert chi_square_tail(statistic, freedom) == pytest.approx(
        stats.chi2.sf(statistic, freedom), rel=1e-9, abs=1e-300
    )


@given(st.lists(st.tuples(st.integers(60, 400), st.integers(60, 400)), min_size=2, max_size=5))
def test_without_rare_classes_the_test_is_pearson_s(pairs: list[tuple[int, int]]) -> None:
    p, q = ({name: pair[side] for name, pair in zip(CLASSES, pairs, strict=False)} for side in (0, 1))
    expected = stats.chi2_contingency(np.array(pairs).T, correction=False)
    assert chi_square(p, q) == pytest.approx((expected.statistic, expected.dof))


@given(counts, counts)
def test_five_are_expected_in_every_group_of_the_test(p: dict[str, int], q: dict[str, int]) -> None:
    statistic, freedom = chi_square(p, q)
    assert statistic >= 0
    most = min(sum(p.values()), sum(q.values())) / 5 - 1
    assert 0 <= freedom <= max(0, min(len(p.keys() | q.keys()) - 1, most))


def test_rare_classes_are_put_together_before_the_test() -> None:
    rare = {"ask": 2, "refuse": 2, "confirm": 3}
    assert chi_square({"tool_call": 93, **rare}, {"tool_call": 93, "ask": 7}) == pytest.approx((0.0, 1))
    assert chi_square({"tool_call": 99, "ask": 1}, {"tool_call": 97, "ask": 3})[1] == 0


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), min_size=4, max_size=10))
def test_the_test_of_the_mean_is_scipy_s_correlation(pairs: list[tuple[int, int]]) -> None:
    p, q = ({b: pair[side] for b, pair in zip(BINS[4:], pairs, strict=False)} for side in (0, 1))
    if not sum(p.values()) or not sum(q.values()) or sum(map(any, pairs)) < 2:
        return
    middles = [(low + high) / 2 for low, high in pairwise(EDGES[3:])]
    scores = np.repeat(middles[: len(pairs)], [sum(pair) for pair in pairs])
    side = np.concatenate([[0] * first + [1] * second for first, second in pairs])
    # Linear-by-linear association without the N - 1 of Mantel's form: N r^2.
    r = stats.pearsonr(scores, side).statistic
    assert mean_chi_square(p, q) == pytest.approx((len(side) * r**2, 1), abs=1e-9)


def test_margins_all_in_one_bin_have_no_test() -> None:
    assert mean_chi_square({"0": 50}, {"0": 60}) == (0.0, 0)


# Conversations ---------------------------------------------------------------------------------

replies = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(CLASSES)), min_size=8, max_size=120)


@given(replies)
def test_the_design_effect_is_rao_and_scott_s_mean(rows: list[tuple[Hashable, str]]) -> None:
    cases = sorted({case for case, _ in rows}, key=str)
    names = sorted({name for _, name in rows})
    found = design(Counter[tuple[Hashable, str]](rows))
    if len(cases) < 2 or len(names) < 2:
        return
    y = np.array([[sum(row == (case, name) for row in rows) for name in names] for case in cases], float)
    n, m, p = len(rows), y.sum(axis=1), y.sum(axis=0) / len(rows)
    residuals = y - np.outer(m, p)
    variance = len(cases) / (len(cases) - 1) * (residuals**2).sum(axis=0) / n**2
    effects = variance / (p * (1 - p) / n)
    assert found == pytest.approx(max(1.0, float(((1 - p) * effects).sum() / (len(names) - 1))))


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(-11, 11)), min_size=8, max_size=120))
def test_the_mean_s_design_effect_is_cluster_variance_over_plain(rows: list[tuple[int, float]]) -> None:
    middle = {b: (low + high) / 2 for b, low, high in zip(BINS[1:-1], EDGES, EDGES[1:], strict=False)}
    binned = [(case, bin_of(value)) for case, value in rows]
    x = np.array([middle.get(name, -13.0 if name == "-12" else 13.0) for _, name in binned])
    off = x - x.mean()
    cases = sorted({case for case, _ in rows})
    if len(cases) < 2 or not (off**2).sum():
        return
    sums = [sum(o for o, (case, _) in zip(off, rows, strict=True) if case == each) for each in cases]
    plain = (off**2).sum()
    expected = sum(s * s for s in sums) / plain * len(cases) / (len(cases) - 1)
    assert mean_design(Counter(binned)) == pytest.approx(max(1.0, expected))


def test_replies_of_one_conversation_count_once() -> None:
    assert design(Counter({("a", "ask"): 30, ("a", "other"): 20})) == 50
    alike = Counter[tuple[Hashable, str]]({(n, "ask" if n % 2 else "other"): 4 for n in range(50)})
    assert design(alike) == pytest.approx(4, rel=0.05)
    assert design(Counter({(n, "ask" if n % 2 else "other"): 1 for n in range(200)})) == pytest.approx(
        1, abs=0.01
    )


def test_alike_replies_make_the_test_less_sure() -> None:
    before, after = (
        {"tools, turn 1": {"ask": 250, "other": 250}},
        {"tools, turn 1": {"ask": 300, "other": 200}},
    )
    one = compare(table(before), table(after)).p_value
    four = compare(table(before, 4), table(after, 4)).p_value
    expected = stats.chi2_contingency([[62.5, 62.5], [75, 50]], correction=False).pvalue
    assert one is not None
    assert four == pytest.approx(expected)
    assert one < 0.002 < expected


# The mix of traffic ----------------------------------------------------------------------------


def test_a_mix_that_moves_alone_leaves_nothing_to_the_model() -> None:
    before = {"tools, turn 1": {"tool_call": 400, "other": 100}, "no tools, turn 1": {"other": 500}}
    after = {"tools, turn 1": {"tool_call": 80, "other": 20}, "no tools, turn 1": {"other": 900}}
    drift = compare(table(before), table(after))
    assert drift.psi is not None
    assert drift.psi > 0.3
    assert drift.psi_same_mix == pytest.approx(0)
    assert drift.p_value_same_mix == pytest.approx(1)
    assert drift.mix_share == pytest.approx(1)
    assert drift.verdict == "traffic"


def test_a_model_that_moves_on_the_same_mix_is_no_traffic() -> None:
    before = {"tools, turn 1": {"tool_call": 400, "other": 100}, "no tools, turn 1": {"other": 500}}
    after = {"tools, turn 1": {"tool_call": 250, "other": 250}, "no tools, turn 1": {"other": 500}}
    drift = compare(table(before), table(after))
    assert drift.psi == pytest.approx(drift.psi_same_mix)
    assert drift.mix_share == pytest.approx(0)
    assert drift.verdict == "model"


def test_half_of_a_change_may_be_the_mix_s() -> None:
    # tool_call is 40 in 100. Half of the tools' traffic away: 20. The rest calls half as often: 10.
    before = {"tools, turn 1": {"tool_call": 400, "other": 100}, "no tools, turn 1": {"other": 500}}
    after = {"tools, turn 1": {"tool_call": 100, "other": 150}, "no tools, turn 1": {"other": 750}}
    drift = compare(table(before), table(after))
    assert at_mix_of(table(after), table(before)) == pytest.approx({"tool_call": 200, "other": 800})
    assert drift.mix_share == pytest.approx((0.4 - 0.2) / (0.4 - 0.1))


def test_traffic_that_the_reference_never_saw_says_nothing_of_the_model() -> None:
    before = {"tools, turn 1": {"tool_call": 300, "other": 200}}
    after = {**before, "tools, turn 6+": {"refuse": 300}}
    drift = compare(table(before), table(after))
    assert drift.verdict == "traffic"
    assert drift.mix_share == pytest.approx(1)
    nothing_alike = compare(table(before), table({"no tools, turn 1": {"other": 300}}))
    assert nothing_alike.p_value_same_mix is None
    assert nothing_alike.verdict == "traffic"


# Windows ---------------------------------------------------------------------------------------


@given(counts)
def test_a_window_is_at_no_distance_from_itself(p: dict[str, int]) -> None:
    same = table({"tools, turn 1": p})
    drift = compare(same, same, minimum=1)
    assert (drift.psi, drift.jensen_shannon, drift.psi_same_mix) == pytest.approx((0, 0, 0), abs=1e-7)
    assert drift.p_value in (1.0, None)
    assert drift.mix_share is None
    assert drift.verdict == "steady"


@given(counts, counts)
def test_figures_stay_in_their_ranges(p: dict[str, int], q: dict[str, int]) -> None:
    drift = compare(table({"tools, turn 1": p}), table({"tools, turn 1": q}), minimum=1)
    assert drift.psi is not None
    assert drift.jensen_shannon is not None
    assert drift.psi >= 0
    assert 0 <= drift.jensen_shannon <= 1
    assert drift.p_value is None or 0 <= drift.p_value <= 1


def test_below_the_minimum_there_is_no_number() -> None:
    few, many = (table({"tools, turn 1": {"ask": n}}) for n in (199, 200))
    assert compare(few, many) == compare(many, few) == (None,) * 6
    assert compare(few, many).verdict == "too few"
    assert compare(many, many).psi == 0
    nothing = table({})
    assert compare(nothing, nothing, minimum=0).verdict == "too few"


@given(st.floats(-1e6, 1e6))
def test_a_margin_s_bin_is_the_first_whose_end_is_not_below_it(margin: float) -> None:
    name = bin_of(margin)
    at = BINS.index(name)
    assert margin <= float(name)
    assert at == 0 or margin > float(BINS[at - 1])


@given(st.booleans(), st.integers(0, 10_000))
def test_there_are_eight_kinds_of_traffic(tools: bool, turn: int) -> None:
    kinds = {kind_of(with_tools, at) for with_tools in (False, True) for at in (1, 2, 3, 6)}
    assert len(kinds) == 8
    assert kind_of(tools, turn) in kinds


def test_a_window_counts_margins_where_they_were_read() -> None:
    seen = [
        Seen("a", "tools, turn 1", "tool_call", 1.5),
        Seen("a", "tools, turn 1", "none", None),
        Seen("b", "no tools, turn 2", "other", None),
    ]
    window = Window.of(seen)
    assert window.classes.counts == {
        "tools, turn 1": {"tool_call": 1, "none": 1},
        "no tools, turn 2": {"other": 1},
    }
    assert (window.margins.counts, window.margins.n) == ({"tools, turn 1": {"2": 1}}, 1)


def test_a_shift_is_told_in_nats_also_at_the_same_mix() -> None:
    def margins(first: float, later: float, firsts: int) -> Table:
        rows = [(n, "tools, turn 1", bin_of(first)) for n in range(firsts)]
        rows += [(1000 + n, "tools, turn 2", bin_of(later)) for n in range(400 - firsts)]
        return Table.of(rows, ordered=True)

    # Middles: 2.5 and 0.25 before, 1.5 and -0.25 after.
    moved, same_mix = shift(margins(2.2, 0.3, 200), margins(1.2, -0.3, 100))
    assert same_mix == pytest.approx(-(100 * 1 + 300 * 0.5) / 400)
    assert moved == pytest.approx((100 * 1.5 - 300 * 0.25) / 400 - (2.5 + 0.25) / 2)
