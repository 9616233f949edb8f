"""Numbers and figures as a report words them."""

from collections.abc import Mapping
from typing import Any

Estimate = Mapping[str, Any]
"""An `intervals.Estimate` as a dict."""

NAMES = {
    "over_calling": "Over-calling",
    "call_recall": "Call recall",
    "respond_recall": "Respond recall",
    "missed": "Missed",
    "decision_accuracy": "Decision accuracy (balanced)",
    "delayed_calls": "Delayed calls",
    "valid_calls": "Schema-valid calls",
    "right_tool": "Right tool",
    "completion_tokens": "Tokens a reply",
    "queries": "Queries a reply",
    "gar": "Gold action recall",
    "gar_at_gold_turn": "Gold action recall at the gold turn",
    "acc": "Accuracy",
    "calls_per_turn": "Calls per turn",
    "loop_at_3": "Loop@3",
    "case_queries": "Queries a case",
    "case_prompt_tokens": "Prompt tokens a case",
    "case_completion_tokens": "Completion tokens a case",
    "case_seconds": "Seconds a case",
}
"""Figures by their name in the JSON."""


def rate_name(name: str) -> str:
    """A figure's name inside a sentence."""
    return NAMES[name].lower()


def arm_name(name: str) -> str:
    """The name of an arm or a system, with a true minus sign before its bias."""
    return name.replace("b = -", "b = −")


def number(value: float) -> str:
    """Up to four digits, with a true minus sign."""
    return f"{value:.4g}".replace("-", "−")


def per_cent(value: float) -> str:
    """A rate in per cent, one decimal."""
    return f"{100 * value:.1f} %"


def estimate_text(estimate: Estimate) -> str:
    """A rate in words: `12.5 % (9.8–15.9)`; `–` where there is none."""
    if estimate["estimate"] is None:
        return "–"
    text = per_cent(estimate["estimate"])
    if estimate["low"] is None:
        return text
    return f"{text} ({100 * estimate['low']:.1f}–{100 * estimate['high']:.1f})"


def change_text(change: Estimate) -> str:
    """A difference of rates in words: `+2.1 (−1.0 to +5.2)` points; `–` where there is none."""
    if change["estimate"] is None:
        return "–"
    if change["low"] is None:
        return points(change["estimate"])
    return f"{points(change['estimate'])} ({points(change['low'])} to {points(change['high'])})"


def nats(value: float) -> str:
    """A number of nats, two decimals, with a true minus sign."""
    return f"{value:.2f}".replace("-", "−")


def nats_text(change: Estimate) -> str:
    """A difference in nats with its sign and interval; `–` where there is none."""
    if change["estimate"] is None:
        return "–"
    shown = {
        key: f"{change[key]:+.2f}".replace("-", "−")
        for key in ("estimate", "low", "high")
        if change[key] is not None
    }
    return f"{shown['estimate']} ({shown['low']} to {shown['high']})" if "low" in shown else shown["estimate"]


def points(difference: float) -> str:
    """A difference of rates in points, with its sign."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def p_text(p: float) -> str:
    """A p value: three digits, and no zeros that mean nothing."""
    return f"{p:.3g}" if p >= 0.001 else "< 0.001"


def plain(estimate: Estimate) -> str:
    """The figure alone, three decimals."""
    return "–" if estimate["estimate"] is None else f"{estimate['estimate']:.3f}"


def span(estimate: Estimate) -> str:
    """The interval alone, or why there is none."""
    if estimate["low"] is None:
        return str(estimate["reason"] or "no interval")
    return f"95 %: {estimate['low']:.3f}–{estimate['high']:.3f}"
