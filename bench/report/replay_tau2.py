"""What the page of a `bench run tau2` has of its own: recall by class, pass^k, CONFIRM, classes, loops."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from bench.report.cases import Tried
from bench.report.charts import Chart
from bench.report.page import Section, figures, paragraph, table
from bench.report.replay_charts import Pair, pairs
from bench.report.replay_rates import COUNTS, counts, crosstab, difference, loop, rate
from bench.report.words import per_cent

Json = Mapping[str, Any]

_LABELS = {
    "refuse": "REFUSE is due",
    "ask_candidate": "ASK, by keyword",
    "ask_paper": "ASK, the paper's",
    "ask_valid": "ASK, audited",
    "tool_call": "TOOL_CALL is due",
}
_SHOWN = ("refuse", "ask_paper", "tool_call")
"""The label that a case is listed under: the first of these that it has."""
_CASCADE = ("tool_call", "refuse", "ask", "confirm")
_LOOPS = {
    "calls_per_turn": "calls a turn",
    "loop_at_3": "loop@3",
    "max_step_hits": "step cap",
    "repeated_calls": "repeated",
    "non_tool_final": "end in text",
    "unparsable_calls": "unparsable",
    "unknown_names": "unknown names",
}


def charts(result: Json) -> list[Chart]:
    """Recall and accuracy of each class; where tasks have no labels, nothing."""
    runs = [run for run in result["runs"] if run["classes"]]
    if len(runs) == 1:
        rows = [Pair(_LABELS[label], each["gar"], each["acc"]) for label, each in runs[0]["classes"].items()]
        return [pairs("recall", "Recall and accuracy", rows)]
    labels = dict.fromkeys(label for run in runs for label in run["classes"])
    return [
        pairs(
            f"recall-{label}",
            _LABELS[label],
            [
                Pair(run["run"], each["gar"], each["acc"])
                for run in runs
                if (each := run["classes"].get(label))
            ],
        )
        for label in labels
    ]


def sections(result: Json, drawn: Sequence[Chart]) -> list[Section]:
    """The parts of the page."""
    return [
        Section("Passed", _passed(result)),
        *([Section("Recall by class, and accuracy", _recall(result, drawn))] if drawn else []),
        *([Section("CONFIRM", confirm)] if (confirm := _confirm(result["runs"])) else []),
        Section("Classes of replies", _mix(result["runs"])),
        Section("Inside a turn", _loops(result["runs"])),
    ]


def tried(record: Json) -> Tried:
    """A simulation as the page shows it."""
    label = next((label for label in _SHOWN if label in record["hits"]), None)
    return Tried(
        arm=record["run"],
        id=f"task {record['task']}, trial {record['trial']}",
        part=_LABELS[label] if label else "no label",
        passed=record["passed"],
        hit=record["hits"][label] if label else None,
        emissions=[[_class(labels) for labels in turn] for turn in record["emissions"]],
        error=record["fault"] if record["state"] == "errored" else None,
        entry=record["case"],
        note=_note(record),
    )


def _class(labels: Sequence[str]) -> str:
    """The one class of a reply that may have several, as the cascade has it."""
    return next((name for name in _CASCADE if name in labels), "other")


def _note(record: Json) -> str | None:
    """What ended a scored simulation, other than that somebody said goodbye."""
    end = record["termination"]
    if record["state"] == "errored" or end in ("user_stop", "agent_stop"):
        return None
    return f"Ended by {end.replace('_', ' ')}{f': {fault}' if (fault := record['fault']) else ''}."


def _passed(result: Json) -> str:
    rows = []
    for run in result["runs"]:
        passes = ", ".join(f"{k}: {_share(each)}" for k, each in run["pass_k"].items())
        ends = ", ".join(f"{count} × {end.replace('_', ' ')}" for end, count in run["terminations"].items())
        rows.append([escape(run["run"]), rate(run, "acc"), passes, str(run["tasks"]["planned"]),
                     str(run["trials"]), counts(run), ends])  # fmt: skip
    heads = ["", "Acc (pass^1)", "pass^k", "tasks", "trials", "counts", "ended by"]
    user = result["user"]
    said = (
        f"Domain {result['domain']}, the user played by {user['model']} at {user['url']}. "
        "Acc is the share of scored simulations whose reward is 1; pass^k the "
        f"chance that k trials of a task all pass. Counts: {', '.join(COUNTS)}."
    )
    return table("Simulations.", heads, rows) + paragraph(said, "soft") + "".join(_remarks(result))


def _remarks(result: Json) -> Iterator[str]:
    """What went wrong: warnings, faults, and the simulations that ran into the step cap by name."""
    for run in result["runs"]:
        arm = run["run"]
        for words in run["warnings"]:
            yield paragraph(f"{arm}: {words}.", "soft")
        for fault, count in result["faults"][arm].items():
            yield paragraph(f"{arm}: {count} × {' '.join(fault.split())[:300]}", "soft")
        if capped := result["capped"][arm]:
            cap = run["loops"]["max_steps"]
            yield paragraph(
                f"{arm}: stopped at the cap of {cap} steps (TASK.TRIAL): {', '.join(capped)}.", "soft"
            )


def _recall(result: Json, drawn: Sequence[Chart]) -> str:
    said = (
        "Filled: recall of the gold class (GAR); hollow: upstream's accuracy (Acc). REFUSE is recalled where "
        "nothing was written to the database, ASK where a reply asks, TOOL_CALL where no reference action "
        "failed, reads among them: there a higher Acc is no masking."
    )
    shown = figures(
        {chart.name: chart for chart in drawn}, {chart.name: "95 % intervals." for chart in drawn}
    )
    rows = [
        [
            f"{escape(run['run'])}<small>{_LABELS[label]}</small>",
            rate(each, "gar") + _where_checked(each),
            rate(each, "acc"),
            difference(each),
            crosstab(each),
            counts(each),
        ]
        for run in result["runs"]
        for label, each in (run["classes"] or {}).items()
    ]
    heads = ["", "GAR", "Acc", "GAR − Acc", "2x2", "counts"]
    key = "2x2: recalled and passed, recalled and failed, missed and passed, missed and failed."
    return paragraph(said, "soft") + shown + table("By class.", heads, rows) + paragraph(key, "soft")


def _where_checked(each: Json) -> str:
    """TOOL_CALL's recall without the simulations that ended before upstream checked anything, if any did."""
    if "gar_where_checked" not in each:
        return ""
    checked = each["gar_where_checked"] or {"hits": 0, "of": 0}
    return f"<small>where checked {checked['hits']}/{checked['of']}</small>"


