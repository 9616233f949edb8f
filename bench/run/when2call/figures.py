"""When2Call's figures: accuracy, macro-F1 and tool hallucination over its four labels."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.calibrate.figures import paired
from bench.calibrate.margins import Floats
from bench.decisions.benchmarks import WHEN2CALL
from bench.decisions.example import Example
from bench.intervals import cluster_bootstrap
from bench.score.figures import missing, share

Json = dict[str, Any]

LABELS = tuple(WHEN2CALL)
GOLD = {action: label for label, action in WHEN2CALL.items()}


class Outcome(NamedTuple):
    """One question's."""

    example: Example
    chosen: str
    """The label of what was chosen or done."""

    @property
    def gold(self) -> str:
        """The label that is right."""
        assert self.example.action is not None
        return GOLD[self.example.action]

    @property
    def right(self) -> bool:
        """Whether it is the one."""
        return self.chosen == self.gold


def told_label(action: str) -> str:
    """The label of a reply's action class; one that confirms answers directly."""
    return GOLD.get(action, "direct")  # type: ignore[call-overload, no-any-return]


def figures(outcomes: Sequence[Outcome], seed: int) -> Json:
    """Accuracy, recall by label, macro-F1, hallucination and the confusion table of some questions.

    hallucination: the share of questions without any tool, which can't be answered, where a call was chosen.
    Intervals are by source conversation.
    """
    groups = [outcome.example.group for outcome in outcomes]
    toolless = [
        outcome
        for outcome in outcomes
        if outcome.gold == "cannot_answer" and not outcome.example.request.get("tools")
    ]
    recall: Json = {}
    for label in LABELS:
        own = [outcome for outcome in outcomes if outcome.gold == label]
        recall |= share(
            label,
            [outcome.right for outcome in own],
            [outcome.example.group for outcome in own],
            seed,
            f"no question is {label}",
        )
    confusion: dict[str, Counter[str]] = {label: Counter() for label in LABELS}
    for outcome in outcomes:
        confusion[outcome.gold][outcome.chosen] += 1
    return {
        **share("accuracy", [outcome.right for outcome in outcomes], groups, seed),
        **_macro(outcomes, groups, seed),
        **share(
            "hallucination",
            [outcome.chosen == "tool_call" for outcome in toolless],
            [outcome.example.group for outcome in toolless],
            seed,
            "no question is without tools",
        ),
        "recall": recall,
        "confusion": {gold: {label: counts[label] for label in LABELS} for gold, counts in confusion.items()},
    }


def _macro(outcomes: Sequence[Outcome], groups: Sequence[str], seed: int) -> Json:
    if not outcomes:
        return missing("macro_f1", "no case was scored")
    columns = np.array(
        [
            [*(o.right and o.gold == label for label in LABELS),
             *(o.gold == label for label in LABELS),
             *(o.chosen == label for label in LABELS)]
            for o in outcomes
        ],
        float,
    )  # fmt: skip
    return {"macro_f1": cluster_bootstrap(columns, groups, macro_f1, seed)._asdict()}


def macro_f1(sums: Floats) -> Floats:
    """Macro-F1 of sums (draws, 3 x labels): right, gold and chosen of each label.

    F1 = 2 right / (gold + chosen), averaged over the labels that are gold or chosen at all, as scikit-learn
    and so upstream have it.
    """
    right, gold, picked = np.split(sums, 3, axis=1)
    there = gold + picked > 0
    scores = np.divide(2 * right, gold + picked, out=np.zeros_like(right), where=there)
    return np.asarray(scores.sum(axis=1) / there.sum(axis=1))


def accuracy_change(before: Sequence[Outcome], after: Sequence[Outcome], seed: int) -> Json:
    """The paired difference in accuracy on the questions that both have, with its test."""
    first = {outcome.example.id: outcome for outcome in before}
    both = [outcome for outcome in after if outcome.example.id in first]
    return paired(
        np.array([first[outcome.example.id].right for outcome in both], float),
        np.array([outcome.right for outcome in both], float),
        [outcome.example.group for outcome in both],
        seed,
    )
