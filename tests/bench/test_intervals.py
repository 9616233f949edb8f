"""Intervals by their definitions, against scipy and slow formulas, and by simulated coverage."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from bench.intervals import (
    MIN_BOOTSTRAP_CLUSTERS,
    Estimate,
    auc,
    auc_difference,
    cluster_bootstrap,
    cluster_ratios,
    equal_recall_difference,
    newcombe,
    no_discordance,
    paired_difference,
    rate,
    resampled_sums,
    wilson,
)


def limits(interval: Estimate) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def covers(interval: Estimate, truth: float) -> bool:
    low, high = limits(interval)
    return low <= truth <= high


# Wilson


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(114, 200, 50.1, 63.7), (28, 50, 42.3, 68.8), (2, 7, 8.2, 64.1), (7, 7, 64.6, 100.0)],
)
def test_wilson_gives_the_figures_of_the_rigor_page(hits: int, n: int, low: float, high: float) -> None:
    got = limits(wilson(hits, n))
    assert tuple(round(100 * limit, 1) for limit in got) == (low, high)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_agrees_with_scipy(case: tuple[int, int]) -> None:
    hits, n = case
    ours = limits(wilson(hits, n))
    reference = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert ours == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_wilson_limits_are_where_the_score_test_just_accepts() -> None:
    z = stats.norm.ppf(0.975)
    for limit in limits(wilson(13, 40)):
        assert abs(13 / 40 - limit) / math.sqrt(limit * (1 - limit) / 40) == pytest.approx(z)


@pytest.mark.parametrize("n", [7, 50, 200])
@pytest.mark.parametrize("p", [0.05, 0.2, 0.5, 0.9, 0.99])
def test_wilson_covers_at_least_90_percent(n: int, p: float) -> None:
    hits = np.arange(n + 1)
    inside = [covers(wilson(int(h), n), p) for h in hits]
    assert stats.binom.pmf(hits, n, p)[inside].sum() >= 0.90


def test_no_scored_case_is_null_with_the_reason() -> None:
    assert wilson(0, 0) == Estimate(None, None, None, None, 0, 0, "no case was scored")


def test_more_hits_than_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="5 hits in 4 cases"):
        wilson(5, 4)


# Newcombe


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        ((36, 12, 2, 0), 0.0569, 0.3404),  # Newcombe 1998, table II, method 10
        ((14, 5, 0, 22), 0.011, 0.226),  # Altman et al., Statistics with Confidence, table 6.2
        ((1, 1, 7, 12), -0.507, -0.026),  # Bentur 2009 in Fagerland et al., chapter 8
    ],
)
def test_newcombe_gives_published_figures(table: tuple[int, int, int, int], low: float, high: float) -> None:
    assert limits(newcombe(*table)) == pytest.approx((low, high), abs=6e-4)


counts = st.integers(0, 60)


@given(counts, counts, counts, counts)
def test_newcombe_holds_its_estimate_and_turns_with_the_arms(
    both: int, gained: int, lost: int, neither: int
) -> None:
    if both + gained + lost + neither == 0:
        return
    there, back = newcombe(both, gained, lost, neither), newcombe(both, lost, gained, neither)
    low, high = limits(there)
    assert there.estimate is not None
    assert -1 <= low <= there.estimate <= high <= 1
    assert limits(back) == pytest.approx((-high, -low), abs=1e-12)


@pytest.mark.parametrize("n", [7, 20, 49])
def test_newcombe_covers_at_least_90_percent(n: int) -> None:
    # rigor.md point 8: 12 % gained, 6 % lost.
    draws = np.random.default_rng(8).multinomial(n, [0.5, 0.12, 0.06, 0.32], size=1000)
    assert np.mean([covers(newcombe(*map(int, t)), 0.06) for t in draws]) >= 0.90


# Cluster bootstrap


def test_the_bootstrap_is_the_slow_resampling_of_whole_clusters() -> None:
    values = np.array([1, 0, 1, 1, 0, 0, 1], float)
    clusters = ["a", "a", "b", "c", "c", "c", "d"]
    fast = resampled_sums(np.column_stack((values, np.ones(7))), clusters, seed=3, draws=500)
    picks = np.random.default_rng(3).integers(0, 4, size=(500, 4))
    members = [[i for i, c in enumerate(clusters) if c == name] for name in "abcd"]
    for drawn, row in zip(fast, picks, strict=True):
        cases = [i for pick in row for i in members[pick]]
        assert drawn.tolist() == [values[cases].sum(), len(cases)]


def test_its_spread_is_the_clustered_standard_error() -> None:
    # The pairwise formula: sum over pairs of cases in one cluster of their residuals' product.
    generator = np.random.default_rng(1)
    clusters = np.repeat(np.arange(200), 4)
    values = (generator.random(800) < np.repeat(generator.beta(2, 2, 200), 4)).astype(float)
    residual = values - values.mean()
    same = clusters[:, None] == clusters[None, :]
    pairwise = math.sqrt((same * np.outer(residual, residual)).sum()) / 800
    sums = resampled_sums(np.column_stack((values, np.ones(800))), clusters.tolist(), seed=0)
    assert (sums[:, 0] / sums[:, 1]).std() == pytest.approx(pairwise, rel=0.03)


def test_same_cases_in_any_order_give_the_same_bytes() -> None:
    generator = np.random.default_rng(2)
    clusters = generator.integers(0, 60, 300)
    first, second = generator.random(300), generator.random(300)
    order = generator.permutation(300)
    there = paired_difference(first, second, clusters.tolist(), seed=5)
    shuffled = paired_difference(first[order], second[order], clusters[order].tolist(), seed=5)
    assert there == shuffled
    assert there != paired_difference(first, second, clusters.tolist(), seed=6)


def test_a_custom_statistic_of_sums_gets_its_interval() -> None:
    generator = np.random.default_rng(4)
    call = generator.random(600) < 0.4
    hit = generator.random(600) < np.where(call, 0.9, 0.8)
    columns = np.column_stack((hit & call, call, hit & ~call, ~call))
    clusters = (np.arange(600) // 3).tolist()
    balanced = cluster_bootstrap(columns, clusters, lambda s: (s[:, 0] / s[:, 1] + s[:, 2] / s[:, 3]) / 2, 0)
    recalls = (hit[call].mean() + hit[~call].mean()) / 2
    assert balanced.estimate == pytest.approx(recalls)
    assert covers(balanced, 0.85)
    assert (balanced.n, balanced.clusters, balanced.method) == (600, 200, "cluster bootstrap")


def test_a_statistic_that_resampling_cannot_show_has_no_interval() -> None:
    clusters = list(range(60))
    only_one = [1.0] + [0.0] * 59
    ratio = cluster_bootstrap(np.column_stack((only_one, only_one)), clusters, lambda s: s[:, 0] / s[:, 1], 0)
    assert (ratio.estimate, ratio.low) == (1.0, None)
    assert ratio.reason is not None
    assert "too few clusters carry it" in ratio.reason
    same = cluster_bootstrap(np.ones((60, 2)), clusters, lambda s: s[:, 0] / s[:, 1], 0)
    assert same.reason == "all clusters agree, so resampling shows no spread"


def test_a_value_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="leave unmeasurable cases out"):
        resampled_sums([1.0, math.nan], [0, 1], seed=0)


@pytest.mark.parametrize("clusters", [50, 200])
def test_the_bootstrap_covers_at_least_90_percent(clusters: int) -> None:
    generator = np.random.default_rng(9)
    labels = np.repeat(np.arange(clusters), 4).tolist()
    hits = 0
    for _ in range(300):
        shift = generator.normal(0, 0.15, clusters).repeat(4)
        gained = generator.random(4 * clusters) < np.clip(0.12 + shift, 0, 1)
        first = generator.random(4 * clusters) < 0.4
        hits += covers(
            cluster_bootstrap(
                np.column_stack(((first | gained).astype(float) - first, np.ones(4 * clusters))),
                labels,
                lambda s: s[:, 0] / s[:, 1],
                seed=1,
                draws=2000,
            ),
            0.6 * truth_of_clipped(0.12, 0.15),
        )
    assert hits / 300 >= 0.90


def truth_of_clipped(mean: float, deviation: float) -> float:
    """Mean of a normal clipped to 0..1."""
    grid = np.linspace(-6, 6, 20_001)
    density = stats.norm.pdf(grid)
    return float(np.average(np.clip(mean + deviation * grid, 0, 1), weights=density))


# Which method when


def test_one_case_a_cluster_is_a_wilson_rate() -> None:
    hits = [1, 0, 1, 1, 0]
    assert rate(hits) == wilson(3, 5) == rate(hits, clusters=list("abcde"))


def test_a_rate_over_few_shared_clusters_has_no_interval() -> None:
    figure = rate([1, 0, 1, 1], clusters=["a", "a", "b", "b"])
    assert (figure.estimate, figure.low, figure.high, figure.method) == (0.75, None, None, None)
    assert figure.reason == "2 clusters, and a cluster bootstrap needs 50"


@pytest.mark.parametrize("value", [0, 1])
def test_a_clustered_rate_at_its_end_keeps_a_width(value: int) -> None:
    figure = rate([value] * 800, clusters=[i % 200 for i in range(800)])
    assert limits(figure) == limits(wilson(200 * value, 200))
    assert figure.method == "wilson over clusters"


def test_many_ratios_have_the_intervals_that_each_has_alone() -> None:
    random = np.random.default_rng(3)
    turns = random.integers(1, 6, 120)
    loops = random.binomial(turns, 0.2)
    scenarios = list(range(60)) * 2
    both = cluster_ratios({"loops": (loops, turns), "calls": (3 * turns + loops, turns)}, scenarios, seed=5)
    for name, top in (("loops", loops), ("calls", 3 * turns + loops)):
        alone = cluster_bootstrap(
            np.column_stack((top, turns)), scenarios, lambda sums: sums[:, 0] / sums[:, 1], seed=5
        )
        assert both[name] == alone


def test_a_ratio_leaves_out_cases_that_do_not_carry_it() -> None:
    scenarios = ["a", "b", "c", "c"]
    found = cluster_ratios(
        {
            "one": ([1, 0, 0, 0], [1, 1, 1, 0]),
            "few": ([1, 0, 2, 1], [2, 2, 2, 2]),
            "none": ([0] * 4, [0] * 4),
        },
        scenarios,
    )
    assert found["one"] == wilson(1, 3)
    mean = cluster_ratios({"one": ([1, 0, 0, 0], [1, 1, 1, 0])}, scenarios, means={"one"})["one"]
    assert mean[:4] == (found["one"].estimate, None, None, None)
    assert found["few"][:4] == (0.5, None, None, None)
    assert found["few"].clusters == 3
    assert found["none"].reason == "no case was scored"


def test_a_share_of_many_clusters_at_its_end_keeps_a_width() -> None:
    found = cluster_ratios({"loops": ([0] * 120, [3] * 120)}, list(range(60)) * 2)["loops"]
    assert limits(found) == limits(wilson(0, 60))
    assert found.method == "wilson over clusters"


def test_few_binary_pairs_get_newcombe() -> None:
    first, second = [1, 1, 0, 0, 1, 0, 1], [1, 0, 1, 1, 1, 0, 1]
    assert paired_difference(first, second) == newcombe(both=3, gained=2, lost=1, neither=1)
    figure = paired_difference(first, second, clusters=list("abcdefg"))
    assert figure.method == "newcombe"


def test_fifty_clusters_get_the_bootstrap() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.random(50) < 0.5, generator.random(50) < 0.5
    figure = paired_difference(first, second)
    assert MIN_BOOTSTRAP_CLUSTERS == 50
    assert figure.method == "cluster bootstrap"
    assert paired_difference(first[:49], second[:49]).method == "newcombe"


def test_few_clusters_of_several_pairs_have_no_interval() -> None:
    figure = paired_difference([1, 0, 1, 1], [0, 0, 1, 1], clusters=["a", "a", "b", "b"])
    assert (figure.estimate, figure.low) == (-0.25, None)
    assert figure.reason == "2 clusters, and a cluster bootstrap needs 50"


def test_values_that_are_not_binary_need_the_bootstrap() -> None:
    assert paired_difference([0.5, 1], [1, 1]).method is None
    assert paired_difference(np.arange(50), np.arange(50)[::-1]).method == "cluster bootstrap"


def test_a_noise_floor_without_a_changed_reply_is_not_known_to_be_zero() -> None:
    same = np.arange(800) % 3 == 0
    figure = paired_difference(same, same, clusters=[i % 200 for i in range(800)])
    assert figure == no_discordance(800, 200)
    assert limits(figure)[1] == limits(wilson(0, 200))[1]


# AUC


@given(
    st.lists(st.tuples(st.sampled_from([-1.0, -0.5, 0.0, 2.0, 3.0]), st.booleans()), min_size=2, max_size=40)
)
def test_auc_is_the_share_of_pairs_in_order(cases: list[tuple[float, bool]]) -> None:
    ups = [m for m, positive in cases if positive]
    downs = [m for m, positive in cases if not positive]
    figure = auc([m for m, _ in cases], [p for _, p in cases])
    if not ups or not downs:
        assert figure.reason == "one class only"
        return
    won = sum(1.0 if u > d else 0.5 if u == d else 0.0 for u in ups for d in downs)
    assert figure.estimate == pytest.approx(won / (len(ups) * len(downs)))


def test_the_interval_of_auc_is_that_of_resampled_clusters() -> None:
    generator = np.random.default_rng(6)
    positive = generator.random(240) < 0.5
    margins = np.round(generator.normal(positive * 1.0), 1)
    clusters = np.arange(240) // 4
    figure = auc(margins, positive, clusters.tolist(), seed=7, draws=400)
    slow = []
    for picks in np.random.default_rng(7).integers(0, 60, size=(400, 60)):
        cases = np.concatenate([np.flatnonzero(clusters == sorted(range(60), key=str)[p]) for p in picks])
        ups, downs = margins[cases][positive[cases]], margins[cases][~positive[cases]]
        slow.append(stats.mannwhitneyu(ups, downs).statistic / (len(ups) * len(downs)))
    assert limits(figure) == pytest.approx(np.quantile(slow, [0.025, 0.975]))


def test_the_difference_of_two_areas_is_taken_within_each_draw() -> None:
    generator = np.random.default_rng(11)
    positive = np.arange(160) % 2 == 0
    before = generator.normal(positive * 1.0)
    after = before + positive * 0.5  # the same cases, each positive a little further
    clusters = [str(case // 2) for case in range(160)]
    figure = auc_difference(before, after, positive, clusters, seed=3)
    areas = [auc(margins, positive, clusters, seed=3) for margins in (before, after)]
    one, two = (area.estimate or 0 for area in areas)
    assert figure.estimate == pytest.approx(two - one)
    assert (figure.low or 0) > 0
    # Pairing pays: the interval is far narrower than that of either area.
    assert width(figure) < min(width(area) for area in areas) / 2
    back = auc_difference(after, before, positive, clusters, seed=3)
    assert (back.low, back.high) == pytest.approx((-(figure.high or 0), -(figure.low or 0)))


def slow_false_rate(scores: Any, positive: Any, recall: float) -> float:
    """Down the scores, tie by tie, until the recall is reached; the last step in part."""
    here = np.array([0.0, 0.0])
    for score in sorted(set(scores), reverse=True):
        step = np.array([(scores[kind] == score).mean() for kind in (positive, ~positive)])
        if here[0] + step[0] >= recall - 1e-12:
            part = (recall - here[0]) / step[0] if step[0] else 0.0
            return float(here[1] + part * step[1])
        here += step
    raise AssertionError


def test_at_equal_recall_both_thresholds_are_found_anew_in_each_draw() -> None:
    generator = np.random.default_rng(12)
    positive = generator.random(240) < 0.5
    first = generator.normal(positive * 1.0)
    second = np.round(first + generator.normal(positive * 0.5, 0.5), 1)
    hits = (first > 0.2).astype(float)
    clusters = np.arange(240) // 4

    def slow(cases: Any) -> float:
        recall = hits[cases][positive[cases]].mean()
        one, two = (slow_false_rate(own[cases], positive[cases], recall) for own in (first, second))
        return two - one

    figure = equal_recall_difference(hits, first, second, positive, clusters.tolist(), seed=7, draws=400)
    assert figure.estimate == pytest.approx(slow(np.arange(240)))
    drawn = []
    for picks in np.random.default_rng(7).integers(0, 60, size=(400, 60)):
        cases = [np.flatnonzero(clusters == sorted(range(60), key=str)[p]) for p in picks]
        drawn.append(slow(np.concatenate(cases)))
    assert limits(figure) == pytest.approx(np.quantile(drawn, [0.025, 0.975]))


@pytest.mark.parametrize("cut", [-9.0, -0.5, 0.0, 1.0, 9.0])
def test_what_differs_by_a_bias_alone_differs_in_nothing_at_equal_recall(cut: float) -> None:
    generator = np.random.default_rng(13)
    positive = np.arange(200) % 2 == 0
    scores = generator.normal(positive * 1.0)
    figure = equal_recall_difference(scores > cut, scores, scores - 2.0, positive)
    assert figure.estimate == 0


def test_where_few_clusters_carry_a_class_equal_recall_has_no_interval() -> None:
    positive = np.arange(60) < 2
    scores = np.linspace(1, 0, 60)
    figure = equal_recall_difference(scores > 0.3, scores, scores**2, positive)
    assert (figure.low, figure.high) == (None, None)
    assert figure.reason is not None
    assert "too few clusters carry it" in figure.reason


def width(figure: Estimate) -> float:
    assert figure.low is not None
    assert figure.high is not None
    return figure.high - figure.low


def test_auc_covers_at_least_90_percent() -> None:
    generator = np.random.default_rng(10)
    truth = stats.norm.cdf(1 / math.sqrt(2))
    labels = np.arange(120) % 2 == 0
    covered = [
        covers(auc(generator.normal(labels * 1.0), labels, seed=1, draws=1000), truth) for _ in range(200)
    ]
    assert np.mean(covered) >= 0.90


def test_perfect_separation_has_no_interval() -> None:
    figure = auc(np.arange(100), np.arange(100) >= 50)
    assert (figure.estimate, figure.low) == (1.0, None)
    assert figure.reason == "all clusters agree, so resampling shows no spread"


# Wilson's limits as roots, the definition in full


def test_wilson_over_clusters_of_zero_hits_is_the_root_of_its_score() -> None:
    z = stats.norm.ppf(0.975)
    root = optimize.brentq(lambda p: p / math.sqrt(p * (1 - p) / 200) - z, 1e-9, 0.5)
    assert limits(no_discordance(800, 200)) == pytest.approx((-root, root))
