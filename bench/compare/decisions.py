"""Runs of `bench calibrate` side by side: checkpoints and calibrations on the same labelled decisions.

Only decisions that are in the test split of every run are compared, since each b was chosen on validation.
First-token (E1) figures come from the margins, whole-reply figures from the replies of each arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.calibrate import figures
from bench.calibrate.contextual import biases_of, fitted_of, moved_by
from bench.calibrate.generation import AGAIN, OFF, arm_figures, disagreement, is_call, is_scored
from bench.calibrate.margins import Measured
from bench.compare.folders import Folder
from bench.compare.measures import Lost, Measure, Value, Values, claims
from bench.compare.systems import System, baseline, name
from bench.decisions.example import Example
from bench.decisions.split import joined
from bench.errors import InputError
from bench.intervals import auc, auc_difference, equal_recall_difference
from calibrators.contextual import Contextual
from calibrators.request import REQUEST_FIELDS

Json = dict[str, Any]

FIRST_TOKEN, WHOLE_REPLIES = "first token", "whole replies"
_RATES = (("over_calling", False), ("call_recall", True))
_RHO_POINTS = 33
"""Of a cost curve."""
_COSTS = ("completion_tokens", "queries")


@dataclass(frozen=True, slots=True)
class _Run:
    """A calibration's decisions and replies."""

    folder: Folder
    rows: Mapping[str, Json]
    """`examples.jsonl` by id."""
    replies: Mapping[str, Mapping[str, Json]]
    """By arm and example id."""

    @property
    def bias(self) -> float:
        """The chosen b."""
        return float(self.folder.result["choice"]["bias"])

    @property
    def chosen_arm(self) -> str:
        return f"b = {self.bias:g}" if self.bias else OFF

    @property
    def contextual(self) -> dict[str, Contextual]:
        """The fitted b(x) by its arm's name, which says where it was not offered; empty without one."""
        told = self.folder.result.get("contextual")
        bias = fitted_of(told)
        if told is None or bias is None:
            return {}
        return {"b(x)" if told["offered"] else "b(x), not offered": bias}


def compare(
    folders: Sequence[Folder], wanted: str | None, again: str | None, limit: int | None, seed: int
) -> tuple[Json, list[Measure]]:
    """The comparison as a document, and the measures that its claims are made of.

    wanted: the baseline's name. Raises InputError where the runs can't be paired, with the reason.
    """
    if again is not None:
        raise InputError(
            "these runs have asked their arm without calibration twice themselves",
            where="--again",
            mend="leave it out",
        )
    runs = [_read(folder) for folder in folders]
    decoding = _same_decoding(folders)
    examples, pairing = _shared(runs, limit)
    systems = _systems(runs)
    base = baseline(systems, wanted)
    by_run = {run.folder.label: run for run in runs}
    measured = {run.folder.label: Measured.of(examples, run.rows) for run in runs}
    biased = {
        system.name: _under(measured[system.folder.label], system.bias)
        for system in systems
        if system.bias is not None
    }
    first_token = {
        system.name: {
            **figures.at_bias(biased[system.name], 0.0, decoding, seed),
            "bias": _scalar(system),
            "counts": _counts(examples, by_run[system.folder.label]),
        }
        for system in systems
        if system.name in biased
    }
    # Where the first token doesn't show what the baseline does, its run without a bias stands for it.
    before = biased.get(base.name, measured[base.folder.label])
    apart = {
        (system.folder.label, system.arm): _separation(
            base, before, system, biased[system.name], decoding, seed
        )
        for system in systems
        if system.arm == OFF or isinstance(system.bias, Contextual)
    }
    measures = [
        *_first_token(systems, by_run, biased, examples, decoding, seed),
        *_whole_replies(systems, by_run, examples, seed),
    ]
    told: Json = {
        "kind": "decisions",
        "baseline": base.name,
        "decoding": decoding,
        "systems": [_system(system) for system in systems],
        "pairing": pairing,
        "warnings": _warnings(folders),
        "claims": claims(measures, base.name, seed),
        "first_token": first_token,
        "costs": _costs(first_token),
        "runs": {
            label: {
                "curve": _curve(own, by_run[label].bias, decoding),
                **apart[label, OFF],
                "contextual": {arm: apart[label, arm] for arm in by_run[label].contextual},
            }
            for label, own in measured.items()
        },
        "replies": {
            system.name: arm_figures(examples, by_run[system.folder.label].replies[system.arm], seed)
            for system in systems
            if system.arm in by_run[system.folder.label].replies
        },
        "noise_floor": {label: _floor(examples, run, seed) for label, run in by_run.items()},
    }
    return told, measures


