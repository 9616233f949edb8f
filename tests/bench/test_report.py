"""Reports: charts that stay in their frame and are described, and a page that needs nothing else."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.report.charts import HEIGHT, WIDTH, Axis, Chart
from bench.report.page import Section, cell, chart_style, figure, page, table, write
from bench.report.words import estimate_text, number

NUMBERS = st.floats(-1e4, 1e4)
SVG = "{http://www.w3.org/2000/svg}"


def chart(low: float = -2, high: float = 3) -> Chart:
    return Chart("curve", "Rates <over> b", "Both rise.", Axis(low, high, "b, nats"), Axis.rate("share"))


@given(NUMBERS, st.floats(0.01, 1e4))
def test_an_axis_has_a_few_round_ticks_inside_of_it(low: float, width: float) -> None:
    axis = Axis(low, low + width, "x")
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 7
    assert all(axis.low - 1e-6 * width <= tick <= axis.high + 1e-6 * width for tick in ticks)


@given(st.lists(st.tuples(NUMBERS, st.floats(-1, 2)), min_size=2, max_size=20))
def test_marks_never_leave_the_frame(points: list[tuple[float, float]]) -> None:
    drawn = chart()
    drawn.line(points, "due")
    drawn.band([(x, y - 0.1, y + 0.1) for x, y in points], "due")
    for x, y in points:
        drawn.dot((x, y), "due", "here")
        drawn.label((x, y), "call recall", "due")
    drawn.rules([(points[0][0], "b = 0", "reference"), (points[1][0], "b = −1.23", "accent")])
    root = ElementTree.fromstring(drawn.svg())
    for element in root.iter():
        for attribute, most in (("cx", WIDTH), ("cy", HEIGHT), ("x1", WIDTH), ("y1", HEIGHT), ("x", WIDTH)):
            if attribute in element.attrib:
                assert 0 <= float(element.attrib[attribute]) <= most
    for label in (element for element in root.iter(SVG + "text") if "label" in element.attrib["class"]):
        width, x = 6.6 * len(label.text or ""), float(label.attrib["x"])
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[label.attrib["text-anchor"]]
        assert 0 <= left <= left + width <= WIDTH


def test_a_chart_is_described_for_readers_who_do_not_see_it() -> None:
    root = ElementTree.fromstring(chart().svg())
    assert root.attrib["role"] == "img"
    assert [root.find(SVG + name).text for name in ("title", "desc")] == ["Rates <over> b", "Both rise."]  # type: ignore[union-attr]
    named = {element.attrib.get("id") for element in root.iter()}
    assert set(root.attrib["aria-labelledby"].split()) <= named


def test_a_band_without_limits_is_left_out() -> None:
    drawn = chart()
    drawn.band([(0, None, None), (1, None, None)], "due")
    assert "polygon" not in drawn.svg()


def test_a_page_needs_no_network_and_carries_its_figures() -> None:
    figures = {"words": "</script><script>alert(1)</script>", "rate": 0.25}
    html = page(
        "A <title>", "<p>Lead.</p>", [Section("One & two", figure(chart(), "Below"))], figures, "Foot."
    )
    assert "<title>A &lt;title&gt;</title>" in html
    assert "<h2>One &amp; two</h2>" in html
    # Of what could load something, there is nothing.
    assert not re.search(r"""<link|<img|(src|href)\s*=|url\(|@import|fetch\(""", html)
    assert html.count("</script>") == 2
    (inside,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', html)
    assert json.loads(inside) == figures
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


ESTIMATE = {"estimate": 0.125, "low": 0.098, "high": 0.159, "method": "wilson", "n": 80, "reason": None}


def test_an_estimate_is_never_shown_without_its_interval_or_the_reason() -> None:
    assert re.sub("<.*?>", " ", cell(ESTIMATE)).split() == ["12.5", "%", "9.8–15.9"]
    assert "wilson; n = 80" in cell(ESTIMATE)
    assert "+12.5" in cell(ESTIMATE, "points")
    missing = {**ESTIMATE, "low": None, "high": None, "method": None, "reason": "12 clusters, and"}
    assert "no interval" in cell(missing)
    assert "12 clusters" in cell(missing)
    assert "no case was scored" in cell({**missing, "estimate": None, "reason": "no case was scored"})
    assert estimate_text(ESTIMATE) == "12.5 % (9.8–15.9)"
    assert estimate_text(missing) == "12.5 %"
    assert number(-1.5) == "−1.5"


def test_a_table_s_cells_are_html_and_its_heads_text() -> None:
    made = table("Caption & co", ["a<b"], [["<b>x</b>"]])
    assert "a&lt;b" in made
    assert "<td><b>x</b></td>" in made
    assert "Caption &amp; co" in made


def test_charts_are_written_as_files_of_their_own(tmp_path: Path) -> None:
    drawn = chart()
    drawn.line([(0, 0), (1, 1)], "due")
    write(tmp_path, "report.html", "<p>", [drawn])
    svg = (tmp_path / "charts" / "curve.svg").read_text()
    assert "var(" not in svg
    assert "#0072b2" in svg
    assert (tmp_path / "charts" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "var(" not in chart_style()


@pytest.mark.parametrize("value", ["--paper", "--ink", "--due", "--not-due", "--accent"])
def test_every_colour_has_a_dark_twin(value: str) -> None:
    style = page("t", "", [], {}, "")
    assert style.count(f"{value}:") == 2
