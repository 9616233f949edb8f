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
}
"""Figures by their name in the JSON."""


def rate_name(name: str) -> str:
    """A figure's name inside a sentence."""
    return NAMES[name].lower()


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


def plain(estimate: Estimate) -> str:
    """The figure alone, three decimals."""
    return "–" if estimate["estimate"] is None else f"{estimate['estimate']:.3f}"


def span(estimate: Estimate) -> str:
    """The interval alone, or why there is none."""
    if estimate["low"] is None:
        return str(estimate["reason"] or "no interval")
    return f"95 %: {estimate['low']:.3f}–{estimate['high']:.3f}"
