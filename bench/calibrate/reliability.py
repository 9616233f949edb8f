"""How well p(entry) says that a call is due, as it stands and recalibrated.

ECE is the gap between p and the share of due calls in bins of p, averaged over examples (Naeini et al., AAAI
2015), here in bins of equally many examples; it leans upwards where these are few. The recalibrations are
fitted on validation and judged on test. They keep the order of margins, so the ROC stays; what they give is a
probability to set a threshold on.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.calibrate.margins import Floats, Measured
from bench.intervals import cluster_bootstrap, rate

Json = dict[str, Any]

BINS = 10


class Fit(NamedTuple):
    """A map from margins to probabilities that a call is due, and its parameters."""

    apply: Callable[[Floats], Floats]
    parameters: Json


def reliability(validation: Measured, test: Measured, seed: int) -> Json:
    """ECE and Brier score on test with intervals, the bins of the plot, and the fits' parameters."""
    found: Json = {}
    for name, fit in fits(validation).items():
        p, due = fit.apply(test.margin), test.due.astype(float)
        found[name] = {
            "parameters": fit.parameters,
            "ece": _ece(p, due, test.groups, seed),
            "brier": _mean((p - due) ** 2, test.groups, seed),
            "bins": _bins(p, due, test.groups, seed),
        }
    return found


def fits(validation: Measured) -> dict[str, Fit]:
    """p(entry) itself and three recalibrations, fitted on validation through scikit-learn.

    `temperature` is one number, sigma(m / T) (Guo et al., ICML 2017); `platt` two, sigma(a m + c) (Platt,
    1999); `isotonic` any rising step function (Zadrozny and Elkan, KDD 2002), which overfits below about a
    thousand examples.
    """
    from sklearn.isotonic import IsotonicRegression
    from sklearn.linear_model import LogisticRegression

    margin, due = validation.margin, validation.due
    scaled = LogisticRegression(C=np.inf, fit_intercept=False).fit(margin[:, None], due)
    platt = LogisticRegression(C=np.inf).fit(margin[:, None], due)
    isotonic = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(margin, due)
    slope, intercept = float(platt.coef_[0, 0]), float(platt.intercept_[0])

    def probability(model: Any) -> Callable[[Floats], Floats]:
        return lambda m: model.predict_proba(m[:, None])[:, 1]

    return {
        "as it stands": Fit(lambda m: 1 / (1 + np.exp(-m)), {}),
        "temperature": Fit(probability(scaled), {"temperature": 1 / float(scaled.coef_[0, 0])}),
        "platt": Fit(probability(platt), {"slope": slope, "intercept": intercept}),
        "isotonic": Fit(isotonic.predict, {"steps": len(isotonic.X_thresholds_)}),
    }


def _number(p: Floats) -> Floats:
    """The bin of each example: bins of equally many examples, equal p's in one bin."""
    edges = np.unique(np.quantile(p, np.linspace(0, 1, BINS + 1)[1:-1]))
    return np.searchsorted(edges, p, side="left").astype(float)


def _ece(p: Floats, due: Floats, groups: list[str], seed: int) -> Json:
    number = _number(p)
    inside = np.column_stack([number == own for own in np.unique(number)]).astype(float)
    # Of each bin the sum of due - p: its absolute value over n is the bin's share of the ECE.
    columns = np.column_stack((inside * (due - p)[:, None], np.ones(len(p))))

    def ece(sums: Floats) -> Floats:
        return np.asarray(np.abs(sums[:, :-1]).sum(axis=1) / sums[:, -1])

    return cluster_bootstrap(columns, groups, ece, seed)._asdict()


def _mean(values: Floats, groups: list[str], seed: int) -> Json:
    columns = np.column_stack((values, np.ones(len(values))))
    return cluster_bootstrap(columns, groups, lambda sums: sums[:, 0] / sums[:, 1], seed)._asdict()


def _bins(p: Floats, due: Floats, groups: list[str], seed: int) -> list[Json]:
    number, rows = _number(p), []
    for own in np.unique(number):
        inside = number == own
        clusters = [group for group, kept in zip(groups, inside, strict=True) if kept]
        rows.append({"p": float(p[inside].mean()), "due": rate(due[inside], clusters, seed=seed)._asdict()})
    return rows
