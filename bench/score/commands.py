"""`bench score bfcl` and `bench score actions`, and what they share with `bench score tau2`."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from bench.options import Shared, shared_options
from bench.runs import DataFile, Plan, RunFolder
from bench.score import actions as action_texts
from bench.score import bfcl as bfcl_files
from bench.score.bfcl_figures import model_figures
from bench.score.classifier_time import classifier_time
from bench.score.decision_log import logged_classes
from bench.score.table import actions_text, bfcl_text
from calibrators.actions import Cues

Json = dict[str, Any]

paths_argument = click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH.."
)
cues_option = click.option(
    "--cues",
    type=click.Choice([*map(str, Cues)]),
    default=str(Cues.SEAM),
    show_default=True,
    help="How texts are classified: by our rules, or by the lists that reproduce published figures.",
)


@click.command(
    epilog="Examples: bench score bfcl result/; bench score bfcl result/my-model --scores score/ --json"
)
@paths_argument
@click.option("--scores", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Score folder of bfcl evaluate.  [default: beside the results]")  # fmt: skip
@click.option("--decisions", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Decision log of the same run, for replies whose text the results lost.")  # fmt: skip
@cues_option
@shared_options(limit="Only the first N entries of each category.")
def bfcl(
    *, shared: Shared, paths: tuple[Path, ...], scores: Path | None, decisions: Path | None, cues: str
) -> None:
    """Score BFCL multi-turn results: recall of the gold action class, accuracy, masking, loops.

    PATH is a result file, a model's folder, or a folder of several models.
    """
    logged = logged_classes(decisions) if decisions else None
    models = bfcl_files.read(paths, Cues(cues), scores=scores, logged=logged, limit=shared.limit)
    files = {file for model in models for category in model.categories.values() for file in category.files}
    files |= {
        category.score.path for model in models for category in model.categories.values() if category.score
    }

    def measured(_: RunFolder) -> tuple[Json, list[Json]]:
        figures = [model_figures(model, shared.seed, shared.limit) for model in models]
        return {"cues": cues, "models": [each for each, _ in figures]}, [
            {"key": f"{record['model']}/{record['id']}", **record}
            for _, records in figures
            for record in records
        ]

    files |= {decisions} if decisions else set()
    arguments = {"paths": [*map(str, paths)], "scores": scores and str(scores), "cues": cues}
    score("bfcl", arguments, files, shared, measured, bfcl_text)


@click.command(epilog="Examples: bench score actions when2call.jsonl --wrong; bench score actions cases.json")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--wrong", is_flag=True, help="Print the texts that were read wrongly.")
@click.option(
    "--time", "timed", is_flag=True, help="Also time the classifier on replies of 1,000 characters."
)
@cues_option
@shared_options(limit="Only the first N texts.")
def actions(*, shared: Shared, file: Path, wrong: bool, timed: bool, cues: str) -> None:
    """Score the action classifier on texts whose class is known: confusion table, recall by class.

    FILE, JSON lines or a list, holds When2Call items, {"text": ..., "class": ...}, or cases with runs.
    """
    samples = action_texts.read(file)[: shared.limit]

    def measured(_: RunFolder) -> tuple[Json, list[Json]]:
        result, records = action_texts.figures(samples, Cues(cues), shared.seed)
        if timed:
            texts = [sample.text for sample in samples if sample.text.strip()]
            result["time"] = classifier_time(texts, Cues(cues), shared.seed)
        return result, records

    arguments = {"file": str(file), "cues": cues, "time": timed}
    score("actions", arguments, [file], shared, measured, lambda result: actions_text(result, wrong))


def score(
    name: str,
    arguments: Mapping[str, Any],
    files: Iterable[Path],
    shared: Shared,
    measured: Callable[[RunFolder], tuple[Json, list[Json]]],
    text: Callable[[Json], str],
) -> None:
    """Write the run folder and show the result; `measured` may keep files of its own in it."""
    plan = Plan(
        command=f"score {name}",
        arguments=dict(arguments),
        seed=shared.seed,
        limit=shared.limit,
        data={str(file): DataFile.of(file) for file in sorted(files)},
    )
    with RunFolder.open(shared.folder(f"score-{name}"), plan) as run:
        result, rows = measured(run)
        records = run.records()
        for row in rows:
            if row["key"] not in records:
                records.append(row["key"], row)
        run.finish(result)
    shared.show(result, lambda: text(result))
