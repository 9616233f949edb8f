"""The whole of a calibration, from labelled decisions to its result; the command line is in `command`."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.calibrate import contextual, figures, generation, margins, profile, rerun
from bench.calibrate.asking import Asking, asking
from bench.calibrate.choosing import Choice, Objective, check, choose, power, warnings
from bench.calibrate.figures import Decoding
from bench.calibrate.flips import flips
from bench.calibrate.generation import Calibration
from bench.calibrate.margins import Measured
from bench.calibrate.reliability import reliability
from bench.decisions.example import Example
from bench.errors import InputError
from bench.progress import progress
from bench.runs import RunFolder, read_records
from bench.seam import proxy
from bench.served import Served, connected
from calibrators.bias import LIMIT, Apply
from calibrators.contextual import Contextual
from calibrators.entry import Scope
from calibrators.openers import Hint
from proxy.upstream import Upstream, base_url

Json = dict[str, Any]
SPLITS = ("validation", "test")
CONTEXTUAL = "-contextual"
"""What the second profile's name ends in."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a calibration is asked for.

    Attributes:
        url: the server itself, not a proxy.
        name: of the profile.
        concurrency: queries in flight at most.
        fields: added to every request, say a switch of the chat template.
        generate: whether whole replies are made.
        max_tokens: of a whole reply.
        rerun: whether the curve is checked by asking again.
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
    max_tokens: int = 512
    rerun: bool = False
    arms: Mapping[str, Json] = field(default_factory=dict)
    proxy_url: str | None = None
    look_again: bool = False

    def most_bias(self, served: Served) -> float:
        """The highest b that can be applied on a server.

        Raises InputError where nothing can be applied the way that is asked for.
        """
        loaded = served.facts.processor is not None
        if self.apply == "processor" and not loaded:
            raise InputError(
                "the server has not loaded Seam's logits processor",
                where="--apply processor",
                mend="serve with --logits-processors calibrators.processor:ToolEntryBias",
            )
        everywhere = self.scope == "everywhere" or self.apply == "logit_bias"
        if everywhere and served.entry.scope != "everywhere":
            raise InputError(
                f"the opener {served.entry.opener!r} is ordinary text, which a bias everywhere would harm",
                where=f"--scope {self.scope} --apply {self.apply}",
                mend="take --scope decision, applied by the processor or by resample",
            )
        by_resample = self.apply == "resample" or (self.apply == "auto" and not loaded)
        if by_resample and self.scope == "everywhere":
            raise InputError(
                "resample acts at the decision only",
                where="--scope everywhere",
                mend="load the logits processor",
            )
        return 0.0 if by_resample else LIMIT


