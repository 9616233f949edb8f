"""What `deploy/` asks Prometheus for, and what the proxy exports: the two sides that have to agree."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from prometheus_client import CollectorRegistry, Metric

from proxy.metrics import Metrics

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
WATCHING = ROOT / "docs" / "watching.md"

# What hides an alert's value while nothing is wrong: thresholds, absence, a look at another time.
_THRESHOLD = re.compile(r"\s(?:==|<=|>=|<|>)\s[0-9.]+|absent|offset \w+")


class Query(NamedTuple):
    """One query of a dashboard or of a rule.

    Attributes:
        where: what it belongs to, for people.
        expr: PromQL, as it stands in the file.
    """

    where: str
    expr: str


def families() -> list[Metric]:
    """Every metric that the proxy exports."""
    return list(Metrics(CollectorRegistry()).registry.collect())


def exported() -> set[str]:
    """Their names without a counter's `_total`."""
    return {family.name for family in families()}


def named_in(expr: str) -> set[str]:
    """The proxy's metrics that a query names, without the suffixes of a type."""
    bare = re.sub(r"\w+:seam_\w+:\w+", "", expr)
    names = re.findall(r"\bseam_\w+", bare)
    return {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in names}


def recorded_in(expr: str) -> set[str]:
    """The recorded series that a query names."""
    return set(re.findall(r"\w+:seam_\w+:\w+", expr))


def selectors_in(expr: str) -> set[str]:
    """The series that a query selects: each has to exist, which `or 0 * …` would hide of the whole."""
    return {
        found[0] for found in re.finditer(r"(?:\w+:)?\b(?:seam_\w+|ALERTS|up)(?::\w+)?(?:\{[^}]*\}|\b)", expr)
    }


def rules() -> list[Mapping[str, Any]]:
    """Every recording and alert rule, in order."""
    files = (PROMETHEUS / "recording.yaml", PROMETHEUS / "alerts.yaml")
    groups = [group for file in files for group in yaml.safe_load(file.read_text("utf-8"))["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[Mapping[str, Any]]:
    """The alert rules."""
    return [rule for rule in rules() if "alert" in rule]


def records() -> list[Mapping[str, Any]]:
    """The recording rules."""
    return [rule for rule in rules() if "record" in rule]


def rule_queries() -> list[Query]:
    """What the rules compute; of an alert the value that it watches, which its thresholds would hide."""
    recorded = [Query(rule["record"], rule["expr"]) for rule in records()]
    return recorded + [Query(rule["alert"], _THRESHOLD.sub("", rule["expr"])) for rule in alerts()]


def dashboards() -> dict[str, Mapping[str, Any]]:
    """The committed dashboards, by file name."""
    return {path.name: json.loads(path.read_text("utf-8")) for path in sorted(GRAFANA.glob("*.json"))}


def panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every panel that shows something, also those inside collapsed rows."""
    for panel in dashboard["panels"]:
        yield from panel.get("panels") or ()
        if panel["type"] != "row":
            yield panel


def panel_queries() -> list[Query]:
    """Every query of every dashboard: of panels, annotations and variables."""
    found = []
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            found += [Query(f"{name}: {panel['title']} {t['refId']}", t["expr"]) for t in panel["targets"]]
        told = dashboard["annotations"]["list"]
        found += [Query(f"{name}: annotation {each['name']}", each["target"]["expr"]) for each in told]
    return found