def _read(folder: Folder) -> _Run:
    rows = {row["id"]: row for row in folder.lines("examples")}
    replies: dict[str, dict[str, Json]] = {}
    for record in folder.records("replies"):
        replies.setdefault(record["arm"], {})[record["id"]] = record
    return _Run(folder, rows, replies)


def _same_decoding(folders: Sequence[Folder]) -> figures.Decoding:
    first: figures.Decoding = folders[0].result["decoding"]
    for folder in folders:
        if folder.result["decoding"] != first:
            raise InputError(
                f"its b was chosen for {folder.result['decoding']} decoding, that of {folders[0].path} for "
                f"{first}",
                where=str(folder.path),
                mend="calibrate both with one --decoding",
            )
    return first


def _shared(runs: Sequence[_Run], limit: int | None) -> tuple[list[Example], Json]:
    """The examples that are in the test split of every run, and what became of the others.

    Raises InputError where one id stands for other requests or labels, or where nothing is shared.
    """
    first = runs[0]
    everywhere = [id for id in first.rows if all(id in run.rows for run in runs)]
    for run in runs[1:]:
        for id in everywhere:
            _same_decision(id, first, run)
    tested = [id for id in everywhere if all(run.rows[id]["split"] == "test" for run in runs)]
    if not tested:
        raise InputError(
            f"no decision is in the test split of every run ({len(everywhere)} are in every run at all)",
            where="RUN",
            mend="calibrate each checkpoint on the same decisions, with one --seed and --limit",
        )
    groups = joined({id: [f"{n} {run.rows[id]['group']}" for n, run in enumerate(runs)] for id in everywhere})
    kept = tested[:limit]
    every = {id for run in runs for id in run.rows}
    pairing = {
        "cases": len(kept),
        "clusters": len({groups[id] for id in kept}),
        "due": sum(first.rows[id]["should_call"] for id in kept),
        "not_in_every_run": len(every) - len(everywhere),
        "not_test_in_every_run": len(everywhere) - len(tested),
        "beyond_limit": len(tested) - len(kept),
    }
    return [_example(first.rows[id], groups[id]) for id in kept], pairing


def _same_decision(id: str, first: _Run, other: _Run) -> None:
    one, two = first.rows[id], other.rows[id]
    for names, what in ((("should_call",), "label"), (REQUEST_FIELDS, "request")):
        if any(one.get(member) != two.get(member) for member in names):
            raise InputError(
                f"the decision {id!r} has another {what} than in {first.folder.path}: the data differ "
                f"({_digests(other.folder)} and {_digests(first.folder)})",
                where=str(other.folder.path),
                mend="calibrate both on the same decisions",
            )


def _digests(folder: Folder) -> str:
    files = folder.manifest.plan.data
    return ", ".join(f"sha256 {file.sha256[:12]}" for file in files.values()) or "no files"


def _example(row: Json, group: str) -> Example:
    request = {member: row[member] for member in REQUEST_FIELDS if member in row}
    return Example(
        row["id"], row["source"], group, row["should_call"], request, gold=row["gold"], split=row["split"]
    )


def _systems(runs: Sequence[_Run]) -> list[System]:
    """Each run without a bias, at its chosen b, under b(x), and under the further arms it has replies of."""
    found = []
    for run in runs:
        arms = dict.fromkeys((OFF, run.chosen_arm, *run.contextual, *run.replies))
        arms.pop(AGAIN, None)
        biases: dict[str, float | Contextual] = {OFF: 0.0, run.chosen_arm: run.bias, **run.contextual}
        for arm in arms:
            shown = "b = 0" if arm == OFF else arm
            found.append(
                System(name(run.folder, shown, len(runs), len(arms)), run.folder, arm, biases.get(arm))
            )
    return found


