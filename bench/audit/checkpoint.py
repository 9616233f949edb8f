"""A teacher as a checkpoint, read by the Python that has torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.decisions.example import Example
from bench.train import process

Json = dict[str, Any]


class Checkpoints(NamedTuple):
    """What is read, and by which Python."""

    python: Path
    teacher: Path
    student: Path | None
    base: Path | None
    steps: int
    """Tokens of a replay."""
    parser: str | None
    openers: Sequence[str]


def read(
    wanted: Checkpoints, examples: Sequence[Example], tops: Sequence[int], settings: Mapping[str, Any]
) -> Iterator[Json]:
    """First `{"entry": …}`, then a record with its `key` for each example.

    settings: of the divergence, members of bench.train.losses.Settings. Raises InputError where it fails.
    """
    with TemporaryDirectory(prefix="bench-audit-") as scratch:
        prompts = Path(scratch) / "prompts.jsonl"
        asked = ({"key": e.id, "response": not e.should_call, "request": dict(e.request)} for e in examples)
        prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in asked), "utf-8")
        job = {
            "teacher": str(wanted.teacher),
            "student": str(wanted.student) if wanted.student else None,
            "base": str(wanted.base) if wanted.base else None,
            "prompts": str(prompts),
            "tops": list(tops),
            "steps": wanted.steps,
            "settings": dict(settings),
            "parser": wanted.parser,
            "openers": list(wanted.openers),
        }
        yield from process.lines(wanted.python, "bench.audit.reading", job)
