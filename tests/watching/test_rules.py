"""The rules for Prometheus: what it takes, what they compute, and when each alert fires."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from calibrators.drift import MOVED_P, MOVED_PSI, psi
from tests.watching.names import (
    PROMETHEUS,
    ROOT,
    WATCHING,
    alerts,
    exported,
    named_in,
    recorded_in,
    records,
    rules,
)

CASES = PROMETHEUS / "tests" / "alerts.yaml"
NAME = re.compile(r"[a-z_]+:seam_[a-z_]+:[a-z]+[a-z0-9_]*")


def promtool(*arguments: str | Path) -> str:
    assert shutil.which("promtool"), "promtool is missing: apt install prometheus"
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    assert "2 rule files found" in promtool("check", "config", PROMETHEUS / "prometheus.yml")


@pytest.mark.whole
def test_each_alert_fires_and_stays_silent_as_its_cases_say() -> None:
    promtool("test", "rules", CASES)


def test_each_alert_has_a_case_in_which_it_fires_and_one_with_data_in_which_it_does_not() -> None:
    cases: dict[str, set[bool]] = {}
    for case in yaml.safe_load(CASES.read_text("utf-8"))["tests"]:
        (told,) = case["alert_rule_test"]
        fires = bool(told.get("exp_alerts"))
        assert case["input_series"], case["name"]
        assert case["name"].startswith(f"{told['alertname']} {'fires' if fires else 'stays silent: '}")
        cases.setdefault(told["alertname"], set()).add(fires)
    assert cases == {rule["alert"]: {True, False} for rule in alerts()}


def test_rules_name_metrics_and_records_that_exist() -> None:
    made: set[str] = set()
    for rule in rules():
        assert named_in(rule["expr"]) <= exported(), rule
        assert recorded_in(rule["expr"]) <= made, f"{rule}: made by a later rule, or by none"
        made |= {rule.get("record", "")}


def test_records_are_named_level_metric_operation_after_what_they_hold() -> None:
    names = [rule["record"] for rule in records()]
    assert len(set(names)) == len(names)
    for name in names:
        assert NAME.fullmatch(name), name


def test_each_alert_says_how_bad_it_is_what_is_wrong_and_where_to_read_on() -> None:
    headings = {
        line.removeprefix("### ").strip()
        for line in WATCHING.read_text("utf-8").splitlines()
        if line.startswith("### Seam")
    }
    assert headings == {rule["alert"] for rule in alerts()}
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")
        page, anchor = rule["annotations"]["runbook_url"].split("#")
        assert (ROOT / page) == WATCHING
        assert anchor == rule["alert"].lower()


def test_the_reasons_for_a_passthrough_that_are_the_request_s_own_are_told_from_faults() -> None:
    """A new reason is a fault until someone says otherwise in the rule and in docs/watching.md."""
    sources = "".join(
        path.read_text("utf-8")
        for folder in ("proxy", "calibrators")
        for path in (ROOT / folder).rglob("*.py")
    )
    codes = set(re.findall(r'Skip\(\s*"(\w+)"', sources))
    (rule,) = [rule for rule in records() if "seam_passthrough_total" in rule["expr"]]
    harmless = set(re.search(r'reason!~"([^"]+)"', rule["expr"])[1].split("|"))  # type: ignore[index]
    assert harmless <= codes
    lines = WATCHING.read_text("utf-8").splitlines()
    told = {
        side: next(line for line in lines if line.startswith(f"{side}: ")) for side in ("Request", "Fault")
    }
    listed = {side: set(re.findall(r"`(\w+)`", line)) for side, line in told.items()}
    assert listed == {"Request": harmless, "Fault": codes - harmless}


def test_drift_alerts_have_the_thresholds_of_drift() -> None:
    text = (PROMETHEUS / "alerts.yaml").read_text("utf-8")
    assert set(re.findall(r'p_value\w*"} < ([0-9.]+)', text)) == {f"{MOVED_P:g}"}
    assert set(re.findall(r'psi\w*"} >= ([0-9.]+)', text)) == {f"{MOVED_PSI:g}"}


def series(name: str, values: str, **labels: str) -> dict[str, Any]:
    told = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{told}}}", "values": values}


def test_the_index_over_all_processes_is_the_one_that_seam_computes(tmp_path: Path) -> None:
    value = psi({"tool_call": 900, "ask": 100}, {"tool_call": 600, "refuse": 600})
    here: dict[str, str] = {"model": "m", "profile": "off"}
    counted, pinned = "seam_actions_total", "seam_action_reference"
    record = "model_profile:seam_action_drift:psi_increase1h"
    test = {
        "interval": "1m",
        "input_series": [
            series(counted, "0+5x120", instance="a", action="tool_call", tools="yes", **here),
            series(counted, "0+5x120", instance="b", action="tool_call", tools="yes", **here),
            series(counted, "0+10x120", instance="b", action="refuse", tools="no", **here),
            series(pinned, "900x120", instance="a", action="tool_call", **here),
            series(pinned, "900x120", instance="b", action="tool_call", **here),
            series(pinned, "100x120", instance="b", action="ask", **here),
        ],
        "promql_expr_test": [
            {
                "expr": record,
                "eval_time": "2h",
                "exp_samples": [{"labels": f'{record}{{model="m", profile="off"}}', "value": value}],
            }
        ],
    }
    document = {"rule_files": [str(PROMETHEUS / "recording.yaml")], "tests": [test]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", tmp_path / "test.yaml")
