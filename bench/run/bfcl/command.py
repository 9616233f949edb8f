"""`bench run bfcl`."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.benchmarks import BENCHMARKS
from bench.errors import InputError
from bench.options import JsonObject, Shared, shared_options
from bench.run import power
from bench.run.arms import Arm, asked, decision_logs, known, proxies
from bench.run.bfcl import cases
from bench.run.bfcl.figures import figures, single_turn_text
from bench.run.bfcl.replay import Replay, api_key, replay
from bench.runs import Plan, RunFolder
from bench.score.table import bfcl_text
from calibrators.actions import Cues

Json = dict[str, Any]


class Wanted(NamedTuple):
    """How the cases run."""

    planned: dict[str, list[str]]
    """Ids by category."""
    arms: list[Arm]
    running_proxy: str | None
    """A proxy to go through; None: one of our own for each server."""
    decisions: Path | None
    """That proxy's decision log."""
    api_key_env: str | None
    threads: int
    temperature: float
    fields: Json
    input_log: bool
    cues: Cues


@click.command(
    "bfcl",
    epilog="Examples: bench run bfcl --limit 3; bench run bfcl --profile strict.yaml --categories "
    "multi_turn_miss_param; bench run bfcl --arm off= --arm strict=profile=strict.yaml",
)
@click.option("--upstream", "url", default="http://127.0.0.1:8000", show_default=True, metavar="URL",
              help="The server; a proxy of the run's own is put in front of it.")  # fmt: skip
@click.option("--model", help="The model.  [default: the one that the server lists]")
@click.option("--profile", metavar="FILE", help="A profile's YAML file; with --proxy its name there.")
@click.option("--arm", "arms", multiple=True, metavar="NAME=[URL][,model=M][,profile=FILE]",
              help="One of several arms, run in turns by blocks of cases; what it leaves out is --upstream's "
                   "and --model's.")  # fmt: skip
@click.option("--proxy", "proxy_url", metavar="URL",
              help="A running proxy to go through.  [default: one of its own]")  # fmt: skip
@click.option("--decisions", type=click.Path(dir_okay=False, exists=True, path_type=Path), metavar="FILE",
              help="That proxy's decision log, for replies whose text the results lose.")  # fmt: skip
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's key.")
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
@click.option("--cues", type=click.Choice([*map(str, Cues)]), default=str(Cues.SEAM), show_default=True,
              help="How texts are classified.")  # fmt: skip
@shared_options(limit="Only the first N cases of each category.")
def command(
    *,
    shared: Shared,
    url: str,
    model: str | None,
    profile: str | None,
    arms: tuple[str, ...],
    proxy_url: str | None,
    decisions: Path | None,
    api_key_env: str | None,
    categories: str,
    ids: tuple[str, ...],
    **own: Any,
) -> None:
    """Replay BFCL through the proxy: bfcl-eval's own code runs the cases and grades them.

    The first cases are a dry pass: it says how long the prompts are, and ends the run where all of them fail.
    The run folder has upstream's own files under bfcl/, the proxy's decision log, and a record of each case.
    """
    benchmark = BENCHMARKS["bfcl"]
    chosen = asked(arms, proxy_url or url, model, profile)
    names = cases.categories(categories)
    benchmark.ready()
    planned = cases.planned(benchmark.site(), names, shared.limit, re.findall(r"[^\s,]+", " ".join(ids)))
    own["cues"] = Cues(own["cues"])
    found = asyncio.run(known(chosen, api_key_env, running_proxy=proxy_url is not None))
    wanted = Wanted(planned, found, proxy_url, decisions, api_key_env, **own)
    with RunFolder.open(shared.folder("run-bfcl"), _plan(shared, wanted)) as run:
        result = _earlier(run) if run.done else _run(run, wanted, shared.seed)
    shared.show(result, lambda: summary(result, run.path))


def _plan(shared: Shared, wanted: Wanted) -> Plan:
    """What shapes the records; threads may differ from call to call."""
    return Plan(
        command="run bfcl",
        arguments={
            "package": BENCHMARKS["bfcl"].package,
            "proxy": wanted.running_proxy,
            "cases": {category: len(ids) for category, ids in wanted.planned.items()},
            "ids": sorted(id for ids in wanted.planned.values() for id in ids),
            "temperature": wanted.temperature,
            "fields": wanted.fields,
            "input_log": wanted.input_log,
            "cues": str(wanted.cues),
        },
        seed=shared.seed,
        limit=shared.limit,
        upstream={arm.name: {"url": arm.url, "model": arm.model, **arm.server} for arm in wanted.arms},
        profile={arm.name: arm.calibration() for arm in wanted.arms},
    )


def _run(run: RunFolder, wanted: Wanted, seed: int) -> Json:
    records = run.records()  # held open: no second bench may drive upstream in this folder
    shown = power.shown(cases.scenarios(wanted.planned))
    click.echo(power.words(shown, "scenarios"), err=True)
    root = run.path / "bfcl"
    key = api_key(wanted.api_key_env)
    with proxies(wanted.arms, run.path, wanted.api_key_env, wanted.running_proxy) as urls:
        plan = Replay(
            root=root,
            arms=[
                {"name": arm.name, "model": arm.model, "url": urls[arm.name], "headers": arm.headers}
                for arm in wanted.arms
            ],
            blocks=cases.blocks(wanted.planned, len(wanted.arms)),
            marks=cases.marks(wanted.planned),
            attempt=len(run.manifest.sessions),
            threads=wanted.threads,
            temperature=wanted.temperature,
            fields=wanted.fields,
            input_log=wanted.input_log,
            contexts={arm.name: arm.server["context"] for arm in wanted.arms},
        )
        # Our own proxy has the server's key; a running one may want it from the client.
        dry = replay(plan, key if wanted.running_proxy else None)
    logs = [wanted.decisions] if wanted.decisions else decision_logs(run.path)
    told, rows = figures(root, plan.names, wanted.planned, logs, wanted.cues, seed)
    for row in rows:
        if (name := f"{row['model']}/{row['id']}") not in records:
            records.append(name, row)
    result = {"benchmark": BENCHMARKS["bfcl"].package, "power": shown, "dry_pass": dry, **told}
    run.finish(result)
    return result


def _earlier(run: RunFolder) -> Json:
    try:
        document: Json = json.loads((run.path / "result.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(error), where=str(run.path / "result.json"), mend="give another --out") from None
    return document


def summary(result: Json, folder: Path) -> str:
    """The result for a person at the terminal."""
    applied = [f"  {arm}: {_applied(words)}" for arm, words in result["applied"].items()]
    parts = ["\n".join(["calibration of replies", *applied])]
    if result["models"]:
        parts.append(bfcl_text(result))
    if result["single_turn"]:
        parts.append(single_turn_text(result["single_turn"]))
    return "\n\n".join([*parts, f"run folder {folder}"])


def _applied(words: Json | None) -> str:
    if words is None:
        return "not known, since there is no decision log"
    shown = [f"{count} × {text}" for text, count in list(words.items())[:4]]
    rest = sum(list(words.values())[4:])
    return ", ".join([*shown, *([f"{rest} × others"] if rest else [])])
