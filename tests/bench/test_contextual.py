import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from bench.calibrate.choosing import Objective
from bench.calibrate.contextual import Fitted, Table, biases_of, compared, fit, logistic, moved_by
from bench.calibrate.margins import Floats, Measured
from bench.decisions.example import Example
from calibrators.contextual import Features, features_of

LOAN = {
    "type": "function",
    "function": {
        "name": "loan_payment",
        "description": "Monthly payment of a loan.",
        "parameters": {
            "type": "object",
            "properties": {"amount": {"type": "number"}, "years": {"type": "integer"}},
            "required": ["amount", "years"],
        },
    },
}
WHOLE = "What is the payment of a loan of 20000 over 5 years?"
PART = "What is the payment of a loan?"
RISK = Objective.parse("risk:1")


def measured(n: int, *, blind: bool, seed: int = 0) -> Measured:
    """Questions with and without their values, half each; the margin knows which (or is blind to it)."""
    random = np.random.default_rng(seed)
    due = np.arange(n) % 2 == 0
    margin = random.normal(0, 1.5, n) + (0 if blind else np.where(due, 4, -4))
    examples = [
        Example(
            id=str(at),
            source="made",
            group=f"conversation {at}",
            should_call=bool(own),
            request={"messages": [{"role": "user", "content": WHOLE if own else PART}], "tools": [LOAN]},
        )
        for at, own in enumerate(due)
    ]
    return Measured(examples, margin, margin + 0.5)


def test_a_bias_that_knows_what_the_margin_does_not_is_offered() -> None:
    told, offered = compared(
        measured(200, blind=True), measured(200, blind=True, seed=1), 0.0, RISK, "greedy", 0, 100.0
    )
    assert offered is not None
    assert told["offered"]
    assert told["gain"]["validation"]["high"] < 0
    assert offered.weights["missing"] < 0
    assert told["test"]["auc"]["contextual"]["estimate"] > told["test"]["auc"]["scalar"]["estimate"] + 0.2
    assert told["test"]["changes"]["over_calling"]["estimate"] < 0


def test_a_bias_that_adds_nothing_is_shown_and_not_offered() -> None:
    told, offered = compared(
        measured(200, blind=False), measured(200, blind=False, seed=1), 0.0, RISK, "greedy", 0, 100.0
    )
    assert offered is None
    assert not told["offered"]
    assert told["fitted"] is not None


def test_examples_that_do_not_differ_have_nothing_to_fit() -> None:
    part = measured(100, blind=True)
    same = [replace(example, request=part.examples[0].request) for example in part.examples]
    told, offered = compared(replace(part, examples=same), part, 0.0, RISK, "greedy", 0, 100.0)
    assert (offered, told["reason"]) == (None, "no feature differs between the examples")


def test_the_fitted_bias_is_what_the_proxy_computes() -> None:
    part = measured(100, blind=True)
    fitted = fit(part, RISK, "greedy", 0, 100.0)
    assert isinstance(fitted, Fitted)
    shifts = biases_of(part, fitted.bias)
    for example, shift in zip(part.examples, shifts, strict=True):
        raw = json.dumps(example.request["tools"])
        assert fitted.bias.value(features_of(example.request, raw)) == shift
    assert fitted.bias.low - 0.01 <= shifts.min() <= shifts.max() <= fitted.bias.high + 0.01
    assert (moved_by(part, shifts).gap == part.gap + shifts).all()


def test_where_only_restraint_can_be_applied_no_bias_is_above_0() -> None:
    fitted = fit(measured(100, blind=True), RISK, "greedy", 0, 0.0)
    assert isinstance(fitted, Fitted)
    assert fitted.bias.high <= 0


def rows(seed: int, n: int = 60, k: int = 3) -> tuple[Floats, Any, Floats]:
    random = np.random.default_rng(seed)
    values = random.normal(size=(n, k))
    due = random.random(n) < 1 / (1 + np.exp(-values @ np.arange(k)))
    return values, due, random.normal(0, 3, n)


@pytest.mark.parametrize("penalty", [0.3, 3.0, 30.0])
def test_without_an_offset_it_is_the_ridge_regression_of_scikit_learn(penalty: float) -> None:
    values, due, _ = rows(1)
    reference = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=1000).fit(values, due)
    own = logistic(values, due, np.zeros(len(due)), penalty)
    assert own == pytest.approx([*reference.intercept_, *reference.coef_[0]], abs=1e-4)


@given(seed=st.integers(0, 10_000), penalty=st.sampled_from([0.3, 3.0, 100.0]))
def test_the_slope_is_0_at_the_solution_whatever_the_offset(seed: int, penalty: float) -> None:
    values, due, offset = rows(seed)
    b0, *weights = logistic(values, due, offset, penalty)
    p = 1 / (1 + np.exp(-(offset + b0 + values @ np.array(weights))))
    assert (p - due).sum() == pytest.approx(0, abs=1e-5)
    assert values.T @ (p - due) + penalty * np.array(weights) == pytest.approx(np.zeros(3), abs=1e-5)


def test_features_are_weighed_as_they_are_not_as_they_were_standardised() -> None:
    table = Table.of(measured(60, blind=True))
    weights, b0 = table.fitted(1.0)
    center, spread = table.values.mean(axis=0), table.values.std(axis=0) + 1e-9
    own = logistic((table.values - center) / spread, table.due, table.offset, 1.0)
    assert b0 + table.values @ weights == pytest.approx(own[0] + (table.values - center) / spread @ own[1:])
    assert set(table.names) <= set(Features._fields)
