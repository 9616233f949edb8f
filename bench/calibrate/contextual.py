"""A bias that depends on the request: fitted on validation, offered only where it beats the scalar there.

calibration.md section 5: b(x) = b0 + g.f(x), by logistic regression with the margin as offset, so that g says
what the features know beyond the margin. Its penalty is chosen, and the comparison with the scalar made, on
coefficients of other conversations than those they are judged on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.calibrate import figures
from bench.calibrate.choosing import Choice, Objective, choose, least_scores
from bench.calibrate.figures import Decoding
from bench.calibrate.margins import Bools, Floats, Measured
from bench.errors import CheckFailed
from bench.intervals import auc
from calibrators.contextual import Contextual, Features, features_of

Json = dict[str, Any]

FOLDS = 5
PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Ridge penalties on standardised coefficients, from hardly any to nearly none of the features left."""


class Gain(NamedTuple):
    """How much less the best contextual choice scores than the best scalar one, on the same examples.

    Attributes:
        difference: contextual minus scalar, of the objective's score: below 0 is better.
        low, high: the middle 95 % over resampled conversations; None with fewer than 50 of them.
    """

    difference: float
    low: float | None
    high: float | None

    @property
    def beats(self) -> bool:
        """Whether it is better beyond the interval."""
        return self.high is not None and self.high < 0


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fit on validation.

    Attributes:
        bias: to be applied.
        penalty: the chosen one.
        choice: what the objective chose on top of the fit, which is in `bias.b0`.
        gain: against the scalar.
    """

    bias: Contextual
    penalty: float
    choice: Choice
    gain: Gain


def compared(
    validation: Measured,
    test: Measured,
    scalar: float,
    objective: Objective,
    decoding: Decoding,
    seed: int,
    most: float,
) -> tuple[Json, Contextual | None]:
    """Both biases, fitted on validation and shown on test; and the contextual one where it is offered.

    scalar: the b that was chosen. most: the highest that can be applied.
    """
    try:
        fitted = fit(validation, objective, decoding, seed, most)
    except CheckFailed as error:
        fitted = str(error)
    if isinstance(fitted, str):
        return {"fitted": None, "reason": fitted, "offered": False}, None
    before = moved_by(test, np.full(len(test.examples), scalar))
    after = moved_by(test, biases_of(test, fitted.bias))
    gains = {"validation": fitted.gain, "test": gain(test, after, objective, decoding, seed, most)}
    told = {
        "fitted": {**asdict(fitted.bias), "penalty": fitted.penalty},
        "offered": fitted.gain.beats,
        "gain": {split: own._asdict() for split, own in gains.items()},
        "test": _on_test(before, after, decoding, seed),
    }
    return told, fitted.bias if fitted.gain.beats else None


def fitted_of(told: Json | None) -> Contextual | None:
    """The fitted bias that `compared` told of, as a run's result keeps it; None where none was fitted."""
    if not told or not told["fitted"]:
        return None
    return Contextual(**{name: told["fitted"][name] for name in ("b0", "weights", "low", "high")})


def _on_test(before: Measured, after: Measured, decoding: Decoding, seed: int) -> Json:
    """The figures of both, and what the second changes against the first."""
    claims = {}
    for name, mask in (("over_calling", ~before.due), ("call_recall", before.due)):
        own, other = (measured.where(mask).entries(0, decoding) for measured in (before, after))
        claims[name] = figures.paired(own, other, before.where(mask).groups, seed)
    arms = {"scalar": before, "contextual": after}
    return {
        **{name: figures.at_bias(arm, 0.0, decoding, seed) for name, arm in arms.items()},
        "auc": {
            name: auc(arm.margin, arm.due, arm.groups, seed=seed)._asdict() for name, arm in arms.items()
        },
        "changes": figures.adjusted(claims),
    }


def fit(
    validation: Measured, objective: Objective, decoding: Decoding, seed: int, most: float
) -> Fitted | str:
    """Fit b(x) on validation; or why that is not possible.

    most: the highest bias that can be applied. Raises CheckFailed where the best choice never calls, or
    always does.
    """
    table = Table.of(validation)
    if not table.names:
        return "no feature differs between the examples"
    if len(set(validation.groups)) < FOLDS * 2:
        return f"fewer than {FOLDS * 2} conversations to cross-validate over"
    penalty = min(PENALTIES, key=lambda one: _log_loss(table, _held_out(table, one, seed)))
    held_out = _held_out(table, penalty, seed)
    moved = moved_by(validation, held_out)
    choice = choose(moved, objective, decoding, seed)
    weights, b0 = table.fitted(penalty)
    raw = b0 + choice.bias + table.values @ weights
    bias = Contextual(
        b0=round(b0 + choice.bias, 4),
        weights={name: round(float(w), 4) for name, w in zip(table.names, weights, strict=True)},
        low=round(float(raw.min()), 2),
        high=round(min(float(raw.max()), most), 2),
    )
    return Fitted(bias, penalty, choice, gain(validation, moved, objective, decoding, seed, most))


