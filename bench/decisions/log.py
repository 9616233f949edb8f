"""Decisions out of one's own decision log: a sample of its replies, labelled by the person at the terminal.

A log says what a reply did and how near the decision was, not whether a call was due: that takes a reader.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from textwrap import indent, shorten
from typing import Any, Literal, NamedTuple

import click

from bench.decisions.example import Example, Json, question
from bench.errors import CheckFailed, InputError
from bench.runs import RecordFile, RunFolder
from calibrators.actions import Action
from calibrators.margin import Margin
from calibrators.request import REQUEST_FIELDS

Key = Literal["c", "a", "r", "o", "s", "q"]
_KEYS: dict[str, str] = {
    "c": "a call is due",
    "a": "ask for what is missing",
    "r": "refuse",
    "o": "another answer is due",
    "s": "skip: can't tell",
    "q": "stop here",
}
_LABELS = {"c": Action.TOOL_CALL, "a": Action.ASK, "r": Action.REFUSE, "o": Action.OTHER}
_WIDTH = 600


class Replies(NamedTuple):
    """The replies of a log that can be labelled, and how many can't, by reason."""

    records: Sequence[Json]
    left_out: dict[str, int]


def read_log(path: Path) -> Replies:
    """The replies that a reader can judge and whose margin is known or can be asked for.

    Raises InputError for a file that is no decision log, CheckFailed where it holds none, with the mend.
    """
    records = list(_records(path))
    spoken = [r for r in records if r.get("text") is not None]
    if not spoken:
        raise CheckFailed(
            f"holds {len(records)} replies and the text of none, and nobody can label what they can't read",
            where=str(path),
            mend="set decisions.text: true in seam.yaml, let replies come in, and call this again",
        )
    offered = [r for r in spoken if r.get("tools") and r.get("tool_choice") == "auto" and r.get("action")]
    usable = [r for r in offered if r.get("request") or None not in (r.get("margin"), r.get("gap"))]
    if not usable:
        raise CheckFailed(
            f"none of its {len(offered)} replies to requests with tools has a margin and a gap",
            where=str(path),
            mend="set reading: top_logprobs in seam.yaml and send temperature 0, then call this again",
        )
    left_out = {
        "without text": len(records) - len(spoken),
        "without tools, cut, or errored": len(spoken) - len(offered),
        "without margin": len(offered) - len(usable),
    }
    return Replies(usable, {reason: count for reason, count in left_out.items() if count})


def labelled(run: RunFolder, path: Path, count: int, seed: int) -> list[Example]:
    """A sample of a log, labelled by the person at the terminal as far as it isn't yet.

    The sample is drawn once and kept in the run folder, since a log grows; so are the labels.
    """
    sample, labels = run.records("sample"), run.records("labels")
    if not len(sample):
        replies = read_log(path)
        for reason, number in replies.left_out.items():
            click.echo(f"{path}: {number} replies {reason} are left out", err=True)
        for record in _drawn(replies.records, count, seed):
            sample.append(_name(record), {"record": record})
    _ask(sample, labels)
    chosen = {row["key"]: row["label"] for row in labels if row["label"]}
    return [_example(row["record"], chosen[row["key"]]) for row in sample if row["key"] in chosen]


def _records(path: Path) -> Iterator[Json]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), mend="give a decision log") from None
    for number, text in enumerate(lines, 1):
        try:
            record = json.loads(text)
            record["request_id"], record["choice"], record["case_id"]
        except (ValueError, KeyError, TypeError):
            raise InputError(
                "is no decision record", where=f"{path} line {number}", mend="give a decision log"
            ) from None
        yield record


def _drawn(records: Sequence[Json], count: int, seed: int) -> list[Json]:
    """Without regard to what the reply did: a draw by outcome would change the rates."""
    # A client may use one request id twice; the later reply stands.
    unique = list({_name(record): record for record in records}.values())
    return Random(f"{seed}:log").sample(unique, min(count, len(unique)))


def _ask(sample: RecordFile, labels: RecordFile) -> None:
    missing = [row for row in sample if row["key"] not in labels]
    if missing:
        click.echo("\n".join(f"  {key}  {what}" for key, what in _KEYS.items()), err=True)
    for number, row in enumerate(missing, 1):
        click.echo(f"\n{number} of {len(missing)}\n{_shown(row['record'])}", err=True)
        key = click.prompt("due", type=click.Choice(list(_KEYS)), show_choices=True, err=True)
        if key == "q":
            return
        labels.append(row["key"], {"label": _LABELS.get(key)})


def _shown(record: Json) -> str:
    """A reply as its reader sees it."""
    request = record.get("request") or {}
    lines = [f"{record.get('time')}  turn {record.get('turn')}  {record.get('tools')} tools"]
    if asked := question(request):
        lines.append(indent(shorten(asked, _WIDTH, placeholder=" …"), "user  "))
    if text := str(record.get("text") or "").strip():
        lines.append(indent(shorten(text, _WIDTH, placeholder=" …"), "says  "))
    for name, arguments in zip(record.get("calls") or (), record.get("arguments") or (), strict=False):
        lines.append(f"calls {name}({shorten(str(arguments), _WIDTH, placeholder=' …')})")
    return "\n".join(lines)


def _example(record: Json, label: str) -> Example:
    action = Action(label)
    asked: dict[str, Any] = record.get("request") or {}
    known = Margin(record.get("entry_probability"), record.get("margin"), record.get("gap"))
    return Example(
        id=_name(record),
        source="log",
        group=str(record["case_id"]),
        should_call=action is Action.TOOL_CALL,
        request={name: asked[name] for name in REQUEST_FIELDS if name in asked},
        action=action,
        read=None if None in (known.margin, known.gap) else known,
    )


def _name(record: Json) -> str:
    return f"{record['request_id']}:{record['choice']}"
