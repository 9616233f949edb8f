"""What the pages of `bench run decisions` and `bench run when2call` have of their own: whole replies."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from bench.report.cases import Tried
from bench.report.charts import Chart
from bench.report.page import Section, cell, figures, table
from bench.report.replay_charts import Pair, pairs
from bench.report.words import NAMES, p_text, rate_name
from calibrators.actions import Action

Json = Mapping[str, Any]

_RATES = ("over_calling", "call_recall", "delayed_calls", "valid_calls", "right_tool")
_MEANS = ("completion_tokens", "queries")
_COUNTS = ("planned", "run", "scored", "errored", "unmeasurable")
_LABELS = {"tool_call": "tool_call", "ask": "request_for_info", "refuse": "cannot_answer"}
"""When2Call's words for action classes; any other answers directly."""


def decision_charts(result: Json) -> list[Chart]:
    """Over-calling and call recall, an arm a row."""
    rows = [Pair(arm, own["call_recall"], own["over_calling"]) for arm, own in result["arms"].items()]
    return [pairs("rates", "Call recall and over-calling", rows, ("call recall", "over-calling"))]


def decision_sections(result: Json, drawn: Sequence[Chart]) -> list[Section]:
    """The parts of the page."""
    arms = result["arms"]
    html = _drawn(drawn) + _rates(arms, _RATES)
    if changes := [
        (f"{arm}: {rate_name(name)}", change)
        for arm, family in result["changes"].items()
        for name, change in family.items()
    ]:
        html += _changes(changes, next(iter(arms)))
    heads = ["", "label", *map(str, Action), "none"]
    classes = [
        [escape(arm), label, *(str(counts[name]) for name in heads[2:])]
        for arm, own in arms.items()
        for label, counts in own["classes"].items()
    ]
    return [
        Section("Whole replies", html),
        Section("Classes", table("Replies by action class.", heads, classes)),
    ]


def decision_tried(record: Json) -> Tried:
    """A decision as the page shows it: it passes where a call came if and only if one was due."""
    right = None
    if record["status"] == 200 and record["action"] is not None:
        right = (record["action"] == Action.TOOL_CALL) == record["due"]
    return _tried(record, "call due" if record["due"] else "no call due", right)


def when2call_charts(result: Json) -> list[Chart]:
    """Accuracy and hallucination, an arm a row."""
    if not result["replies"]:
        return []
    rows = [
        Pair(arm, own["accuracy"], own["hallucination"]) for arm, own in result["replies"]["arms"].items()
    ]
    return [pairs("rates", "Accuracy and hallucination", rows, ("accuracy", "hallucination"))]


def when2call_sections(result: Json, drawn: Sequence[Chart]) -> list[Section]:
    """The parts of the page."""
    found = []
    if told := result["replies"]:
        arms = told["arms"]
        html = _drawn(drawn) + _choices(arms, {arm: own["counts"] for arm, own in arms.items()})
        if told["changes"]:
            changes = [(f"{arm}: accuracy", change) for arm, change in told["changes"].items()]
            html += _changes(changes, next(iter(arms)))
        html += _rates(arms, _RATES) + "".join(_confusion(arm, own["confusion"]) for arm, own in arms.items())
        found.append(Section("Replies", html))
    for each in result["mcq"] or ():
        readings = {"by length": each["by_length"], "plain": each["plain"]}
        html = _choices(readings, dict.fromkeys(readings, each["counts"]))
        html += _confusion("by length", each["by_length"]["confusion"])
        found.append(Section(f"Multiple choice: {', '.join(each['arms'])}", html))
    return found


def when2call_tried(record: Json) -> Tried:
    """A question as the page shows it: it passes where the reply's class is the right one."""
    right = None
    if record["status"] == 200 and record["action"] is not None:
        right = _label(record["action"]) == _label(record["gold"])
    return _tried(record, _label(record["gold"]), right)


def _label(action: str | None) -> str:
    return _LABELS.get(str(action), "direct")


def _tried(record: Json, part: str, right: bool | None) -> Tried:
    return Tried(
        arm=record["arm"],
        id=record["id"],
        part=part,
        passed=right,
        hit=None,
        emissions=[[record.get("action")]],
        error=record.get("fault"),
        entry=quote(record["id"], safe=""),
    )


def _drawn(drawn: Sequence[Chart]) -> str:
    return figures({chart.name: chart for chart in drawn}, {chart.name: "95 % intervals." for chart in drawn})


def _rates(arms: Mapping[str, Json], names: Sequence[str]) -> str:
    rows = [[NAMES[name], *(cell(own[name]) for own in arms.values())] for name in names]
    rows += [[NAMES[name], *(cell(own[name], "") for own in arms.values())] for name in _MEANS]
    rows += [[f"Cases {name}", *(str(own["counts"][name]) for own in arms.values())] for name in _COUNTS]
    return table("Whole replies; 95 % intervals.", ["", *arms], rows)


def _choices(columns: Mapping[str, Json], counts: Mapping[str, Json]) -> str:
    """Accuracy, macro-F1, hallucination and recall by label."""
    names = {"accuracy": "Accuracy", "macro_f1": "Macro-F1", "hallucination": "Calls without any tool"}
    rows = [[label, *(cell(own[name]) for own in columns.values())] for name, label in names.items()]
    for label in next(iter(columns.values()))["recall"]:
        if not label.endswith("_reason"):
            rows.append([f"Recall {label}", *(cell(own["recall"][label]) for own in columns.values())])
    rows += [[f"Cases {name}", *(str(counts[own][name]) for own in columns)] for name in _COUNTS]
    return table("The right one of four; 95 % intervals.", ["", *columns], rows)


def _changes(changes: Sequence[tuple[str, Json]], first: str) -> str:
    rows = [
        [
            escape(name),
            cell(change, "points"),
            escape(p_text(change["test"]["p_holm"])) if change["test"] else "–",
        ]
        for name, change in changes
    ]
    return table(f"Changes against {first}, paired.", ["", "points", "p (Holm)"], rows)


def _confusion(title: str, confusion: Json) -> str:
    labels = list(confusion)
    rows = [[label, *(str(row[other]) for other in labels)] for label, row in confusion.items()]
    return table(f"{title}: rows are what is right, columns what was done.", ["", *labels], rows)
