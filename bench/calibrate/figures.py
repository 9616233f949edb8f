"""First-token figures from margins and gaps: calibration.md section 5's E1 versions, for any b at once.

Over-calling is the share of calls among examples where none is due, call recall the share among those where
one is; respond recall, missed, decision accuracy (balanced) and the cost-aware risk
R(rho) = (rho * over-calling + missed) / (1 + rho) follow from these two. A rate is over *entries*: 0 or 1
under greedy decoding (g + b > 0), p' at temperature 1.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from bench.calibrate.margins import Floats, Measured
from bench.decisions.example import Example
from bench.intervals import Estimate, auc, cluster_bootstrap, cluster_ratios, paired_difference
from bench.significance import holm, sign_flip

Json = dict[str, Any]
Decoding = Literal["greedy", "sampled"]

RHOS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""What one over-call costs, in missed calls."""
CURVE_POINTS = 121
HISTOGRAM_BINS = 40


def risk(over_calling: Floats, call_recall: Floats, rho: float) -> Floats:
    """R(rho) = (rho * over-calling + missed) / (1 + rho), missed = 1 - call recall [D]."""
    return (rho * over_calling + 1 - call_recall) / (1 + rho)


def at_bias(measured: Measured, b: float, decoding: Decoding, seed: int) -> Json:
    """Every E1 figure under one bias, each an Estimate as a dict."""
    entered, due = measured.entries(b, decoding), measured.due
    over, recall = _by_label(measured, entered[:, None], seed)
    # Sums per cluster from which all the others are ratios: calls and cases of either label.
    columns = np.column_stack((entered * ~due, ~due, entered * due, due))

    def ratio(statistic: Callable[[Floats, Floats], Floats]) -> Json:
        def of(sums: Floats) -> Floats:
            return statistic(sums[:, 0] / sums[:, 1], sums[:, 2] / sums[:, 3])

        return cluster_bootstrap(columns, measured.groups, of, seed)._asdict()

    return {
        "bias": b,
        "over_calling": over[0]._asdict(),
        "call_recall": recall[0]._asdict(),
        "respond_recall": _complement(over[0])._asdict(),
        "missed": _complement(recall[0])._asdict(),
        "decision_accuracy": ratio(lambda over, recall: (recall + 1 - over) / 2),
        "risk": {f"{rho:g}": ratio(lambda over, recall, rho=rho: risk(over, recall, rho)) for rho in RHOS},  # type: ignore[misc]
    }


def biases(measured: Measured, *more: float) -> list[float]:
    """Where the curve is drawn: evenly over what the margins and gaps span, and at some points more."""
    reach = np.quantile(-np.concatenate((measured.margin, measured.gap)), (0.01, 0.99))
    low, high = min(-1.0, *reach - 1, *more), max(1.0, *reach + 1, *more)
    grid = np.linspace(low, high, CURVE_POINTS).round(3)
    return sorted({*grid.tolist(), 0.0, *more})


def curve(measured: Measured, at: Sequence[float], decoding: Decoding, seed: int) -> Json:
    """Over-calling and call recall over the bias: lists in step with `bias`."""
    entered = np.column_stack([measured.entries(b, decoding) for b in at])
    over, recall = _by_label(measured, entered, seed)
    return {"bias": list(at), "over_calling": _lists(over), "call_recall": _lists(recall)}


def roc(measured: Measured, seed: int) -> Json:
    """The ROC of the margin, without points on straight lines, and its area with the interval."""
    from sklearn.metrics import roc_curve

    due = measured.due
    area = auc(measured.margin, due, measured.groups, seed=seed)._asdict()
    if len(set(due.tolist())) < 2:
        return {"auc": area, "over_calling": [], "call_recall": []}
    false, true, _ = roc_curve(due, measured.margin)
    return {"auc": area, "over_calling": false.tolist(), "call_recall": true.tolist()}


def histogram(measured: Measured, decoding: Decoding) -> Json:
    """How many examples of either label have which gap (greedy) or margin (temperature 1), in nats."""
    values = measured.gap if decoding == "greedy" else measured.margin
    edges = np.linspace(values.min(), values.max() + 1e-9, HISTOGRAM_BINS + 1)
    due, other = (np.histogram(values[mask], edges)[0] for mask in (measured.due, ~measured.due))
    of = "gap" if decoding == "greedy" else "margin"
    return {"of": of, "edges": edges.tolist(), "due": due.tolist(), "not_due": other.tolist()}


