"""tau2-bench's figures (calibration.md section 3): pass^k, recall by class against accuracy, mix, loops."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from math import comb
from typing import Any, Final

import yaml

from bench.intervals import cluster_ratios
from bench.score.confirm import writes
from bench.score.figures import Counts, Json, agreement, missing, no_agreement, share
from bench.score.judge import Verdicts
from bench.score.loops import loops, of_case
from bench.score.tau2 import Run, Simulation
from bench.score.tau2_audit import labels
from calibrators.actions import Action

_PASS: Final = 1e-6
"""A reward so near to 1 passes, as upstream has it."""

Hit = Callable[[Simulation], bool]


def run_figures(run: Run, seed: int, verdicts: Verdicts | None = None) -> tuple[Json, list[Json]]:
    """A run's figures, and a record of each of its simulations.

    verdicts: the judge's on the run's writes; without it CONFIRM is null.
    """
    scored = [one for one in run.simulations if one.state == "scored"]
    counts = _counts(run, run.simulations, len(run.tasks))
    with_a_run = {one.task for one in scored}
    labelled = _labels(run)
    figures: Json = {
        "run": run.label,
        "path": str(run.path),
        "domain": run.domain,
        "agent": run.agent,
        "trials": run.trials,
        "write_tools": run.write_tools and run.write_tools.source,
        "counts": counts._asdict(),
        "partial": counts.run < counts.planned,
        "tasks": {
            "planned": len(run.tasks),
            "with_a_scored_run": len(with_a_run & run.tasks.keys()),
            "without_a_scored_run": [task for task in run.tasks if task not in with_a_run],
        },
        "terminations": dict(Counter(one.termination or "unknown" for one in run.simulations)),
        "duplicates": run.duplicates,
        **share("acc", [passed(one) for one in scored], [one.task for one in scored], seed),
        "pass_k": _pass_k(run, scored, seed),
        **_classes(run, labelled, seed),
        **_confirm(run, verdicts, seed),
        "class_mix": _mix(scored),
        "loops": _loops(run, scored, seed),
        "warnings": _warnings(run, counts, with_a_run),
    }
    hits = {label: _hit(run, label) for label in labelled}
    found = [(write, verdicts and verdicts.judge.key(write)) for write in writes(run)]
    return figures, [
        _record(one, labelled, hits, [(write.tool, key) for write, key in found if write.simulation is one])
        for one in run.simulations
    ]


def passed(one: Simulation) -> bool:
    """Whether the reward is 1."""
    return one.reward is not None and abs(one.reward - 1) <= _PASS


def _counts(run: Run, simulations: Sequence[Simulation], tasks: int) -> Counts:
    """The five counts of some simulations, which are of so many tasks."""
    states = Counter(one.state for one in simulations)
    return Counts(
        planned=tasks * run.trials,
        run=len(simulations),
        scored=states["scored"],
        errored=states["errored"],
        unmeasurable=states["unmeasurable"],
    )


def _pass_k(run: Run, scored: Sequence[Simulation], seed: int) -> Json:
    """pass^k: the chance that k trials of a task all pass (arXiv:2406.12045), averaged over tasks.

    C(passed, k) / C(trials, k) for each task with at least k scored trials; how many those are is `n`.
    """
    trials = Counter(one.task for one in scored)
    passes = Counter(one.task for one in scored if passed(one))
    tasks = list(trials)
    pairs = {
        str(k): (
            [comb(passes[task], k) / comb(trials[task], k) if trials[task] >= k else 0.0 for task in tasks],
            [float(trials[task] >= k) for task in tasks],
        )
        for k in range(1, run.trials + 1)
    }
    return {k: estimate._asdict() for k, estimate in cluster_ratios(pairs, tasks, seed=seed).items()}


def _classes(run: Run, labelled: Mapping[str, frozenset[str]], seed: int) -> Json:
    """Recall by class, on the tasks of each label; null for a domain without labels."""
    if not labelled:
        reason = (
            f"tasks are labelled for airline and retail only, and the domain is {run.domain or 'unknown'}"
        )
        return missing("classes", reason)
    figures = {
        label: _class(run, tasks, _hit(run, label), seed) for label, tasks in labelled.items() if tasks
    }
    for label, figure in figures.items():
        scored = _scored(run, labelled[label])
        if label == "tool_call":
            figure |= missing("masking", "its GAR counts reference reads too, so Acc > GAR is no masking")
            figure |= _checked(scored, seed)
        elif label.startswith("ask"):
            figure |= _published_ask(figure, scored, seed)
    return {"classes": figures}


def _hit(run: Run, label: str) -> Hit:
    """When a simulation counts as a hit of its label (calibration.md section 3)."""
    if label == "refuse":
        assert run.write_tools is not None, "the domains with labels are those of the table"
        names = run.write_tools.names
        return lambda one: not one.called & names
    if label == "tool_call":
        return lambda one: not _failed(one)
    return asked


def _scored(run: Run, tasks: frozenset[str]) -> list[Simulation]:
    return [one for one in run.simulations if one.state == "scored" and one.task in tasks]


def _class(run: Run, tasks: frozenset[str], hit: Hit, seed: int) -> Json:
    ran = [one for one in run.simulations if one.task in tasks]
    scored = _scored(run, tasks)
    clusters = [one.task for one in scored]
    hits, passes = [hit(one) for one in scored], [passed(one) for one in scored]
    pairs = list(zip(hits, passes, strict=True))
    return {
        "tasks": len(tasks),
        "counts": _counts(run, ran, len(tasks))._asdict(),
        **share("gar", hits, clusters, seed),
        **share("acc", passes, clusters, seed),
        **(agreement(pairs, clusters, seed) if scored else no_agreement("no case was scored")),
    }


def asked(one: Simulation, *, published: bool = False) -> bool:
    """Whether an emission of the agent asks, by the chosen cues or by the published lists."""
    return any(
        Action.ASK in (emission.published if published else emission.actions)
        for turn in one.turns
        for emission in turn
    )


def _published_ask(figure: Json, scored: Sequence[Simulation], seed: int) -> Json:
    """ASK by the published lists, where that differs."""
    hits = [asked(one, published=True) for one in scored]
    if figure["gar"] is None or sum(hits) == figure["gar"]["hits"]:
        return {}
    return share("gar_published", hits, [one.task for one in scored], seed)


def _failed(one: Simulation) -> bool:
    """Whether a reference action failed by the run's own checks; where none was checked, none failed."""
    return any(
        check.get("action_match") is False or check.get("action_reward") == 0 for check in one.checks or ()
    )


