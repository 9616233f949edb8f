"""The charts of a calibration, from its result alone."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from bench.report.charts import Axis, Chart
from bench.report.words import estimate_text, number, plain, rate_name, span

Result = Mapping[str, Any]

_RATES = (("over_calling", "not-due"), ("call_recall", "due"))


def charts(result: Result) -> dict[str, Chart]:
    """All charts by name: the curve of both splits, ROC, margins by label, reliability, and the rerun."""
    drawn = [
        _curve(result, "validation"),
        _curve(result, "test"),
        _roc(result),
        _histogram(result),
        _reliability(result),
    ]
    if result.get("rerun"):
        drawn.append(_rerun(result))
    return {chart.name: chart for chart in drawn}


def _bias(result: Result) -> str:
    return f"b = {number(result['choice']['bias'])}"


def _over_bias(result: Result, own: Mapping[str, Any], name: str, title: str, about: str) -> Chart:
    axis = Axis(own["bias"][0], own["bias"][-1], "bias b, nats")
    chart = Chart(name, title, about, axis, Axis.rate("share that opens a call"))
    bias = result["choice"]["bias"]
    rules = [(bias, _bias(result), "accent")]
    chart.rules([(0.0, "b = 0", "reference"), *rules] if bias else rules)
    return chart


def _curve(result: Result, split: str) -> Chart:
    own = result[split]["curve"][result["decoding"]]
    about = f"Over-calling and call recall on {split} rise with the bias; chosen is {_bias(result)} nats."
    chart = _over_bias(result, own, f"curve-{split}", f"Rates over the bias, {split}", about)
    for name, style in _RATES:
        column = own[name]
        chart.band(list(zip(own["bias"], column["low"], column["high"], strict=True)), style)
        chart.line(list(zip(own["bias"], column["estimate"], strict=True)), style)
    # Both rise from 0 to 1, recall first: the room is left of the one and right of the other.
    for name, style, dx in (("over_calling", "not-due", 16.0), ("call_recall", "due", -16.0)):
        estimates = own[name]["estimate"]
        half = min(range(len(estimates)), key=lambda i: abs(estimates[i] - 0.5))
        chart.label((own["bias"][half], estimates[half]), rate_name(name), style, dx=dx)
    tips = []
    for i, b in enumerate(own["bias"]):
        told = [f"b = {number(b)}"]
        for name, _ in _RATES:
            limits = {key: own[name][key][i] for key in ("estimate", "low", "high")}
            told.append(f"{rate_name(name)} {estimate_text(limits)}")
        tips.append((b, "\n".join(told)))
    chart.tips(tips)
    return chart


def _roc(result: Result) -> Chart:
    roc, test = result["test"]["roc"], result["test"]
    about = f"ROC of the margin on test; area {plain(roc['auc'])}, {span(roc['auc'])}."
    axes = Axis.rate("over-calling"), Axis.rate("call recall")
    chart = Chart("roc", "ROC of the margin, test", about, *axes)
    chart.diagonal()
    chart.line(list(zip(roc["over_calling"], roc["call_recall"], strict=True)), "plain")
    for arm, label, style in (("off", "b = 0", "plain"), ("chosen", _bias(result), "accent")):
        over, recall = (test[arm][name] for name, _ in _RATES)
        point = over["estimate"], recall["estimate"]
        tip = f"{label}\nover-calling {estimate_text(over)}\ncall recall {estimate_text(recall)}"
        chart.dot(point, style, tip)
        chart.label(point, label, style, dx=9, dy=16)
    return chart


class _Counts(Axis):
    """Counts to both sides of 0."""

    def tick(self, value: float) -> str:
        """A count without its side."""
        return f"{abs(value):.0f}"


def _histogram(result: Result) -> Chart:
    own, bias = result["test"]["histogram"], result["choice"]["bias"]
    edges, most = own["edges"], max(*own["due"], *own["not_due"], 1)
    about = f"How many test examples have which {own['of']}: above where a call is due, below where none is."
    axis = Axis(edges[0], edges[-1], f"{own['of']} {own['of'][0]}, nats")
    counts = _Counts(-most * 1.05, most * 1.05, "examples")
    chart = Chart("margins", f"{own['of'].capitalize()} by label, test", about, axis, counts)
    for i, (low, high) in enumerate(pairwise(edges)):
        for name, sign, style, what in (
            ("due", 1, "due", "a call is due"),
            ("not_due", -1, "not-due", "none is"),
        ):
            tip = f"{number(low)} to {number(high)}: {own[name][i]} where {what}"
            chart.bar(low, high, 0, sign * own[name][i], style, tip)
    rules = [(0.0, "b = 0", "reference")]
    chart.rules([*rules, (-bias, _bias(result), "accent")] if bias else rules)
    chart.legend([("call due (up)", "due"), ("no call due (down)", "not-due")])
    return chart


def _reliability(result: Result) -> Chart:
    fits = result["reliability"]
    about = "Share of examples where a call is due over the predicted probability, in ten bins, on test."
    axes = Axis.rate("predicted probability that a call is due"), Axis.rate("share where one is due")
    chart = Chart("reliability", "Reliability, test", about, *axes)
    chart.diagonal()
    for name, style, label in (("as it stands", "due", "p(entry)"), ("platt", "accent", "Platt")):
        rows = fits[name]["bins"]
        chart.line([(row["p"], row["due"]["estimate"]) for row in rows], style)
        for row in rows:
            due = row["due"]
            if due["low"] is not None and name != "platt":
                chart.whisker(row["p"], due["low"], due["high"], style)
            tip = f"{label} {100 * row['p']:.1f} %\ndue {estimate_text(due)}, n = {due['n']}"
            chart.dot((row["p"], due["estimate"]), style, tip, hollow=name == "platt")
    chart.legend([("p(entry) as it stands", "due"), ("Platt, fitted on validation", "accent")])
    return chart


def _rerun(result: Result) -> Chart:
    own = result["test"]["curve"]["sampled"]
    about = "The analytic curve at temperature 1, and the shares measured with the bias applied."
    chart = _over_bias(result, own, "rerun", "Formula (lines) and server (dots), temperature 1", about)
    for name, style in _RATES:
        chart.line(list(zip(own["bias"], own[name]["estimate"], strict=True)), style)
        for point in result["rerun"]:
            found, b = point[name], point["bias"]
            reach = 1.96 * found["standard_error"]
            chart.whisker(b, found["formula"] - reach, found["formula"] + reach, style)
            tip = f"b = {number(b)}, {rate_name(name)}\nformula {100 * found['formula']:.1f} %"
            tip += f"\nserver {100 * found['measured']:.1f} %"
            chart.dot((b, found["measured"]), style, tip)
    chart.legend([(rate_name(name), style) for name, style in reversed(_RATES)])
    return chart