def changes(measured: Measured, b: float, decoding: Decoding, seed: int) -> Json:
    """What b changes against b = 0 on the same examples: paired differences, tests adjusted by Holm."""
    due, found = measured.due, {}
    for name, mask in (("over_calling", ~due), ("call_recall", due)):
        part = measured.where(mask)
        found[name] = paired(part.entries(0, decoding), part.entries(b, decoding), part.groups, seed)
    return adjusted(found)


def paired(before: Floats, after: Floats, groups: Sequence[str], seed: int) -> Json:
    """A paired difference with its interval, and the sign-flip test by conversation."""
    difference = paired_difference(before, after, groups, seed=seed)._asdict()
    return {**difference, "test": sign_flip(after - before, groups, seed=seed)._asdict()}


def adjusted(family: dict[str, Json]) -> dict[str, Json]:
    """A family of claims, each with its p adjusted for the family's size."""
    for claim, p in zip(family.values(), holm([c["test"]["p"] for c in family.values()]), strict=True):
        claim["test"]["p_holm"] = p
    return family


def slices(measured: Measured, b: float, decoding: Decoding, seed: int) -> Json:
    """The same by source and by the number of tools offered."""
    by_source = [example.source for example in measured.examples]
    by_tools = [_tools(example) for example in measured.examples]
    return {
        "source": _slices(measured, by_source, b, decoding, seed),
        "tools": _slices(measured, by_tools, b, decoding, seed),
    }


def _slices(measured: Measured, names: Sequence[str], b: float, decoding: Decoding, seed: int) -> list[Json]:
    rows = []
    for name in _in_order(names):
        part = measured.where([own == name for own in names])
        due = part.due
        row: Json = {"name": name, "due": int(due.sum()), "not_due": int((~due).sum())}
        row["auc"] = auc(part.margin, due, part.groups, seed=seed)._asdict()
        for label, bias in (("off", 0.0), ("chosen", b)):
            over, recall = _by_label(part, part.entries(bias, decoding)[:, None], seed)
            row[label] = {"over_calling": over[0]._asdict(), "call_recall": recall[0]._asdict()}
        rows.append(row)
    return rows


def _tools(example: Example) -> str:
    count = len(example.request.get("tools") or ())
    if not count:
        return "unknown"
    bounds = ((1, "1"), (2, "2"), (4, "3–4"), (8, "5–8"))
    return next((name for most, name in bounds if count <= most), "9 or more")


def _in_order(names: Iterable[str]) -> list[str]:
    order = ("1", "2", "3–4", "5–8", "9 or more", "unknown")
    return sorted(set(names), key=lambda name: (order.index(name) if name in order else -1, name))


def _by_label(measured: Measured, entered: Floats, seed: int) -> tuple[list[Estimate], list[Estimate]]:
    """Over-calling and call recall of each column of entries (n, m)."""
    pairs = {}
    for label, mask in (("over", ~measured.due), ("recall", measured.due)):
        for column, values in enumerate(entered.T):
            pairs[f"{label} {column}"] = (values * mask, mask.astype(float))
    found = cluster_ratios(pairs, measured.groups, seed=seed)
    over, recall = (
        [estimate for name, estimate in found.items() if name.startswith(label)]
        for label in ("over", "recall")
    )
    return over, recall


def _complement(estimate: Estimate) -> Estimate:
    """The estimate of 1 minus a rate."""
    if estimate.estimate is None:
        return estimate
    low, high = (None if limit is None else 1 - limit for limit in (estimate.high, estimate.low))
    return estimate._replace(estimate=1 - estimate.estimate, low=low, high=high)


def _lists(estimates: Sequence[Estimate]) -> Json:
    columns = ("estimate", "low", "high")
    return {
        **{name: [getattr(estimate, name) for estimate in estimates] for name in columns},
        "n": estimates[0].n,
        "clusters": estimates[0].clusters,
        "methods": sorted({e.method or e.reason or "" for e in estimates}),
    }
