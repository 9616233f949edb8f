"""`bench train`: an adapter, supervised or distilled from two routed teachers."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from bench.errors import InputError
from bench.options import Shared, shared_options
from bench.progress import progress
from bench.runs import DataFile, Plan, RunFolder, result_of
from bench.train import process, trajectories
from bench.train.settings import INTERVENED, SFT, Settings

Json = dict[str, Any]
_File = click.Path(dir_okay=False, path_type=Path)
_Folder = click.Path(file_okay=False, path_type=Path)
_SHOWN = 20
"""Last steps that the result's means are over."""


@click.command(
    "train",
    epilog="Examples: bench train --how sft --base lab --data train.jsonl --only response --out teacher; "
    "bench train --how union --base lab --data train.jsonl --tool-teacher a/adapter --response-teacher "
    "b/adapter",
)
@click.option("--how", type=click.Choice([SFT, *INTERVENED]), required=True,
              help="Supervised (sft), or distillation: vanilla or an intervention on it.")  # fmt: skip
@click.option("--base", type=_Folder, required=True, metavar="DIR",
              help="The checkpoint that the adapter is for.")  # fmt: skip
@click.option("--data", type=_File, required=True, metavar="FILE",
              help="Conversations that end with a reply, JSONL (docs/training.md).")  # fmt: skip
@click.option("--only", type=click.Choice(["all", "tool", "response"]), default="all", show_default=True,
              help="Only prompts with a call in the reply, or without one.")  # fmt: skip
@click.option("--tool-teacher", type=_Folder, metavar="DIR", help="Teaches on tool prompts.")
@click.option("--response-teacher", type=_Folder, metavar="DIR", help="Teaches on response prompts.")
@click.option("--start", type=_Folder, metavar="DIR", help="An adapter of ours to begin from.")
@click.option("--steps", type=click.IntRange(1), default=200, show_default=True, metavar="N")
@click.option("--batch", type=click.IntRange(1), default=4, show_default=True, metavar="N",
              help="Prompts a step.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=2e-4, show_default=True,
              metavar="R", help="Learning rate.")  # fmt: skip
@click.option("--rank", type=click.IntRange(1), default=16, show_default=True, metavar="N",
              help="Of the adapter; its alpha is twice that.")  # fmt: skip
@click.option("--on-policy", type=click.FloatRange(0, 1), default=0.8, show_default=True, metavar="SHARE",
              help="lambda: replies that the student writes itself; the rest is the data's.")  # fmt: skip
@click.option("--anchor", type=click.FloatRange(0), default=0.1, show_default=True, metavar="WEIGHT",
              help="Of the supervised term that stands beside the distillation.")  # fmt: skip
@click.option("--top", type=click.IntRange(1), default=32, show_default=True, metavar="K",
              help="Size of the teacher's support.")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0, min_open=True), default=0.9, show_default=True,
              metavar="TAU", help="Of both distributions and of rollouts.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, metavar="N",
              help="Of a reply.")  # fmt: skip
@click.option("--max-prompt", type=click.IntRange(1), default=1024, show_default=True, metavar="N",
              help="Longer prompts are passed over.")  # fmt: skip
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True,
              help="Of weights and activations; the adapter and the losses stay in fp32.")  # fmt: skip
@click.option("--every", type=click.IntRange(1), default=10, show_default=True, metavar="N",
              help="Steps between checkpoints.")  # fmt: skip
@click.option("--python", type=_File, metavar="PATH",
              help="The Python with torch.  [default: that of .venv-vllm]")  # fmt: skip
