"""The whole of a calibration, from labelled decisions to its result; the command line is `command`."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.calibrate import figures, generation, margins, profile, reliability, rerun
from bench.calibrate.asking import asking
from bench.calibrate.choosing import Choice, Objective, check, choose, power, warnings
from bench.calibrate.figures import Decoding
from bench.calibrate.generation import Calibration
from bench.calibrate.margins import Measured
from bench.calibrate.proxy import proxy
from bench.decisions.example import Example, question
from bench.errors import InputError
from bench.progress import progress
from bench.runs import RunFolder, read_records
from bench.served import Served, connected
from calibrators.bias import LIMIT, Apply
from calibrators.entry import Scope
from calibrators.openers import Hint
from proxy.upstream import base_url

Json = dict[str, Any]

FLIPS = 8
"""Flipped decisions that are shown of each kind."""
_HISTOGRAM_BINS = 40


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a calibration is asked for.

    Attributes:
        url: the server itself, not a proxy.
        fields: added to every request, say a switch of the chat template.
        arms: further calibrations to generate with, by name: members beside the bias.
        proxy_url: a proxy that runs already; None for one of our own.
        look_again: whether the test split may be looked at for another choice.
    """

    url: str
    api_key_env: str | None
    hint: Hint
    objective: Objective
    decoding: Decoding
    name: str
    apply: Apply
    scope: Scope
    concurrency: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    generate: bool = True
    rerun: bool = False
    arms: Mapping[str, Json] = field(default_factory=dict)
    proxy_url: str | None = None
    look_again: bool = False


def most_bias(wanted: Wanted, served: Served) -> float:
    """The highest b that can be applied on this server.

    Raises InputError where nothing can be applied the way that is asked for.
    """
    loaded = served.facts.processor is not None
    if wanted.apply == "processor" and not loaded:
        raise InputError(
            "the server has not loaded Seam's logits processor",
            where="--apply processor",
            mend="serve with --logits-processors calibrators.processor:ToolEntryBias",
        )
    everywhere = wanted.scope == "everywhere" or wanted.apply == "logit_bias"
    if everywhere and served.entry.scope != "everywhere":
        raise InputError(
            f"the opener {served.entry.opener!r} is ordinary text, which a bias everywhere would harm",
            where=f"--scope {wanted.scope} --apply {wanted.apply}",
            mend="take --scope decision, applied by the processor or by resample",
        )
    by_resample = wanted.apply == "resample" or (wanted.apply == "auto" and not loaded)
    if by_resample and wanted.scope == "everywhere":
        raise InputError(
            "resample acts at the decision only", where="--scope everywhere", mend="load the logits processor"
        )
    return 0.0 if by_resample else LIMIT


def calibrate(wanted: Wanted, served: Served, examples: Sequence[Example], run: RunFolder, seed: int) -> Json:
    """Measure, choose on validation, look at test once, generate, and write the profile; the result.

    Raises:
        CheckFailed: the data can't carry a choice, with the reason.
        InputError: test has been looked at already, or what is asked for can't be applied.
        ServerUnreachable: a server stopped answering; the run resumes.
    """
    most = most_bias(wanted, served)
    records = _measured(wanted, served, examples, run)
    _write_rows(run.path / "examples.jsonl", examples, records)
    measured = Measured.of(examples, records)
    check(measured, len(examples))
    validation, test = measured.of_split("validation"), measured.of_split("test")
    choice = choose(validation, wanted.objective, wanted.decoding, seed, most)
    looks = _look(run, wanted, choice)
    result = _head(wanted, served, examples, records, choice, looks)
    result["warnings"] = warnings(validation, seed)
    result["power"] = power(validation, test, choice.bias, wanted.decoding)
    result |= _first_token(wanted, validation, test, choice.bias, seed)
    path = profile.write(run.path / "profile", _profile(wanted, served, result))
    result["profile"] = str(path)
    if wanted.generate or wanted.rerun:
        result |= _through_proxy(wanted, served, test, choice.bias, most, run, seed)
    result["flips"] = _flips(test, choice.bias, run)
    return result


def _measured(wanted: Wanted, served: Served, examples: Sequence[Example], run: RunFolder) -> dict[str, Json]:
    records = run.records("margins")

    async def measure() -> None:
        upstream = connected(wanted.url, wanted.api_key_env)
        upstream.facts = served.facts
        try:
            async with asking(base_url(wanted.url), upstream.api_key, wanted.concurrency) as asked:
                await margins.measure(
                    asked, upstream, served.model, examples, wanted.fields, records, advance
                )
        finally:
            await upstream.aclose()

    with progress("margins", len(examples), len(records)) as advance:
        asyncio.run(measure())
    return {record["key"]: record for record in records}


