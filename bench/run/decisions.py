"""`bench run decisions`: labelled decisions by whole replies (calibration.md section 5)."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.calibrate.generation import arm_figures
from bench.decisions.example import Example
from bench.decisions.sources import Sources, source_options
from bench.decisions.split import grouped, sampled
from bench.options import Shared, shared_options
from bench.report.replay import conclude
from bench.report.words import estimate_text, plain, rate_name
from bench.run import power
from bench.run.arms import Arm, calibrations_of, proxies, servers_of
from bench.run.dry import DryPass
from bench.run.options import Serving, reply_options, serving_options
from bench.run.probed import looks_of, probes_text
from bench.run.replies import Requests, applied, by_arm, change_lines, changed, errors, generate
from bench.run.rounds import dry_cases
from bench.runs import DataFile, Plan, RunFolder, result_of
from calibrators.actions import Action

Json = dict[str, Any]

RATES = ("over_calling", "call_recall", "delayed_calls", "valid_calls", "right_tool")
MEANS = ("completion_tokens", "queries")
_DUE, _NOT_DUE = "call due", "no call due"


@click.command(
    "decisions",
    epilog="Examples: bench run decisions --limit 200; bench run decisions --requests mine.jsonl "
    "--arm off= --arm strict=profile=strict.yaml",
)
@serving_options(state="generic")
@source_options
@reply_options(concurrency=64)
@shared_options(limit="At most N decisions, half of them with a call due.")
def command(
    *,
    shared: Shared,
    serving: Serving,
    sources: Sources,
    fields: Json,
    max_tokens: int,
    concurrency: int,
) -> None:
    """Replay labelled decisions: over-calling, call recall and valid calls of whole replies.

    The sets are those of bench calibrate, all of each: a b that was chosen on a part of them is flattered
    here. Replies are greedy.
    """
    sources = sources.or_bfcl()
    examples = grouped(sampled(sources.read(), shared.limit, shared.seed))
    arms = asyncio.run(serving.known())
    fields = {"max_tokens": max_tokens, **fields}
    with RunFolder.open(shared.folder("run-decisions"), _plan(shared, serving, sources, arms, fields)) as run:
        if run.done:
            result = result_of(run.path)
        else:
            result = _run(run, serving, arms, examples, fields, concurrency, shared.seed)
    shared.show(result, lambda: summary(result, run.path))


def _plan(shared: Shared, serving: Serving, sources: Sources, arms: Sequence[Arm], fields: Json) -> Plan:
    """What shapes the records; concurrency may differ from call to call."""
    return Plan(
        command="run decisions",
        arguments={
            "bfcl": sources.bfcl,
            "proxy": serving.running_proxy,
            "fields": fields,
            "cues": str(serving.cues),
        },
        seed=shared.seed,
        limit=shared.limit,
        data={str(path): DataFile.of(path) for path in sources.files},
        upstream=servers_of(arms),
        profile=calibrations_of(arms),
    )


def _run(
    run: RunFolder,
    serving: Serving,
    arms: Sequence[Arm],
    examples: Sequence[Example],
    fields: Json,
    concurrency: int,
    seed: int,
) -> Json:
    records = run.records()
    shown = power.shown(len({example.group for example in examples}))
    click.echo(power.words(shown, "conversations"), err=True)
    key = serving.client_key()
    with proxies(arms, run.path, serving.api_key_env, serving.running_proxy, serving.cues) as urls:
        asked = Requests(
            arms=arms,
            urls=urls,
            examples=examples,
            fields=fields,
            cues=serving.cues,
            attempt=len(run.manifest.sessions),
            key=key,
            concurrency=concurrency,
            explain=serving.running_proxy is None,
        )
        dry = DryPass(
            dry_cases(asked.order, asked.names),
            [arm.server["context"] for arm in arms],
            "bench run decisions",
        )
        asyncio.run(generate(asked, records, dry))
    replies = by_arm(records, asked.names)
    result: Json = {
        "power": shown,
        "dry_pass": dry.told,
        "decisions": str(serving.decisions) if serving.decisions else None,
        "probes": looks_of(serving.logs(run.path), asked.names),
        "cues": str(serving.cues),
        "arms": {arm: figures(examples, own, seed) for arm, own in replies.items()},
        "changes": changed(examples, replies, seed),
    }
    conclude(run, result)
    return result


def figures(examples: Sequence[Example], replies: Mapping[str, Json], seed: int) -> Json:
    """An arm's figures of all decisions and of each source, classes by label, errors, what was applied.

    replies: records by example id. Estimates are dicts; counts are the five of rigor.md.
    """
    sources = dict.fromkeys(example.source for example in examples)
    by_source = {
        source: arm_figures([e for e in examples if e.source == source], replies, seed) for source in sources
    }
    return {
        **arm_figures(examples, replies, seed),
        "classes": classes(examples, replies),
        "sources": by_source,
        "errors": errors(replies),
        "applied": applied(replies),
    }


def classes(examples: Sequence[Example], replies: Mapping[str, Json]) -> Json:
    """How many replies of each action class where a call is due and where none is; `none` have no class."""
    found: dict[str, Counter[str]] = {_DUE: Counter(), _NOT_DUE: Counter()}
    for example in examples:
        reply = replies.get(example.id)
        if reply is not None and reply["status"] == 200:
            found[_DUE if example.should_call else _NOT_DUE][reply["action"] or "none"] += 1
    names = [*map(str, Action), "none"]
    return {label: {name: counts[name] for name in names} for label, counts in found.items()}


def summary(result: Json, folder: Path) -> str:
    """The result for a person at the terminal."""
    probes = probes_text(result["probes"])
    told = [*_lines(result), "", *([probes, ""] if probes else [])]
    return "\n".join([*told, f"run folder {folder}", f"report     {folder / 'report.html'}"])


def _lines(result: Json) -> Iterator[str]:
    arms = result["arms"]
    yield f"{'whole replies':34} " + " ".join(f"{name:>24}" for name in arms)
    for name in RATES:
        cells = " ".join(f"{estimate_text(arm[name]):>24}" for arm in arms.values())
        yield f"{rate_name(name):34} {cells}"
    for name in MEANS:
        yield f"{rate_name(name):34} " + " ".join(f"{plain(arm[name]):>24}" for arm in arms.values())
    for label in (_DUE, _NOT_DUE):
        for name in (*map(str, Action), "none"):
            if any(arm["classes"][label][name] for arm in arms.values()):
                cells = " ".join(f"{arm['classes'][label][name]:>24}" for arm in arms.values())
                yield f"{f'{label}: {name}':34} {cells}"
    for count in ("planned", "run", "scored", "errored", "unmeasurable"):
        yield f"{count:34} " + " ".join(f"{arm['counts'][count]:>24}" for arm in arms.values())
    yield from change_lines(result["changes"], next(iter(arms)))
    for name, arm in arms.items():
        for error, count in arm["errors"].items():
            yield f"{name}: {count} × {error[:200]}"
