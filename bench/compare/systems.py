"""What is compared: systems, each a run's checkpoint under one calibration, and the baseline among them."""

from collections.abc import Sequence
from typing import NamedTuple

from bench.compare.folders import Folder
from bench.errors import InputError
from calibrators.contextual import Contextual


class System(NamedTuple):
    """One column of a comparison."""

    name: str
    """What it is called in tables: the run's name, its arm's, or both."""
    folder: Folder
    arm: str
    """Its name within the run: `off` or `b = -1.2` of a calibration, the model or arm of a benchmark."""
    bias: float | Contextual | None = None
    """b or b(x) where the first token alone shows what the system does; None where it takes whole replies."""


def name(folder: Folder, arm: str, runs: int, arms: int) -> str:
    """A system's name: as much as tells it from the others."""
    if runs > 1:
        return f"{folder.label}, {arm}" if arms > 1 else folder.label
    return arm


def baseline(systems: Sequence[System], wanted: str | None) -> System:
    """The system that all others are compared with: by its name or its run's, by default the first.

    Raises InputError where there is no such system, or nothing to compare it with.
    """
    if len(systems) < 2:
        raise InputError(
            f"{systems[0].folder.path} holds one system only" if systems else "the runs hold no system",
            where="RUN",
            mend="give two runs, or one with several arms",
        )
    return systems[0] if wanted is None else named(systems, wanted, "--baseline")


def named(systems: Sequence[System], wanted: str, option: str) -> System:
    """The system of that name, or the first of the run of that name; InputError listing the valid ones."""
    for system in systems:
        if system.name == wanted:
            return system
    for system in systems:
        if system.folder.label == wanted:
            return system
    valid = ", ".join(repr(system.name) for system in systems)
    raise InputError(f"no system {wanted!r}", where=option, mend=f"valid: {valid}")
