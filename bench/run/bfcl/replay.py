"""Upstream's own code at work: started, watched while it writes, and held to what was planned."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.benchmarks import BENCHMARKS
from bench.errors import CheckFailed, ServerUnreachable
from bench.overhead.processes import last_line, running
from bench.progress import progress
from bench.run.bfcl.results import Watch, errored, heal, prompt_tokens
from bench.run.dry import DryPass
from bench.run.rounds import Round

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
    rounds: Sequence[Round]
    marks: Mapping[str, Any]
    attempt: int
    threads: int
    temperature: float
    fields: Mapping[str, Any]
    input_log: bool

    @property
    def names(self) -> list[str]:
        """The arms' names."""
        return [arm["name"] for arm in self.arms]

    @property
    def planned(self) -> set[tuple[str, str]]:
        """(arm, id) of all that has to be there in the end."""
        return {(each.arm, id) for each in self.rounds for id in each.cases}


def replay(plan: Replay, dry: DryPass, api_key: str | None) -> None:
    """Run what is missing and grade everything; `dry` is told of each case.

    A server that goes away ends the run with ServerUnreachable, and the same command goes on. CheckFailed
    where every case of the dry pass ended in an error, or results are missing at the end.
    """
    plan.root.mkdir(parents=True, exist_ok=True)
    heal(plan.root, plan.names)
    watch = Watch(plan.root, plan.names)
    seen: set[tuple[str, str]] = set()

    def look() -> Iterator[str]:
        for arm, row in watch.new():
            seen.add((arm, row["id"]))
            dry.add((arm, row["id"]), row["result"] if errored(row) else None, prompt_tokens(row))
            yield row["id"]

    earlier = len(list(look()))
    file, log = plan.root / "plan.json", plan.root / "bfcl.log"
    told = plan._asdict()
    file.write_text(json.dumps({key: told[key] for key in told.keys() - {"root"}}, indent=1))
    command = [str(BENCHMARKS["bfcl"].python), "-I", str(_ADAPTER), str(file.resolve())]
    environment = {
        "BFCL_PROJECT_ROOT": str(plan.root.resolve()),
        # The variable is upstream's; without a key its client does not start.
        "OPENAI_API_KEY": api_key or "none",
    }
    dry.begin()
    with (
        progress("bfcl", len(plan.planned), earlier) as advance,
        running(command, log, environment) as process,
    ):
        ended = False
        while not ended:
            ended = process.poll() is not None
            for id in look():
                advance(1, id)
            dry.settle(len(plan.planned) - len(seen))
            if not ended:
                time.sleep(_LOOK_SECONDS)
    _check(process.returncode, log, plan.planned - seen)


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
