"""The report of `bench compare`, from its result and its run folder alone."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bench.report import page
from bench.report.charts import Chart
from bench.report.comparison_charts import charts, letters
from bench.report.page import Section, cell, figures, paragraph, table
from bench.report.words import NAMES, arm_name, number, p_text, per_cent, rate_name
from bench.runs import RunFolder

Result = Mapping[str, Any]
Json = Mapping[str, Any]
Charts = Mapping[str, Chart]

_RATES = ("over_calling", "call_recall")
_FIRST_TOKEN = (*_RATES, "respond_recall", "missed", "decision_accuracy")
_REPLIES = (*_RATES, "delayed_calls", "valid_calls", "right_tool")
_COSTS = ("completion_tokens", "queries")
_AUC = (
    "How well the margin tells the labels apart, paired with the baseline's run; no scalar bias changes it, "
    "b(x) does. At equal recall: over-calling minus the baseline's, both under the bias that reaches its "
    "recall."
)
_FEW = 20
_READINGS = {
    "gar": "GAR",
    "gar_at_gold_turn": "at gold turn",
    "acc": "Acc",
    "calls_per_turn": "calls per turn",
    "loop_at_3": "Loop@3",
}
_COUNTS = ("planned", "run", "scored", "errored", "unmeasurable")
_KINDS = {
    "decisions": "labelled decisions in the test split of every run",
    "bfcl": "BFCL cases; entry N of the multi-turn categories is one scenario",
    "tau2": "tau2 tasks, each by the mean of its trials",
    "replies": "labelled decisions, by whole replies",
    "when2call": "When2Call's questions, by whole replies",
}


def write_report(run: RunFolder, result: Result, folder: Path) -> Path:
    """Write the run's report.html and charts into a folder; the page's path."""
    drawn = charts(result)
    title = f"Comparison with {arm_name(result['baseline'])}"
    parts = sections(run, result, drawn)
    return page.write_report(run, result, folder, title, _lead(result), parts, list(drawn.values()))


def sections(run: RunFolder, result: Result, drawn: Charts) -> list[Section]:
    """The parts of the page, in order."""
    found = [Section("Differences", _differences(result, drawn))]
    if result["kind"] == "decisions":
        found += [
            Section("Restraint, recall, and what mistakes cost", _first_token(result, drawn)),
            Section("Whole replies", _replies(result)),
        ]
    else:
        found += [Section("Recall and accuracy", _parts(result))]
    return [
        *found,
        *(
            [Section("Published figures", _published(result["published"], drawn))]
            if result["published"]
            else []
        ),
        Section("What this rests on", _provenance(run, result)),
    ]


def _lead(result: Result) -> str:
    tested = [claim for claim in result["claims"] if claim["test"]]
    hold = sum(claim["holds"] for claim in tested)
    base = arm_name(result["baseline"])
    said = (
        f"{len(result['systems'])} systems on the same cases: {_KINDS[result['kind']]}. Every difference is "
        f"paired and against {base}; {hold} of {len(tested)} claims hold: their p, adjusted "
        "for all of them (Holm), is at most 0.05, and the change is above the noise floor where one is known."
    )
    warned = "".join(paragraph(warning, "warn") for warning in result["warnings"])
    return paragraph(said, "soft") + warned


def _differences(result: Result, drawn: Charts) -> str:
    """How to read them, a forest of each part, and a table of each part with all that a claim rests on."""
    tested = [claim for claim in result["claims"] if claim["test"]]
    caption = (
        "Grey: the noise floor." if any(claim["floor"] for claim in tested) else "No noise floor is known."
    )
    forests = {name: caption for name in drawn if name.startswith("forest")}
    shown = [_words(tested), figures(drawn, forests)] if tested else []
    for part in dict.fromkeys(claim["part"] for claim in result["claims"]):
        own = [claim for claim in result["claims"] if claim["part"] == part and not claim["mean"]]
        if own:
            heads = [
                "",
                "baseline",
                "system",
                "points",
                "p (Holm)",
                "holds",
                "gained, lost",
                "floor",
                "pairs",
            ]
            rows = [_claim(result, claim) for claim in own]
            shown.append(table(f"{_sentence(part)}: rates and differences.", heads, rows))
        costs = [c for c in result["claims"] if c["part"] == part and c["mean"]]
        if costs:
            heads = ["", "baseline", "system", "change", "pairs"]
            caption = f"{_sentence(part)}: numbers, shown and not tested."
            shown.append(table(caption, heads, [_cost(claim) for claim in costs]))
    return "".join(shown)


def _words(claims: Sequence[Json]) -> str:
    methods = " or ".join(dict.fromkeys(claim["test"]["method"] for claim in claims))
    said = (
        "Change in points with 95 % intervals. Cases that either system lacks are dropped from both, and "
        f"counted. p is of {methods}, adjusted for all {len(claims)} claims of this page (Holm). Gained are "
        "the cases with the outcome under the system only, lost those with it under the baseline only: a "
        "gained over-call is a harm."
    )
    return paragraph(said) + _floor_words(claims)


def _sentence(part: str) -> str:
    return part.replace("_", " ").capitalize()


def _floor_words(claims: Sequence[Json]) -> str:
    if any(claim["floor"] is None for claim in claims):
        return paragraph(
            "Some noise floors are not known, since the baseline was not asked twice: then nothing says how "
            "much of a change the server makes by itself.",
            "warn",
        )
    return paragraph(
        "The noise floor: in how many cases the same request, asked twice under the same settings, ends "
        "otherwise (of calibrations: whole replies without a bias; of both runs the larger). No change below "
        "it is a finding.",
        "soft",
    )


def _claim(result: Result, claim: Json) -> list[str]:
    pairs, floor, test = claim["outcomes"], claim["floor"], claim["test"]
    exploratory = any(s["name"] == claim["system"] and s.get("exploratory") for s in result["systems"])
    of = rate_name(claim["figure"]) + ", exploratory" * exploratory
    name = f"{escape(arm_name(claim['system']))}<small>{of}</small>"
    if test is None:
        return [name, "–", "–", cell(claim), "–", "–", "–", "–", _pairs(claim)]
    p = f"{escape(p_text(test['p_holm']))}<small>{escape(p_text(test['p']))} alone</small>"
    moved = f"+{pairs['gained']} −{pairs['lost']}" if pairs else "no yes or no"
    agreed = f"<small>both {pairs['both']}, neither {pairs['neither']}</small>" if pairs else ""
    return [
        name,
        *_arms(claim),
        cell(claim, "points"),
        p,
        "<b>yes</b>" if claim["holds"] else "no",
        moved + agreed,
        cell(floor) if floor else "–",
        _pairs(claim),
    ]


def _arms(claim: Json) -> list[str]:
    """Both rates; below 20 pairs the counts first, since a rate is then a count in disguise (rigor.md 3)."""
    rates = [per_cent(claim[arm]) for arm in ("before", "after")]
    pairs = claim["outcomes"]
    if pairs is None or claim["n"] >= _FEW:
        return rates
    hits = [pairs["both"] + pairs[moved] for moved in ("lost", "gained")]
    return [f"{hit}/{claim['n']}<small>{rate}</small>" for hit, rate in zip(hits, rates, strict=True)]


def _cost(claim: Json) -> list[str]:
    name = f"{escape(arm_name(claim['system']))}<small>{rate_name(claim['figure'])}</small>"
    means = [number(claim[arm]) if claim[arm] is not None else "–" for arm in ("before", "after")]
    return [name, *means, cell(claim, "change"), _pairs(claim)]


def _pairs(claim: Json) -> str:
    """How many pairs, of how many clusters, and how many were dropped from both, by the reason."""
    dropped = ", ".join(
        f"{count} {why.replace('_', ' ')}" for why, count in claim["dropped"].items() if count
    )
    below = f"<small>dropped {dropped}</small>" if dropped else ""
    return f"{claim['n']}<small>{claim['clusters']} clusters</small>{below}"


def _first_token(result: Result, drawn: Charts) -> str:
    captions = {
        "plane": "Up and to the right is better. A scalar bias moves a checkpoint along its line, never off "
        "it; b(x) may.",
        "costs": "Where two lines cross, the price of an over-call decides between the systems.",
    }
    own = result["first_token"]
    rows = [[NAMES[name], *(cell(system[name]) for system in own.values())] for name in _FIRST_TOKEN]
    rhos = next(iter(own.values()))["risk"]
    rows += [[f"Risk R({rho})", *(cell(system["risk"][rho], "") for system in own.values())] for rho in rhos]
    rows += _count_rows(own)
    areas = []
    for label, run in result["runs"].items():
        arms = {f"{label}, {arm}": own for arm, own in run["contextual"].items()}
        areas += [_area(name, own) for name, own in ({label: run} | arms).items()]
    how = {"greedy": "greedy decoding", "sampled": "temperature 1"}[result["decoding"]]
    return (
        figures(drawn, {name: caption for name, caption in captions.items() if name in drawn})
        + table(f"First token (E1), {how}; 95 % intervals.", ["E1 figure", *map(arm_name, own)], rows)
        + table(_AUC, ["Run", "AUC", "change", "over-calling at equal recall, change"], areas)
    )


def _area(name: str, own: Json) -> list[str]:
    return [
        escape(name),
        cell(own["auc"], ""),
        cell(own["auc_change"], "change") if own["auc_change"] else "",
        cell(own["at_equal_recall"], "points") if own["at_equal_recall"] else "",
    ]


def _count_rows(own: Mapping[str, Json]) -> list[list[str]]:
    return [[f"Cases {name}", *(str(system["counts"][name]) for system in own.values())] for name in _COUNTS]


def _replies(result: Result) -> str:
    own = result["replies"]
    if not own:
        return paragraph("None was made: bench calibrate ran with --no-generate.")
    rows = [[NAMES[name], *(cell(system[name]) for system in own.values())] for name in _REPLIES]
    rows += [[NAMES[name], *(cell(system[name], "") for system in own.values())] for name in _COSTS]
    rows += _count_rows(own)
    floors = [
        [escape(label), *(cell(floor[name]) if floor else "–" for name in ("decision", "wording"))]
        for label, floor in result["noise_floor"].items()
    ]
    return table("Greedy replies; 95 % intervals.", ["Figure", *map(arm_name, own)], rows) + table(
        "Noise floor: the same request without calibration, asked twice.",
        ["Run", "decides otherwise", "says it otherwise"],
        floors,
    )


def _parts(result: Result) -> str:
    tables = []
    for part, systems in result["parts"].items():
        names = [name for name in _READINGS if any(name in own for own in systems.values())]
        both = any("gar" in own for own in systems.values())
        heads = ["", *(_READINGS[name] for name in names)]
        heads += [*(["GAR − Acc", "masking", "2x2"] if both else []), "counts"]
        rows = [
            [escape(system), *_recall(own, names, both=both), _five(own["counts"])]
            for system, own in systems.items()
        ]
        called = [name for name in _RATES if any(name in own for own in systems.values())]
        rows_called = [
            [f"{escape(system)}: {rate_name(name)}", cell(own.get(name))]
            for system, own in systems.items()
            for name in called
        ]
        tables.append(table(f"{_sentence(part)}.", heads, rows))
        if called:
            tables.append(table("Whether it called.", ["", "share"], rows_called))
    key = (
        "2x2: gold class emitted and passed, emitted and failed, missed and passed, missed and failed. "
        "Masking is Acc − GAR where positive: the grader passed cases whose action class was wrong. "
        if any("gar" in own for systems in result["parts"].values() for own in systems.values())
        else ""
    )
    key += f"Counts: {', '.join(_COUNTS)}."
    return paragraph(key, "soft") + "".join(tables)


def _recall(own: Json, names: Sequence[str], *, both: bool) -> list[str]:
    rates = [
        cell(own[name], "" if name == "calls_per_turn" else "%") if name in own else "–" for name in names
    ]
    if not both:
        return rates
    if own["crosstab"] is None:
        return [*rates, f"–<small>{escape(own['difference_reason'])}</small>", "–", "–"]
    masking = per_cent(own["masking"]) if own["masking"] else "none"
    if own["masking"] is None:
        masking = f"–<small>{escape(own['masking_reason'])}</small>"
    return [*rates, cell(own["difference"], "points"), masking, " ".join(map(str, own["crosstab"].values()))]


def _five(counts: Json | None) -> str:
    return " ".join(str(counts[name]) for name in _COUNTS) if counts else "–"


_PUBLISHED: Mapping[str, Callable[[float], str]] = {
    "over_calling": per_cent,
    "call_recall": per_cent,
    "auc": lambda area: f"{area:.3f}",
    "gar": per_cent,
    "acc": per_cent,
    "gar_minus_acc": lambda share: f"{100 * share:+.1f} points".replace("-", "−"),
    "calls_per_turn": number,
    "loop_at_3": per_cent,
}
_PUBLISHED_NAMES = {
    "auc": "AUC",
    "gar": "GAR",
    "acc": "Acc",
    "gar_minus_acc": "GAR − Acc",
}


def _published(rows: Sequence[Json], drawn: Charts) -> str:
    columns = [name for name in _PUBLISHED if any(row.get(name) is not None for row in rows)]
    marks = letters(rows) if "plane" in drawn else {}
    cells = []
    for place, row in enumerate(rows):
        mark = f"{marks[place]} · " if place in marks else ""
        note = f"<small>{escape(row['note'])}</small>" if row.get("note") else ""
        values = [_PUBLISHED[name](row[name]) if row.get(name) is not None else "–" for name in columns]
        n = "not said" if row["n"] is None else str(row["n"])
        cells.append(
            [
                f"{mark}{escape(row['name'])}{note}",
                escape(row["part"].replace("_", " ")),
                *values,
                n,
                f"from {row['from']}",
            ]
        )
    said = (
        "Points that others print, of other checkpoints on other cases: without intervals, and never "
        "differenced against the rows above."
    )
    sources = dict.fromkeys(f"{row['cite']}: {row['protocol']}." for row in rows)
    heads = ["", "of", *(_PUBLISHED_NAMES.get(name, NAMES.get(name, name)) for name in columns), "n", ""]
    return (
        paragraph(said)
        + table("Reference rows.", heads, cells)
        + "".join(paragraph(source, "soft") for source in sources)
    )


def _provenance(run: RunFolder, result: Result) -> str:
    rows = []
    for system in result["systems"]:
        told = [
            f"{key.replace('_', ' ')}: {system[key]}"
            for key in ("model", "agent", "domain", "trials", "profile", "objective", "fingerprint")
            if system.get(key) is not None
        ]
        rows.append(
            [escape(arm_name(system["name"])), escape(system["folder"]), "<br>".join(map(escape, told))]
        )
    pairing = [f"{key.replace('_', ' ')}: {_told(value)}" for key, value in result["pairing"].items()]
    versions = run.manifest.sessions[-1].versions
    facts = {
        "Paired": "; ".join(pairing),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    listed = "".join(paragraph(f"{name}: {text}", "soft") for name, text in facts.items())
    return table("Systems.", ["", "folder", "of"], rows) + listed


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    return str(value)
