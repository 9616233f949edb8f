"""The dashboard: what its code generates, as far as it can be judged without a Grafana."""

import subprocess
import sys
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard, RowPanel

from deploy.dashboards.__main__ import FILE
from deploy.dashboards.seam import generated
from tests.watching.names import (
    GRAFANA,
    ROOT,
    WATCHING,
    dashboards,
    exported,
    named_in,
    panel_queries,
    panels,
    recorded_in,
    records,
    rule_queries,
)

BOARD = dashboards()["seam.json"]
SHOWN = {f"{panel['id']}: {panel['title']}": panel for panel in panels(BOARD)}
each_panel = pytest.mark.parametrize("panel", SHOWN.values(), ids=SHOWN)


def test_the_committed_dashboard_is_the_one_that_the_code_generates() -> None:
    assert list(dashboards()) == [FILE.name]
    assert FILE.read_text("utf-8") == generated(), "run `make dashboards`"
    done = subprocess.run([sys.executable, "-m", "deploy.dashboards", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_grafana_s_own_types_read_it_back() -> None:
    read = Dashboard.from_json(dict(BOARD))
    assert (read.uid, read.title) == ("seam", "Seam")
    rows = [panel.title for panel in read.panels or () if isinstance(panel, RowPanel)]
    assert len(rows) == 9
    assert len(read.panels or ()) == len(SHOWN) + len(rows)


def test_panels_have_ids_and_titles_of_their_own_and_share_no_place() -> None:
    placed = BOARD["panels"]
    for key in ("id", "title"):
        values = [panel[key] for panel in placed]
        assert len(set(values)) == len(values), values
    cells = [(panel["title"], _cells(panel["gridPos"])) for panel in placed]
    for (one, its), (other, others) in combinations(cells, 2):
        assert not its & others, f"{one} lies on {other}"


def _cells(place: Mapping[str, int]) -> set[tuple[int, int]]:
    assert place["x"] + place["w"] <= 24
    columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return {(x, y) for x in columns for y in lines}


@each_panel
def test_each_panel_says_what_it_shows_in_which_unit_from_which_source(panel: Mapping[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"], "it asks for nothing"
    names = [target["refId"] for target in panel["targets"]]
    assert len(set(names)) == len(names)
    for asking in (panel, *panel["targets"]):
        assert asking["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        assert target["expr"]
        assert target["legendFormat"]
    if panel["type"] in ("timeseries", "state-timeline", "heatmap"):
        legend = panel["options"]["legend"]
        assert legend.get("showLegend", legend.get("show")) is True


def test_variables_choose_the_source_the_models_and_the_profiles() -> None:
    variables = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert [(name, each["type"]) for name, each in variables.items()] == [
        ("datasource", "datasource"),
        ("model", "query"),
        ("profile", "query"),
    ]
    assert variables["datasource"]["query"] == "prometheus"
    for name in ("model", "profile"):
        assert variables[name]["query"] == f"label_values(seam_requests_total, {name})"
        assert variables[name]["allValue"] == ".*"
        assert variables[name]["multi"]
        assert variables[name]["includeAll"]


def test_changes_of_profiles_configuration_and_version_are_marked() -> None:
    marks = {each["name"]: each["expr"] for each in BOARD["annotations"]["list"]}
    assert list(marks) == ["Profiles", "Reloads", "Versions"]
    named = ("seam_profile_info", "seam_config_reloads", "seam_build_info")
    for mark in BOARD["annotations"]["list"]:
        assert mark["target"]["expr"] == mark["expr"]
        assert mark["titleFormat"]
    for name, expr in zip(named, marks.values(), strict=True):
        assert named_in(expr) == {name}


def test_queries_name_only_metrics_and_records_that_exist() -> None:
    made = {rule["record"] for rule in records()}
    for query in panel_queries():
        assert named_in(query.expr) <= exported(), query
        assert recorded_in(query.expr) <= made, query


def test_every_metric_has_a_panel_or_a_rule_and_every_record_is_used() -> None:
    asked = [query.expr for query in (*panel_queries(), *rule_queries())]
    assert set().union(*map(named_in, asked)) == exported()
    assert set().union(*map(recorded_in, asked)) == {rule["record"] for rule in records()}


def test_each_row_is_explained() -> None:
    text = WATCHING.read_text("utf-8")
    for panel in BOARD["panels"]:
        if panel["type"] == "row":
            assert f"| {panel['title']} |" in text, panel["title"]


def test_provisioning_names_the_folder_and_the_source_that_the_how_to_does() -> None:
    text = WATCHING.read_text("utf-8")
    folder = GRAFANA / "provisioning"
    (provider,) = yaml.safe_load((folder / "dashboards" / "seam.yaml").read_text("utf-8"))["providers"]
    assert provider["type"] == "file"
    assert f":{provider['options']['path']}/seam.json" in text
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text("utf-8"))["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "${PROMETHEUS_URL}")
    assert "PROMETHEUS_URL=" in text
