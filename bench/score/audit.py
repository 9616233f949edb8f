"""The labels of the mechanism audit that arXiv:2609.00949 published, computed from a BFCL case.

    B1a  gold action at the gold turn: the turn's class is the category's gold class
    B1b  gold action eventually: so is that of the gold turn or of a later one
    B3   held-out tool fired late: miss_func, a call of a held-out function once that is offered
    B4   clarification before any call: a turn up to the gold turn asks
    B5   grader passed without the gold action at the gold turn

The audit's gold turn is the first one whose ground truth has a call for base and long_context, and turn 0 for
the others; GAR@gold-turn has another one, that at which the class is due. A turn's class is its highest, in
the cascade's order: a call beside a refusal is TOOL_CALL. The rubric's definition of B4 takes any turn before
the first call, its decision tree and the released ratings stop at the gold turn, as we do.

B6 (is a claim of completion true) and B7 (how a probe failed) need a reader and are not computed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from bench.intervals import Floats, cluster_bootstrap
from bench.score.bfcl import GOLD
from bench.score.bfcl_turns import gold_turns, held_out, turns_due
from bench.score.emissions import Turn
from bench.score.figures import missing, share
from calibrators.actions import Action

Json = dict[str, Any]
Value = Literal[0, 1, "n.a."] | None
"""A label's: `n.a.` where it does not apply; None where the run doesn't show it (a lost text, no verdict)."""
Labels = Mapping[str, Value]
"""By label."""

LABELS: Final[Mapping[str, str]] = {
    "B1a": "gold action at the gold turn",
    "B1b": "gold action eventually",
    "B3": "held-out tool fired late",
    "B4": "clarification before any call",
    "B5": "grader passed without the gold action",
}
SECOND_READING: Final = "B3_without_B1a"
NOT_APPLICABLE: Final = "n.a."
_ORDER: Final = (Action.TOOL_CALL, Action.REFUSE, Action.ASK, Action.CONFIRM, Action.OTHER)
"""The cascade, highest first."""


def labels(turns: Sequence[Turn], category: str, entry: int, *, passed: bool | None) -> Labels:
    """A case's labels. category: BFCL's name; passed: the grader's verdict, None where it is not known."""
    gold = GOLD[category]
    at = _gold_turn(category, entry)
    classes = [_class(turn) for turn in turns]
    on_time = _any(gold, classes[at : at + 1])
    return {
        "B1a": _value(on_time),
        "B1b": _value(_any(gold, classes[at:])),
        "B3": _value(_fired_late(turns, entry)) if category == "multi_turn_miss_func" else NOT_APPLICABLE,
        "B4": _value(_any(Action.ASK, classes[: at + 1])),
        "B5": _value(_masked(on_time, passed)),
    }


def _gold_turn(category: str, entry: int) -> int:
    """Turn 0, or for base and long_context the first that has to call."""
    if gold_turns(category):
        return 0
    due = turns_due(category, entry)
    return due.index(True) if True in due else 0


def _class(turn: Turn) -> set[Action | None]:
    """The classes that a turn may be of: one, unless a lost text may be higher; empty turns have None."""
    found = {action for emission in turn for action in emission.actions}
    highest = next((action for action in _ORDER if action in found), None)
    if not any(emission.lost for emission in turn):
        return {highest}
    # A lost reply is a text: it can be anything but a call.
    above = _ORDER[1:] if highest is None else _ORDER[1 : _ORDER.index(highest)]
    return {highest, *above}


def _any(gold: Action, classes: Sequence[set[Action | None]]) -> bool | None:
    """Whether some turn is of the class; None where a lost text decides."""
    if {gold} in classes:
        return True
    return None if any(gold in each for each in classes) else False


def _fired_late(turns: Sequence[Turn], entry: int) -> bool:
    """Whether a held-out function is called in a turn that offers it: any after its gold turn."""
    missed = gold_turns("multi_turn_miss_func").get(entry)
    names = held_out(entry)
    offered = () if missed is None else turns[missed + 1 :]
    return any(call.name in names for turn in offered for emission in turn for call in emission.calls)


def _masked(on_time: bool | None, passed: bool | None) -> bool | None:
    """Whether the grader passed a case without the gold action at the gold turn."""
    if passed is False or on_time is True:
        return False
    return None if None in (passed, on_time) else True


def _value(known: bool | None) -> Value:
    return None if known is None else int(known)  # type: ignore[return-value]


# Over many cases ------------------------------------------------------------------------------------------


class Audited(NamedTuple):
    """The labelled cases of one model or run."""

    titles: Mapping[str, str]
    """By label what it says."""
    groups: Mapping[str, Sequence[str]]
    """By category its cases' ids."""
    cases: Mapping[str, Labels]
    """By id."""
    units: Mapping[str, str]
    """By id the unit that was sampled: BFCL's scenario, tau2's task."""


def with_second_reading(labels: Labels) -> Labels:
    """A case's labels with the audit's second reading of B3, which is among miss_func cases without B1a.

    A label file may give some labels only; without B1a or B3 there is no second reading.
    """
    if labels.get("B1a") == 0 and "B3" in labels:
        return {**labels, SECOND_READING: labels["B3"]}
    return labels


def rates(audited: Audited, cases: Mapping[str, Labels], seed: int) -> Json:
    """Each label's rate over some cases by id, by unit; null with the reason where none has it."""
    told: Json = {}
    for label in audited.titles:
        known = [id for id, labels in cases.items() if labels.get(label) in (0, 1)]
        ones = [cases[id][label] == 1 for id in known]
        told |= share(label, ones, [audited.units[id] for id in known], seed, "no case shows it")
    return told


def agreements(audited: Audited, theirs: Mapping[str, Labels], seed: int) -> Json:
    """By label how far another rater of the same cases agrees, by id, where both have 0 or 1."""
    told: Json = {}
    ours = audited.cases
    for label in audited.titles:
        if label == SECOND_READING:
            continue  # of the same label
        ids = [id for id in ours if id in theirs and {ours[id].get(label), theirs[id].get(label)} <= {0, 1}]
        both = [(int(ours[id][label] == 1), int(theirs[id][label] == 1)) for id in ids]
        units = [audited.units[id] for id in ids]
        alike = [one == two for one, two in both]
        told[label] = {
            **share("agreement", alike, units, seed, "no case has it on both sides"),
            **_kappa(both, units, seed),
            "disagreements": [id for id, same in zip(ids, alike, strict=True) if not same],
        }
    return told


def _kappa(both: Sequence[tuple[int, int]], clusters: Sequence[str], seed: int) -> Json:
    """Cohen's kappa of two raters of 0 and 1; null where both give one value only, which shows nothing."""
    if len({value for pair in both for value in pair}) < 2:
        return missing("kappa", "both sides give one value only" if both else "no case has it on both sides")
    columns = np.array([[one == two, one, two, 1] for one, two in both], float)
    return {"kappa": cluster_bootstrap(columns, clusters, kappa, seed)._asdict()}


def kappa(sums: Floats) -> Floats:
    """Cohen's kappa of sums (draws, 4): pairs that agree, ones of either rater, pairs.

    (observed - expected) / (1 - expected), where expected is the agreement of two raters who give their ones
    at random (Cohen, Educational and Psychological Measurement 20 (1960) 37).
    """
    observed, one, two = (sums[:, column] / sums[:, 3] for column in range(3))
    expected = one * two + (1 - one) * (1 - two)
    return np.asarray((observed - expected) / (1 - expected))


def scenario(id: str) -> str:
    """The scenario of a case: entry N of the four categories is one."""
    return id.rpartition("_")[2]
