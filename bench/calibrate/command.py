"""`bench calibrate`: margins once, the whole curve, the choice of b, a profile and a report."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.calibrate.calibration import Calibrating, Wanted
from bench.calibrate.choosing import Objective
from bench.calibrate.profile import check_name
from bench.decisions.log import labelled
from bench.decisions.sources import Sources, source_options
from bench.decisions.split import grouped, sampled, split
from bench.errors import CheckFailed, InputError
from bench.options import JsonObject, Shared, shared_options
from bench.report.calibration import write_report
from bench.report.words import estimate_text, rate_name
from bench.runs import DataFile, Plan, RunFolder
from bench.served import Served, connected, served
from calibrators.openers import Hint

Json = dict[str, Any]
_File = click.Path(dir_okay=False, path_type=Path)


class Log(NamedTuple):
    """A decision log to label replies of."""

    path: Path
    labels: int
    """How many."""


class _Objective(click.ParamType[Objective]):
    name = "objective"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Objective:
        try:
            return value if isinstance(value, Objective) else Objective.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    "calibrate",
    epilog="Examples: bench calibrate; bench calibrate --requests decisions.jsonl "
    "--objective over-calling:0.05; bench calibrate --from-log decisions.jsonl --labels 200",
)
@click.option("--upstream", "url", default="http://127.0.0.1:8000", show_default=True, metavar="URL",
              help="The vLLM server itself, with or without /v1; not a proxy. Best left idle: on the V1 "
                   "runner the readings spoil the top_logprobs of other requests.")  # fmt: skip
@click.option("--model", help="The model.  [default: the one that the server lists]")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's key.")
@click.option("--parser", metavar="NAME", help="Tool parser to know the entry tokens by, as in bench entry.")
@click.option("--opener", "openers", multiple=True, metavar="TEXT", help="Opener as text, as in bench entry.")
@source_options
@click.option("--from-log", type=_File, help="A decision log, a sample of which you label here.")
@click.option("--labels", type=click.IntRange(1), default=200, show_default=True, metavar="N",
              help="How many replies of the log to label.")  # fmt: skip
@click.option("--objective", type=_Objective(), default="risk:1", show_default=True,
              metavar="risk:RHO|over-calling:RATE|call-recall:RATE",
              help="Least risk where an over-call costs RHO missed calls; most call recall with over-calling "
                   "of at most RATE; least over-calling with call recall of at least RATE.")  # fmt: skip
@click.option("--decoding", type=click.Choice(["greedy", "sampled"]), default="greedy", show_default=True,
              help="What b is chosen for: temperature 0, or 1.")  # fmt: skip
@click.option("--scope", type=click.Choice(["decision", "everywhere"]), default="decision", show_default=True,
              help="Where the bias acts.")  # fmt: skip
@click.option("--apply", type=click.Choice(["auto", "processor", "resample", "logit_bias"]), default="auto",
              show_default=True, help="How it is applied.")  # fmt: skip
@click.option("--name", default="calibrated", show_default=True, help="The profile's name.")
@click.option("--fields", type=JsonObject(), default="{}", metavar="JSON",
              help="Added to every request, say a switch of the chat template.")  # fmt: skip
@click.option("--generate/--no-generate", default=True, show_default=True,
              help="Whole replies on the test split too, without bias and with it.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, metavar="N",
              help="Of a whole reply.")  # fmt: skip
@click.option("--arm", "arms", multiple=True, metavar="NAME=JSON",
              help="One more calibration to generate with: members beside the bias.")  # fmt: skip
@click.option("--rerun", is_flag=True,
              help="Check the curve: ask the test split again at five values of b; exits 1 where "
                   "it fails.")  # fmt: skip
@click.option("--proxy", "proxy_url", metavar="URL",
              help="A running proxy to generate through.  [default: one of its own]")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1), default=64, show_default=True, metavar="N",
              help="Queries in flight at most; fewer while the server pushes back.")  # fmt: skip
@click.option("--look-again", is_flag=True,
              help="Look at the test split for another objective; marked as exploratory.")  # fmt: skip
@shared_options(limit="At most N decisions, half of them with a call due.")
def command(
    *,
    shared: Shared,
    url: str,
    model: str | None,
    api_key_env: str | None,
    parser: str | None,
    openers: tuple[str, ...],
    sources: Sources,
    from_log: Path | None,
    labels: int,
    arms: tuple[str, ...],
    **own: Any,
) -> None:
    """Choose a bias on labelled decisions, and write a profile and a report.

    Reads the margin of every decision once from the vLLM server, computes the whole curve, chooses b on a
    validation split, looks at the test split once, and generates whole replies there without and with the
    profile. The run folder then has profile/NAME.yaml, report.html, the charts, and the figures as JSON.
    """
    check_name(own["name"])
    log = Log(from_log, labels) if from_log else None
    wanted = Wanted(url=url, api_key_env=api_key_env, hint=Hint(parser, openers), arms=_arms(arms), **own)
    known = asyncio.run(_served(wanted, model))
    wanted.most_bias(known)  # what can't be applied is told before anything is measured
    if log is None:
        sources = sources.or_bfcl()
    examples = sources.read()
    with RunFolder.open(shared.folder("calibrate"), _plan(shared, sources, log, wanted, known)) as run:
        if log:
            examples += labelled(run, log.path, log.labels, shared.seed)
        chosen = split(grouped(sampled(examples, shared.limit, shared.seed)), shared.seed)
        result = Calibrating(wanted, known, run, shared.seed).result(chosen)
        write_report(run, result, run.path)
        run.finish(result)
    shared.show(result, lambda: summary(result, run.path))
    off = [f"b = {point['bias']:g}" for point in result.get("rerun") or () if not point["agrees"]]
    if off:
        raise CheckFailed(f"the curve does not hold at {', '.join(off)}", mend="see the report")


def _arms(texts: Sequence[str]) -> dict[str, Json]:
    arms = {}
    for text in texts:
        name, equals, document = text.partition("=")
        try:
            arms[name] = json.loads(document)
        except ValueError:
            arms[name] = None
        if not name or not equals or not isinstance(arms[name], dict):
            raise InputError(
                f"{text!r} is no NAME=JSON object", where="--arm", mend="""write --arm 'sri={"sri": true}'"""
            )
    return arms


async def _served(wanted: Wanted, model: str | None) -> Served:
    upstream = connected(wanted.url, wanted.api_key_env)
    try:
        return await served(upstream, model, wanted.hint)
    finally:
        await upstream.aclose()


def _plan(shared: Shared, sources: Sources, log: Log | None, wanted: Wanted, known: Served) -> Plan:
    """What shapes the records; the objective does not, so that one run's margins serve several."""
    return Plan(
        command="calibrate",
        arguments={
            "bfcl": sources.bfcl,
            "from_log": str(log.path) if log else None,
            "labels": log.labels if log else None,
            "fields": dict(wanted.fields),
            "scope": wanted.scope,
            "apply": wanted.apply,
            "arms": dict(wanted.arms),
            "max_tokens": wanted.max_tokens,
        },
        seed=shared.seed,
        limit=shared.limit,
        data={str(path): DataFile.of(path) for path in sources.files},
        upstream={
            "url": wanted.url,
            "kind": known.facts.kind,
            "version": known.facts.version,
            "model": known.model,
            "entry": list(known.entry.tokens),
            "fingerprint": known.entry.fingerprint,
        },
    )


