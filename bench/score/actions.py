"""The action classifier against texts whose class is known.

Reads JSON lines, or one JSON list, whose items are any of

- a When2Call item: `answers` with a text for `request_for_info` (ASK), `cannot_answer` (REFUSE) and `direct`
  (to be left alone: neither of the two);
- `{"text": ..., "class": ...}`, class null for no class; `class_in` with a list where several are right;
- a case with `runs`, each with `text` and a `check` that holds `class` or `class_in` (tests/cases/README.md).
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.errors import InputError
from bench.score.figures import share
from bench.score.lines import rows
from calibrators.actions import Action, Cues, text_action

Json = dict[str, Any]

NONE: Final = "none"
"""How the class of a text without one (an empty one) is written."""
_CLASSES: Final = frozenset({*map(str, Action), NONE})
_MEND: Final = "give a file of When2Call items, of {text, class} lines, or of cases with runs"
_ANSWERS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "request_for_info": ("ask", frozenset({Action.ASK})),
    "cannot_answer": ("refuse", frozenset({Action.REFUSE})),
    "direct": ("direct", _CLASSES - {Action.ASK, Action.REFUSE}),
}
"""Of each kind of When2Call's answers: the name of its gold class, and the classes that are right."""


class Sample(NamedTuple):
    """A text and the classes that are right for it."""

    key: str
    cluster: str
    """The source it was made from: texts of one source are not independent."""
    text: str
    gold: str
    """Name of the row in the confusion table."""
    right: frozenset[str]


def read(file: Path) -> list[Sample]:
    """The texts of a file. Raises InputError where it is none of the forms above."""
    samples = [sample for where, item in _items(file) for sample in _samples(item, where)]
    if not samples:
        raise InputError("holds no text with a class", where=str(file), mend=_MEND)
    return samples


def figures(samples: Sequence[Sample], cues: Cues, seed: int) -> tuple[Json, list[Json]]:
    """The confusion table and the recall of each gold class, and a record for each text.

    Recall of `direct` is the share left alone. Intervals are by source (`bench.intervals.rate`).
    """
    found = [str(text_action(sample.text, cues) or NONE) for sample in samples]
    records: list[Json] = [
        {"key": sample.key, "gold": sample.gold, "class": name, "right": name in sample.right}
        for sample, name in zip(samples, found, strict=True)
    ]
    confusion: dict[str, Counter[str]] = {}
    for sample, name in zip(samples, found, strict=True):
        confusion.setdefault(sample.gold, Counter())[name] += 1
    recall: Json = {}
    for gold in confusion:
        row = [(sample, name) for sample, name in zip(samples, found, strict=True) if sample.gold == gold]
        outcomes = [name in sample.right for sample, name in row]
        recall |= share(gold, outcomes, [sample.cluster for sample, _ in row], seed)
    wrong = [
        {**record, "text": sample.text}
        for sample, record in zip(samples, records, strict=True)
        if not record["right"]
    ]
    result = {
        "cues": str(cues),
        "texts": len(samples),
        "confusion": {gold: dict(counts) for gold, counts in confusion.items()},
        "recall": recall,
        "wrong": wrong,
    }
    return result, records


def _items(file: Path) -> Iterator[tuple[str, Json]]:
    """Each item with where it stands."""
    try:
        listed = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        listed = None  # not one document: lines, or a file whose fault `rows` names
    if not isinstance(listed, list):
        for number, row in enumerate(rows(file, mend=_MEND)[0], 1):
            yield f"{file} item {number}", row
        return
    for number, item in enumerate(listed, 1):
        if not isinstance(item, dict):
            raise InputError("is no JSON object", where=f"{file} item {number}", mend=_MEND)
        yield f"{file} item {number}", item


def _samples(item: Json, where: str) -> Iterator[Sample]:
    name = str(item.get("uuid") or item.get("id") or where.rpartition(" ")[2])
    if isinstance(item.get("answers"), dict):
        source = str(item.get("source_id") or name)
        for kind, (gold, right) in _ANSWERS.items():
            text = item["answers"].get(kind)
            if isinstance(text, str):
                yield Sample(f"{name}/{kind}", source, text, gold, right)
    elif isinstance(item.get("runs"), list):
        for run in item["runs"]:
            if isinstance(run, dict) and isinstance(run.get("text"), str):
                key = f"{name}/{run.get('run')}"
                yield _checked(key, name, run["text"], run.get("check"), f"{where} run {run.get('run')}")
    elif isinstance(item.get("text"), str):
        yield _checked(name, name, item["text"], item, where)
    else:
        raise InputError("holds no answers, no runs and no text", where=where, mend=_MEND)


def _checked(key: str, cluster: str, text: str, check: Any, where: str) -> Sample:
    expected = check if isinstance(check, dict) else {}
    if "class_in" in expected:
        names = expected["class_in"]
    elif "class" in expected:
        names = [expected["class"]]
    else:
        raise InputError("has a text and no class", where=where, mend="add class or class_in")
    classes = [NONE if name is None else name for name in names] if isinstance(names, list) else [names]
    unknown = [name for name in classes if not isinstance(name, str) or name not in _CLASSES]
    if unknown or not classes:
        raise InputError(
            f"class {unknown[0] if unknown else classes!r} is unknown",
            where=where,
            mend=f"one of {', '.join(sorted(_CLASSES))}",
        )
    return Sample(key, cluster, text, " or ".join(classes), frozenset(classes))


def columns(confusion: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The classes that occur, in the order of the cascade."""
    order = [*map(str, Action), NONE]
    return [name for name in order if any(name in counts for counts in confusion.values())]


def wrong_lines(wrong: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The wrong ones, a line each."""
    for each in wrong:
        yield f"{each['key']}: {each['gold']} read as {each['class']}: {' '.join(each['text'].split())}"
