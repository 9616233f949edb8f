"""What tau2-bench's own code is to do, and which of its simulations are there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.run.dry import DryPass
from bench.run.rounds import Round
from bench.run.tau2.results import Watch
from bench.run.upstream import Adapter, drive

_ADAPTER: Final = Path(__file__).with_name("adapter.py")


class Replay(NamedTuple):
    """What upstream is to do; docs of the fields are the adapter's."""

    domain: str
    arms: Sequence[Mapping[str, Any]]
    user: Mapping[str, Any]
    cases: Mapping[str, tuple[str, int]]
    rounds: Sequence[Round]
    marks: Mapping[str, Sequence[str]]
    attempt: int
    seed: int
    trials: int
    max_steps: int
    temperature: float
    fields: Mapping[str, Any]
    threads: int

    @property
    def planned(self) -> set[tuple[str, str]]:
        """(arm, case) of all that has to be there in the end."""
        return {(each.arm, case) for each in self.rounds for case in each.cases}


def replay(plan: Replay, root: Path, dry: DryPass, agent_key: str | None, user_key: str | None) -> None:
    """Simulate what is missing and grade everything, with results under `root`; errors as of `drive`."""
    root.mkdir(parents=True, exist_ok=True)
    adapter = Adapter(
        benchmark="tau2",
        script=_ADAPTER,
        plan=plan._asdict(),
        # Without a key upstream's client does not start.
        environment={"AGENT_KEY": agent_key or "none", "USER_KEY": user_key or "none"},
    )
    drive(adapter, root, plan.planned, Watch(root, plan.planned).new, dry)
