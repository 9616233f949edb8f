"""The report of `bench overhead`, from its result and its run folder alone."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bench.overhead.table import YARDSTICKS
from bench.overhead.targets import PROXIES, TARGETS
from bench.report import page
from bench.report.charts import Chart
from bench.report.overhead_charts import KINDS, charts, figure_text, shown_concurrency
from bench.report.page import Section, figures, paragraph, table
from bench.runs import RunFolder

Result = Mapping[str, Any]
Json = Mapping[str, Any]

_TILES = 4
"""So many bars stand at the top."""
_DIRECT = "the canned upstream itself; its CPU and memory are the upstream's own"


def write_report(run: RunFolder, result: Result, folder: Path) -> Path:
    """Write the run's report.html and charts into a folder; the page's path."""
    drawn = charts(result)
    kinds = [kind for kind in KINDS if any(one["kind"] == kind for one in result["loops"])]
    sections = [
        Section("Against its bars", _bars(result, drawn)),
        *(Section(KINDS[kind], _loops(kind, result, drawn)) for kind in kinds),
        Section("CPU and memory", _resources(result, drawn)),
        Section("What this rests on", _basis(result)),
    ]
    return page.write_report(
        run, result, folder, "What the proxy costs", _lead(result), sections, list(drawn.values())
    )


def _lead(result: Result) -> str:
    tiles = "".join(
        f'<div class="tile"><span>{escape(_sentence(bar["bar"]))}</span><b>{_value(bar)}</b>'
        f"<span>{_limit(bar)}: {_verdict(bar)}</span></div>"
        for bar in result["bars"][:_TILES]
    )
    told = (
        "Requests to a server that answers at once, straight and through each proxy, one worker each, in one "
        "run. Figures are medians over rounds with the lowest and the highest round; ratios and differences "
        "are taken within a round first."
    )
    warned = "".join(paragraph(_sentence(note) + ".", "warn") for note in result["notes"])
    return f'{paragraph(told, "soft")}<div class="tiles">{tiles}</div>{warned}'


def _sentence(text: str) -> str:
    """Begun with a capital, unless it begins with a target's name."""
    return text if re.split("[,: ]", text)[0] in TARGETS else text[:1].upper() + text[1:]


def _value(bar: Json) -> str:
    return "not measured" if bar["value"] is None else figure_text(bar["value"])


def _limit(bar: Json) -> str:
    return f"{'at most' if bar['at_most'] else 'at least'} {bar['limit']:g}"


def _verdict(bar: Json) -> str:
    return {True: "met", False: "not met", None: "unknown"}[bar["met"]]


def _bars(result: Result, drawn: Mapping[str, Chart]) -> str:
    rows = [
        [escape(_sentence(bar["bar"])), _value(bar), f"{_limit(bar)}<small>{_verdict(bar)}</small>"]
        for bar in result["bars"]
    ]
    held = table("What Seam with a bias is held to", ["", "measured", "bar"], rows)
    if "ratios" not in drawn:
        return held
    caption = (
        "Seam with a bias, as a multiple; above the dashed line it answers more requests than the other."
    )
    return figures(drawn, {"ratios": caption}, beside=held)


def _loops(kind: str, result: Result, drawn: Mapping[str, Chart]) -> str:
    loops = [one for one in result["loops"] if one["kind"] == kind]
    settings = result["settings"]
    said = (
        "Each connection asks again as soon as its answer is whole."
        if kind == "reply"
        else f"The same with streams of {settings['chunks']} chunks, {settings['interval_ms']:g} ms apart. "
        "A stream that probes hold comes at its end."
    )
    captions = {
        f"{kind}-speed": "More is better. Both axes are logarithmic; whiskers reach over the rounds.",
        f"{kind}-tail": "Less is better. Of fewer than 100 answers the slowest.",
    }
    shown = shown_concurrency(loops)
    tables = "".join(
        f"<details{' open' if at == shown else ''}><summary>{at:,} at a time</summary>"
        f"{_table(kind, [one for one in loops if one['concurrency'] == at])}</details>"
        for at in settings["concurrency"]
        if any(one["concurrency"] == at for one in loops)
    )
    return paragraph(said) + figures(drawn, captions) + tables