@click.option("--parser", metavar="NAME", help="Tool parser to know the entry tokens by, as in bench entry.")
@click.option("--opener", "openers", multiple=True, metavar="TEXT", help="Opener as text, as in bench entry.")
@shared_options(limit="Only the first N conversations of the data.")
def command(
    *,
    shared: Shared,
    how: str,
    base: Path,
    data: Path,
    tool_teacher: Path | None,
    response_teacher: Path | None,
    start: Path | None,
    python: Path | None,
    every: int,
    **own: Any,
) -> None:
    """Train a LoRA adapter on tool-calling decisions, supervised or by on-policy distillation.

    Tool prompts learn from the tool teacher, response prompts from the response teacher, over the teacher's
    top-K; --how picks the paper's intervention on that. The run folder has adapter/ (PEFT format, which vLLM
    serves), metrics.jsonl with a line a step, and what a killed run goes on from.
    """
    teachers = {"--tool-teacher": tool_teacher, "--response-teacher": response_teacher}
    if how == SFT and any(teachers.values()):
        raise click.UsageError("--how sft has no teacher: leave --tool-teacher and --response-teacher out")
    if how != SFT and not all(teachers.values()):
        raise click.UsageError(f"--how {how} takes --tool-teacher and --response-teacher")
    folders = {"--base": base, "--start": start, **teachers}
    for option, folder in folders.items():
        if folder is not None:
            process.checkpoint(folder, option)
    if not (base / "config.json").is_file():
        raise InputError("is an adapter", where=f"--base {base}", mend="give the whole checkpoint")
    interpreter = process.torch_python(python)
    found = trajectories.read(data, own["only"])
    if own["only"] == "all" and len({one.should_call for one in found}) < 2 and how != SFT:
        raise InputError(
            "has prompts of one side only", where=str(data), mend="give both, or name one with --only"
        )
    told = {name.removeprefix("--").replace("-", "_"): _text(path) for name, path in folders.items()}
    arguments: Json = {"how": how, **told, "data": str(data), **own, "openers": list(own["openers"])}
    plan = Plan(
        command="train",
        arguments=arguments,
        seed=shared.seed,
        limit=shared.limit,
        data={"data": DataFile.of(data), **process.weights(folders)},
    )
    with RunFolder.open(shared.folder("train"), plan) as run:
        if not run.done:
            run.finish(_trained(interpreter, _job(arguments, run, shared, every, found), run))
        result = result_of(run.path)
    shared.show(result, lambda: summary(result))


def _text(path: Path | None) -> str | None:
    return str(path) if path else None


def _job(
    arguments: Mapping[str, Any],
    run: RunFolder,
    shared: Shared,
    every: int,
    found: list[trajectories.Trajectory],
) -> Json:
    data = Path(arguments["data"])
    if shared.limit is not None and len(found) > shared.limit:
        data = run.path / "data.jsonl"
        trajectories.write(data, found[: shared.limit])
    names = {field.name for field in fields(Settings)}
    return {
        **{name: value for name, value in arguments.items() if name not in names},
        "data": str(data),
        "out": str(run.path),
        "seed": shared.seed,
        "every": every,
        "settings": {name: value for name, value in arguments.items() if name in names},
    }


def _trained(python: Path, job: Mapping[str, Any], run: RunFolder) -> Json:
    metrics = run.records("metrics")
    steps = job["steps"]
    lines = process.lines(python, "bench.train.work", job)
    start = next(lines)
    with progress("steps", steps, start["start"]) as advance:
        for line in lines:
            # A killed run takes the steps after its checkpoint again, which are the same.
            key = str(line["step"])
            if key not in metrics:
                metrics.append(key, line)
            advance(note=f"loss {line['loss']:.3f}")
    last = list(metrics)[-_SHOWN:]
    return {
        "how": job["how"],
        "adapter": str(run.path / "adapter"),
        "steps": steps,
        "prompts": start["prompts"],
        "tool_prompts": start["tool_prompts"],
        "settings": start["settings"],
        "device": start["device"],
        "seconds": round(sum(line["seconds"] for line in metrics), 1),
        "last": {
            name: _mean([line[name] for line in last]) for name in last[-1] if name not in ("key", "step")
        },
    }


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 6)


def summary(result: Mapping[str, Any]) -> str:
    """The result for a person at the terminal."""
    last = result["last"]
    lines = [
        f"{result['how']}: {result['steps']} steps on {result['prompts']:,} prompts, "
        f"{result['seconds']:.0f} s on {result['device']}",
        f"loss {last['loss']:.4f} (mean of the last {min(_SHOWN, result['steps'])} steps)",
    ]
    if last.get("response_decisions"):
        share = last["response_covered"] / last["response_decisions"]
        lines.append(f"the entry was in {100 * share:.1f} % of the supports at response decisions")
    return "\n".join([*lines, f"adapter  {result['adapter']}"])