def _write_rows(path: Path, examples: Sequence[Example], records: Mapping[str, Json]) -> None:
    """One line an example: request, label, group, split, and its reading; what later fits start from."""
    names = ("probability", "margin", "gap", "unmeasurable", "errored")
    with path.open("w", encoding="utf-8") as file:
        for example in examples:
            read = records.get(example.id, {})
            row = {**example.row(), **{name: read[name] for name in names if name in read}}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _look(run: RunFolder, wanted: Wanted, choice: Choice) -> list[Json]:
    """Enter this look at the test split, unless it is the one that was taken before; all looks so far.

    Raises InputError for a look at another choice that was not asked for.
    """
    looks = run.records("looks")
    entry = {"objective": str(wanted.objective), "decoding": wanted.decoding, "bias": choice.bias}
    before = [{name: look[name] for name in entry} for look in looks]
    if entry not in before:
        if before and not wanted.look_again:
            earlier = ", ".join(f"{look['objective']} ({look['decoding']})" for look in before)
            raise InputError(
                f"the test split has been looked at for {earlier}: figures for another choice would be "
                "chosen with test in sight",
                where=str(looks.path),
                mend="report those, or take --look-again, which marks the new ones as exploratory",
            )
        time = datetime.now(UTC).isoformat(timespec="seconds")
        looks.append(str(len(before) + 1), {**entry, "time": time})
    return [{**look, "this": {name: look[name] for name in entry} == entry} for look in looks]


def _head(
    wanted: Wanted,
    served: Served,
    examples: Sequence[Example],
    records: Mapping[str, Json],
    choice: Choice,
    looks: Sequence[Json],
) -> Json:
    entry, facts = served.entry, served.facts
    return {
        "model": served.model,
        "server": {"kind": facts.kind, "version": facts.version, "processor": facts.processor},
        "entry": {"tokens": list(entry.tokens), "opener": entry.opener, "shared": entry.shared},
        "fingerprint": entry.fingerprint,
        "objective": {"spec": str(wanted.objective), "words": wanted.objective.words},
        "decoding": wanted.decoding,
        "scope": wanted.scope,
        "apply": wanted.apply,
        "choice": {
            "bias": choice.bias,
            "stretch": list(choice.stretch),
            "resampled": list(choice.resampled) if choice.resampled else None,
        },
        "looks": list(looks),
        "exploratory": not looks[0]["this"],
        "counts": {split: _counts(examples, records, split) for split in ("validation", "test")},
    }


def _counts(examples: Sequence[Example], records: Mapping[str, Json], split: str) -> Json:
    own = [example for example in examples if example.split == split]
    read = [records.get(example.id, {}) for example in own]
    scored = [e for e, r in zip(own, read, strict=True) if r.get("margin") is not None]
    return {
        "planned": len(own),
        "run": sum(bool(r) for r in read),
        "scored": len(scored),
        "errored": sum("errored" in r for r in read),
        "unmeasurable": sum("unmeasurable" in r for r in read),
        "due": sum(e.should_call for e in scored),
        "not_due": sum(not e.should_call for e in scored),
        "conversations": len({e.group for e in scored}),
    }


def _first_token(wanted: Wanted, validation: Measured, test: Measured, b: float, seed: int) -> Json:
    at = figures.biases(validation, b)
    decoding = wanted.decoding
    splits = {}
    for name, part in (("validation", validation), ("test", test)):
        splits[name] = {
            "off": figures.at_bias(part, 0.0, decoding, seed),
            "chosen": figures.at_bias(part, b, decoding, seed),
            "curve": {
                "greedy": figures.curve(part, at, "greedy", seed),
                "sampled": figures.curve(part, at, "sampled", seed),
            },
            "roc": figures.roc(part, seed),
        }
    splits["test"]["changes"] = figures.changes(test, b, decoding, seed)
    splits["test"]["slices"] = figures.slices(test, b, decoding, seed)
    splits["test"]["histogram"] = _histogram(test, decoding)
    return {**splits, "reliability": reliability.reliability(validation, test, seed)}


def _histogram(test: Measured, decoding: Decoding) -> Json:
    """How many examples of either label have which gap (greedy) or margin (temperature 1)."""
    values = test.gap if decoding == "greedy" else test.margin
    edges = np.linspace(values.min(), values.max() + 1e-9, _HISTOGRAM_BINS + 1)
    counts = {name: np.histogram(values[mask], edges)[0].tolist() for name, mask in
              (("due", test.due), ("not_due", ~test.due))}  # fmt: skip
    return {"of": "gap" if decoding == "greedy" else "margin", "edges": edges.tolist(), **counts}


def _profile(wanted: Wanted, served: Served, result: Mapping[str, Any]) -> Json:
    names = ("over_calling", "call_recall", "decision_accuracy")
    provenance = {
        "objective": result["objective"]["spec"],
        "decoding": wanted.decoding,
        "data": result["counts"],
        "exploratory": result["exploratory"],
        **{
            split: {
                arm: {name: profile.shown(result[split][arm][name]) for name in names}
                for arm in ("off", "chosen")
            }
            for split in ("validation", "test")
        },
    }
    return profile.profile(
        wanted.name,
        served.model,
        result["choice"]["bias"],
        wanted.apply,
        wanted.scope,
        wanted.hint,
        served.entry.fingerprint,
        provenance,
    )