def _confirm(runs: Sequence[Json]) -> str:
    """The judge's verdicts on database writes; empty where none were asked for."""
    names = ("writes", "judged", "unparsable", "unjudged", "unmeasurable")
    rows = [
        [
            escape(run["run"]),
            rate(confirm, "gar"),
            rate(confirm, "acc"),
            *(str(confirm[name]) for name in names),
        ]
        for run in runs
        if (confirm := run["confirm"])
    ]
    if not rows:
        return ""
    judge = next(run["confirm"]["judge"] for run in runs if run["confirm"])
    said = f"Judged by {judge['model']} at {judge['url']}, prompt {judge['prompt']}."
    title = "Database writes whose details were told and approved before."
    return table(title, ["", "GAR", "Acc", *names], rows) + paragraph(said, "soft")


def _mix(runs: Sequence[Json]) -> str:
    names = list(runs[0]["class_mix"]["emissions"])
    rows = []
    for run in runs:
        mix = run["class_mix"]
        cells = (f"{mix['emissions'][name]}<small>{mix['simulations'][name]}</small>" for name in names)
        rows.append(
            [escape(run["run"]), *cells, f"{mix['of_emissions']}<small>{mix['of_simulations']}</small>"]
        )
    title = "Replies of a class, and below simulations with one; a reply may be of several classes."
    return table(title, ["", *names, "of"], rows)


def _loops(runs: Sequence[Json]) -> str:
    rows = [[escape(run["run"]), *(loop(run["loops"], name) for name in _LOOPS)] for run in runs]
    key = (
        "A turn is what follows one message of the user. Of calls: repeated, unparsable, unknown names; of "
        "simulations: step cap; of turns: all else."
    )
    return table("Turns and calls.", ["", *_LOOPS.values()], rows) + paragraph(key, "soft")


def _share(figure: Json) -> str:
    return "–" if figure["estimate"] is None else per_cent(figure["estimate"])