@dataclass(frozen=True, slots=True)
class Calibrating:
    """One calibration at work: what is wanted, of which model, into which run folder."""

    wanted: Wanted
    served: Served
    run: RunFolder
    seed: int

    def result(self, examples: Sequence[Example]) -> Json:
        """Measure, choose on validation, look at test once, generate, and write the profile.

        examples: with their splits. Raises CheckFailed where the data can't carry a choice, InputError where
        test has been looked at already, ServerUnreachable where a server stops answering; the run resumes.
        """
        wanted, most = self.wanted, self.wanted.most_bias(self.served)
        records = self._read_margins(examples)
        self._write_rows(examples, records)
        measured = Measured.of(examples, records)
        check(measured, len(examples))
        validation, test = (measured.of_split(split) for split in SPLITS)
        choice = choose(validation, wanted.objective, wanted.decoding, self.seed, most)
        result = self._head(choice, self._looks(choice))
        result["counts"] = {split: _counts(examples, records, split) for split in SPLITS}
        result["warnings"] = warnings(validation, self.seed)
        result["power"] = power(validation, test, choice.bias, wanted.decoding)
        result |= self._first_token(validation, test, choice.bias)
        result["contextual"], offered = contextual.compared(
            validation, test, choice.bias, wanted.objective, wanted.decoding, self.seed, most
        )
        folder = self.run.path / "profile"
        result["profile"] = str(profile.write(folder, self._profile(result, wanted.name, choice.bias)))
        if offered is not None:
            own = self._profile(result, f"{wanted.name}{CONTEXTUAL}", offered)
            result["contextual"]["profile"] = str(profile.write(folder, own))
        if wanted.generate or wanted.rerun:
            result |= self._through_proxy(test, choice.bias, most, offered is not None)
        replies = self.run.path / "replies.jsonl"
        said = {r["key"]: r for r in read_records(replies)} if replies.exists() else {}
        result["flips"] = flips(test, choice.bias, said)
        arms = {f"b = {choice.bias:g}" if choice.bias else generation.OFF: result["profile"]}
        if offered is not None:
            arms["b(x)"] = result["contextual"]["profile"]
        for arm, path in arms.items():
            if window := generation.window(test, said, arm):
                profile.add_reference(Path(path), window)
        return result

    def _read_margins(self, examples: Sequence[Example]) -> dict[str, Json]:
        wanted, records = self.wanted, self.run.records("margins")

        async def ask(server: Asking, upstream: Upstream) -> None:
            await margins.measure(
                server, upstream, self.served.model, examples, wanted.fields, records, advance
            )

        with progress("margins", len(examples), len(records)) as advance:
            self._asking(wanted.url, ask)
        return {record["key"]: record for record in records}

    def _asking(self, url: str, work: Callable[[Asking, Upstream], Awaitable[None]]) -> None:
        """Work with a server to ask (the model's own, or a proxy before it) and the model's own upstream."""

        async def run() -> None:
            async with self._upstream() as upstream:
                key = upstream.api_key if url == self.wanted.url else None
                async with asking(base_url(url), key, self.wanted.concurrency) as server:
                    await work(server, upstream)

        asyncio.run(run())

    @asynccontextmanager
    async def _upstream(self) -> AsyncIterator[Upstream]:
        upstream = connected(self.wanted.url, self.wanted.api_key_env)
        upstream.facts = self.served.facts
        try:
            yield upstream
        finally:
            await upstream.aclose()

    def _write_rows(self, examples: Sequence[Example], records: Mapping[str, Json]) -> None:
        """One line an example: request, label, group, split, and its reading; what later fits start from."""
        names = ("probability", "margin", "gap", "unmeasurable", "errored")
        path = self.run.path / "examples.jsonl"
        try:
            with path.open("w", encoding="utf-8") as file:
                for example in examples:
                    read = records.get(example.id, {})
                    row = {**example.row(), **{name: read[name] for name in names if name in read}}
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        except OSError as error:
            raise InputError(str(error.strerror), where=str(path), mend="make room there") from None

    def _looks(self, choice: Choice) -> list[Json]:
        """Enter this look at the test split, unless it was taken before; all looks so far.

        Raises InputError for a look at another choice that was not asked for.
        """
        looks = self.run.records("looks")
        objective, decoding = str(self.wanted.objective), self.wanted.decoding
        entry: Json = {"objective": objective, "decoding": decoding, "bias": choice.bias}
        before = [{name: look[name] for name in entry} for look in looks]
        if entry not in before:
            if before and not self.wanted.look_again:
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

    def _head(self, choice: Choice, looks: Sequence[Json]) -> Json:
        wanted, entry, facts = self.wanted, self.served.entry, self.served.facts
        return {
            "model": self.served.model,
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
        }

    def _first_token(self, validation: Measured, test: Measured, b: float) -> Json:
        decoding, seed = self.wanted.decoding, self.seed
        at = figures.biases(validation, b)
        found: Json = {}
        for split, part in zip(SPLITS, (validation, test), strict=True):
            found[split] = {
                "off": figures.at_bias(part, 0.0, decoding, seed),
                "chosen": figures.at_bias(part, b, decoding, seed),
                "curve": {
                    "greedy": figures.curve(part, at, "greedy", seed),
                    "sampled": figures.curve(part, at, "sampled", seed),
                },
                "roc": figures.roc(part, seed),
            }
        found["test"]["changes"] = figures.changes(test, b, decoding, seed)
        found["test"]["slices"] = figures.slices(test, b, decoding, seed)
        found["test"]["histogram"] = figures.histogram(test, decoding)
        return {**found, "reliability": reliability(validation, test, seed)}

    def _profile(self, result: Mapping[str, Any], name: str, bias: float | Contextual) -> Json:
        wanted, plan = self.wanted, self.run.manifest.plan
        names = ("over_calling", "call_recall", "decision_accuracy")
        files = {name: file.sha256 for name, file in plan.data.items()}
        provenance: Json = {
            "objective": str(wanted.objective),
            "decoding": wanted.decoding,
            "data": {"bfcl": plan.arguments["bfcl"], "log": plan.arguments["from_log"], "sha256": files},
            "fields": dict(wanted.fields),
            "seed": plan.seed,
            "limit": plan.limit,
            "split": result["counts"],
            "exploratory": result["exploratory"],
        }
        for split, arms in self._told(result, isinstance(bias, Contextual)).items():
            provenance[split] = {
                arm: {figure: profile.shown(own[figure]) for figure in names} for arm, own in arms.items()
            }
        return profile.profile(
            name,
            self.served.model,
            bias,
            wanted.apply,
            wanted.scope,
            wanted.hint,
            self.served.entry.fingerprint,
            provenance,
        )

    def _told(self, result: Mapping[str, Any], contextual: bool) -> Json:
        """The figures that a profile's provenance keeps, by split and arm."""
        arms = {split: {arm: result[split][arm] for arm in ("off", "chosen")} for split in SPLITS}
        if contextual:
            on_test = result["contextual"]["test"]
            arms = {"test": {**arms["test"], "chosen": on_test["contextual"], "scalar": on_test["scalar"]}}
        return arms

    def _through_proxy(self, test: Measured, b: float, most: float, offered: bool) -> Json:
        """What takes a proxy: whole replies, and the curve's points asked for again."""
        asked = test.where([bool(example.request) for example in test.examples])
        if not asked.examples:
            return {"generation": None, "generation_reason": "the decisions came from a log without requests"}
        if self.wanted.proxy_url is not None:
            return self._through(self.wanted.proxy_url, asked, b, most, offered=False)
        folder = self.run.path
        with proxy(folder / "proxy", folder / "profile", self.wanted.url, self.wanted.api_key_env) as url:
            return self._through(url, asked, b, most, offered)

    def _through(self, url: str, asked: Measured, b: float, most: float, offered: bool) -> Json:
        result: Json = {}
        if self.wanted.generate:
            result["generation"] = self._generation(url, asked.examples, b, offered)
        if self.wanted.rerun:
            result["rerun"] = self._rerun(url, asked, most)
        return result

    def _generation(self, url: str, examples: Sequence[Example], b: float, offered: bool) -> Json:
        arms, replies = self._arms(b, offered), self.run.records("replies")
        sampling = {**generation.GREEDY, "max_tokens": self.wanted.max_tokens, **self.wanted.fields}

        async def ask(server: Asking, _: Upstream) -> None:
            await generation.generate(server, self.served.model, examples, arms, sampling, replies, advance)

        with progress("replies", len(examples) * len(arms), len(replies)) as advance:
            self._asking(url, ask)
        return {**generation.figures(examples, replies, list(arms), self.seed), "sampling": sampling}

    def _arms(self, b: float, offered: bool) -> dict[str, Calibration]:
        """The calibrations to generate with; our own proxy has the profiles, another may not."""
        wanted = self.wanted
        base: Json = {"profile": wanted.name}
        if wanted.proxy_url is not None:
            base = {"bias": b, "scope": wanted.scope, "apply": wanted.apply}
        name = f"b = {b:g}"
        arms: dict[str, Calibration] = {generation.OFF: "off", generation.AGAIN: "off"}
        if b:
            arms[name] = {**base, "explain": True}
        if offered:
            arms["b(x)"] = {"profile": f"{wanted.name}{CONTEXTUAL}", "explain": True}
        return arms | {
            f"{name}, {arm}": {**base, **more, "explain": True} for arm, more in wanted.arms.items()
        }

    def _rerun(self, url: str, asked: Measured, most: float) -> list[Json]:
        how = {"scope": self.wanted.scope, "apply": self.wanted.apply}
        calibrations: dict[float, Calibration] = {
            b: {"bias": b, **how} if b else "off" for b in rerun.biases(asked, most)
        }
        records = self.run.records("rerun")

        async def ask(server: Asking, upstream: Upstream) -> None:
            model, fields = self.served.model, self.wanted.fields
            await rerun.rerun(server, upstream, model, asked, calibrations, fields, records, advance)

        with progress("rerun", len(calibrations) * len(asked.examples), len(records)) as advance:
            self._asking(url, ask)
        return rerun.agreement(asked, records)


def _counts(examples: Sequence[Example], records: Mapping[str, Json], split: str) -> Json:
    """The five counts of a split (rigor.md), and what its scored examples are."""
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
