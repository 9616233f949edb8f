"""Choosing b on the validation split, and what the data can't carry.

calibration.md section 5. Only validation is seen here: the chosen b is frozen before test is.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from bench.calibrate.figures import Decoding, risk
from bench.calibrate.margins import Bools, Floats, Measured
from bench.errors import CheckFailed
from bench.intervals import MIN_BOOTSTRAP_CLUSTERS, auc, resampled_sums
from bench.significance import smallest_detectable
from calibrators.bias import LIMIT

Json = dict[str, Any]

FEWEST = 20
"""Examples of each label in each split; below, a rate is a count in disguise (rigor.md 3)."""
ALIKE = 0.01
"""Margins that lie within so many nats of each other are all alike."""
STEP = 0.01
"""In nats; finer than any data tells apart."""
RESAMPLES = 1000
_CANDIDATES = 200
"""Biases among which a resampled choice is made."""

Kind = Literal["risk", "over-calling", "call-recall"]
_KINDS: dict[str, Kind] = {"risk": "risk", "over-calling": "over-calling", "call-recall": "call-recall"}


@dataclass(frozen=True, slots=True)
class Objective:
    """What the chosen b is best at.

    Attributes:
        kind: `risk`: the least R(rho); `over-calling`: the highest call recall with at most so much
            over-calling; `call-recall`: the least over-calling with at least so much call recall.
        value: rho, or the bound.
    """

    kind: Kind
    value: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """`risk:1`, `over-calling:0.05`, `call-recall:0.9`; ValueError with what is wrong."""
        found = re.fullmatch(r"(risk|over-calling|call-recall):([0-9]*[.]?[0-9]+)", text)
        if not found:
            raise ValueError(f"{text!r} is none of risk:RHO, over-calling:RATE, call-recall:RATE")
        kind, value = _KINDS[found[1]], float(found[2])
        if kind == "risk" and value <= 0:
            raise ValueError("rho must be above 0")
        if kind != "risk" and not 0 <= value <= 1:
            raise ValueError(f"{found[2]} is no rate; write 0.05 for 5 %")
        return cls(kind, value)

    def __str__(self) -> str:
        return f"{self.kind}:{self.value:g}"

    @property
    def words(self) -> str:
        """The objective as a person says it."""
        return {
            "risk": f"least risk R(ρ) at ρ = {self.value:g}",
            "over-calling": f"highest call recall with over-calling of at most {self.value:.1%}",
            "call-recall": f"least over-calling with call recall of at least {self.value:.1%}",
        }[self.kind]

    def scores(self, over_calling: Floats, call_recall: Floats) -> Floats:
        """How bad each point is: less is better, infinite where it breaks the bound.

        The other rate breaks ties, far below any difference that a data set of this world can show.
        """
        if self.kind == "risk":
            return risk(over_calling, call_recall, self.value)
        if self.kind == "over-calling":
            score = 1 - call_recall + 1e-9 * over_calling
            return np.where(over_calling <= self.value + 1e-12, score, np.inf)
        score = over_calling + 1e-9 * (1 - call_recall)
        return np.where(call_recall >= self.value - 1e-12, score, np.inf)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen b.

    Attributes:
        bias: in nats.
        stretch: the first and last b around it that are as good.
        resampled: the middle 95 % of what resampled validation conversations would choose; None with fewer
            than 50 of them.
    """

    bias: float
    stretch: tuple[float, float]
    resampled: tuple[float, float] | None


def check(measured: Measured, planned: int) -> None:
    """Raise CheckFailed, with the reason, where a choice on these examples would mean nothing."""
    due = measured.due
    labels = int(due.sum()), int((~due).sum())
    if not min(labels):
        label = "due" if labels[0] else "not due"
        raise CheckFailed(
            f"one class only: in all {len(due)} measured examples a call is {label}",
            mend="add examples of the other kind, say --bfcl, which has both",
        )
    for split in ("validation", "test"):
        part = measured.of_split(split).due
        for count, label in ((int(part.sum()), "is due"), (int((~part).sum()), "is not due")):
            if count < FEWEST:
                raise CheckFailed(
                    f"too few examples: {count} in the {split} split where a call {label}, "
                    f"{FEWEST} are needed ({len(due)} of {planned} could be measured)",
                    mend="give more decisions, or a higher --limit",
                )
    if float(np.ptp(measured.margin)) < ALIKE:
        raise CheckFailed(
            f"all margins alike, within {ALIKE:g} nats: the model does not look at the request",
            mend="check the entry tokens with `bench entry`, and that the template shows the tools",
        )


def warnings(validation: Measured, seed: int) -> list[str]:
    """What the data can carry only badly."""
    found = []
    area = auc(validation.margin, validation.due, validation.groups, seed=seed)
    if area.low is not None and area.low <= 0.5:
        found.append(
            f"the margin may tell nothing about whether a call is due (validation AUC {area.estimate:.3f}, "
            f"{area.low:.3f} to {area.high:.3f}): a bias then only calls more or less often"
        )
    if (groups := len(set(validation.groups))) < MIN_BOOTSTRAP_CLUSTERS:
        found.append(
            f"{groups} validation conversations: too few for a bootstrap, so some intervals are missing"
        )
    return found


