"""The report of `bench audit`, from its result and its run folder alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.audit.figures import SIDES
from bench.report import page
from bench.report.audit_charts import charts
from bench.report.page import Section, cell, figures, paragraph, table
from bench.report.words import estimate_text, number
from bench.runs import RunFolder

Result = Mapping[str, Any]


def rank_text(rank: Mapping[str, Any]) -> str:
    """Median and range of ranks in words."""
    low, median, high = (
        "beyond the list" if rank[name] is None else f"{rank[name]:,}" for name in ("low", "median", "high")
    )
    beyond = f"; {rank['beyond']:,} beyond the list" if rank["beyond"] else ""
    return f"median {median}, {low} to {high}{beyond}"


def replay_text(replay: Mapping[str, Any]) -> str:
    """What forced and masked replies differ in, in words."""
    if not replay["prompts"]:
        return f"replay: all {replay['ended_at_once']} replies ended at once"
    forced, masked, ratio = (_number(replay[name]) for name in ("forced", "masked", "ratio"))
    ended = f", {replay['ended_at_once']} more ended at once" if replay["ended_at_once"] else ""
    return (
        f"replay of {replay['prompts']} prompts{ended}: divergence {forced} nats a token with the entry "
        f"forced, {masked} with it masked, ratio {ratio}"
    )


def _number(estimate: Mapping[str, Any]) -> str:
    if estimate["estimate"] is None:
        return "–"
    limits = "" if estimate["low"] is None else f" ({number(estimate['low'])}–{number(estimate['high'])})"
    return number(estimate["estimate"]) + limits


def write_report(run: RunFolder, result: Result, folder: Path) -> Path:
    """Write the run's report.html and charts into a folder; the page's path."""
    drawn = charts(result)
    sections = [Section("Does the support hold the entry token?", _coverage(result, drawn))]
    replay = (result["sides"]["response"] or {}).get("replay")
    if replay:
        beside = paragraph(
            "Response prompts, replied to by the student: once with the entry token forced at the decision, "
            f"once with it masked throughout. {replay_text(replay).capitalize()}."
        )
        shown = {"replay": "Mean divergence of teacher and student at each token after the decision."}
        sections.append(
            Section(
                "Forced entry against masked entry",
                beside + figures(drawn, shown if "replay" in drawn else {}),
            )
        )
    of = result.get("stored") or result["teacher"]
    lead = f'<div class="tiles">{_tiles(result)}</div>{paragraph(result["verdict"])}'
    title = f"Support audit of {of}"
    return page.write_report(run, result, folder, title, lead, sections, list(drawn.values()))


def _tiles(result: Result) -> str:
    first = str(result["tops"][0])
    tiles = []
    for name, words in SIDES.items():
        side = result["sides"][name]
        if side:
            share, _, limits = estimate_text(side["coverage"][first]).partition(" (")
            interval = f"95 %: {limits.removesuffix(')')}; " if limits else ""
            tiles.append(
                f'<div class="tile"><span>Coverage@{first}, {words}</span>'
                f"<b>{share}</b><span>{interval}entry rank {rank_text(side['rank'])}</span></div>"
            )
    return "".join(tiles)


def _coverage(result: Result, drawn: Mapping[str, Any]) -> str:
    said = (
        "Coverage@K is the share of prompts whose K likeliest tokens at the decision position hold an entry "
        "token; retained mass is the probability that those K tokens have together. A support may keep "
        "nearly all of the mass and yet leave the decision out."
    )
    shown = {"coverage": "Coverage over K; dots are the audited sizes with 95 % intervals."}
    return (
        paragraph(said, "soft")
        + figures(drawn, shown)
        + "".join(_table(words, result["sides"][name], result["tops"]) for name, words in SIDES.items())
    )


def _table(words: str, side: Mapping[str, Any] | None, tops: Any) -> str:
    if side is None:
        return ""
    rows = [[str(top), cell(side["coverage"][str(top)]), cell(side["mass"][str(top)])] for top in tops]
    counts = side["counts"]
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    rank = f"Entry rank: {rank_text(side['rank'])}."
    p = side["probability"]
    if p["n"]:
        rank += f" P(entry): median {number(p['median'])}, {number(p['low'])} to {number(p['high'])}."
    absent = [[token, cell(estimate)] for token, estimate in side.get("absent", {}).items()]
    return (
        table(f"{words.capitalize()} ({told})", ["K", "coverage@K", "retained mass"], rows)
        + paragraph(rank)
        + (table("Entry tokens that supports miss", ["token", "prompts"], absent) if absent else "")
    )
