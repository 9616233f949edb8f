"""The report of `bench calibrate`, from its result and its run folder alone."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from bench.report import page
from bench.report.calibration_charts import charts
from bench.report.charts import Chart
from bench.report.page import Section, cell, figures, paragraph, table
from bench.report.words import (
    NAMES,
    arm_name,
    estimate_text,
    number,
    p_text,
    per_cent,
    plain,
    rate_name,
    span,
)
from bench.runs import RunFolder

Result = Mapping[str, Any]
Charts = Mapping[str, Chart]

_HEADLINE = ("over_calling", "call_recall")
_FIRST_TOKEN = (*_HEADLINE, "respond_recall", "missed", "decision_accuracy")
_REPLY_RATES = (*_HEADLINE, "delayed_calls", "valid_calls", "right_tool")
_REPLY_MEANS = ("completion_tokens", "queries")
_COUNTS = ("planned", "run", "scored", "errored", "unmeasurable")
_LONGEST = 280
"""Characters that are shown of a question or a reply."""


def write_report(run: RunFolder, result: Result, folder: Path) -> Path:
    """Write the run's report.html and charts into a folder; the page's path."""
    drawn = charts(result)
    title = f"Calibration of {result['model']}: b = {number(result['choice']['bias'])} nats"
    parts = sections(run, result, drawn)
    return page.write_report(run, result, folder, title, _lead(result), parts, list(drawn.values()))


def sections(run: RunFolder, result: Result, drawn: Charts) -> list[Section]:
    """The parts of the page, in order; those that were not asked for are absent."""
    found = [
        Section("The choice", _choice(result, drawn)),
        Section("Can the model tell?", _separation(drawn)),
        Section("First token, test split", _first_token(result)),
    ]
    if result["contextual"]["fitted"] is not None:
        found.append(Section("A bias that depends on the request", _contextual(result)))
    if result.get("generation"):
        found.append(Section("Whole replies, test split", _replies(result["generation"])))
    if result.get("rerun"):
        found.append(Section("The curve against the server", _rerun(result, drawn)))
    return [
        *found,
        Section("p(entry) as a probability", _reliability(result, drawn)),
        Section("By source and number of tools", _slices(result)),
        Section("Decisions that the bias turns", _flips(result)),
        Section("What this rests on", _provenance(run, result)),
    ]


def _lead(result: Result) -> str:
    test, auc = result["test"], result["test"]["roc"]["auc"]
    tiles = [("Bias", f"{number(result['choice']['bias'])} nats", result["objective"]["words"])]
    for name in _HEADLINE:
        off, on = test["off"][name], test["chosen"][name]
        now = f"{100 * off['estimate']:.1f} → {per_cent(on['estimate'])}"
        tiles.append((NAMES[name], now, f"test, first token; with b {estimate_text(on)}"))
    tiles.append(("AUC of the margin", plain(auc), span(auc)))
    boxes = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(more)}</span></div>"
        for name, value, more in tiles
    )
    notes = list(result["warnings"])
    if result["exploratory"]:
        notes.insert(0, "Exploratory: the test split had been looked at before this choice was made.")
    how = {"greedy": "greedy decoding", "sampled": "temperature 1"}[result["decoding"]]
    lead = (
        f"One number added to the logits of the tokens that open a tool call, chosen on a validation split "
        f"for {how}, and reported on a test split that the choice did not see."
    )
    warned = "".join(paragraph(note, "warn") for note in notes)
    return f'{paragraph(lead, "soft")}<div class="tiles">{boxes}</div>{warned}'


def _choice(result: Result, drawn: Charts) -> str:
    choice = result["choice"]
    said = [f"Chosen on validation: {number(choice['bias'])} nats, the {result['objective']['words']}."]
    low, high = choice["stretch"]
    if low < high:
        said.append(f"Every b from {number(low)} to {number(high)} is as good there.")
    if choice["resampled"]:
        low, high = (number(round(limit, 2)) for limit in choice["resampled"])
        said.append(f"Other draws of its conversations would have chosen {low} to {high} (middle 95 %).")
    captions = {
        "curve-validation": "Where b was chosen. Bands are 95 % intervals.",
        "curve-test": "What it does to examples that the choice did not see.",
    }
    return paragraph(" ".join(said)) + figures(drawn, captions)


def _separation(drawn: Charts) -> str:
    captions = {
        "roc": "A bias moves the working point along this line, never off it: restraint costs recall.",
        "margins": "A call opens to the right of the line; the bias moves the line.",
    }
    return figures(drawn, captions)


def _first_token(result: Result) -> str:
    test, bias = result["test"], f"b = {number(result['choice']['bias'])}"
    rows = []
    for name in _FIRST_TOKEN:
        change = test["changes"].get(name)
        rows.append([NAMES[name], cell(test["off"][name]), cell(test["chosen"][name]), *_change(change)])
    for rho, off in test["off"]["risk"].items():
        rows.append([f"Risk R({rho})", cell(off, ""), cell(test["chosen"]["risk"][rho], ""), "", ""])
    heads = ["E1 figure", "b = 0", bias, "change, points", "p (Holm)"]
    caption = "Rates with 95 % intervals; changes are paired, their p is of a sign-flip test by conversation."
    return table(caption, heads, rows) + _power(result)


def _contextual(result: Result) -> str:
    """Both biases on test, what was fitted, and whether it is offered."""
    own = result["contextual"]
    gain, test = own["gain"]["validation"], own["test"]
    verdict = (
        "It beats the one number on validation beyond the interval, so it has a profile of its own."
        if own["offered"]
        else "It does not beat the one number on validation beyond the interval, so it is only shown."
    )
    interval = "" if gain["low"] is None else f", {number(gain['low'])} to {number(gain['high'])}"
    said = (
        "b(x) = b0 plus weights times features of the request, by logistic regression with the margin as "
        f"offset. {verdict} Its best choice scores {number(gain['difference'])} (95 %{interval}) against the "
        f"best single b, on the objective ({result['objective']['words']}); less is better."
    )
    rows = [
        [
            NAMES[name],
            cell(test["scalar"][name]),
            cell(test["contextual"][name]),
            *_change(test["changes"].get(name)),
        ]
        for name in _FIRST_TOKEN
    ]
    rows.append(["AUC", cell(test["auc"]["scalar"], ""), cell(test["auc"]["contextual"], ""), "", ""])
    heads = ["E1 figure", f"b = {number(result['choice']['bias'])}", "b(x)", "change, points", "p (Holm)"]
    fitted = own["fitted"]
    weights = [[escape(name), number(weight)] for name, weight in fitted["weights"].items()]
    weights = [["b0", number(fitted["b0"])], *weights]
    low, high = number(fitted["low"]), number(fitted["high"])
    range_ = f"Between {low} and {high} nats; docs/configuration.md says what the features are."
    return (
        paragraph(said)
        + table("Test split; changes are of b(x) against the one number.", heads, rows)
        + table(range_, ["Term", "nats for one unit"], weights)
    )


def _power(result: Result) -> str:
    """What the test split could have shown at all."""
    shown, hidden = [], []
    for name, own in result["power"].items():
        if own["smallest_difference"] is not None:
            shown.append(f"{100 * own['smallest_difference']:.1f} points of {rate_name(name)}")
        elif own["expected_flips"]:
            hidden.append(f"{rate_name(name)}, where only {per_cent(own['expected_flips'])} turn")
    said = [f"The smallest change it shows with 80 % power: {', '.join(shown)}."] if shown else []
    said += [f"It is too small to show any change of {', '.join(hidden)}."] if hidden else []
    return paragraph(" ".join(said), "soft") if said else ""


def _replies(own: Mapping[str, Any]) -> str:
    arms = own["arms"]
    rows = [[NAMES[name], *(cell(arm[name]) for arm in arms.values())] for name in _REPLY_RATES]
    rows += [[NAMES[name], *(cell(arm[name], "") for arm in arms.values())] for name in _REPLY_MEANS]
    rows += [[f"Replies {name}", *(str(arm["counts"][name]) for arm in arms.values())] for name in _COUNTS]
    heads = ["Figure", *("b = 0" if arm == "off" else arm_name(arm) for arm in arms)]
    floor = own["noise_floor"]
    decided, worded = estimate_text(floor["decision"]), estimate_text(floor["wording"])
    said = (
        f"Noise floor: asked twice without calibration, the server decides otherwise in {decided} of replies "
        f"and words {worded} otherwise. No difference below it is a finding."
    )
    changed = [
        [f"{escape(arm_name(arm))}: {rate_name(name)}", *_change(change)]
        for arm, family in own["changes"].items()
        for name, change in family.items()
    ]
    heads_changed = ["Change against b = 0", "points", "p (Holm)"]
    changes = table("Paired, on the same examples.", heads_changed, changed) if changed else ""
    return table("Greedy replies; 95 % intervals.", heads, rows) + changes + paragraph(said)


def _rerun(result: Result, drawn: Charts) -> str:
    rows = []
    for point in result["rerun"]:
        rates = [
            f"{100 * point[name]['formula']:.1f} → {per_cent(point[name]['measured'])}" for name in _HEADLINE
        ]
        greedy = f"{point['n'] - point['greedy_turned']} of {point['n']}"
        rows.append([number(point["bias"]), *rates, greedy, "yes" if point["agrees"] else "<b>NO</b>"])
    heads = ["b", "over-calling, formula → server", "call recall", "greedy as g + b says", "agrees"]
    shown = figures(drawn, {"rerun": "Whiskers: where 95 % of measurements fall if the formula holds."})
    return shown + table("One draw of each test example and b, at temperature 1.", heads, rows)


def _reliability(result: Result, drawn: Charts) -> str:
    rows = []
    for name, own in result["reliability"].items():
        told = "<br>".join(f"{escape(key)} {number(value)}" for key, value in own["parameters"].items())
        rows.append([escape(name.capitalize()), told, cell(own["ece"], ""), cell(own["brier"], "")])
    heads = ["Probability", "parameters", "ECE", "Brier score"]
    fits = table("Fitted on validation, judged on test.", heads, rows)
    said = paragraph(
        "The fits keep the order of margins: they change neither the ROC nor what a bias can do."
    )
    return figures(drawn, {"reliability": "Bins of equally many examples."}, fits + said)


def _slices(result: Result) -> str:
    bias = f"b = {number(result['choice']['bias'])}"
    heads = ["", "due", "not due", "AUC", "over-calling, b = 0", bias, "call recall, b = 0", bias]
    tables = []
    for kind, caption in (("source", "By source"), ("tools", "By number of tools offered")):
        rows = [_slice(own) for own in result["test"]["slices"][kind]]
        tables.append(table(f"{caption}; first token, test split. Exploratory.", heads, rows))
    return "".join(tables)


def _slice(own: Mapping[str, Any]) -> list[str]:
    cells = [
        cell(own[arm][name]) if own["not_due" if name == "over_calling" else "due"] else ""
        for name in _HEADLINE
        for arm in ("off", "chosen")
    ]
    area = cell(own["auc"], "") if own["due"] and own["not_due"] else ""
    return [escape(own["name"]), str(own["due"]), str(own["not_due"]), area, *cells]


def _flips(result: Result) -> str:
    kinds = (
        (False, False, "good", "Over-calls that stop"),
        (True, False, "bad", "Due calls that are lost"),
        (True, True, "good", "Due calls that are gained"),
        (False, True, "bad", "Over-calls that are new"),
    )
    parts = []
    for due, opens, style, title in kinds:
        own = [f for f in result["flips"] if f["should_call"] == due and f["opens_call"] == opens]
        if own:
            shown = "".join(_flip(flip, style) for flip in own)
            parts.append(f"<details open><summary>{title} ({len(own)} shown)</summary>{shown}</details>")
    return "".join(parts) or paragraph("None on the test split.")


def _flip(flip: Mapping[str, Any], style: str) -> str:
    due = "no call is due"
    if flip["should_call"]:
        due = f"due: {', '.join(flip['gold'])}" if flip["gold"] else "a call is due"
    about = f"{flip['source']}, gap {number(round(flip['gap'], 2))}; {due}"
    lines = [
        f"<b>{escape(_cut(flip['question']) or flip['id'])}</b>",
        f'<span class="soft">{escape(about)}</span>',
    ]
    for name, label in (("off", "b = 0"), ("chosen", "with b")):
        if flip[name] is not None:
            lines.append(f"{label}: <code>{escape(_cut(flip[name]) or '(empty)')}</code>")
    return f'<div class="flip {style}">{"<br>".join(lines)}</div>'


def _provenance(run: RunFolder, result: Result) -> str:
    counts = result["counts"]
    names = (*_COUNTS, "due", "not_due", "conversations")
    rows = [[name.replace("_", " ").capitalize(), *(str(counts[s][name]) for s in counts)] for name in names]
    plan, server = run.manifest.plan, result["server"]
    files = ", ".join(f"{name} ({file.sha256[:12]})" for name, file in plan.data.items())
    looks = "; ".join(f"{look['time']}: {look['objective']} ({look['decoding']})" for look in result["looks"])
    versions = run.manifest.sessions[-1].versions
    facts = {
        "Server": f"{server['kind']} {server['version'] or ''}, model {result['model']}",
        "Entry tokens": f"{result['entry']['tokens']}, opener {result['entry']['opener']!r}",
        "Fingerprint": str(result["fingerprint"]),
        "Files": files or "none; BFCL comes from its package",
        "Looks at the test split": looks,
        "Applied": f"scope {result['scope']}, apply {result['apply']}",
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    listed = "".join(paragraph(f"{name}: {text}", "soft") for name, text in facts.items())
    shared = "The entry tokens also begin ordinary text: p(entry) is an upper bound of p(call)."
    warned = paragraph(shared, "warn") if result["entry"]["shared"] else ""
    return warned + table("Examples of each split.", ["", *counts], rows) + listed


def _change(change: Mapping[str, Any] | None) -> list[str]:
    """The cells of a paired difference and its adjusted p; empty where none is claimed."""
    if change is None:
        return ["", ""]
    return [cell(change, "points"), escape(p_text(change["test"]["p_holm"]))]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