def _first_token(
    systems: Sequence[System],
    runs: Mapping[str, _Run],
    biased: Mapping[str, Measured],
    examples: Sequence[Example],
    decoding: figures.Decoding,
    seed: int,
) -> list[Measure]:
    values: dict[str, Values] = {}
    for system in systems:
        if system.name in biased:
            own = biased[system.name]
            entered = own.entries(0.0, decoding).tolist()
            known = dict(zip((example.id for example in own.examples), entered, strict=True))
            rows = runs[system.folder.label].rows
            values[system.name] = {e.id: known.get(e.id, _unread(rows[e.id])) for e in examples}
    return _measures(FIRST_TOKEN, values, systems, runs, examples, seed)


def _unread(row: Json) -> Lost:
    if "errored" in row:
        return Lost.ERRORED
    return Lost.UNMEASURABLE if "unmeasurable" in row else Lost.NOT_RUN


def _whole_replies(
    systems: Sequence[System], runs: Mapping[str, _Run], examples: Sequence[Example], seed: int
) -> list[Measure]:
    replied = [system for system in systems if system.arm in runs[system.folder.label].replies]
    replies = {system.name: runs[system.folder.label].replies[system.arm] for system in replied}
    called: dict[str, Values] = {
        name: {e.id: _call(own.get(e.id)) for e in examples} for name, own in replies.items()
    }
    clusters = {example.id: example.group for example in examples}
    costs = [
        Measure(
            WHOLE_REPLIES,
            cost,
            clusters,
            {name: {e.id: _cost(own.get(e.id), cost) for e in examples} for name, own in replies.items()},
            mean=True,
        )
        for cost in _COSTS
    ]
    return [*_measures(WHOLE_REPLIES, called, systems, runs, examples, seed), *costs] if replied else []


def _measures(
    part: str,
    values: Mapping[str, Values],
    systems: Sequence[System],
    runs: Mapping[str, _Run],
    examples: Sequence[Example],
    seed: int,
) -> list[Measure]:
    """Over-calling and call recall, each over the examples of its label."""
    found = []
    for figure, label in _RATES:
        own = [example for example in examples if example.should_call == label]
        floors = {run_label: _floor(own, run, seed) for run_label, run in runs.items()}
        floor_of = {system.name: floors[system.folder.label] for system in systems}
        known = {system: floor["decision"] for system, floor in floor_of.items() if floor}
        found.append(Measure(part, figure, {e.id: e.group for e in own}, values, known))
    return found


def _call(reply: Json | None) -> Value:
    if reply is None:
        return Lost.NOT_RUN
    if not is_scored(reply):
        return Lost.UNMEASURABLE if reply["status"] == 200 else Lost.ERRORED
    return float(is_call(reply))


def _cost(reply: Json | None, name: str) -> Value:
    scored = _call(reply)
    if isinstance(scored, Lost) or reply is None:
        return scored
    return Lost.UNMEASURABLE if reply[name] is None else float(reply[name])


def _floor(examples: Sequence[Example], run: _Run, seed: int) -> Json | None:
    """How often a run's server decides otherwise when asked the same twice; None where it was not."""
    if OFF not in run.replies or AGAIN not in run.replies:
        return None
    return disagreement(examples, run.replies[OFF], run.replies[AGAIN], seed)


def _counts(examples: Sequence[Example], run: _Run) -> Json:
    rows = [run.rows[example.id] for example in examples]
    errored, unmeasurable = (sum(name in row for row in rows) for name in ("errored", "unmeasurable"))
    scored = sum(row.get("margin") is not None for row in rows)
    return {
        "planned": len(rows),
        "run": scored + errored + unmeasurable,
        "scored": scored,
        "errored": errored,
        "unmeasurable": unmeasurable,
    }


def _under(measured: Measured, bias: float | Contextual) -> Measured:
    """The decisions with a bias added to margin and gap."""
    if isinstance(bias, Contextual):
        return moved_by(measured, biases_of(measured, bias))
    return moved_by(measured, np.full(len(measured.examples), bias))


def _scalar(system: System) -> float | None:
    return system.bias if isinstance(system.bias, float) else None


def _curve(measured: Measured, bias: float, decoding: figures.Decoding) -> Json:
    """A checkpoint's rates over the bias."""
    at = figures.biases(measured, bias)
    entered = [measured.entries(b, decoding) for b in at]
    shares = {name: [_share(own, measured.due == label) for own in entered] for name, label in _RATES}
    return {"bias": at, **shares}


