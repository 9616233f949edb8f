"""Upstream's own code at work: started, watched while it writes, and held to what was planned."""

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from bench.benchmarks import BENCHMARKS
from bench.errors import CheckFailed, InputError, ServerUnreachable
from bench.overhead.processes import last_line, running
from bench.progress import progress
from bench.run.bfcl.results import Watch, errored, heal, prompt_tokens

Json = dict[str, Any]

SERVER_GONE: Final = 3
"""The adapter's exit code for it."""
_ADAPTER: Final = Path(__file__).with_name("adapter.py")
_LOOK_SECONDS: Final = 0.5


class Replay(NamedTuple):
    """What upstream is to do; docs of the fields that reach it are the adapter's."""

    root: Path
    """BFCL_PROJECT_ROOT: upstream keeps its `result` and `score` folders there."""
    arms: Sequence[Mapping[str, Any]]
    blocks: Sequence[Sequence[str]]
    marks: Mapping[str, Any]
    attempt: int
    threads: int
    temperature: float
    fields: Mapping[str, Any]
    input_log: bool
    contexts: Mapping[str, int | None]
    """By arm how many tokens the server takes."""

    @property
    def names(self) -> list[str]:
        """The arms' names."""
        return [arm["name"] for arm in self.arms]

    @property
    def planned(self) -> set[tuple[str, str]]:
        """(arm, id) of all that has to be there in the end."""
        return {(name, id) for name in self.names for block in self.blocks for id in block}

    @property
    def dry(self) -> set[tuple[str, str]]:
        """(arm, id) of the dry pass: the first block."""
        return {(name, id) for name in self.names for id in self.blocks[0]}


def replay(plan: Replay, api_key: str | None) -> Json:
    """Run what is missing and grade everything; what the dry pass showed.

    A server that goes away ends the run with ServerUnreachable, and the same command goes on. CheckFailed
    where every case of the dry pass ended in an error, or results are missing at the end.
    """
    plan.root.mkdir(parents=True, exist_ok=True)
    heal(plan.root, plan.names)
    watch = Watch(plan.root, plan.names)
    rows = {(arm, row["id"]): row for arm, row in watch.new()}
    file, log = plan.root / "plan.json", plan.root / "bfcl.log"
    told = plan._asdict()
    file.write_text(json.dumps({key: told[key] for key in told.keys() - {"root", "contexts"}}, indent=1))
    command = [str(BENCHMARKS["bfcl"].python), "-I", str(_ADAPTER), str(file.resolve())]
    environment = {
        "BFCL_PROJECT_ROOT": str(plan.root.resolve()),
        # The variable is upstream's; without a key its client does not start.
        "OPENAI_API_KEY": api_key or "none",
    }
    seen, dry = set(rows), DryPass(plan, rows)
    with (
        progress("bfcl", len(plan.planned), len(seen)) as advance,
        running(command, log, environment) as process,
    ):
        ended = False
        while not ended:
            ended = process.poll() is not None
            for arm, row in watch.new():
                seen.add((arm, row["id"]))
                dry.add({(arm, row["id"]): row})
                advance(1, row["id"])
            dry.settle(len(plan.planned) - len(seen))
            if not ended:
                time.sleep(_LOOK_SECONDS)
    _check(process.returncode, log, plan.planned - seen)
    return dry.told


def _check(code: int, log: Path, missing: set[tuple[str, str]]) -> None:
    if code == SERVER_GONE:
        raise ServerUnreachable(
            last_line(log), where="bench run bfcl", mend="see to the server, and repeat the same command"
        )
    if code:
        raise CheckFailed(
            f"bfcl-eval ended with code {code}: {last_line(log)}",
            where=str(log),
            mend="see the log, and repeat the same command",
        )
    if missing:
        raise CheckFailed(
            f"bfcl-eval wrote no result for {len(missing)} cases, {min(missing)[1]} among them",
            where=str(log),
            mend="see the log, and repeat the same command",
        )


class DryPass:
    """The dry pass: the first cases, looked at before the rest is waited for."""

    def __init__(self, plan: Replay, rows: Mapping[tuple[str, str], Json]) -> None:
        self._plan = plan
        self._rows: dict[tuple[str, str], Json] = {}
        self.add(rows)
        self._earlier = len(self._rows)
        self._began = time.monotonic()
        self.told: Json = {}

    def add(self, rows: Mapping[tuple[str, str], Json]) -> None:
        """Take those that belong to it."""
        self._rows |= {key: row for key, row in rows.items() if key in self._plan.dry}

    def settle(self, left: int) -> None:
        """Once all are there, say what they show; `left` is how many cases are still to come.

        Raises CheckFailed where every one ended in an error.
        """
        if self.told or len(self._rows) < len(self._plan.dry):
            return
        rows = self._rows.values()
        tokens = [count for row in rows for count in prompt_tokens(row)]
        errors = Counter(" ".join(row["result"].split()) for row in rows if errored(row))
        contexts = [length for length in self._plan.contexts.values() if length]
        self.told = {
            "cases": len(rows),
            "errored": errors.total(),
            "errors": dict(errors),
            "prompt_tokens": {"least": min(tokens), "most": max(tokens)} if tokens else None,
            "context": min(contexts, default=None),
        }
        seconds = (time.monotonic() - self._began) / len(rows) * left
        # Cases of an earlier call tell nothing of the time.
        expected = None if self._earlier else seconds
        click.echo("\n".join(_words(self.told, left, expected)), err=True)
        if errors.total() == len(rows):
            raise CheckFailed(
                f"every case of the dry pass ended in an error: {next(iter(errors))[:300]}",
                where="bench run bfcl",
                mend="mend that and give a new --out, or --ids that fit the server",
            )


def _words(told: Json, left: int, seconds: float | None) -> Iterable[str]:
    yield f"dry pass: {told['cases']} cases, {told['errored']} errored"
    if told["prompt_tokens"]:
        least, most = told["prompt_tokens"]["least"], told["prompt_tokens"]["most"]
        takes = f", the server takes {told['context']:,}" if told["context"] else ""
        yield f"  prompts of {least:,} to {most:,} tokens{takes}"
    for error, count in told["errors"].items():
        yield f"  {count} × {error[:200]}"
    if left and seconds is not None:
        yield f"  {left} cases are left, about {max(1, round(seconds / 60))} min"


def api_key(name: str | None) -> str | None:
    """The key in an environment variable; InputError where it is not set."""
    if name is None:
        return None
    if not os.environ.get(name):
        raise InputError(f"{name} is not set", where="--api-key-env", mend="export it, or name another")
    return os.environ[name]
