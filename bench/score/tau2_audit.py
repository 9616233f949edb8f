"""The audit's labels that are defined for a tau2 simulation, by each class that its task is labelled with.

    B1b  gold action eventually: the simulation is a hit of the class (calibration.md section 3)
    B4   clarification before any call: the agent asks, without a call, before it calls for the first time
    B5   grader passed without the gold action: the reward is 1 and B1b is 0

The published audit is of BFCL alone. Its other labels need what tau2 does not have: a gold turn (B1a), a
tool that is held out at first (B3). B5 there is without the gold action at the gold turn; of TOOL_CALL it is
`n.a.` here, since that class's recall counts reference reads too.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench.score.audit import NOT_APPLICABLE, Audited, Labels, Value
from bench.score.emissions import Turn
from calibrators.actions import Action

Json = dict[str, Any]

CONFIRMED: Final = "confirmed"
TITLES: Final[Mapping[str, str]] = {
    "B1b": "gold action eventually",
    "B4": "clarification before any call",
    "B5": "grader passed without the gold action",
    CONFIRMED: "write told and approved before",
}
WRITES: Final = "writes"
"""The category whose cases are writes, labelled by the judge; the others' cases are simulations."""
_CATEGORIES: Final = ("refuse", "ask_candidate", "ask_paper", "ask_valid", "tool_call", WRITES)


def labels(turns: Sequence[Turn], hits: Mapping[str, bool], *, passed: bool) -> dict[str, Labels]:
    """A scored simulation's labels by class: refuse, ask, tool_call.

    hits: by the lists that its task is in whether it is a hit; the three lists of ASK are one class.
    """
    return {
        _class(name): {
            "B1b": _value(hit),
            "B4": _value(_asked_first(turns)),
            "B5": NOT_APPLICABLE if name == "tool_call" else _value(passed and not hit),
        }
        for name, hit in hits.items()
    }


def _class(name: str) -> str:
    """The class of one of the lists of tasks."""
    return "ask" if name.startswith("ask_") else name


def _asked_first(turns: Sequence[Turn]) -> bool:
    """Whether an emission before the first that calls asks."""
    for turn in turns:
        for emission in turn:
            if Action.TOOL_CALL in emission.actions:
                return False
            if Action.ASK in emission.actions:
                return True
    return False


def _value(known: bool) -> Value:
    return 1 if known else 0


def audited(records: Sequence[Json], verdicts: Mapping[str, bool | None]) -> Audited:
    """The labelled cases of a run's records; verdicts: the judge's by key."""
    cases: dict[str, Labels] = {}
    units: dict[str, str] = {}
    groups: dict[str, list[str]] = {category: [] for category in _CATEGORIES}
    for record in records:
        for group, id, labels in (*_simulations(record), *_writes(record, verdicts)):
            groups[group].append(id)
            cases[id], units[id] = labels, record["task"]
    return Audited(TITLES, {category: ids for category, ids in groups.items() if ids}, cases, units)


def _simulations(record: Json) -> Iterator[tuple[str, str, Labels]]:
    """The list of tasks, the case's id SIMULATION/CLASS, its labels."""
    for name in record["hits"] if record["audit"] else ():
        yield name, f"{record['id']}/{_class(name)}", record["audit"][_class(name)]


def _writes(record: Json, verdicts: Mapping[str, bool | None]) -> Iterator[tuple[str, str, Labels]]:
    for number, write in enumerate(record["writes"]):
        confirmed = verdicts.get(write["verdict"])
        told = None if confirmed is None else _value(confirmed)
        yield WRITES, write_id(record["id"], number, write["tool"]), {CONFIRMED: told}


def write_id(simulation: str, number: int, tool: str) -> str:
    """A write's case id: its simulation, its place among that one's writes from 0, and its tool."""
    return f"{simulation}/{number}/{tool}"