def _separation(
    base: System, before: Measured, system: System, after: Measured, decoding: figures.Decoding, seed: int
) -> Json:
    """How well a system's margins tell the labels apart, alone and beside the baseline's.

    before, after: the decisions under the baseline's bias and under the system's. The changes are None for
    the baseline's own run under the same b(x) or none; so is the one at equal recall where the first token
    alone doesn't show what the baseline does, or at temperature 1.
    """
    found: Json = {"auc": auc(after.margin, after.due, after.groups, seed=seed)._asdict()}
    found |= {"auc_change": None, "at_equal_recall": None}
    # A scalar moves no case past another.
    if system.folder is base.folder and _contextual(system) == _contextual(base):
        return found
    one, two = _on_both(before, after)
    found["auc_change"] = auc_difference(one.margin, two.margin, one.due, one.groups, seed=seed)._asdict()
    if base.bias is not None and decoding == "greedy":
        found["at_equal_recall"] = equal_recall_difference(
            one.entries(0.0, decoding), one.gap, two.gap, one.due, one.groups, seed=seed
        )._asdict()
    return found


def _contextual(system: System) -> Contextual | None:
    return system.bias if isinstance(system.bias, Contextual) else None


def _on_both(before: Measured, after: Measured) -> tuple[Measured, Measured]:
    """Two runs on the cases that both have."""
    known = [{example.id for example in own.examples} for own in (before, after)]
    both = set.intersection(*known)
    one, two = (own.where([example.id in both for example in own.examples]) for own in (before, after))
    return one, two


def _costs(first_token: Mapping[str, Json]) -> Json:
    """R(rho) of each system over a fine grid of rho; those without both rates are left out."""
    rates = {
        name: tuple(own[figure]["estimate"] for figure, _ in _RATES) for name, own in first_token.items()
    }
    known = {name: pair for name, pair in rates.items() if None not in pair}
    over, recall = np.array(list(known.values()), float).reshape(-1, 2).T
    grid = np.geomspace(figures.RHOS[0], figures.RHOS[-1], _RHO_POINTS)
    table = np.array([figures.risk(over, recall, rho) for rho in grid])
    return {"rho": grid.tolist(), "risk": dict(zip(known, table.T.tolist(), strict=True))}


def _share(entered: Any, mask: Any) -> float | None:
    return float(entered[mask].mean()) if mask.any() else None


def _system(system: System) -> Json:
    result = system.folder.result
    return {
        "name": system.name,
        "run": system.folder.label,
        "folder": str(system.folder.path),
        "arm": system.arm,
        "bias": _scalar(system),
        "model": result["model"],
        "server": result["server"],
        "fingerprint": result["fingerprint"],
        "objective": result["objective"]["spec"],
        "exploratory": bool(result["exploratory"] and system.arm != OFF),
    }


def _warnings(folders: Sequence[Folder]) -> list[str]:
    """What makes the runs less alike than a reader would think."""
    found = []
    for folder in folders:
        if folder.result["exploratory"]:
            found.append(
                f"{folder.label}: its b was chosen after its test split had been looked at: exploratory"
            )

    def differ(what: str, told: Mapping[str, str]) -> None:
        if len(set(told.values())) > 1:
            found.append(f"{what}: {', '.join(f'{label} {text}' for label, text in told.items())}")

    differ("requests had other fields", {f.label: str(f.manifest.plan.arguments["fields"]) for f in folders})
    differ("b was chosen for other objectives", {f.label: f.result["objective"]["spec"] for f in folders})
    differ("the bias acts otherwise", {f.label: f"{f.result['scope']}/{f.result['apply']}" for f in folders})
    differ(
        "replies were made with other sampling",
        {f.label: str(f.result["generation"]["sampling"]) for f in folders if f.result.get("generation")},
    )
    if len({frozenset(file.sha256 for file in f.manifest.plan.data.values()) for f in folders}) > 1:
        told = ", ".join(f"{folder.label} {_digests(folder)}" for folder in folders)
        found.append(
            f"the data files differ ({told}); the decisions compared have the same requests and labels"
        )
    return found
