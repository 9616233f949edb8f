"""Figures over the bias, the choice, and what is refused: by definition, and by simulated coverage."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from bench.calibrate import figures, rerun
from bench.calibrate.choosing import FEWEST, STEP, Objective, check, choose, power, warnings
from bench.calibrate.figures import RHOS, at_bias, curve, risk
from bench.calibrate.margins import Measured
from bench.calibrate.reliability import fits, reliability
from bench.decisions.example import Example
from bench.errors import CheckFailed
from calibrators.bias import biased


def measured(
    margin: Sequence[float],
    due: Sequence[bool],
    gap: Sequence[float] | None = None,
    groups: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
) -> Measured:
    examples = [
        Example(
            id=str(n),
            source="ab"[n % 2],
            group=groups[n] if groups else str(n),
            should_call=label,
            request={"tools": [{}] * (1 + n % 3)},
            split=(split[n] if split else "test"),  # type: ignore[arg-type]
        )
        for n, label in enumerate(due)
    ]
    return Measured(examples, np.array(margin, float), np.array(gap if gap is not None else margin, float))


def drawn(n: int, seed: int, apart: float = 2.0, groups: int | None = None) -> Measured:
    """Margins of two normal classes `apart` nats apart, gaps a little above, half in each split."""
    random = np.random.default_rng(seed)
    due = np.arange(n) % 2 == 0
    margin = random.normal(np.where(due, apart / 2, -apart / 2), 1.0)
    own = [str(number % groups) for number in range(n)] if groups else None
    split = ["validation" if number % 4 < 2 else "test" for number in range(n)]
    return measured(margin.tolist(), due.tolist(), (margin + random.random(n)).tolist(), own, split)


# Figures over the bias --------------------------------------------------------------------------------------

NATS = st.floats(-12, 12)


@given(NATS, NATS, NATS)
def test_an_entry_is_what_greedy_decoding_and_the_formula_of_p_say(m: float, g: float, b: float) -> None:
    one = measured([m], [True], [g])
    assert one.entries(b, "greedy")[0] == (g + b > 0)
    assert one.entries(b, "sampled")[0] == pytest.approx(biased(float(expit(m)), b), rel=1e-6, abs=1e-12)


def test_rates_are_shares_of_calls_among_either_label() -> None:
    table = measured([1, 2, -3, 0.5, -1, -2], [True, True, True, False, False, False])
    found = at_bias(table, 0.0, "greedy", seed=0)
    assert found["over_calling"]["estimate"] == pytest.approx(1 / 3)
    assert found["call_recall"]["estimate"] == pytest.approx(2 / 3)
    assert found["respond_recall"]["estimate"] == pytest.approx(2 / 3)
    assert found["missed"]["estimate"] == pytest.approx(1 / 3)
    assert found["decision_accuracy"]["estimate"] == pytest.approx(2 / 3)
    for rho in RHOS:
        assert found["risk"][f"{rho:g}"]["estimate"] == pytest.approx((rho / 3 + 1 / 3) / (1 + rho))


def test_a_complement_mirrors_its_interval() -> None:
    found = at_bias(drawn(200, 1), -0.5, "greedy", seed=0)
    assert found["missed"]["low"] == pytest.approx(1 - found["call_recall"]["high"])
    assert found["respond_recall"]["high"] == pytest.approx(1 - found["over_calling"]["low"])


@pytest.mark.parametrize("decoding", ["greedy", "sampled"])
def test_the_curve_rises_and_each_point_is_the_figure_at_its_bias(decoding: figures.Decoding) -> None:
    table = drawn(240, 2, groups=80)
    at = figures.biases(table, -1.23)
    assert {0.0, -1.23} <= set(at)
    found = curve(table, at, decoding, seed=3)
    for name in ("over_calling", "call_recall"):
        estimates = found[name]["estimate"]
        assert all(b >= a - 1e-12 for a, b in pairwise(estimates))
        own = at_bias(table, -1.23, decoding, seed=3)[name]
        assert estimates[at.index(-1.23)] == pytest.approx(own["estimate"])
        assert found[name]["low"][at.index(-1.23)] == pytest.approx(own["low"])


def test_intervals_cover_the_truth_in_at_least_nine_of_ten_samples_of_conversations() -> None:
    """Three examples a conversation that share most of their margin: counting cases would cover far less."""
    random, hits, runs = np.random.default_rng(5), 0, 60
    truth = 0.5 * math.erfc(0.5 / math.sqrt(2 * 1.25))  # P(N(-0.5, 1.25) > 0)
    for _ in range(runs):
        shared = np.repeat(random.normal(-0.5, 1.0, 60), 3)
        margin = shared + random.normal(0, 0.5, 180)
        groups = [str(n // 3) for n in range(180)]
        table = measured(margin.tolist(), [False] * 180, groups=groups)
        found = curve(table, [0.0], "greedy", seed=0)["over_calling"]
        hits += found["low"][0] <= truth <= found["high"][0]
    assert hits / runs >= 0.9


def test_slices_part_by_source_and_by_how_many_tools_are_offered() -> None:
    found = figures.slices(drawn(120, 4), -1.0, "greedy", seed=0)
    assert [row["name"] for row in found["source"]] == ["a", "b"]
    assert [row["name"] for row in found["tools"]] == ["1", "2", "3–4"]
    assert sum(row["due"] + row["not_due"] for row in found["tools"]) == 120


def test_changes_are_paired_and_their_p_counts_both_claims() -> None:
    found = figures.changes(drawn(300, 5), -1.0, "greedy", seed=0)
    for change in found.values():
        assert change["estimate"] < 0
        assert change["test"]["p"] <= change["test"]["p_holm"] <= 2 * change["test"]["p"] + 1e-12


# Choosing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("risk:1", "risk", 1),
        ("over-calling:0.05", "over-calling", 0.05),
        ("call-recall:.9", "call-recall", 0.9),
    ],
)
def test_an_objective_is_written_as_it_is_read(text: str, kind: str, value: float) -> None:
    read = Objective.parse(text)
    assert (read.kind, read.value) == (kind, value)
    assert Objective.parse(str(read)) == read


@pytest.mark.parametrize("text", ["risk", "risk:0", "recall:0.9", "over-calling:5", "risk:1.2.3", "risk:nan"])
def test_an_objective_that_is_none_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"none of|no rate|above 0"):
        Objective.parse(text)


GAPS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=4, max_size=40)
OBJECTIVES = st.sampled_from(["risk:0.5", "risk:1", "risk:4", "over-calling:0.2", "call-recall:0.8"])


@given(GAPS, OBJECTIVES)
def test_no_other_bias_does_better_on_validation(gaps: list[float], text: str) -> None:
    due = [number % 2 == 0 for number in range(len(gaps))]
    table, objective = measured(gaps, due), Objective.parse(text)
    try:
        chosen = choose(table, objective, "greedy", seed=0).bias
    except CheckFailed:  # no calibration, tested below
        return
    label = table.due

    def score(b: float) -> float:
        entered = table.entries(b, "greedy")
        rates = np.array([entered[~label].mean()]), np.array([entered[label].mean()])
        return float(objective.scores(*rates)[0])

    edges = sorted({-g for g in gaps})
    between = [(a + b) / 2 for a, b in pairwise(edges)]
    best = min(map(score, [edges[0] - 1, *between, edges[-1] + 1]))
    assert score(chosen) <= best + 1e-12


def test_never_to_call_is_no_calibration() -> None:
    backwards = measured([-1, -2, 1, 2, 3], [True, True, False, False, False])
    with pytest.raises(CheckFailed, match="never to call: the margins do not tell the two kinds apart"):
        choose(backwards, Objective.parse("risk:4"), "greedy", seed=0)


def test_zero_is_chosen_where_it_is_as_good_as_any() -> None:
    table = measured([2, 3, -2, -3], [True, True, False, False])
    assert choose(table, Objective.parse("risk:1"), "greedy", seed=0).bias == 0


def test_the_choice_stands_in_the_middle_of_equals_and_not_on_an_edge() -> None:
    table = measured([3, 4, 1, 0.5], [True, True, False, False])
    choice = choose(table, Objective.parse("risk:1"), "greedy", seed=0)
    assert choice.bias == pytest.approx(-2, abs=STEP)
    assert choice.stretch == pytest.approx((-3, -1), abs=2 * STEP)


def test_at_temperature_1_the_risk_is_least_where_its_slope_is_nought() -> None:
    table = drawn(400, 6).of_split("validation")
    b = choose(table, Objective.parse("risk:2"), "sampled", seed=0).bias
    label = table.due

    def at(b: float) -> float:
        p = expit(table.margin + b)
        return float(risk(p[~label].mean(), p[label].mean(), 2.0))

    assert at(b) <= min(at(b - 0.05), at(b + 0.05))


def test_a_bound_holds_on_validation_and_gives_away_no_more_than_it_must() -> None:
    table = drawn(400, 7).of_split("validation")
    b = choose(table, Objective.parse("over-calling:0.1"), "greedy", seed=0).bias
    label = table.due
    assert table.entries(b, "greedy")[~label].mean() <= 0.1
    more = table.entries(b, "greedy")[label].mean() + 1 / label.sum()
    for higher in np.arange(b, b + 3, STEP):
        entered = table.entries(float(higher), "greedy")
        assert entered[~label].mean() > 0.1 or entered[label].mean() < more


def test_a_bias_that_can_t_be_applied_is_not_chosen() -> None:
    shy = measured([-3, -2, -5, -6], [True, True, False, False])
    assert choose(shy, Objective.parse("risk:1"), "greedy", seed=0).bias > 0
    assert choose(shy, Objective.parse("risk:1"), "greedy", seed=0, most=0.0).bias == 0


def test_resampled_choices_lie_around_the_choice() -> None:
    choice = choose(drawn(600, 8).of_split("validation"), Objective.parse("risk:1"), "greedy", seed=0)
    assert choice.resampled is not None
    low, high = choice.resampled
    assert low - 0.1 <= choice.bias <= high + 0.1
    assert high - low < 2


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (measured([1.0] * 80, [True] * 80), "one class only: in all 80 measured examples a call is due"),
        (drawn(60, 9), f"too few examples: 15 in the validation split where a call is due, {FEWEST} are"),
        (
            measured(
                [0.5] * 200,
                [n % 2 == 0 for n in range(200)],
                split=["validation", "test", "test"] * 66 + ["test"] * 2,
            ),
            "all margins alike",
        ),
    ],
)
def test_data_that_carry_no_choice_are_refused_with_the_reason(table: Measured, told: str) -> None:
    with pytest.raises(CheckFailed) as refused:
        check(table, len(table.examples))
    assert told in str(refused.value)
    assert ";" in str(refused.value)  # the mend


def test_data_that_carry_a_choice_pass() -> None:
    check(drawn(200, 10), 200)


def test_margins_that_tell_nothing_are_a_warning() -> None:
    (told,) = warnings(drawn(400, 11, apart=0.0).of_split("validation"), seed=0)
    assert "may tell nothing" in told
    assert warnings(drawn(400, 11).of_split("validation"), seed=0) == []


def test_the_smallest_difference_shrinks_with_the_test_split() -> None:
    small, large = (drawn(n, 12) for n in (200, 2000))
    shown = [
        power(t.of_split("validation"), t.of_split("test"), -1.0, "greedy")["over_calling"][
            "smallest_difference"
        ]
        for t in (small, large)
    ]
    assert 0 < shown[1] < shown[0] < 1
    still = power(small.of_split("validation"), small.of_split("test"), 0.0, "greedy")
    assert still["call_recall"] == {"expected_flips": 0.0, "pairs": 50, "smallest_difference": None}


# Reliability ------------------------------------------------------------------------------------------------


def test_fits_undo_what_was_done_to_calibrated_margins() -> None:
    random = np.random.default_rng(13)
    logit = random.normal(0, 2, 6000)
    due = random.random(6000) < expit(logit)
    table = measured((2 * logit + 1).tolist(), due.tolist())
    found = fits(table)
    assert found["platt"].parameters["slope"] == pytest.approx(0.5, abs=0.05)
    assert found["platt"].parameters["intercept"] == pytest.approx(-0.5, abs=0.1)
    assert found["as it stands"].apply(np.array([0.0]))[0] == 0.5
    assert np.all(np.diff(found["isotonic"].apply(np.linspace(-5, 5, 50))) >= 0)


def test_recalibration_lowers_the_error_of_overconfident_margins() -> None:
    random = np.random.default_rng(14)
    logit = random.normal(0, 1, 2000)
    due = random.random(2000) < expit(logit)
    table = measured((4 * logit + 2).tolist(), due.tolist())
    half = np.arange(2000) < 1000
    found = reliability(table.where(half), table.where(~half), seed=0)
    for fit in ("platt", "isotonic"):
        assert found[fit]["ece"]["high"] < found["as it stands"]["ece"]["low"]
        assert found[fit]["brier"]["estimate"] < found["as it stands"]["brier"]["estimate"]
    assert sum(row["due"]["n"] for row in found["platt"]["bins"]) == 1000


def test_the_calibration_error_is_the_mean_gap_over_bins() -> None:
    # Two bins' worth of distinct margins: p = 0.5 with a quarter due, p = 0.88 with all due.
    margin, due = [0.0] * 60 + [2.0] * 60, [n < 15 for n in range(60)] + [True] * 60
    table = measured(margin, due)
    found = reliability(table, table, seed=0)["as it stands"]
    assert found["ece"]["estimate"] == pytest.approx((0.25 + 1 - expit(2.0)) / 2)
    assert [row["p"] for row in found["bins"]] == pytest.approx([0.5, expit(2.0)])


# The curve asked again --------------------------------------------------------------------------------------


def test_five_biases_span_the_gaps_and_none_is_above_what_can_be_applied() -> None:
    table = drawn(200, 15)
    assert len(rerun.biases(table, 100.0)) == rerun.POINTS
    assert max(rerun.biases(table, 0.0)) <= 0
