"""Paired claims: how a figure of one system differs from the baseline's on the very same cases.

rigor.md points 1, 5, 6 and 7. Cases that either system lacks are dropped from both and counted; every claim
has its 2x2 of outcomes, the difference with its interval, an exact test, and the noise floor beside it.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from bench.calibrate.figures import adjusted
from bench.intervals import cluster_ratios, paired_difference
from bench.significance import ALPHA, mcnemar, sign_flip

Json = dict[str, Any]


class Lost(StrEnum):
    """Why a system has no value for a case."""

    NOT_RUN = "not_run"
    ERRORED = "errored"
    UNMEASURABLE = "unmeasurable"


Value = float | Lost
Values = Mapping[str, Value]
"""By case id: 0 or 1, or a mean over trials, or a probability; or why there is none."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of several systems over the same cases.

    Attributes:
        part: what it is taken of: `first token`, `whole replies`, or a category.
        figure: its name, as in `report.words.NAMES`.
        clusters: by case id its cluster: the sampling unit. These are the cases.
        values: by system.
        floors: by system how often it differs from itself when asked again, an Estimate as a dict, as far as
            that was measured.
        mean: whether values are numbers and no shares: what a reply costs. Their differences are only shown.
    """

    part: str
    figure: str
    clusters: Mapping[str, Hashable]
    values: Mapping[str, Values]
    floors: Mapping[str, Json] = field(default_factory=dict)
    mean: bool = False

    def estimate(self, system: str, seed: int) -> Json:
        """The figure of one system over the cases that it has, an Estimate as a dict."""
        kept = _kept(self.clusters, self.values[system])
        values = np.array([self.values[system][case] for case in kept], float)
        groups = [self.clusters[case] for case in kept]
        return _ratio(values, groups, self.mean, seed)

    def counts(self, system: str) -> Json:
        """What became of the cases in one system: rigor.md's five counts."""
        lost = Counter(_lost(self.values[system], case) for case in self.clusters)
        return {
            "planned": len(self.clusters),
            "run": len(self.clusters) - lost[Lost.NOT_RUN],
            "scored": lost[None],
            "errored": lost[Lost.ERRORED],
            "unmeasurable": lost[Lost.UNMEASURABLE],
        }

    def disagreement(self, one: str, other: str, seed: int) -> Json:
        """How much two systems differ on the cases both have, whichever way: an Estimate as a dict."""
        kept = _kept(self.clusters, self.values[one], self.values[other])
        first, second = (np.array([self.values[s][case] for case in kept], float) for s in (one, other))
        groups = [self.clusters[case] for case in kept]
        return _ratio(np.abs(first - second), groups, self.mean, seed)

    def rows(self) -> Iterable[Json]:
        """One record a case: what every system has for it, or why it has nothing."""
        for case, cluster in self.clusters.items():
            yield {
                "key": f"{self.part}/{self.figure}/{case}",
                "part": self.part,
                "figure": self.figure,
                "case": case,
                "cluster": cluster,
                "values": {name: own.get(case, Lost.NOT_RUN) for name, own in self.values.items()},
            }


def claims(measures: Sequence[Measure], baseline: str, seed: int) -> list[Json]:
    """The claims of all systems against the baseline, their p adjusted as one family (Holm).

    A claim *holds* where its adjusted p is at most 0.05 and it is above the noise floor, as far as that was
    measured; null where no pair could be scored.
    """
    found = [
        claim(measure, baseline, system, seed)
        for measure in measures
        if baseline in measure.values
        for system in measure.values
        if system != baseline
    ]
    adjusted({str(place): own for place, own in enumerate(found) if own["test"] is not None})
    for own in found:
        if own["test"] is not None:
            own["holds"] = own["test"]["p_holm"] <= ALPHA and own["above_floor"] is not False
    return found


def claim(measure: Measure, baseline: str, system: str, seed: int) -> Json:
    """One difference, system minus baseline: an Estimate as a dict, and what it is of, in `claims`' form."""
    before, after = measure.values[baseline], measure.values[system]
    kept = _kept(measure.clusters, before, after)
    groups = [measure.clusters[case] for case in kept]
    first, second = (np.array([own[case] for case in kept], float) for own in (before, after))
    found: Json = {
        "part": measure.part,
        "figure": measure.figure,
        "mean": measure.mean,
        "system": system,
        "baseline": baseline,
        "before": float(first.mean()) if kept else None,
        "after": float(second.mean()) if kept else None,
        **(
            _ratio(second - first, groups, measure.mean, seed)
            if measure.mean
            else paired_difference(first, second, groups, seed=seed)._asdict()
        ),
        "outcomes": None,
        "dropped": _dropped(measure, before, after),
        "test": None,
        "holds": None,
        **_floor(measure, (baseline, system)),
    }
    floor = found["floor"]
    if floor and kept:
        found["above_floor"] = abs(found["estimate"]) > floor["estimate"]
    binary = not measure.mean and _are_binary(first) and _are_binary(second)
    if binary and kept:
        found["outcomes"] = _outcomes(first, second)
    if kept and not measure.mean:
        apart = binary and len(set(groups)) == len(kept)
        gained, lost = int(np.sum(second > first)), int(np.sum(second < first))
        test = mcnemar(gained, lost, len(kept)) if apart else sign_flip(second - first, groups, seed=seed)
        found["test"] = test._asdict()
    return found


def _floor(measure: Measure, systems: Sequence[str]) -> Json:
    """The larger of both systems' noise floors; null with the reason where neither was measured."""
    known = [floor for name in systems if (floor := measure.floors.get(name)) and floor["n"]]
    if not known:
        return {"floor": None, "floor_reason": "neither system was asked twice", "above_floor": None}
    return {"floor": max(known, key=lambda floor: floor["estimate"]), "above_floor": None}


def _dropped(measure: Measure, before: Values, after: Values) -> Json:
    """How many cases were dropped from both, by the reason; the baseline's where both have one."""
    reasons = Counter(_lost(before, case) or _lost(after, case) for case in measure.clusters)
    return {str(reason): reasons[reason] for reason in Lost}


def _outcomes(first: Any, second: Any) -> Json:
    """The 2x2 of two binary arms."""
    one, two = first.astype(bool), second.astype(bool)
    return {
        "both": int(np.sum(one & two)),
        "gained": int(np.sum(~one & two)),
        "lost": int(np.sum(one & ~two)),
        "neither": int(np.sum(~one & ~two)),
    }


def _lost(values: Values, case: str) -> Lost | None:
    value = values.get(case, Lost.NOT_RUN)
    return value if isinstance(value, Lost) else None


def _kept(clusters: Iterable[str], *values: Values) -> list[str]:
    return [case for case in clusters if all(_lost(own, case) is None for own in values)]


def _are_binary(values: Any) -> bool:
    return bool(np.all((values == 0) | (values == 1)))


def _ratio(values: Any, groups: Sequence[Hashable], mean: bool, seed: int) -> Json:
    """The mean of some values with its interval by cluster; `mean`: they are no shares."""
    pairs = {"it": (values, np.ones(len(values)))}
    return cluster_ratios(pairs, groups, means=("it",) if mean else (), seed=seed)["it"]._asdict()
