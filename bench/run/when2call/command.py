"""`bench run when2call`: what a model does, and which of four given answers it finds likeliest."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import click

from bench.calibrate.asking import asking
from bench.calibrate.figures import adjusted
from bench.calibrate.generation import arm_figures, is_scored
from bench.decisions.benchmarks import when2call_answers
from bench.decisions.example import Example
from bench.errors import InputError
from bench.options import Shared, shared_options
from bench.progress import progress
from bench.report.replay import conclude
from bench.report.words import change_text, estimate_text, p_text, rate_name
from bench.run import power
from bench.run.arms import Arm, calibrations_of, proxies, servers_of
from bench.run.dry import DryPass
from bench.run.options import Serving, reply_options, serving_options
from bench.run.probed import looks_of, probes_text
from bench.run.replies import Requests, applied, by_arm, errors, generate
from bench.run.rounds import dry_cases
from bench.run.when2call.figures import LABELS, Outcome, accuracy_change, figures, told_label
from bench.run.when2call.mcq import Choices, Refused, chosen, readable
from bench.runs import DataFile, Plan, Record, RecordFile, RunFolder, result_of
from bench.score.table import rate_text
from proxy.upstream import base_url

Json = dict[str, Any]
Question = tuple[Example, dict[str, str]]
"""With its answers by label."""

READINGS = {"by_length": True, "plain": False}
"""How the likeliest answer is found: over its characters (upstream's acc_norm), or not (acc, F1)."""


class Wanted(NamedTuple):
    """How the questions are asked."""

    file: Path
    examples: list[Example]
    answers: Mapping[str, Mapping[str, str]]
    """By example id."""
    serving: Serving
    arms: list[Arm]
    part: str
    fields: Json
    concurrency: int

    @property
    def servers(self) -> dict[str, list[str]]:
        """The arms of each served model, by the first one's name: no calibration acts on multiple choice."""
        found: dict[tuple[str, str], list[str]] = {}
        for arm in self.arms:
            found.setdefault((arm.url, arm.model), []).append(arm.name)
        return {names[0]: names for names in found.values()}


@click.command(
    "when2call",
    epilog="Examples: bench run when2call --file when2call_test_mcq.jsonl --limit 200; bench run when2call "
    "--file when2call_test_llm_judge.jsonl --part replies --arm off= --arm strict=profile=strict.yaml",
)
@click.option("--file", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="When2Call's when2call_test_mcq.jsonl or when2call_test_llm_judge.jsonl.")  # fmt: skip
@serving_options(state="generic")
@click.option("--part", type=click.Choice(["both", "replies", "mcq"]), default="both", show_default=True,
              help="Replies by class, multiple choice by log-likelihood (needs vLLM), or both.")  # fmt: skip
@reply_options(concurrency=16)
@shared_options(limit="At most N questions, drawn evenly over the labels.")
def command(
    *,
    shared: Shared,
    serving: Serving,
    file: Path,
    part: str,
    fields: Json,
    max_tokens: int,
    concurrency: int,
) -> None:
    """Replay When2Call: what the model does, and which of the four given answers is likeliest.

    Replies go through the proxy and are classified. Multiple choice asks each served model once, without the
    proxy, since no calibration acts on given answers.
    """
    questions = drawn(when2call_answers(file), shared.limit, shared.seed)
    if not questions:
        raise InputError("holds no question", where=str(file), mend="give When2Call's mcq or llm_judge file")
    wanted = Wanted(
        file=file,
        examples=[example for example, _ in questions],
        answers={example.id: answers for example, answers in questions},
        serving=serving,
        arms=asyncio.run(serving.known()),
        part=part,
        fields={"max_tokens": max_tokens, **fields},
        concurrency=concurrency,
    )
    if len(wanted.answers) < len(questions):
        raise InputError("an id stands twice", where=str(file), mend="give each question its own uuid")
    with RunFolder.open(shared.folder("run-when2call"), _plan(shared, wanted)) as run:
        result = result_of(run.path) if run.done else _run(run, wanted, shared.seed)
    shared.show(result, lambda: summary(result, run.path))


def drawn(questions: Sequence[Question], limit: int | None, seed: int) -> list[Question]:
    """At most `limit` questions, as many of each label as there are of any, in their order.

    Not the first ones: upstream's files are sorted by label.
    """
    if limit is None or len(questions) <= limit:
        return list(questions)
    by_label: dict[str | None, list[int]] = {}
    for place, (example, _) in enumerate(questions):
        by_label.setdefault(example.action, []).append(place)
    for places in by_label.values():
        Random(f"{seed}:when2call").shuffle(places)
    turns = (place for each in zip_longest(*by_label.values()) for place in each if place is not None)
    return [questions[place] for place in sorted(islice(turns, limit))]


def _plan(shared: Shared, wanted: Wanted) -> Plan:
    """What shapes the records; concurrency may differ from call to call."""
    return Plan(
        command="run when2call",
        arguments={
            "part": wanted.part,
            "proxy": wanted.serving.running_proxy,
            "fields": wanted.fields,
            "cues": str(wanted.serving.cues),
        },
        seed=shared.seed,
        limit=shared.limit,
        data={str(wanted.file): DataFile.of(wanted.file)},
        upstream=servers_of(wanted.arms),
        profile=calibrations_of(wanted.arms),
    )


def _run(run: RunFolder, wanted: Wanted, seed: int) -> Json:
    replies, choices = run.records(), run.records("mcq")
    shown = power.shown(len({example.group for example in wanted.examples}))
    click.echo(power.words(shown, "conversations"), err=True)
    serving = wanted.serving
    result: Json = {
        "power": shown,
        "cues": str(serving.cues),
        "decisions": str(serving.decisions) if serving.decisions else None,
        "replies": None,
        "probes": None,
        "mcq": None,
    }
    if wanted.part != "mcq":
        dry = _generate(run, wanted, replies)
        result |= {"dry_pass": dry.told, "replies": _replied(wanted, replies, seed)}
        result["probes"] = looks_of(serving.logs(run.path), [arm.name for arm in wanted.arms])
    if wanted.part != "replies":
        asyncio.run(_choose(wanted, choices))
        result["mcq"] = [
            {"arms": arms, **_chosen(wanted, [row for row in choices if row["server"] == first], seed)}
            for first, arms in wanted.servers.items()
        ]
    conclude(run, result)
    return result


def _generate(run: RunFolder, wanted: Wanted, records: RecordFile) -> DryPass:
    serving, arms = wanted.serving, wanted.arms
    key = serving.client_key()
    with proxies(arms, run.path, serving.api_key_env, serving.running_proxy, serving.cues) as urls:
        asked = Requests(
            arms=arms,
            urls=urls,
            examples=wanted.examples,
            fields=wanted.fields,
            cues=serving.cues,
            attempt=len(run.manifest.sessions),
            key=key,
            concurrency=wanted.concurrency,
            explain=serving.running_proxy is None,
        )
        contexts = [arm.server["context"] for arm in arms]
        dry = DryPass(dry_cases(asked.order, asked.names), contexts, "bench run when2call")
        asyncio.run(generate(asked, records, dry))
    return dry


def _replied(wanted: Wanted, records: RecordFile, seed: int) -> Json:
    """By arm what its replies did, and against the first arm what changed."""
    replies = by_arm(records, [arm.name for arm in wanted.arms])
    outcomes = {
        arm: [
            Outcome(example, told_label(own[example.id]["action"]))
            for example in wanted.examples
            if is_scored(own.get(example.id))
        ]
        for arm, own in replies.items()
    }
    first, *others = outcomes
    return {
        "arms": {
            arm: {
                **arm_figures(wanted.examples, own, seed),
                **figures(outcomes[arm], seed),
                "errors": errors(own),
                "applied": applied(own),
            }
            for arm, own in replies.items()
        },
        "changes": adjusted({arm: accuracy_change(outcomes[first], outcomes[arm], seed) for arm in others}),
    }


async def _choose(wanted: Wanted, records: RecordFile) -> None:
    """Write the likelihoods of each question's answers, as far as they are not written yet."""
    key = wanted.serving.server_key()
    by_name = {arm.name: arm for arm in wanted.arms}
    total = len(wanted.servers) * len(wanted.examples)
    with progress("multiple choice", total, len(records)) as advance:
        for first in wanted.servers:
            arm = by_name[first]
            missing = [e for e in wanted.examples if f"{first}/{e.id}" not in records]
            if not missing:
                continue
            async with asking(base_url(arm.url), key, wanted.concurrency) as server:
                choices = Choices(server, arm.model, wanted.fields)
                await choices.prepare(missing[0])

                async def one(example: Example, first: str = first, choices: Choices = choices) -> None:
                    found = await _question(choices, example, wanted.answers[example.id])
                    records.append(f"{first}/{example.id}", {"server": first, "id": example.id, **found})
                    advance(note=first)

                await server.each(missing, one)


async def _question(choices: Choices, example: Example, answers: Mapping[str, str]) -> Json:
    if fault := readable(answers, LABELS):
        return {"fault": fault}
    try:
        found = await choices.likelihoods(example, {label: answers[label] for label in LABELS})
    except Refused as refused:
        return {"fault": str(refused)}
    return {
        "answers": {label: each._asdict() for label, each in found.items()},
        **{name: chosen(found, normalised=how) for name, how in READINGS.items()},
    }


def _chosen(wanted: Wanted, rows: Sequence[Record], seed: int) -> Json:
    """The two readings of a served model's choices, with the five counts."""
    by_id = {row["id"]: row for row in rows}
    scored = [example for example in wanted.examples if "answers" in by_id.get(example.id, {})]
    faults = Counter(row["fault"] for row in rows if "fault" in row)
    return {
        "counts": {
            "planned": len(wanted.examples),
            "run": len(rows),
            "scored": len(scored),
            "errored": faults.total(),
            "unmeasurable": 0,
        },
        "errors": dict(faults),
        **{
            name: figures([Outcome(example, by_id[example.id][name]) for example in scored], seed)
            for name in READINGS
        },
    }


def summary(result: Json, folder: Path) -> str:
    """The result for a person at the terminal."""
    lines: list[str] = []
    if result["replies"]:
        lines += [*_reply_lines(result["replies"]), ""]
    for each in result["mcq"] or ():
        lines += [*_mcq_lines(each), ""]
    if probes := probes_text(result["probes"] or {}):
        lines += [probes, ""]
    return "\n".join([*lines, f"run folder {folder}", f"report     {folder / 'report.html'}"])


def _reply_lines(told: Json) -> Iterator[str]:
    arms = told["arms"]
    yield f"{'replies':26} " + " ".join(f"{name:>30}" for name in arms)
    yield from _table(arms.values())
    for name in ("over_calling", "call_recall", "valid_calls", "right_tool"):
        cells = " ".join(f"{estimate_text(arm[name]):>30}" for arm in arms.values())
        yield f"{rate_name(name):26} {cells}"
    for name, change in told["changes"].items():
        p = p_text(change["test"]["p_holm"])
        yield f"{name} against {next(iter(arms))}, accuracy: {change_text(change)} points, p {p}"
    for name, arm in arms.items():
        yield from _confusion(f"replies, {name}", arm)


def _mcq_lines(told: Json) -> Iterator[str]:
    yield f"{'multiple choice, ' + ', '.join(told['arms']):26} {'by length':>30} {'plain':>30}"
    yield from _table([{**told[name], "counts": told["counts"], "errors": {}} for name in READINGS])
    yield from _confusion("multiple choice by length", {**told["by_length"], "errors": told["errors"]})


def _table(columns: Sequence[Json] | Any) -> Iterator[str]:
    columns = list(columns)
    for name in ("accuracy", "hallucination"):
        yield f"{name:26} " + " ".join(f"{_rate(each[name]):>30}" for each in columns)
    yield f"{'macro-F1':26} " + " ".join(f"{_estimate(each['macro_f1']):>30}" for each in columns)
    for label in LABELS:
        if any(each["recall"][label] for each in columns):
            yield f"{'recall ' + label:26} " + " ".join(
                f"{_rate(each['recall'][label]):>30}" for each in columns
            )
    counts = "planned/run/scored/errored"
    yield f"{counts:26} " + " ".join(
        f"{'/'.join(str(each['counts'][name]) for name in counts.split('/')):>30}" for each in columns
    )


def _confusion(title: str, told: Json) -> Iterator[str]:
    yield f"\n{title}: rows are what is right, columns what was chosen"
    yield f"{'':18}" + "".join(f"{label:>18}" for label in LABELS)
    for gold, row in told["confusion"].items():
        if any(row.values()):
            yield f"{gold:18}" + "".join(f"{row[label]:>18}" for label in LABELS)
    for error, count in told["errors"].items():
        yield f"{count} × {error[:200]}"


def _rate(figure: Json | None) -> str:
    return rate_text(figure) if figure else "–"


def _estimate(figure: Json | None) -> str:
    return estimate_text(figure) if figure else "–"
