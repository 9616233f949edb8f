"""`bench entry`: a model's tool-entry tokens, found and verified from the server alone."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
import yaml

from bench.errors import CheckFailed, ServerUnreachable
from bench.options import Shared, shared_options
from bench.runs import Plan, RunFolder
from bench.served import connected, facts_of, names_of
from calibrators.entry import Entry, NoEntry
from calibrators.openers import Hint, find, verified
from proxy.errors import HttpError
from proxy.upstream import Facts

Json = dict[str, Any]


@click.command(
    epilog="Examples: bench entry --upstream http://127.0.0.1:8000; bench entry --parser hermes --json"
)
@click.option("--upstream", "url", default="http://127.0.0.1:8000", show_default=True, metavar="URL",
              help="The server, with or without /v1; vLLM itself, not the proxy.")  # fmt: skip
@click.option("--model", help="The model.  [default: every one that the server lists]")
@click.option("--parser", metavar="NAME",
              help="Fall back to what is known of this vLLM tool parser (--tool-call-parser).")  # fmt: skip
@click.option("--opener", "openers", multiple=True, metavar="TEXT",
              help="Fall back to this opener, as text; may be repeated.")  # fmt: skip
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's key.")
@shared_options(limit="At most so many models.")
def entry(
    *,
    shared: Shared,
    url: str,
    model: str | None,
    parser: str | None,
    openers: tuple[str, ...],
    api_key_env: str | None,
) -> None:
    """Find which tokens open a tool call, verify them with one forced query, and print YAML for a profile.

    Exits 1 where a model has no entry tokens, or where the forced query shows that they are wrong.
    """
    plan = Plan(
        command="entry",
        arguments={"model": model, "parser": parser, "openers": openers},
        seed=shared.seed,
        limit=shared.limit,
        upstream={"url": url},
    )
    # A server that does not answer leaves no run folder behind.
    facts = asyncio.run(_facts(url, api_key_env))
    names = names_of(facts, model)[: shared.limit]
    with RunFolder.open(shared.folder("entry"), plan) as run:
        records = run.records()
        for name in names:
            if name not in records:
                found = asyncio.run(_model(url, api_key_env, facts, name, parser, openers))
                records.append(name, found)
        result = {**_server(facts), "models": [{"name": each.pop("key"), **each} for each in records]}
        run.finish(result)
    shared.show(result, lambda: table(result))
    wrong = [each["name"] for each in result["models"] if each["entry"] is None or each["verified"] is False]
    if wrong:
        raise CheckFailed(f"no entry tokens to rely on for {', '.join(wrong)}", mend="see the reason above")


async def _facts(url: str, api_key_env: str | None) -> Facts:
    upstream = connected(url, api_key_env)
    try:
        return await facts_of(upstream)
    finally:
        await upstream.aclose()


async def _model(
    url: str, api_key_env: str | None, facts: Facts, name: str, parser: str | None, openers: Sequence[str]
) -> Json:
    """One model's record: the entry or the reason, and the profile's block."""
    upstream = connected(url, api_key_env)
    try:
        found = await upstream.answered(find(name, Hint(parser, tuple(openers))))
        entry = await upstream.answered(verified(name, found, facts.processor is not None))
    except NoEntry as error:
        return {"entry": None, "reason": str(error), "verified": None, "profile": None}
    except HttpError as error:
        raise ServerUnreachable(error.message, where=url, mend="see the server's log") from None
    finally:
        await upstream.aclose()
    spec = {**asdict(entry), "without": sorted(entry.without)}
    return {"entry": spec, "reason": entry.note, "verified": entry.verified, "profile": block(name, entry)}


def _server(facts: Facts) -> Json:
    return {"kind": facts.kind, "version": facts.version, "processor": facts.processor}


def block(model: str, entry: Entry) -> Json:
    """What a profile says of an entry, where it is not to be found anew at each start."""
    spec: Json = {"tokens": list(entry.tokens), "text": entry.text}
    if entry.after:
        spec["after"] = list(entry.after)
    return {"model": model, "entry": spec, "fingerprint": entry.fingerprint}


def table(result: Mapping[str, Any]) -> str:
    """The result for a person, the profile's block last."""
    processor = result["processor"]
    runner = f", {processor['runner']} runner" if processor and processor.get("runner") else ""
    loaded = f"{processor.get('name')} {processor.get('version')}{runner}" if processor else "not loaded"
    lines = [f"server     {result['kind']} {result['version'] or ''}".rstrip(), f"processor  {loaded}"]
    for model in result["models"]:
        lines += ["", f"model      {model['name']}"]
        lines += (
            _spec(model["entry"], model) if model["entry"] else [f"entry      not found: {model['reason']}"]
        )
    return "\n".join(lines)


def _spec(spec: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    outcome = {True: "yes", False: f"NO: {model['reason']}", None: f"could not be tried: {model['reason']}"}
    who = {"prompt": "the prompt opens it", "closed": "the prompt closes it", "model": "the model opens it"}
    reasoning = "none"
    if spec["after"]:
        reasoning = f"closed by {spec['after']}; {who.get(spec['thinking'], 'off by default')}"
    lines = [
        f"opener     {json.dumps(spec['opener'], ensure_ascii=False)}",
        f"tokens     {', '.join(map(str, spec['tokens']))}",
        f"scope      {spec['scope']}{', E also begins other text' if spec['shared'] else ''}"
        f"{', E grows with the tools’ names' if spec['named'] else ''}",
        f"reasoning  {reasoning}",
        f"space      {len(spec['space'])} whitespace tokens leave the decision open",
        f"source     {spec['source']}, fingerprint {spec['fingerprint']}",
        f"verified   {outcome[model['verified']]}",
        "",
    ]
    return lines + yaml.safe_dump(model["profile"], sort_keys=False, default_flow_style=None).splitlines()
