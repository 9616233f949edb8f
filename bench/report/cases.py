"""The cases of a run one by one: what was said, the class of each reply, what a probe did, passed or not."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.report.page import paragraph
from bench.score.decision_log import last_attempts
from bench.score.lines import Row

Json = Mapping[str, Any]

MOST = 400
"""Cases that a page shows."""
_LONG, _RESULT = 1500, 400
"""Characters shown of a message, and of a tool's result."""
_SHORT: Mapping[str, str] = {"tool_call": "call"}
_ROLES: Mapping[str, str] = {"tool": "result", "function": "result", "developer": "system"}


_GRADES: Mapping[Any, str] = {True: "passed", False: "failed", None: "not graded"}
_HITS: Mapping[Any, str] = {True: "emitted", False: "missed", None: "not known"}


class Tried(NamedTuple):
    """A case of one arm, as the run's records have it."""

    arm: str
    id: str
    part: str
    """The category, or class, that it is of."""
    passed: bool | None
    """None where nothing graded it."""
    hit: bool | None
    """Whether the gold class was emitted; None where that is not known."""
    emissions: Sequence[Sequence[str | None]]
    """The classes of its replies by turn, where the log lacks them."""
    error: str | None
    """What ended it."""
    entry: str
    """Its id in the decision log."""
    note: str | None = None
    """What else there is to say of it."""


class Case(NamedTuple):
    """A case of one arm and its replies."""

    tried: Tried
    said: Sequence[Row]
    """The decision records of its replies; none where the log lacks them."""

    @property
    def classes(self) -> list[list[str]]:
        """Of its replies, by turn."""
        turns: dict[int, list[str]] = {}
        for each in self.said:
            turns.setdefault(each["turn"], []).append(each["action"] or "none")
        return [*turns.values()] or [[each or "none" for each in turn] for turn in self.tried.emissions]

    @property
    def outcome(self) -> str:
        """passed, failed, errored, or not graded."""
        return "errored" if self.tried.error else _GRADES[self.tried.passed]

    @property
    def facts(self) -> Mapping[str, Sequence[str]]:
        """What it can be filtered by."""
        acted = any(_acted(record) for record in self.said)
        return {
            "outcome": [self.outcome],
            "part": [self.tried.part],
            "arm": [self.tried.arm],
            "class": list(dict.fromkeys(each for turn in self.classes for each in turn)),
            "gold": [_HITS[self.tried.hit]],
            "probes": ["acted" if acted else "did not act"],
        }


_LABELS: Mapping[str, str] = {
    "outcome": "Outcome",
    "part": "Category",
    "arm": "Arm",
    "class": "With a reply of class",
    "gold": "Gold class",
    "probes": "Probes",
}


def chosen(tried: Iterable[Tried]) -> tuple[list[Tried], int]:
    """The cases that a page shows, all arms of one together, and how many there are."""
    by_case: dict[str, list[Tried]] = {}
    for each in tried:
        by_case.setdefault(each.id, []).append(each)
    every = [each for own in by_case.values() for each in own]
    return every[:MOST], len(every)


def view(tried: Iterable[Tried], logs: Iterable[Path]) -> str:
    """The list of cases with its filters, as HTML; every case opens by itself, with and without a script."""
    shown, total = chosen(tried)
    said = last_attempts(logs, {(each.arm, each.entry) for each in shown})
    cases = [Case(each, said.get(each.arm, {}).get(each.entry, ())) for each in shown]
    several = len({each.arm for each in shown}) > 1
    more = f" The page shows the first {MOST} of {total:,}." if total > MOST else ""
    words = (
        "A strip shows the class of each reply, turn by turn; ↻ marks one that a probe had asked again or "
        f"took back. Open a case to read it, as far as the decision log has its texts.{more}"
    )
    items = "".join(_case(case, several) for case in cases)
    return f'<p class="soft">{words}</p>{_filters(cases)}<div class="cases">{items}</div>'


def _filters(cases: Sequence[Case]) -> str:
    """A choice for each fact that differs; hidden until the script makes it work."""
    shown = ""
    for name, label in _LABELS.items():
        values = dict.fromkeys(value for case in cases for value in case.facts[name])
        if len(values) > 1:
            options = "".join(
                f'<option value="{escape(each)}">{escape(_words(each))}</option>' for each in values
            )
            options = f'<option value="">any</option>{options}'
            shown += f'<label>{label}<select name="{name}">{options}</select></label>'
    return (
        f'<form class="filters" hidden>{shown}<button type="button">Open all</button>'
        f'<output aria-live="polite">{len(cases)} cases</output></form>'
    )


