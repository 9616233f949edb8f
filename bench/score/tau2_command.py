"""`bench score tau2`."""

import asyncio
from pathlib import Path
from typing import Any

import click

from bench.options import Shared, shared_options
from bench.runs import RunFolder
from bench.score import tau2 as tau2_files
from bench.score.commands import cues_option, paths_argument, score
from bench.score.judge import Judge, judged
from bench.score.options import judge_options
from bench.score.table import tau2_text
from bench.score.tau2_figures import run_figures
from calibrators.actions import Cues

Json = dict[str, Any]


@click.command(
    epilog="Examples: bench score tau2 simulations/my-run/results.json; bench score tau2 simulations/; "
    "bench score tau2 simulations/ --judge http://127.0.0.1:8000 --judge-model judge --out runs/tau2"
)
@paths_argument
@cues_option
@judge_options
@shared_options(limit="Only the first N tasks of each run.")
def tau2(*, shared: Shared, paths: tuple[Path, ...], cues: str, judge: Judge | None) -> None:
    """Score tau2-bench results: pass^k, recall by action class against accuracy, class mix, loops.

    PATH is a results file, a run's folder, or a folder of several runs. CONFIRM needs a judge. Its verdicts
    are kept in the run folder, and the same command with the same --out asks only for what is missing.
    """
    runs = tau2_files.read(paths, Cues(cues), shared.limit)
    files = {file for run in runs for file in run.files}

    def measured(folder: RunFolder) -> tuple[Json, list[Json]]:
        verdicts = asyncio.run(judged(judge, runs, folder.records("verdicts"))) if judge else None
        figures = [run_figures(run, shared.seed, verdicts) for run in runs]
        return {"cues": cues, "runs": [each for each, _ in figures]}, [
            {
                "key": f"{each['run']}/{record['task']}/{record['trial']}/{record['id']}",
                "run": each["run"],
                **record,
            }
            for each, records in figures
            for record in records
        ]

    arguments = {"paths": [*map(str, paths)], "cues": cues, **({"judge": judge.told} if judge else {})}
    score("tau2", arguments, files, shared, measured, tau2_text)