def _table(kind: str, loops: Sequence[Json]) -> str:
    others = [one["target"] for one in loops if one["target"] in YARDSTICKS]
    added = {"added_p50_ms": "+ median, ms", "added_p99_ms": "+ p99, ms"}
    if kind == "stream":
        added = {"added_first_ms": "+ first, ms", **added}
    heads = ["", "requests/s", *(f"× {other}" for other in others), *added.values(), "CPU µs", "peak MB"]
    rows = [
        [
            one["target"],
            _cell(one["requests_per_second"]),
            *(_cell(one["speed"].get(other)) for other in others),
            *(_cell(None if one["target"] == "direct" else one[name]) for name in added),
            _cell(one["cpu_us"]),
            _cell(one["peak_mb"]),
        ]
        for one in loops
    ]
    caption = "Median over rounds, lowest and highest round; + is on top of direct, to the whole answer"
    if kind == "stream":
        caption += " or the first chunk"
    return table(caption, heads, rows)


def _cell(spread: Json | None) -> str:
    if spread is None:
        return "–"
    middle, low, high = (figure_text(spread[name]) for name in ("median", "low", "high"))
    return f"{middle}<small>{low} to {high}</small>"


def _resources(result: Result, drawn: Mapping[str, Chart]) -> str:
    captions = {
        "cpu": "Of the target's processes alone; for direct, of the canned upstream.",
        "memory": "Slow streams, all asked for at once; what the processes hold from earlier blocks counts.",
    }
    html = figures(drawn, {name: told for name, told in captions.items() if name in drawn})
    if result["long_streams"]:
        rows = [
            [
                one["target"],
                _cell(one["cpu_us_per_chunk"]),
                _cell(None if one["target"] == "direct" else one["added_ms"]),
                _cell(one["chunks_per_read"]),
            ]
            for one in result["long_streams"]
        ]
        settings = result["settings"]
        caption = f"One stream of {settings['long_stream']:,} chunks, {settings['interval_ms']:g} ms apart"
        html += table(caption, ["", "CPU µs a chunk", "added, ms", "chunks a read"], rows)
    if result["open_streams"]:
        rows = [
            [one["target"], f"{one['peak_mb']:,.0f}", f"{one['most_open']:,}", f"{one['cpu_us'] / 1e3:.1f}"]
            for one in result["open_streams"]
        ]
        caption = f"{result['open_streams'][0]['streams']:,} streams asked for at once, in the first round"
        html += table(caption, ["", "peak MB", "open at once", "CPU ms a stream"], rows)
    return html


def _basis(result: Result) -> str:
    settings, looked = result["settings"], result["probes"]
    elsewhere = ", ".join(f"{share:.1f}" for share in result["cpus_elsewhere"])
    said = (
        f"{settings['rounds']} rounds of blocks of {settings['seconds']:g} s on {result['cpus']} CPUs, which "
        f"targets, upstream and load generator share; other work took {elsewhere} CPUs by round."
    )
    if looked:
        acted = "; ".join(
            f"{target}: " + ", ".join(f"{probe.upper()} {_share(counts)}" for probe, counts in own.items())
            for target, own in looked.items()
        )
        said += f" Of the replies that probes looked at they acted on, or would have: {acted}."
    targets = "".join(
        f"<li><b>{name}</b>: {escape(_DIRECT if name == 'direct' else PROXIES[name].summary)}</li>"
        for name in settings["targets"]
    )
    return f"{paragraph(said)}<ul>{targets}</ul>"


def _share(counts: Mapping[str, int]) -> str:
    looked, acted = counts["looked"], counts["acted"]
    return f"{100 * acted / looked:.1f} % of {looked:,}" if looked else "none of none"