def _checked(scored: Sequence[Simulation], seed: int) -> Json:
    """TOOL_CALL among the simulations whose reference actions were checked, where some were not.

    Upstream checks none where a simulation ended early (max_steps, too_many_errors, ..).
    """
    checked = [one for one in scored if one.checks]
    if len(checked) == len(scored):
        return {}
    hits = [not _failed(one) for one in checked]
    return share("gar_where_checked", hits, [one.task for one in checked], seed, "no action was checked")


def _actions(task: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (task.get("evaluation_criteria") or {}).get("actions") or ()


def _labels(run: Run) -> dict[str, frozenset[str]]:
    """The tasks of each label; empty for a domain without labels. Ids are the audit's, as text."""
    audit = _ask_tasks().get(run.domain)
    if audit is None:
        return {}
    acting = frozenset(id for id, task in run.tasks.items() if _actions(task))
    return {
        "refuse": frozenset(run.tasks) - acting,
        **{f"ask_{subset}": frozenset(map(str, ids)) & run.tasks.keys() for subset, ids in audit.items()},
        "tool_call": acting,
    }


@cache
def _ask_tasks() -> Any:
    return yaml.safe_load(resources.files("bench").joinpath("data/tau2_ask_tasks.yaml").read_text("utf-8"))


def _confirm(run: Run, verdicts: Verdicts | None, seed: int) -> Json:
    """Over database writes: the share whose details were told and approved before, against accuracy."""
    if run.write_tools is None:
        return missing("confirm", f"which tools write is not known for the domain {run.domain or 'unknown'}")
    if verdicts is None:
        return missing("confirm", "needs an LLM judge (--judge)")
    found = writes(run)
    asked = [write for write in found if write.question is not None]
    told = [(write, verdict.confirmed) for write in asked if (verdict := verdicts.of(write))]
    judged = [(write, confirmed) for write, confirmed in told if confirmed is not None]
    pairs = [(confirmed, passed(write.simulation)) for write, confirmed in judged]
    clusters = [write.simulation.task for write, _ in judged]
    nothing = "no write was judged" if found else "no simulation writes"
    return {
        "confirm": {
            "judge": {"url": verdicts.judge.url, **verdicts.judge.told},
            "writes": len(found),
            "judged": len(judged),
            "unparsable": len(told) - len(judged),
            "unjudged": len(asked) - len(told),
            "unmeasurable": len(found) - len(asked),
            "errors": dict(Counter(fault for write in asked if (fault := verdicts.fault(write)))),
            **share("gar", [hit for hit, _ in pairs], clusters, seed, nothing),
            **share("acc", [passes for _, passes in pairs], clusters, seed, nothing),
            **(agreement(pairs, clusters, seed) if pairs else no_agreement(nothing)),
        }
    }


def _mix(scored: Sequence[Simulation]) -> Json:
    """Emissions by class, and simulations with one of it; an emission may be of several classes."""
    emissions: Counter[str] = Counter()
    holders: Counter[str] = Counter()
    total = 0
    for one in scored:
        said = [emission for turn in one.turns for emission in turn]
        classes = [emission.actions or {Action.OTHER if emission.text else "none"} for emission in said]
        emissions.update(str(name) for each in classes for name in each)
        holders.update({str(name) for each in classes for name in each})
        total += len(said)
    names = [*map(str, Action), "none"]
    return {
        "emissions": {name: emissions[name] for name in names},
        "of_emissions": total,
        "simulations": {name: holders[name] for name in names},
        "of_simulations": len(scored),
    }


def _loops(run: Run, scored: Sequence[Simulation], seed: int) -> Json:
    tasks = [one.task for one in scored]
    capped = [(int(one.termination == "max_steps"), 1) for one in scored]
    return {
        **loops([one.turns for one in scored], tasks, seed, max_step_hits=capped),
        "max_steps": run.max_steps,
    }


def _warnings(run: Run, counts: Counts, with_a_run: set[str]) -> list[str]:
    found = []
    if counts.run < counts.planned:
        found.append(f"partial: {counts.run} of {counts.planned} planned simulations ran")
    without = [task for task in run.tasks if task not in with_a_run]
    if without:
        found.append(f"{len(without)} of {len(run.tasks)} tasks have no scored run: {', '.join(without)}")
    if counts.errored:
        found.append(f"left out since they fell to infrastructure: {counts.errored}")
    if run.lost:
        found.append(f"named by the index and held by no file: {run.lost}")
    if run.duplicates:
        found.append(f"repeated, of which the last of each task and trial is kept: {run.duplicates}")
    alien = sum(_of_another_task(one, run.tasks.get(one.task, {})) for one in run.simulations)
    if alien:
        found.append(
            f"{alien} simulations were checked for actions of another task than the one they name, "
            "so figures by class may be of the wrong tasks"
        )
    strange = sorted({one.task for one in run.simulations} - run.tasks.keys())
    if strange:
        found.append(f"tasks that the file does not describe are in no figure by class: {', '.join(strange)}")
    return found


def _of_another_task(one: Simulation, task: Mapping[str, Any]) -> bool:
    """Whether the checked actions are none of the task's; by their ids, where both have them."""
    known = {action.get("action_id") for action in _actions(task)}
    checked = {(check.get("action") or {}).get("action_id") for check in one.checks or ()}
    return None not in known | checked and not checked <= known


def _record(
    one: Simulation,
    labelled: Mapping[str, frozenset[str]],
    hits: Mapping[str, Hit],
    written: Sequence[tuple[str, str | None]],
) -> Json:
    """written: the tool and the verdict's key of each write."""
    scored = one.state == "scored"
    hit = {name: hits[name](one) for name, tasks in labelled.items() if one.task in tasks}
    return {
        "id": one.id,
        "task": one.task,
        "trial": one.trial,
        "state": one.state,
        "termination": one.termination,
        "hits": {name: found if scored else None for name, found in hit.items()},
        "passed": passed(one) if scored else None,
        "asked": asked(one),
        "emissions": [[sorted(emission.actions) for emission in turn] for turn in one.turns],
        "loops": of_case(one.turns),
        "writes": [{"tool": tool, "verdict": key} for tool, key in written],
        "audit": labels(one.turns, hit, passed=passed(one)) if scored else {},
    }