def _through_proxy(
    wanted: Wanted, served: Served, test: Measured, b: float, most: float, run: RunFolder, seed: int
) -> Json:
    """What takes a proxy: whole replies, and the curve's points asked for again."""
    asked = [example for example in test.examples if example.request]
    if not asked:
        return {"generation": None, "generation_reason": "the decisions came from a log without requests"}
    if wanted.proxy_url is not None:
        return _asked_of(wanted.proxy_url, wanted, served, test, asked, b, most, run, seed)
    with proxy(run.path / "proxy", run.path / "profile", wanted.url, wanted.api_key_env) as url:
        return _asked_of(url, wanted, served, test, asked, b, most, run, seed)


def _asked_of(
    url: str,
    wanted: Wanted,
    served: Served,
    test: Measured,
    asked: Sequence[Example],
    b: float,
    most: float,
    run: RunFolder,
    seed: int,
) -> Json:
    result: Json = {}
    if wanted.generate:
        arms = _arms(wanted, b)
        replies = run.records("replies")

        async def generate() -> None:
            async with asking(base_url(url), None, wanted.concurrency) as through:
                await generation.generate(through, served.model, asked, arms, wanted.fields, replies, advance)

        with progress("replies", len(asked) * len(arms), len(replies)) as advance:
            asyncio.run(generate())
        result["generation"] = generation.figures(asked, replies, list(arms), seed)
    if wanted.rerun:
        result["rerun"] = _rerun(url, wanted, served, test, most, run)
    return result


def _arms(wanted: Wanted, b: float) -> dict[str, Calibration]:
    """The calibrations to generate with; our own proxy has the profile, another may not."""
    base: Json = {"profile": wanted.name}
    if wanted.proxy_url is not None:
        base = {"bias": b, "scope": wanted.scope, "apply": wanted.apply}
    name = f"b = {b:g}"
    arms: dict[str, Calibration] = {generation.OFF: "off", generation.AGAIN: "off"}
    if b:
        arms[name] = {**base, "explain": True}
    return arms | {f"{name}, {arm}": {**base, **more, "explain": True} for arm, more in wanted.arms.items()}


def _rerun(
    url: str, wanted: Wanted, served: Served, test: Measured, most: float, run: RunFolder
) -> list[Json]:
    part = test.where([bool(example.request) for example in test.examples])
    how = {"scope": wanted.scope, "apply": wanted.apply}
    calibrations: dict[float, Calibration] = {
        b: {"bias": b, **how} if b else "off" for b in rerun.biases(part, most)
    }
    records = run.records("rerun")

    async def ask() -> None:
        upstream = connected(wanted.url, wanted.api_key_env)
        upstream.facts = served.facts
        try:
            async with asking(base_url(url), None, wanted.concurrency) as through:
                await rerun.rerun(
                    through, upstream, served.model, part, calibrations, wanted.fields, records, advance
                )
        finally:
            await upstream.aclose()

    with progress("rerun", len(calibrations) * len(part.examples), len(records)) as advance:
        asyncio.run(ask())
    return rerun.agreement(part, records)


def _flips(test: Measured, b: float, run: RunFolder) -> list[Json]:
    """Greedy first-token decisions that b turns, those nearest to their edge last."""
    before, after = (test.entries(bias, "greedy").astype(bool) for bias in (0.0, b))
    path = run.path / "replies.jsonl"
    replies = {record["key"]: record for record in read_records(path)} if path.exists() else {}
    found = []
    for number in np.argsort(-np.abs(test.gap)).tolist():
        example = test.examples[number]
        if before[number] != after[number]:
            said = {arm: _said(replies.get(f"{arm}/{example.id}")) for arm in (generation.OFF, f"b = {b:g}")}
            found.append(
                {
                    "id": example.id,
                    "source": example.source,
                    "should_call": example.should_call,
                    "opens_call": bool(after[number]),
                    "gap": float(test.gap[number]),
                    "question": question(example.request),
                    "gold": [call["name"] for call in example.gold],
                    "off": said[generation.OFF],
                    "chosen": said[f"b = {b:g}"],
                }
            )
    kinds: dict[tuple[bool, bool], int] = {}
    shown = []
    for flip in found:
        kind = (flip["should_call"], flip["opens_call"])
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] <= FLIPS:
            shown.append(flip)
    return shown


def _said(reply: Json | None) -> str | None:
    """A reply on one line; None where none was made."""
    if reply is None or reply.get("status") != 200:
        return None
    calls = [f"{call['name']}({call['arguments']})" for call in reply["calls"]]
    return " ".join(" ".join([*calls, reply["text"]]).split())[:300]


def note(text: str) -> None:
    """Tell the person at the terminal something that is no result."""
    click.echo(text, err=True)
