"""What the page of a `bench run bfcl` has of its own: recall against accuracy, loops, single turns."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bench.report.cases import Tried
from bench.report.charts import Chart
from bench.report.page import Section, figures, paragraph, table
from bench.report.replay_charts import Pair, pairs
from bench.report.replay_rates import COUNTS, counts, crosstab, difference, loop, rate

Json = Mapping[str, Any]

_RATES = {
    "gar": "GAR",
    "gar_before": "before probes",
    "gar_either": "either reply",
    "gar_at_gold_turn": "at gold turn",
    "acc": "Acc",
}
_LOOPS = {
    "calls_per_turn": "calls a turn",
    "loop_at_3": "loop@3",
    "max_step_hits": "step cap",
    "repeated_calls": "repeated",
    "non_tool_final": "end in text",
    "unparsable_calls": "unparsable",
    "required_turn_coverage": "due, called",
    "empty_turn_no_call": "empty, not called",
}


def charts(result: Json) -> list[Chart]:
    """Recall and accuracy: a chart of all categories, or with several arms one of each category."""
    if len(result["models"]) == 1:
        (model,) = result["models"]
        return [
            pairs(
                "recall", "Recall and accuracy", [_pair(each, _short(each)) for each in model["categories"]]
            )
        ]
    return [
        pairs(f"recall-{_short(own[0][1])}", _sentence(own[0][1]), [_pair(each, arm) for arm, each in own])
        for own in _by_category(result)
    ]


def sections(result: Json, drawn: Sequence[Chart]) -> list[Section]:
    """The parts of the page."""
    found = []
    if result["models"]:
        found.append(Section("Recall of the gold class, and accuracy", _recall(result, drawn)))
        found.append(Section("Inside a turn", _loops(result)))
    if result["single_turn"]:
        found.append(Section("Single turn", _single(result["single_turn"])))
    return found


def tried(record: Json) -> Tried:
    """A case as the page shows it."""
    return Tried(
        arm=record["model"],
        id=record["id"],
        part=record["category"],
        passed=record.get("passed"),
        hit=record.get("hit"),
        emissions=record.get("emissions", ()),
        error=record.get("error"),
        entry=record["id"],
    )


def _by_category(result: Json) -> list[list[tuple[str, Json]]]:
    """(arm, figures) of each category."""
    found: dict[str, list[tuple[str, Json]]] = {}
    for model in result["models"]:
        for each in model["categories"]:
            found.setdefault(each["category"], []).append((model["model"], each))
    return [*found.values()]


def _short(each: Json) -> str:
    return str(each["category"]).removeprefix("multi_turn_")


def _sentence(each: Json) -> str:
    return f"{_short(each).replace('_', ' ').capitalize()}: {each['gold_class'].upper()} is due"


def _pair(each: Json, label: str) -> Pair:
    return Pair(label, each["gar"], each["acc"])


def _recall(result: Json, drawn: Sequence[Chart]) -> str:
    said = (
        "Filled: recall of the gold class (GAR); hollow: BFCL's accuracy (Acc). Where the hollow mark is "
        "right of the filled one there is masking: BFCL passed cases whose class was wrong."
    )
    captions = {chart.name: "95 % intervals." for chart in drawn}
    shown = paragraph(said, "soft") + figures({chart.name: chart for chart in drawn}, captions)
    probed = any((told or {}).get("outcomes") for told in result["probes"].values())
    if len(result["models"]) == 1:
        (model,) = result["models"]
        groups = {"By category.": [(_short(each), each) for each in model["categories"]]}
    else:
        groups = {f"{_sentence(own[0][1])}.": own for own in _by_category(result)}
    tables = []
    for caption, own in groups.items():
        names = _names(own, probed=probed)
        tables.append(table(caption, _heads(names), [_row(label, each, names) for label, each in own]))
        reasons = dict.fromkeys(
            f"{label}: {_RATES[name]} is not measurable: {each[f'{name}_reason']}."
            for label, each in own
            for name in names
            if each[name] is None and name != "gar_at_gold_turn"
        )
        tables += [paragraph(reason, "soft") for reason in reasons]
    key = (
        "2x2: gold class emitted and passed, emitted and failed, missed and passed, missed and failed. "
        f"Counts: {', '.join(COUNTS)}."
    )
    if probed:
        key += " GAR is of the replies that were served; a probe took others back."
    return shown + "".join(tables) + paragraph(key, "soft")


def _names(own: Sequence[tuple[str, Json]], *, probed: bool) -> list[str]:
    """The rates that a category's table shows: in two of them the class is due at every turn."""
    at_gold_turn = any(each["gar_at_gold_turn"] for _, each in own)
    return [
        "gar",
        *(["gar_before", "gar_either"] if probed else []),
        *(["gar_at_gold_turn"] if at_gold_turn else []),
        "acc",
    ]


def _heads(names: Sequence[str]) -> list[str]:
    return ["", *(_RATES[name] for name in names), "GAR − Acc", "2x2", "counts"]


def _row(arm: str, each: Json, names: Sequence[str]) -> list[str]:
    return [
        escape(arm),
        *(rate(each, name) for name in names),
        difference(each),
        crosstab(each),
        counts(each),
    ]


def _loops(result: Json) -> str:
    rows = []
    for model in result["models"]:
        for each in model["categories"]:
            loops = each["loops"]
            label = f"{escape(model['model'])}<small>{escape(_short(each))}</small>"
            rows.append([label, *(loop(loops, name) for name in _LOOPS)])
    caps = ", ".join(
        sorted({str(each["loops"]["max_steps"]) for m in result["models"] for each in m["categories"]})
    )
    key = (
        "Of calls: repeated, unparsable; of turns: all else. Due, called: turns whose ground truth has a "
        "call in which one was made; empty, not called: turns without one in which none was. "
        f"Step cap of a turn: {caps}; figures of runs with another cap do not compare."
    )
    return table("Turns and calls.", ["", *_LOOPS.values()], rows) + paragraph(key, "soft")


def _single(single: Sequence[Json]) -> str:
    rows = [
        [
            f"{escape(each['model'])}<small>{escape(each['category'])}</small>",
            rate(each, "acc"),
            rate(each, "called"),
            f"{each['run']}/{each['planned']}",
            str(each["errored"]),
        ]
        for each in single
    ]
    return table("BFCL's accuracy, and answered by a call.", ["", "Acc", "called", "run", "errored"], rows)
