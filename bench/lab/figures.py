"""What is said about the lab model, computed from its margins on held-out examples.

Needs numpy only, so that the committed record can be checked without torch. Terms and estimators:
docs/terms.md and bench.intervals; intervals resample families of examples, never single ones.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bench.decisions.source import Json
from bench.intervals import Estimate, auc, rate

BIASES = (-3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)
PAIRED = ("swapped", "tool_removed", "parameter_removed")


class Scored(NamedTuple):
    """A held-out record with its margin m and gap g (calibration.md section 4)."""

    record: Json
    margin: float
    gap: float

    @property
    def due(self) -> bool:
        """Whether a call is due."""
        return bool(self.record["should_call"])

    @property
    def group(self) -> str:
        """The family, which is the sampling unit."""
        return str(self.record["group"])


class Gate(NamedTuple):
    """A promise about one figure: it lies between `low` and `high`."""

    figure: str
    low: float
    high: float = 1.0


GATES = (
    Gate("auc", 0.86),
    Gate("auc_unseen_tools", 0.90),
    Gate("auc_swapped", 0.95),
    Gate("auc_tool_removed", 0.85),
    Gate("auc_parameter_removed", 0.70),
    Gate("over_calling", 0.15, 0.45),
    Gate("valid_calls", 0.90),
)


def figures(scored: Sequence[Scored]) -> dict[str, Any]:
    """All first-token figures of one split, each an Estimate as a dict.

    The paired sets' AUC is over the pooled margins of both sides; `ordered_*` is the share of
    pairs in which the question's own margin is the higher one, a weaker demand.
    """
    decisions = _members(scored, "decisions")
    asks = [one for one in decisions if one.record["label"] == "ask"]
    plain = [one for one in decisions if one.record["label"] != "ask"]
    result: dict[str, Any] = {
        "auc": _auc(decisions),
        "auc_unseen_tools": _auc([one for one in decisions if one.record["unseen_tools"]]),
        "auc_without_asks": _auc(plain),
        "auc_asks": _auc([one for one in decisions if one.due] + asks),
        "auc_bfcl_live": _auc([one for one in decisions if "live" in one.record["source"]]),
        "auc_bfcl_other": _auc([one for one in decisions if "live" not in one.record["source"]]),
        "over_calling": entries([one for one in decisions if not one.due]),
        "call_recall": entries([one for one in decisions if one.due]),
    }
    for name in PAIRED:
        result[f"auc_{name}"] = _auc(_members(scored, name))
        result[f"ordered_{name}"] = _ordered(scored, name)
    result |= _parameter_detail(scored)
    transfer = _members(scored, "when2call")
    if transfer:
        result["auc_when2call"] = _auc(transfer)
    result["by_source"] = {
        source: entries([one for one in decisions if one.record["source"] == source])
        for source in sorted({one.record["source"] for one in decisions})
    }
    result["by_label"] = {
        label: entries([one for one in decisions if one.record["label"] == label])
        for label in ("call", "refuse", "ask")
    }
    result["curve"] = [
        {
            "bias": bias,
            "call_recall": entries([one for one in decisions if one.due], bias),
            "over_calling": entries([one for one in decisions if not one.due], bias),
        }
        for bias in BIASES
    ]
    return result


def entries(scored: Sequence[Scored], bias: float = 0.0) -> dict[str, Any]:
    """Share that a greedy reply opens with a call at this bias: the gap decides, not the margin."""
    return _plain(rate([one.gap + bias > 0 for one in scored], [one.group for one in scored]))


def verdicts(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Each gate with its figure, and whether it is met; a figure that is missing isn't met."""
    rows = []
    for gate in GATES:
        found = measured.get(gate.figure) or {}
        value = found.get("estimate")
        rows.append(
            {
                "figure": gate.figure,
                "low": gate.low,
                "high": gate.high,
                "estimate": value,
                "interval": [found.get("low"), found.get("high")],
                "n": found.get("n"),
                "met": value is not None and gate.low <= value <= gate.high,
            }
        )
    return rows


def valid_calls(replies: Sequence[Json]) -> dict[str, Any]:
    """Full generations that opened a call: how many parse, name an offered tool, are right.

    Each reply has `offered` names, `gold` calls, and `call` (name and arguments, or None where the
    text does not parse).
    """
    groups = [reply["group"] for reply in replies]
    judged = [reply["call"] if isinstance(reply["call"], dict) else {} for reply in replies]

    def share(test: Callable[[Json, Json], bool]) -> dict[str, Any]:
        hits = [test(call, reply) for call, reply in zip(judged, replies, strict=True)]
        return _plain(rate(hits, groups))

    due = [(call, reply) for call, reply in zip(judged, replies, strict=True) if reply["gold"]]
    return {
        "valid_calls": share(lambda call, reply: call.get("name") in reply["offered"]),
        "right_tool": _plain(
            rate(
                [call.get("name") in {gold["name"] for gold in r["gold"]} for call, r in due],
                [r["group"] for _, r in due],
            )
        ),
        "exact_calls": _plain(rate([call in r["gold"] for call, r in due], [r["group"] for _, r in due])),
    }


def _parameter_detail(scored: Sequence[Scored]) -> dict[str, Any]:
    """The parameter-removed set by style of cut, and against cuts that remove nothing needed."""
    members = _members(scored, "parameter_removed")
    due = [one for one in members if one.due]
    asks = [one for one in members if not one.due]
    control = [one for one in _members(scored, "harmless_cut") if one.record["pair"] and one.due]
    detail = {"auc_parameter_removed_against_harmless_cut": _auc(control + asks)}
    for style in sorted({one.record["style"] for one in asks}):
        chosen = [one for one in asks if one.record["style"] == style]
        detail[f"auc_parameter_removed_{style}"] = _auc(due + chosen)
    return detail


def _members(scored: Sequence[Scored], name: str) -> list[Scored]:
    return [one for one in scored if name in one.record["sets"]]


def _ordered(scored: Sequence[Scored], name: str) -> dict[str, Any]:
    margin = {one.record["id"]: one.margin for one in scored}
    negatives = [one for one in _members(scored, name) if one.record["pair"]]
    wins = [margin[one.record["pair"]] > one.margin for one in negatives]
    return _plain(rate(wins, [one.group for one in negatives]))


def _auc(scored: Sequence[Scored]) -> dict[str, Any]:
    margin = [one.margin for one in scored]
    return _plain(auc(margin, [one.due for one in scored], [one.group for one in scored]))


def _plain(estimate: Estimate) -> dict[str, Any]:
    rounded = {
        key: round(value, 4) if isinstance(value, float) else value
        for key, value in estimate._asdict().items()
    }
    return {key: value for key, value in rounded.items() if value is not None and key != "level"}
