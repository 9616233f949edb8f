"""`bench run bfcl`."""

import asyncio
import re
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.benchmarks import BENCHMARKS
from bench.options import JsonObject, Shared, shared_options
from bench.report.replay import conclude
from bench.run import power
from bench.run.arms import Arm, agents, calibrations_of, proxies, servers_of
from bench.run.bfcl import cases
from bench.run.bfcl.figures import figures, recall_before_text, single_turn_text
from bench.run.bfcl.replay import Replay, replay
from bench.run.dry import DryPass
from bench.run.logged import calibrations_text
from bench.run.options import Serving, serving_options
from bench.run.probed import probes_text
from bench.run.rounds import dry_cases, rounds
from bench.runs import Plan, RunFolder, result_of
from bench.score.table import bfcl_text

Json = dict[str, Any]


class Wanted(NamedTuple):
    """How the cases run."""

    planned: dict[str, list[str]]
    """Ids by category."""
    arms: list[Arm]
    serving: Serving
    threads: int
    temperature: float
    fields: Json
    input_log: bool


@click.command(
    "bfcl",
    epilog="Examples: bench run bfcl --limit 3; bench run bfcl --profile strict.yaml --categories "
    "multi_turn_miss_param; bench run bfcl --arm off= --arm strict=profile=strict.yaml",
)
@serving_options(state="published")
@click.option("--categories", default="multi_turn", show_default=True, metavar="LIST",
              help="multi_turn, single_turn, or BFCL's names, with commas.")  # fmt: skip
@click.option("--ids", multiple=True, metavar="LIST", help="Only these cases, with commas; repeatable.")
@click.option("--threads", type=click.IntRange(1), default=4, show_default=True, metavar="N",
              help="Cases at once.")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0), default=0.001, show_default=True,
              help="As bfcl-eval sends it; the default is upstream's.")  # fmt: skip
@click.option("--fields", type=JsonObject(), default="{}", metavar="JSON",
              help="Added to every request, say max_tokens or a switch of the chat template.")  # fmt: skip
@click.option("--input-log", is_flag=True,
              help="Let upstream log what it sends, in ten times the space: it shows unknown names and "
                   "schema violations.")  # fmt: skip
@shared_options(limit="Only the first N cases of each category.")
def command(
    *,
    shared: Shared,
    serving: Serving,
    categories: str,
    ids: tuple[str, ...],
    **own: Any,
) -> None:
    """Replay BFCL through the proxy: bfcl-eval's own code runs the cases and grades them.

    The first cases are a dry pass: it says how long the prompts are, and ends the run where all of them fail.
    The run folder has upstream's own files under bfcl/, the proxy's decision log, and a record of each case.
    """
    benchmark = BENCHMARKS["bfcl"]
    names = cases.categories(categories)
    benchmark.ready()
    planned = cases.planned(benchmark.site(), names, shared.limit, re.findall(r"[^\s,]+", " ".join(ids)))
    wanted = Wanted(planned, asyncio.run(serving.known()), serving, **own)
    with RunFolder.open(shared.folder("run-bfcl"), _plan(shared, wanted)) as run:
        result = result_of(run.path) if run.done else _run(run, wanted, shared.seed)
    shared.show(result, lambda: summary(result, run.path))


def _plan(shared: Shared, wanted: Wanted) -> Plan:
    """What shapes the records; threads may differ from call to call."""
    return Plan(
        command="run bfcl",
        arguments={
            "package": BENCHMARKS["bfcl"].package,
            "proxy": wanted.serving.running_proxy,
            "cases": {category: len(ids) for category, ids in wanted.planned.items()},
            "ids": sorted(id for ids in wanted.planned.values() for id in ids),
            "temperature": wanted.temperature,
            "fields": wanted.fields,
            "input_log": wanted.input_log,
            "cues": str(wanted.serving.cues),
        },
        seed=shared.seed,
        limit=shared.limit,
        upstream=servers_of(wanted.arms),
        profile=calibrations_of(wanted.arms),
    )


def _run(run: RunFolder, wanted: Wanted, seed: int) -> Json:
    records = run.records()  # held open: no second bench may drive upstream in this folder
    shown = power.shown(cases.scenarios(wanted.planned))
    click.echo(power.words(shown, "scenarios"), err=True)
    root, serving, names = run.path / "bfcl", wanted.serving, [arm.name for arm in wanted.arms]
    order = cases.order(wanted.planned)
    dry = DryPass(dry_cases(order, names), [arm.server["context"] for arm in wanted.arms], "bench run bfcl")
    key = serving.client_key()
    with proxies(wanted.arms, run.path, serving.api_key_env, serving.running_proxy, serving.cues) as urls:
        plan = Replay(
            root=root,
            arms=agents(wanted.arms, urls),
            rounds=rounds(order, names),
            marks=cases.marks(wanted.planned),
            attempt=len(run.manifest.sessions),
            threads=wanted.threads,
            temperature=wanted.temperature,
            fields=wanted.fields,
            input_log=wanted.input_log,
        )
        replay(plan, dry, key)
    logs = serving.logs(run.path)
    told, rows = figures(root, names, wanted.planned, logs, serving.cues, seed)
    for row in rows:
        if (name := f"{row['model']}/{row['id']}") not in records:
            records.append(name, row)
    result = {
        "benchmark": BENCHMARKS["bfcl"].package,
        "decisions": str(serving.decisions) if serving.decisions else None,
        "power": shown,
        "dry_pass": dry.told,
        **told,
    }
    conclude(run, result)
    return result


def summary(result: Json, folder: Path) -> str:
    """The result for a person at the terminal."""
    probes = probes_text(result["probes"])
    parts = [calibrations_text(result["applied"]), *([probes] if probes else [])]
    if result["models"]:
        parts.append(bfcl_text(result))
        parts += filter(None, [recall_before_text(result["models"])])
    if result["single_turn"]:
        parts.append(single_turn_text(result["single_turn"]))
    return "\n\n".join([*parts, f"run folder {folder}\nreport     {folder / 'report.html'}"])
