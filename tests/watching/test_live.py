"""What real Prometheus returns for every query, scraping a real proxy."""

import math
from pathlib import Path

import pytest

from tests.watching.live import watched
from tests.watching.names import (
    Query,
    alerts,
    dashboards,
    panel_queries,
    panels,
    rule_queries,
    selectors_in,
)


@pytest.mark.whole
async def test_every_panel_and_every_rule_has_data_under_mixed_traffic(tmp_path: Path) -> None:
    queries = [*panel_queries(), *rule_queries()]
    selected = sorted(set().union(*(selectors_in(query.expr) for query in queries)))
    boards = dashboards().values()
    asked = [target for board in boards for panel in panels(board) for target in panel["targets"]]
    marks = [mark for board in boards for mark in board["annotations"]["list"]]
    assert len(panel_queries()) == len(asked) + len(marks)
    async with watched(tmp_path) as both:
        found = await both.answered(queries)
        assert [answered.query for answered in found] == queries
        empty = [
            f"{answered.query.where}: {answered.query.expr}" for answered in found if not answered.values
        ]
        assert not empty
        assert all(math.isfinite(value) for answered in found for value in answered.values.values())
        parts = await both.answered([Query("selected", selector) for selector in selected])
        assert not [answered.query.expr for answered in parts if not answered.values]
        for variable, value in (("model", "m"), ("profile", "strict")):
            assert value in await both.label_values("seam_requests_total", variable)
        rules = await both.rules()
        assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == {
            rule["alert"] for rule in alerts()
        }
        assert {rule["name"]: rule["health"] for rule in rules if rule["health"] != "ok"} == {}
        raised = {rule["name"] for rule in rules if rule.get("state") in ("pending", "firing")}
        assert raised >= {"SeamActionsMoved", "SeamDecisionsDropped", "SeamReloadRefused"}
