"""A benchmark's own code at work: started, watched while it writes, and held to what was planned.

It runs as an adapter, a small script that its own environment's Python executes (`run/bfcl/adapter.py`). An
adapter is given the path of a plan, one JSON object; it ends with `SERVER_GONE` where a server went away.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.benchmarks import BENCHMARKS
from bench.errors import CheckFailed, ServerUnreachable
from bench.overhead.processes import last_line, running
from bench.progress import progress
from bench.run.dry import DryPass, Key

SERVER_GONE: Final = 3
"""An adapter's exit code for it."""
_LOOK_SECONDS: Final = 0.5


class Finished(NamedTuple):
    """A case that has its result."""

    arm: str
    case: str
    error: str | None
    """What ended it, where the benchmark gave it up."""
    prompt_tokens: Sequence[int]
    """Of its queries, as the server counted them."""


class Adapter(NamedTuple):
    """How a benchmark's own code is started."""

    benchmark: str
    """Its name in `BENCHMARKS`."""
    script: Path
    plan: Mapping[str, Any]
    environment: Mapping[str, str]
    """Added to ours."""


def drive(
    adapter: Adapter,
    folder: Path,
    planned: AbstractSet[Key],
    new: Callable[[], Iterable[Finished]],
    dry: DryPass,
) -> None:
    """Run what is missing of the planned (arm, case); `dry` is told of each case.

    folder: gets `plan.json` and what the benchmark prints, `NAME.log`; new: the cases that were finished
    since it was called last. A server that goes away ends the run with ServerUnreachable, and the same
    command goes on. CheckFailed where every case of the dry pass ended in an error, or results are missing at
    the end.
    """
    seen: set[Key] = set()

    def look() -> list[str]:
        found = list(new())
        for each in found:
            seen.add((each.arm, each.case))
            dry.add((each.arm, each.case), each.error, each.prompt_tokens)
        return [each.case for each in found]

    earlier = len(look())
    plan, log = folder / "plan.json", folder / f"{adapter.benchmark}.log"
    plan.write_text(json.dumps(adapter.plan, indent=1))
    benchmark = BENCHMARKS[adapter.benchmark]
    command = [str(benchmark.python), "-I", str(adapter.script), str(plan.resolve())]
    dry.begin()
    with (
        progress(adapter.benchmark, len(planned), earlier) as advance,
        running(command, log, adapter.environment) as process,
    ):
        ended = False
        while not ended:
            ended = process.poll() is not None
            for case in look():
                advance(1, case)
            dry.settle(len(planned) - len(seen))
            if not ended:
                time.sleep(_LOOK_SECONDS)
    _check(process.returncode, adapter.benchmark, log, planned - seen)


def _check(code: int, name: str, log: Path, missing: AbstractSet[Key]) -> None:
    package = BENCHMARKS[name].package.partition("==")[0]
    if code == SERVER_GONE:
        raise ServerUnreachable(
            last_line(log), where=f"bench run {name}", mend="see to the server, and repeat the same command"
        )
    if code:
        raise CheckFailed(
            f"{package} ended with code {code}: {last_line(log)}",
            where=str(log),
            mend="see the log, and repeat the same command",
        )
    if missing:
        raise CheckFailed(
            f"{package} wrote no result for {len(missing)} cases, {min(missing)[1]} among them",
            where=str(log),
            mend="see the log, and repeat the same command",
        )