def _words(name: str) -> str:
    return name.removeprefix("multi_turn_").replace("_", " ")


def _case(case: Case, several: bool) -> str:
    # Values may hold spaces; none holds a vertical bar.
    data = "".join(f' data-{name}="{escape("|".join(values))}"' for name, values in case.facts.items())
    arm = f' <span class="arm">{escape(case.tried.arm)}</span>' if several else ""
    head = (
        f'<span class="badge {case.outcome.split()[0]}">{case.outcome}</span>'
        f"<b>{escape(_words(case.tried.id))}</b>{arm}{_strip(case)}"
    )
    body = _talk(case.said) if case.said else paragraph("The decision log has no reply of it.", "soft")
    error = paragraph(_cut(case.tried.error, _LONG), "warn") if case.tried.error else ""
    note = paragraph(_cut(case.tried.note, _LONG), "soft") if case.tried.note else ""
    return f'<details class="case"{data}><summary>{head}</summary>{error}{note}{body}</details>'


def _strip(case: Case) -> str:
    """The classes of all replies, those of a turn together."""
    acted = [_acted(record) for record in case.said]
    place, turns = 0, []
    for turn in case.classes:
        chips = []
        for each in turn:
            chips.append(_chip(each, acted[place] if place < len(acted) else False))
            place += 1
        turns.append(f'<span class="turn">{"".join(chips)}</span>')
    return f'<span class="strip">{"".join(turns)}</span>'


def _acted(record: Row) -> bool:
    return any(look["outcome"] in ("retried", "bypassed") for look in record["probes"])


def _chip(action: str, again: bool = False) -> str:
    mark = ' <span title="a probe acted">↻</span>' if again else ""
    return f'<span class="chip {action}">{_SHORT.get(action, action)}{mark}</span>'


def _talk(said: Sequence[Row]) -> str:
    """The conversation: what came before each reply, and the reply."""
    shown, known = [], 0
    for record in said:
        messages = (record.get("request") or {}).get("messages") or []
        new = messages[known:] if known <= len(messages) else messages[-1:]
        # What the model said last time is shown as the reply it was.
        if known and new and new[0].get("role") == "assistant":
            new = new[1:]
        shown += [_message(message) for message in new]
        shown.append(_reply(record))
        known = len(messages)
    return f'<ol class="talk">{"".join(shown)}</ol>'


def _message(message: Json) -> str:
    role = _ROLES.get(str(message.get("role")), str(message.get("role")))
    most = _RESULT if role in ("result", "system") else _LONG
    return f'<li class="{escape(role)}"><i>{escape(role)}</i><p>{escape(_cut(_text(message), most))}</p></li>'


def _text(message: Json) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content
        )
    return str(content or "")


def _reply(record: Row) -> str:
    names, written = record["calls"], [*(record.get("arguments") or ())]
    calls = [f"<code>{escape(_call(name, written[n : n + 1]))}</code>" for n, name in enumerate(names)]
    shown = f'<div class="calls">{"".join(calls)}</div>' if calls else ""
    text = record.get("text")
    if text:
        said = f"<p>{escape(_cut(text, _LONG))}</p>"
    elif names:
        said = ""
    else:
        said = f'<p class="soft">{"no text" if text == "" else "its text is not in the log"}</p>'
    probes = "".join(_look(look) for look in record["probes"])
    cut = ' <span class="soft">cut</span>' if record.get("finish_reason") == "length" else ""
    return (
        f'<li class="reply"><i>reply</i><div>{_chip(record["action"] or "none")}{cut}{shown}{said}'
        f"{probes}</div></li>"
    )


def _call(name: str, arguments: Sequence[str]) -> str:
    """A call as code; its arguments as they were written where they are no JSON object."""
    if not arguments:
        return f"{name}(…)"
    try:
        read = json.loads(arguments[0])
    except ValueError:
        read = None
    if isinstance(read, dict):
        parts = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in read.items()]
        return f"{name}({_cut(', '.join(parts), _LONG)})"
    return f"{name}({_cut(arguments[0], _LONG)})"


def _look(look: Json) -> str:
    """What a probe did; the dropped reply is not in the log, its class is."""
    moved = ""
    if look["action_after"] is not None:
        moved = f": {_chip(look['action_before'] or 'none')} → {_chip(look['action_after'])}"
    probe, outcome = look["probe"].upper(), escape(look["outcome"])
    return (
        f'<p class="look {outcome}">{escape(probe)} {outcome.replace("_", " ")}{moved}'
        f'<span class="soft"> {escape(look["why"])}</span></p>'
    )


def _cut(text: str | None, most: int) -> str:
    text = text or ""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