def moved_by(measured: Measured, shift: Floats) -> Measured:
    """The examples with `shift` added to margin and gap, each its own; shape (n,), in nats."""
    return replace(measured, margin=measured.margin + shift, gap=measured.gap + shift)


def biases_of(measured: Measured, bias: Contextual) -> Floats:
    """b(x) of each example, in nats; shape (n,)."""
    return np.array([bias.value(features_of(example.request)) for example in measured.examples])


@dataclass(frozen=True, slots=True)
class Table:
    """Examples as a regression sees them.

    Attributes:
        names: the k features that differ between them.
        values: shape (n, k), as they are.
        due: whether a call is due; shape (n,).
        offset: the margin, in nats; shape (n,).
        groups: the source conversations; n of them.
    """

    names: Sequence[str]
    values: Floats
    due: Bools
    offset: Floats
    groups: Sequence[str]

    @classmethod
    def of(cls, measured: Measured) -> "Table":
        """The features of all examples, without those that are the same everywhere."""
        values = np.array([features_of(example.request) for example in measured.examples], float)
        differ = values.std(axis=0) > 1e-9
        names = [name for name, one in zip(Features._fields, differ, strict=True) if one]
        return cls(names, values[:, differ], measured.due, measured.margin, measured.groups)

    def where(self, mask: Bools) -> "Table":
        """Those that a mask keeps."""
        groups = [group for group, keep in zip(self.groups, mask, strict=True) if keep]
        return Table(self.names, self.values[mask], self.due[mask], self.offset[mask], groups)

    def fitted(self, penalty: float) -> tuple[Floats, float]:
        """Weights (k,) and b0, in nats for one unit of each feature as it is."""
        center, spread = self.values.mean(axis=0), self.values.std(axis=0) + 1e-9
        b0, *rest = logistic((self.values - center) / spread, self.due, self.offset, penalty)
        weights = np.array(rest) / spread
        return weights, float(b0 - weights @ center)


def logistic(values: Floats, due: Bools, offset: Floats, penalty: float) -> Floats:
    """Intercept and weights (k + 1,) of a ridge logistic regression with an offset.

    They minimise sum log(1 + exp(-y z)) + penalty / 2 |w|^2 with z = offset + b0 + w.x and y = +-1, by
    Newton's method; the intercept is free. scikit-learn's has no offset.
    """
    columns = np.column_stack((np.ones(len(values)), values))
    ridge = np.diag([1e-9, *[penalty] * values.shape[1]])
    weights = np.zeros(columns.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(offset + columns @ weights, -500, 500)))
        slope = columns.T @ (p - due) + ridge @ weights
        curvature = (columns * (p * (1 - p))[:, None]).T @ columns + ridge
        step = np.linalg.solve(curvature, slope)
        weights = weights - np.clip(step, -2, 2)  # a full step may overshoot where margins are far apart
        if np.abs(step).max() < 1e-9:
            break
    return weights


def _held_out(table: Table, penalty: float, seed: int) -> Floats:
    """b0 + w.x of each example (n,), from a fit on the other folds' conversations."""
    found = np.zeros(len(table.due))
    for mask in _folds(table.groups, seed):
        weights, b0 = table.where(~mask).fitted(penalty)
        found[mask] = b0 + table.values[mask] @ weights
    return found


def _folds(groups: Sequence[str], seed: int) -> Iterator[NDArray[np.bool_]]:
    """Which examples each fold holds out; whole conversations."""
    names = sorted(set(groups))
    Random(f"{seed}:folds").shuffle(names)
    fold = {name: at % FOLDS for at, name in enumerate(names)}
    own = np.array([fold[group] for group in groups])
    yield from (own == number for number in range(FOLDS))


def _log_loss(table: Table, shift: Floats) -> float:
    signed = np.where(table.due, 1, -1) * (table.offset + shift)
    return float(np.logaddexp(0, -signed).mean())


def gain(
    scalar: Measured, moved: Measured, objective: Objective, decoding: Decoding, seed: int, most: float
) -> Gain:
    """Best against best, on all examples and over resampled conversations, the same for both."""
    own, drawn = least_scores(scalar, objective, decoding, seed, most)
    other, other_drawn = least_scores(moved, objective, decoding, seed)
    if drawn is None or other_drawn is None:
        return Gain(other - own, None, None)
    low, high = np.nanquantile(other_drawn - drawn, (0.025, 0.975))
    return Gain(other - own, float(low), float(high))