def summary(result: Mapping[str, Any], folder: Path) -> str:
    """The result for a person at the terminal."""
    choice, test, decoding = result["choice"], result["test"], result["decoding"]
    lines = [f"b = {choice['bias']:g} nats: {result['objective']['words']}, {decoding}, on validation"]
    if result["exploratory"]:
        lines.append("EXPLORATORY: the test split had been looked at before")
    lines += [f"warning: {warning}" for warning in result["warnings"]]
    lines += ["", f"{'test split, first token':26} {'b = 0':>24} {'b = ' + format(choice['bias'], 'g'):>24}"]
    for name in ("over_calling", "call_recall", "decision_accuracy"):
        off, chosen = (estimate_text(test[arm][name]) for arm in ("off", "chosen"))
        lines.append(f"{rate_name(name):26} {off:>24} {chosen:>24}")
    if result.get("generation"):
        lines += _generated(result["generation"])
    if result.get("rerun"):
        agree = sum(point["agrees"] for point in result["rerun"])
        lines += ["", f"curve against the server: {agree} of {len(result['rerun'])} biases agree"]
    return "\n".join([*lines, "", f"profile  {result['profile']}", f"report   {folder / 'report.html'}"])


def _generated(generation: Mapping[str, Any]) -> list[str]:
    arms = generation["arms"]
    lines = ["", f"{'test split, whole replies':26} " + " ".join(f"{name:>24}" for name in arms)]
    for name in ("over_calling", "call_recall", "delayed_calls", "valid_calls", "right_tool"):
        cells = " ".join(f"{estimate_text(arm[name]):>24}" for arm in arms.values())
        lines.append(f"{rate_name(name):26} {cells}")
    floor = estimate_text(generation["noise_floor"]["decision"])
    return [*lines, f"noise floor: off against off decides otherwise in {floor}"]