def choose(
    validation: Measured, objective: Objective, decoding: Decoding, seed: int, most: float = LIMIT
) -> Choice:
    """The b of least score on validation among hundredths of a nat, never above `most`.

    Of several stretches of equals the one nearest to 0, and its middle: where servers round gaps, many
    examples share an edge, and no b should stand on one. 0 itself where it is among the best. Raises
    CheckFailed where the best b is one that never calls, or always does: that is no calibration.
    """
    at = _grid(validation, decoding, most)
    scores = objective.scores(*_rates(validation, at, decoding))
    low, high = _stretch(at, scores <= scores.min() + 1e-12)
    bias = 0.0 if low <= 0 <= high else round((low + high) / 2, 2)
    entered = validation.entries(bias, "greedy")
    if bias and (not entered.any() or entered.all()):
        never = "never to call" if not entered.any() else "always to call"
        raise CheckFailed(
            f"the best choice for {objective} is {never}: the margins do not tell the two kinds apart "
            "well enough for this objective",
            where="validation",
            mend="choose another --objective, or see the ROC in a run with --objective risk:1",
        )
    return Choice(bias, (low, high), _resampled(validation, objective, decoding, seed, most))


def power(validation: Measured, test: Measured, b: float, decoding: Decoding) -> Json:
    """The smallest change of each rate that the test split shows with 80 % power.

    Its examples are expected to flip as often as validation's do. Null where not even a change that all
    flips go along with would be found.
    """
    found: Json = {}
    for name, label in (("over_calling", False), ("call_recall", True)):
        part, seen = (m.where(m.due == label) for m in (validation, test))
        flips = float(np.abs(part.entries(b, decoding) - part.entries(0, decoding)).mean())
        pairs = len(set(seen.groups))
        smallest = smallest_detectable(min(1.0, flips), pairs) if flips else None
        found[name] = {"expected_flips": flips, "pairs": pairs, "smallest_difference": smallest}
    return found


def _rates(measured: Measured, at: Floats, decoding: Decoding) -> tuple[Floats, Floats]:
    """Over-calling and call recall at each b."""
    due = measured.due
    if decoding == "sampled":
        # One b at a time: a grid over far margins would fill the memory.
        means = [(e[~due].mean(), e[due].mean()) for e in (measured.entries(b, decoding) for b in at)]
        return np.array([over for over, _ in means]), np.array([recall for _, recall in means])
    over, recall = (np.searchsorted(np.sort(-measured.gap[mask]), at) / mask.sum() for mask in (~due, due))
    return over, recall


def _grid(measured: Measured, decoding: Decoding, most: float) -> Floats:
    """The hundredths of a nat from where nothing is called to where all is, and 0."""
    edges = -(measured.gap if decoding == "greedy" else measured.margin)
    low, high = min(edges.min() - 1, 0), max(edges.max() + 1, 0)
    low, high = max(low, -LIMIT), min(high, LIMIT, most)
    steps: Floats = np.arange(round(low / STEP), round(high / STEP) + 1) * STEP
    return steps.round(2)


def _stretch(at: Floats, best: Bools) -> tuple[float, float]:
    """The ends of the run of best points that is nearest to 0."""
    numbers = np.flatnonzero(best)
    nearest = numbers[np.argmin(np.abs(at[numbers]))]
    others = np.flatnonzero(~best)
    before, after = others[others < nearest], others[others > nearest]
    first = before.max() + 1 if before.size else 0
    last = after.min() - 1 if after.size else len(at) - 1
    return float(at[first]), float(at[last])


def least_scores(
    measured: Measured, objective: Objective, decoding: Decoding, seed: int, most: float = LIMIT
) -> tuple[float, Floats | None]:
    """The score of the best b: on all examples, and on each draw of conversations.

    The draws are the same for the same conversations and seed, so that two sets of margins can be compared
    draw by draw. None with fewer than 50 conversations.
    """
    at = _candidates(measured, decoding, most)
    whole = float(objective.scores(*_rates(measured, at, decoding)).min())
    drawn = _resampled_scores(measured, objective, decoding, seed, at)
    return whole, None if drawn is None else np.nanmin(drawn, axis=1)


def _resampled(
    measured: Measured, objective: Objective, decoding: Decoding, seed: int, most: float
) -> tuple[float, float] | None:
    """The middle 95 % of the b's that resampled conversations choose: how far chance moves the choice."""
    at = _candidates(measured, decoding, most)
    scores = _resampled_scores(measured, objective, decoding, seed, at)
    if scores is None:
        return None
    best = scores <= np.nanmin(scores, axis=1, keepdims=True) + 1e-12
    distance = np.where(best, np.abs(at), np.inf)
    low, high = np.quantile(at[np.argmin(distance, axis=1)], (0.025, 0.975))
    return float(low), float(high)


def _candidates(measured: Measured, decoding: Decoding, most: float) -> Floats:
    """Biases just beyond so many of the edges, and 0."""
    edges = np.sort(-(measured.gap if decoding == "greedy" else measured.margin))
    ranks = np.unique(np.linspace(0, len(edges) - 1, _CANDIDATES).astype(int))
    at = np.unique(np.r_[edges[0] - 1e-6, edges[ranks] + 1e-6, 0.0])
    return at[at <= most]


def _resampled_scores(
    measured: Measured, objective: Objective, decoding: Decoding, seed: int, at: Floats
) -> Floats | None:
    """The score of each b (columns) on each draw of conversations (rows)."""
    if len(set(measured.groups)) < MIN_BOOTSTRAP_CLUSTERS:
        return None
    entered = np.column_stack([measured.entries(b, decoding) for b in at])
    due = measured.due[:, None]
    columns = np.hstack((entered * ~due, entered * due, ~due, due))
    sums = resampled_sums(columns, measured.groups, seed, RESAMPLES)
    count = len(at)
    with np.errstate(invalid="ignore", divide="ignore"):
        over = sums[:, :count] / sums[:, -2, None]
        recall = sums[:, count : 2 * count] / sums[:, -1, None]
    return objective.scores(over, recall)
