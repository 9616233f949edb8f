"""The report of `bench drift`, from its result and its run folder alone."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from bench.report import page
from bench.report.charts import Chart
from bench.report.drift_charts import charts
from bench.report.page import Section, cell, figures, paragraph, table
from bench.report.words import nats, nats_text, p_text, per_cent
from bench.runs import RunFolder
from calibrators.drift import MOVED_PSI

Group = Mapping[str, Any]
Result = Mapping[str, Any]

VERDICTS: Final = {
    "too few": "too few replies",
    "steady": "steady",
    "traffic": "moved, by the traffic as far as can be told",
    "model": "moved at the same traffic",
}
"""By how much they matter, least first."""
_SEAM_MOVED: Final = 0.05
"""The share of replies that Seam treats otherwise from which on it may be the cause."""
_SPLIT: Final = ("change", "by_mix", "same_mix")


def group_name(group: Group) -> str:
    """Whose replies they are: the model and the profile."""
    return f"{group['model'] or 'no model'} / {group['profile']}"


def verdict(group: Group) -> str:
    """The graver one of classes and margins."""
    verdicts: tuple[str, str] = group["classes"]["verdict"], group["margins"]["verdict"]
    return max(verdicts, key=list(VERDICTS).index)


def reading(group: Group) -> str:
    """What the figures together say, for the person on call."""
    classes, margins = group["classes"]["verdict"], group["margins"]["verdict"]
    seam = group["seam"]["moved"]
    if verdict(group) in ("too few", "steady"):
        return VERDICTS[verdict(group)]
    if verdict(group) == "traffic":
        return "moved, and at the same mix of traffic nothing is left that could not be chance"
    otherwise = f"Seam treats {per_cent(seam)} of the replies otherwise" if seam else "Seam does as before"
    if margins == "model":
        # Margins are read before any bias.
        seam_too = f", and {otherwise}" if seam >= _SEAM_MOVED else ""
        return f"margins moved at the same traffic: the model, its template or its prompts{seam_too}"
    if seam >= _SEAM_MOVED:
        return f"classes moved at the same traffic, and {otherwise}: look at Seam first"
    unread = " (too few were read)" if margins == "too few" else ""
    assert classes == "model"
    return f"classes moved at the same traffic, margins did not{unread}, and {otherwise}"


def statistics_text(told: Mapping[str, Any]) -> str:
    """A table's statistics in a line."""
    if told["psi"] is None:
        return VERDICTS[told["verdict"]]
    p, p_same = (
        "no test" if told[name] is None else f"p {_p(told[name])}" for name in ("p_value", "p_value_same_mix")
    )
    text = (
        f"{VERDICTS[told['verdict']]}: PSI {told['psi']:.3f}, JS distance {told['jensen_shannon']:.3f}, {p}; "
        f"at the same mix PSI {told['psi_same_mix']:.3f}, {p_same}"
    )
    if told["mix_share"] is None:
        return text
    return f"{text}; the mix explains {100 * told['mix_share']:.0f} % of the change".replace("-", "−")


def _p(p: float) -> str:
    return p_text(p) if p < 0.001 else f"= {p_text(p)}"


def write_report(run: RunFolder, result: Result, folder: Path) -> Path:
    """Write the run's report.html and charts into a folder; the page's path."""
    drawn = [charts(group, f"g{number}") for number, group in enumerate(result["groups"], 1)]
    sections = [
        Section(group_name(group), _section(group, own))
        for group, own in zip(result["groups"], drawn, strict=True)
    ]
    lead = "".join(
        f'<div class="tile"><span>{escape(group_name(group))}</span><b>{escape(VERDICTS[verdict(group)])}</b>'
        f"<span>{escape(reading(group))}</span></div>"
        for group in result["groups"]
    )
    soft = (
        f"A table moved where its test has p < 0.001 and PSI is {MOVED_PSI} or more; at the same mix: after "
        "the reference was reweighted to the current kinds of traffic. No number below "
        f"{result['minimum']} replies."
    )
    lead = f'<div class="tiles">{lead}</div>{paragraph(soft, "soft")}'
    shown = [chart for own in drawn for chart in own.values()]
    return page.write_report(run, result, folder, "Drift", lead, sections, shown)


def _section(group: Group, drawn: Mapping[str, Chart]) -> str:
    captions = {
        "steps": "Each step of the window against the reference; full dots moved, hollow ones are steady.",
        "classes": "Shares of the action classes.",
        "margins": "Margins before any bias: what moves here is not Seam's doing.",
    }
    extents = table(
        "The two windows",
        ["", "replies", "conversations", "margins read", "from", "to"],
        [_extent(words, group[name]) for name, words in (("reference", "reference"), ("current", "window"))],
    )
    return "".join(
        (
            paragraph(f"Classes {statistics_text(group['classes'])}."),
            paragraph(f"Margins {statistics_text(group['margins'])}."),
            figures(drawn, {name: captions[name] for name in drawn}),
            _changes(group),
            _counts("What Seam did (X-Calibration-Applied)", group["seam"]["applied"]),
            _counts("Kinds of traffic", group["kinds"]),
            extents,
        )
    )


def _extent(words: str, extent: Mapping[str, Any]) -> list[str]:
    counts = [f"{extent[name]:,}" for name in ("replies", "conversations", "margins")]
    return [words, *counts, *(escape((extent[end] or "–")[:16].replace("T", " ")) for end in ("from", "to"))]


def _changes(group: Group) -> str:
    changes, shift = group["classes"]["changes"], group["margins"]["shift"]
    rows = [
        [
            name,
            per_cent(row["before"]),
            per_cent(row["after"]),
            *(cell(row[part], "points") for part in _SPLIT),
        ]
        for name, row in (changes or {}).items()
    ]
    if shift:
        moved = (nats_text(shift[part]) for part in _SPLIT)
        rows.append(["mean margin, nats", nats(shift["before"]), nats(shift["after"]), *moved])
    if not rows:
        return ""
    heads = ["", "reference", "window", "change, points", "of it the mix of traffic", "at the same mix"]
    return table("Changes, with 95 % intervals by conversation", heads, rows)


def _counts(caption: str, counts: Mapping[str, Mapping[str, int]]) -> str:
    of = {end: sum(row[end] for row in counts.values()) for end in ("reference", "current")}
    rows = [
        [escape(name), *(f"{row[end]:,}<small>{per_cent(row[end] / (of[end] or 1))}</small>" for end in of)]
        for name, row in counts.items()
    ]
    return table(caption, ["", "reference", "window"], rows)
