"""A report as one HTML file: sections and figures, light and dark, without any network."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import resvg_py

from bench.errors import InputError
from bench.report.charts import Chart
from bench.report.words import points
from bench.runs import RunFolder

Json = dict[str, Any]
_ZOOM = 2
_UNITS: Mapping[str, Callable[[float], str]] = {
    "%": lambda rate: f"{100 * rate:.1f} %",
    "points": points,
    "": lambda value: f"{value:.3g}",
    "change": lambda value: f"{value:+.3g}".replace("-", "−"),
}


class Section(NamedTuple):
    """A part of a page: a heading and HTML under it."""

    title: str
    html: str


def page(title: str, lead: str, sections: Sequence[Section], data: Mapping[str, Any], foot: str) -> str:
    """The whole page. `lead` and the sections are HTML; `data` stands in the page as JSON."""
    body = "".join(f"<section><h2>{escape(s.title)}</h2>{s.html}</section>" for s in sections)
    # "</" would end the script element in which the JSON stands.
    told = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_file('style.css')}{_file('chart.css')}</style></head>"
        f"<body><header><h1>{escape(title)}</h1>{lead}</header><main>{body}</main>"
        f'<footer>{escape(foot)}</footer><div id="tip" role="status"></div>'
        f'<script type="application/json" id="figures">{told}</script>'
        f"<script>{_file('script.js')}</script></body></html>\n"
    )


def write_report(
    run: RunFolder,
    result: Mapping[str, Any],
    folder: Path,
    title: str,
    lead: str,
    sections: Sequence[Section],
    charts: Sequence[Chart],
) -> Path:
    """Write the page of a run, which names its command and seed, and its charts into a folder; its path.

    Raises InputError where they can't be written.
    """
    plan = run.manifest.plan
    foot = f"bench {plan.command}, seed {plan.seed}. All figures of this page are in result.json too."
    return write(folder, "report.html", page(title, lead, sections, result, foot), charts)


def figure(chart: Chart, caption: str) -> str:
    """A chart with its title and a caption (text)."""
    title, below = escape(chart.title), escape(caption)
    return f"<figure><h3>{title}</h3>{chart.svg()}<figcaption>{below}</figcaption></figure>"


def figures(drawn: Mapping[str, Chart], captions: Mapping[str, str], beside: str = "") -> str:
    """Charts of `drawn`, by name, with their captions (text), and HTML beside them."""
    shown = "".join(figure(drawn[name], caption) for name, caption in captions.items())
    return f'<div class="charts">{shown}{f"<div>{beside}</div>" if beside else ""}</div>'


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of text; style: `soft`, `warn` or none."""
    named = f' class="{style}"' if style else ""
    return f"<p{named}>{escape(text)}</p>"


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; heads are text, cells HTML."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def cell(estimate: Mapping[str, Any] | None, unit: str = "%") -> str:
    """An estimate with its interval below, or why it has none, as a cell's HTML.

    unit: `%` shows a rate in per cent, `points` a difference of rates with its sign, "" a number, `change` a
    difference of numbers with its sign.
    """
    if estimate is None or estimate["estimate"] is None:
        reason = (estimate or {}).get("reason") or "not measured"
        return f"–<small>{escape(reason)}</small>"
    shown = _UNITS[unit]
    below = "no interval"
    if estimate["low"] is not None:
        low, high = shown(estimate["low"]).removesuffix(" %"), shown(estimate["high"]).removesuffix(" %")
        below = f"{low} to {high}" if unit in ("points", "change") else f"{low}–{high}"
    title = escape(f"{estimate['method'] or estimate['reason']}; n = {estimate['n']}")
    return f'<span title="{title}">{shown(estimate["estimate"])}<small>{below}</small></span>'


def write(folder: Path, name: str, html: str, charts: Sequence[Chart]) -> Path:
    """Write the page, and each chart as SVG and PNG under `charts/`; the page's path.

    Raises InputError where they can't be written.
    """
    target = folder / name
    try:
        (folder / "charts").mkdir(parents=True, exist_ok=True)
        target.write_text(html, "utf-8")
        for chart in charts:
            svg = chart.svg(chart_style())
            (folder / "charts" / f"{chart.name}.svg").write_text(svg, "utf-8")
            image = resvg_py.svg_to_bytes(svg_string=svg, zoom=_ZOOM)
            (folder / "charts" / f"{chart.name}.png").write_bytes(bytes(image))
    except OSError as error:
        raise InputError(str(error.strerror), where=str(target), mend="make room there") from None
    return target


def chart_style() -> str:
    """The charts' CSS with the light colours in place of variables, which files of their own lack."""
    light = _file("style.css").partition("@media")[0]
    colours = dict(re.findall(r"--([\w-]+):\s*(#\w+)", light))
    return re.sub(r"var\(--([\w-]+)\)", lambda found: colours[found[1]], _file("chart.css"))


def _file(name: str) -> str:
    return resources.files("bench.report").joinpath(name).read_text("utf-8")
