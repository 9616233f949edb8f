"""The report of a `bench run`: its figures, what probes did, what it took, and its cases one by one."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import cases, page, replay_bfcl, replay_replies, replay_tau2
from bench.report.cases import Tried
from bench.report.charts import Chart
from bench.report.page import Section, paragraph, table
from bench.report.words import number
from bench.run.arms import decision_logs
from bench.run.power import words as power_words
from bench.runs import RunFolder, read_records

Json = Mapping[str, Any]

_COSTS = {
    "replies": "replies",
    "queries": "queries",
    "prompt_tokens": "prompt tokens",
    "completion_tokens": "completion tokens",
    "seconds": "seconds",
}


class Kind(NamedTuple):
    """What is of one benchmark alone."""

    title: str
    about: str
    """What ran; `{benchmark}` is its package."""
    unit: str
    """What its independent cases are."""
    applied: Callable[[Json], Mapping[str, Json | None]]
    """By arm how many replies had which calibration."""
    charts: Callable[[Json], Sequence[Chart]]
    sections: Callable[[Json, Sequence[Chart]], list[Section]]
    tried: Callable[[Json], Tried]
    """A case from its record."""


_KINDS: Mapping[str, Kind] = {
    "run bfcl": Kind(
        title="BFCL through the proxy",
        about="{benchmark}, driven and graded by its own code",
        unit="scenarios",
        applied=lambda result: result["applied"],
        charts=replay_bfcl.charts,
        sections=replay_bfcl.sections,
        tried=replay_bfcl.tried,
    ),
    "run decisions": Kind(
        title="Labelled decisions through the proxy",
        about="Labelled decisions by whole replies",
        unit="conversations",
        applied=lambda result: {arm: own["applied"] for arm, own in result["arms"].items()},
        charts=replay_replies.decision_charts,
        sections=replay_replies.decision_sections,
        tried=replay_replies.decision_tried,
    ),
    "run tau2": Kind(
        title="tau2-bench through the proxy",
        about="{benchmark}, its user simulated and its results graded by its own code",
        unit="tasks",
        applied=lambda result: result["applied"],
        charts=replay_tau2.charts,
        sections=replay_tau2.sections,
        tried=replay_tau2.tried,
    ),
    "run when2call": Kind(
        title="When2Call through the proxy",
        about="When2Call: replies by action class, and multiple choice by log-likelihood",
        unit="conversations",
        applied=lambda result: {
            arm: own["applied"] for arm, own in (result["replies"] or {"arms": {}})["arms"].items()
        },
        charts=replay_replies.when2call_charts,
        sections=replay_replies.when2call_sections,
        tried=replay_replies.when2call_tried,
    ),
}
COMMANDS = tuple(_KINDS)
"""The commands whose runs have this page."""


def write_report(run: RunFolder, result: Json, folder: Path) -> Path:
    """Write the run's report.html and charts into a folder; the page's path."""
    kind = _KINDS[run.manifest.plan.command]
    records = list(read_records(run.path / "records.jsonl"))
    tried, drawn = [kind.tried(record) for record in records], kind.charts(result)
    parts = [
        *kind.sections(result, drawn),
        *_probes(result),
        *_costs(tried, records),
        *([Section("Cases", cases.view(tried, _logs(run, result)))] if tried else []),
        Section("What this rests on", _provenance(run, result, kind)),
    ]
    return page.write_report(run, result, folder, kind.title, _lead(run, result, kind), parts, drawn)


def conclude(run: RunFolder, result: Json) -> None:
    """Write the page of a run that has its figures, and mark the run done."""
    write_report(run, result, run.path)
    run.finish(result)


def _logs(run: RunFolder, result: Json) -> list[Path]:
    """The decision logs: of the run's own proxies, or the one that it was given, if it is still there."""
    given = result.get("decisions")
    return [path for path in ([Path(given)] if given else decision_logs(run.path)) if path.is_file()]


def _lead(run: RunFolder, result: Json, kind: Kind) -> str:
    arms = list(run.manifest.plan.upstream or ())
    one = f"{len(arms)} arms ({', '.join(arms)})" if len(arms) > 1 else f"one arm ({arms[0]})"
    said = f"{kind.about.format(benchmark=result.get('benchmark'))}, {one}. "
    dry = result.get("dry_pass") or {}
    prompts = dry.get("prompt_tokens")
    if prompts:
        takes = f" of the {dry['context']:,} that the server takes" if dry["context"] else ""
        said += f"Prompts of the dry pass: {prompts['least']:,} to {prompts['most']:,} tokens{takes}. "
    return paragraph(said, "soft") + paragraph(f"{power_words(result['power'], kind.unit)}.", "soft")


def _probes(result: Json) -> list[Section]:
    """How often each probe looked, what came of it, and which classes it changed."""
    rows = []
    for arm, told in (result["probes"] or {}).items():
        for probe, outcomes in (told or {}).get("outcomes", {}).items():
            came = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in outcomes.items())
            moved = ", ".join(f"{count} × {escape(each)}" for each, count in told["moved"].items())
            rows.append([escape(arm), probe.upper(), str(told["replies"]), came, moved or "none"])
    if not rows:
        return []
    heads = ["", "probe", "replies", "looks", "classes changed"]
    return [Section("What probes did", table("Looks by what came of them.", heads, rows))]


def _costs(tried: Sequence[Tried], records: Sequence[Json]) -> list[Section]:
    """Means a case, by arm; nothing where no decision log has them."""
    arms: dict[str, list[Json]] = {}
    for each, record in zip(tried, records, strict=True):
        if record.get("queries") is not None:
            arms.setdefault(each.arm, []).append(record)
    names = [name for name in _COSTS if all(name in record for own in arms.values() for record in own)]
    rows = [
        [
            escape(arm),
            *(_mean([record[name] or 0 for record in own]) for name in names),
            str(len(own)),
        ]
        for arm, own in arms.items()
    ]
    if not rows:
        return []
    heads = ["", *(_COSTS[name] for name in names), "cases"]
    return [Section("What it took", table("Means a case, by the decision log.", heads, rows))]


def _mean(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    return f"{mean:,.0f}" if mean >= 1000 else number(mean)


def _provenance(run: RunFolder, result: Json, kind: Kind) -> str:
    plan = run.manifest.plan
    rows = []
    for arm, server in (plan.upstream or {}).items():
        profile = (plan.profile or {}).get(arm)
        digest = f"<small>sha256 {profile['sha256'][:12]}</small>" if profile and profile["sha256"] else ""
        words = kind.applied(result).get(arm)
        applied = "<br>".join(f"{count} × {escape(text)}" for text, count in list((words or {}).items())[:4])
        what = " ".join(str(server[key]) for key in ("kind", "version") if server.get(key))
        rows.append(
            [
                escape(arm),
                f"{escape(server['model'])}<small>{escape(server['url'])}, {escape(what)}</small>",
                f"{escape(profile['name'])}{digest}" if profile else "none",
                applied or "not known",
            ]
        )
    heads = ["", "served", "profile", "applied to replies"]
    session, calls = run.manifest.sessions[-1], len(run.manifest.sessions)
    facts = {
        "Classes by": f"{result['cues']} cues",
        "Begun": f"{run.manifest.sessions[0].started:%Y-%m-%d %H:%M} UTC, in {calls} call{'s' * (calls > 1)}",
        "Versions": ", ".join(f"{name} {version}" for name, version in session.versions.items()),
    }
    listed = "".join(paragraph(f"{name}: {text}.", "soft") for name, text in facts.items())
    return f'<div class="wide">{table("Arms.", heads, rows)}</div>{listed}'
