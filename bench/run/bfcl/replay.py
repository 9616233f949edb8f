"""What BFCL's own code is to do, and which of its results are there."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.run.bfcl.results import Watch, errored, heal, prompt_tokens
from bench.run.dry import DryPass
from bench.run.rounds import Round
from bench.run.upstream import Adapter, Finished, drive

_ADAPTER: Final = Path(__file__).with_name("adapter.py")


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
    """Run what is missing and grade everything; errors as of `drive`."""
    plan.root.mkdir(parents=True, exist_ok=True)
    heal(plan.root, plan.names)
    watch = Watch(plan.root, plan.names)

    def new() -> Iterator[Finished]:
        for arm, row in watch.new():
            yield Finished(arm, row["id"], row["result"] if errored(row) else None, prompt_tokens(row))

    told = plan._asdict()
    adapter = Adapter(
        benchmark="bfcl",
        script=_ADAPTER,
        plan={key: told[key] for key in told.keys() - {"root"}},
        environment={
            "BFCL_PROJECT_ROOT": str(plan.root.resolve()),
            # The variable is upstream's; without a key its client does not start.
            "OPENAI_API_KEY": api_key or "none",
        },
    )
    drive(adapter, plan.root, plan.planned, new, dry)
