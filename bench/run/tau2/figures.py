"""A run's figures, as `bench score tau2` has them, with what the decision log knows beside."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.run.logged import calibrations, cost
from bench.run.probed import looks
from bench.run.tau2.results import fault, simulation
from bench.score.decision_log import last_attempts
from bench.score.judge import Verdicts
from bench.score.tau2 import Run
from bench.score.tau2_figures import run_figures

Json = dict[str, Any]


def figures(
    root: Path,
    runs: Sequence[Run],
    cases: Mapping[str, tuple[str, int]],
    logs: Sequence[Path],
    verdicts: Verdicts | None,
    seed: int,
) -> tuple[Json, list[Json]]:
    """`{runs, faults, capped, applied, probes}` and a record of each simulation.

    root: has a folder an arm; runs: the arms' results; logs: decision logs, which know what each simulation
    cost, how often the calibration was really applied, and what probes took back; verdicts: the judge's on
    database writes. By arm: faults, what ended simulations, with how often; capped, the cases that ran into
    the step cap.
    """
    names = {place: case for case, place in cases.items()}
    every = last_attempts(logs)
    told: Json = {"runs": [], "faults": {}, "capped": {}, "applied": {}, "probes": {}}
    records: list[Json] = []
    for run in runs:
        arm = run.label
        logged = every.get(arm, {})
        figure, rows = run_figures(run, seed, verdicts)
        own = []
        for row in rows:
            case = names[row["task"], row["trial"]]
            ended = fault(simulation(root, arm, case))
            own.append({"run": arm, "case": case, **row, "fault": ended, **cost(logged.get(case, ()))})
        told["runs"].append(figure)
        told["faults"][arm] = dict(Counter(row["fault"] for row in own if row["fault"]))
        told["capped"][arm] = [row["case"] for row in own if row["termination"] == "max_steps"]
        told["applied"][arm] = calibrations(logged)
        told["probes"][arm] = looks(logged) if logged else None
        records += own
    return told, records
