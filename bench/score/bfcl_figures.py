"""BFCL's multi-turn figures (calibration.md section 2): recall of the gold class against accuracy, loops."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bench.score.audit import labels
from bench.score.bfcl import GOLD, Case, Category, Model
from bench.score.bfcl_turns import gold_turns, turns_due
from bench.score.emissions import Emission, Turn
from bench.score.figures import Counts, Json, agreement, missing, no_agreement, share
from bench.score.loops import loops, of_case
from calibrators.actions import Action

ENTRIES: Final = 200
"""Entries of each category."""
MAX_STEPS: Final = 20
"""BFCL ends a turn, and the case, after so many call steps and one more; [D] stopped at 5: don't compare."""


class Outcome(NamedTuple):
    """What one case comes to; None where that is not known."""

    hit: bool | None
    """The gold class is among its emissions."""
    hit_published: bool | None
    """The same by the published lists."""
    hit_at_gold_turn: bool | None
    """It is among those of the turn at which it is due."""
    passed: bool | None
    """BFCL's verdict."""


def model_figures(
    model: Model, seed: int, limit: int | None, planned: Mapping[str, int] | None = None
) -> tuple[Json, list[Json]]:
    """A model's figures, and a record of each of its cases.

    planned: how many cases of each category were meant to run; by default all of them, or those below limit.
    """
    planned = planned or dict.fromkeys(GOLD, min(ENTRIES, limit or ENTRIES))
    categories, records = [], []
    for name in GOLD:
        if name in model.categories:
            figures, cases = _category(model.categories[name], planned[name], seed)
            categories.append(figures)
            records += [{"model": model.label, "category": name, **case} for case in cases]
    live = [
        (name, case, case.turns)
        for name, category in model.categories.items()
        for case in category.cases.values()
        if case.turns is not None
    ]
    # Entry N of all four categories is one scenario.
    pooled = _loops([(name, case.entry, turns) for name, case, turns in live], seed)
    return {
        "model": model.label,
        "folder": str(model.folder),
        "categories": categories,
        "all_categories": {"loops": pooled},
    }, records


def _category(category: Category, planned: int, seed: int) -> tuple[Json, list[Json]]:
    cases = list(category.cases.values())
    live = [case for case in cases if case.turns is not None]
    verdicts, unknown = _verdicts(category)
    outcomes = {case.id: _outcome(case, category.name, verdicts.get(case.id)) for case in live}
    scored = {id: outcome.hit for id, outcome in outcomes.items() if outcome.hit is not None}
    counts = Counts(planned, len(cases), len(scored), len(cases) - len(live), len(live) - len(scored))
    figures: Json = {
        "category": category.name,
        "gold_class": GOLD[category.name],
        "files": [str(file) for file in category.files],
        "counts": counts._asdict(),
        "partial": len(cases) < planned,
        "text_recorded": category.text_recorded,
        "texts_recovered": category.recovered,
        "duplicates": category.duplicates,
        "cut_lines": category.cut,
        "errors": dict(Counter(case.error for case in cases if case.error)),
        **_recall(category, live, outcomes, counts, seed),
        **_gold_turn(category, live, outcomes, seed),
        **_accuracy(category, seed),
        **_agreement(scored, outcomes, unknown, seed),
        "hit_ids": [id for id, hit in scored.items() if hit],
        "class_mix": _mix(live),
        "loops": _loops([(category.name, case.entry, case.turns or ()) for case in live], seed),
        "emissions": {case.id: _classes(case) for case in live},
    }
    return figures, [_record(case, category.name, outcomes.get(case.id)) for case in cases]


def _outcome(case: Case, category: str, passed: bool | None) -> Outcome:
    turns = case.turns or ()
    gold = GOLD[category]
    emissions = [emission for turn in turns for emission in turn]
    due = gold_turns(category).get(case.entry)
    at_due = None
    if due is not None:
        # A case that ended before the turn did not emit the class there.
        at_due = _emits(turns[due] if due < len(turns) else (), gold)
    hit, published = _emits(emissions, gold), _emits(emissions, gold, published=True)
    return Outcome(hit, published, at_due, passed)


def _emits(emissions: Sequence[Emission], gold: Action, *, published: bool = False) -> bool | None:
    """Whether the class is among them; None where a text is lost that may have been of it.

    A hit beside a lost text is None as well: were it counted, and the misses beside one not, the rate would
    be too high.
    """
    if gold is not Action.TOOL_CALL and any(emission.lost for emission in emissions):
        return None
    return any(gold in (emission.published if published else emission.actions) for emission in emissions)


def _recall(
    category: Category, live: Sequence[Case], outcomes: Mapping[str, Outcome], counts: Counts, seed: int
) -> Json:
    """GAR over the cases that ran, and where it differs the published reading.

    That classifies by the published lists and counts errored rows as misses.
    """
    scored = {id: outcome for id, outcome in outcomes.items() if outcome.hit is not None}
    entries = [category.cases[id].entry for id in scored]
    hits = [bool(outcome.hit) for outcome in scored.values()]
    figures = share("gar", hits, entries, seed, _why_unscored(category, live))
    gone = [case.entry for case in category.cases.values() if case.turns is None]
    published = [*(bool(outcome.hit_published) for outcome in scored.values()), *(False for _ in gone)]
    if counts.unmeasurable or (sum(hits), len(hits)) == (sum(published), len(published)):
        return figures
    return {**figures, **share("gar_published", published, [*entries, *gone], seed)}


def _why_unscored(category: Category, live: Sequence[Case]) -> str:
    if not category.cases:
        return "no result file"
    if not live:
        return "every case ended in an error"
    gold = GOLD[category.name].upper()
    return f"text replies are recorded as [] and their text is lost, so {gold} cannot be seen"


def _gold_turn(category: Category, live: Sequence[Case], outcomes: Mapping[str, Outcome], seed: int) -> Json:
    """GAR@gold-turn, the strict reading, with the counts of its own."""
    if not gold_turns(category.name):
        return missing("gar_at_gold_turn", f"{GOLD[category.name].upper()} is due at every turn here")
    found = {case.entry: outcomes[case.id].hit_at_gold_turn for case in live}
    known = {entry: hit for entry, hit in found.items() if hit is not None}
    figures = share(
        "gar_at_gold_turn", list(known.values()), list(known), seed, _why_unscored(category, live)
    )
    return {**figures, "gar_at_gold_turn_unmeasurable": len(found) - len(known)}


def _accuracy(category: Category, seed: int) -> Json:
    """Acc as BFCL printed it: errored cases count as failed there."""
    score = category.score
    if score is None:
        return missing("acc", "no score file: bfcl evaluate writes it, --scores says where it is")
    outcomes = [True] * score.correct + [False] * (score.total - score.correct)
    return {**share("acc", outcomes, range(score.total), seed), "score_file": str(score.path)}


def _verdicts(category: Category) -> tuple[dict[str, bool], str]:
    """Each case's verdict; empty where the score file does not settle it, with the reason.

    The file names the failed cases only, so the others passed if it graded these very cases.
    """
    score = category.score
    if score is None:
        return {}, "no score file"
    if not category.cases:
        return {}, "no result file"
    if len(score.failed) != score.total - score.correct:
        return {}, f"the score file names {len(score.failed)} of {score.total - score.correct} failed cases"
    if score.total != len(category.ids) or not score.failed <= category.ids:
        return {}, f"the score file graded {score.total} cases, the results hold {len(category.ids)}"
    return {id: id not in score.failed for id in category.cases}, ""


def _agreement(scored: Mapping[str, bool], outcomes: Mapping[str, Outcome], unknown: str, seed: int) -> Json:
    if unknown:
        return no_agreement(unknown)
    if not scored:
        return no_agreement("the gold class cannot be seen")
    return agreement([(hit, bool(outcomes[id].passed)) for id, hit in scored.items()], list(scored), seed)


def _mix(cases: Sequence[Case]) -> Json:
    """How many emissions of each class; `none` are empty, `lost` have a class that nobody knows."""
    counts = dict.fromkeys([*Action, "none", "lost"], 0)
    for case in cases:
        for emission in _emissions(case):
            counts["lost" if emission.lost else next(iter(emission.actions), "none")] += 1
    return {str(name): count for name, count in counts.items()}


def _emissions(case: Case) -> list[Emission]:
    return [emission for turn in case.turns or () for emission in turn]


def _loops(cases: Sequence[tuple[str, int, Sequence[Turn]]], seed: int) -> Json:
    """Loop diagnostics of (category, entry, turns), by scenario, with what BFCL's own turns say."""
    turns = [each for _, _, each in cases]
    scenarios = [entry for _, entry, _ in cases]
    required, empty, ended = [], [], []
    unreached = 0
    for category, entry, ran in cases:
        due = turns_due(category, entry)
        called = [any(call.executable for emission in turn for call in emission.calls) for turn in ran]
        reached = list(zip(called, due, strict=False))
        required.append((sum(call for call, must in reached if must), sum(must for _, must in reached)))
        empty.append(
            (sum(not call for call, must in reached if not must), sum(not must for _, must in reached))
        )
        ended.append((sum(_capped(turn) for turn in ran), len(ran)))
        unreached += max(0, len(due) - len(ran))
    return {
        **loops(
            turns,
            scenarios,
            seed,
            required_turn_coverage=required,
            empty_turn_no_call=empty,
            max_step_hits=ended,
        ),
        "max_steps": MAX_STEPS,
        "unreached_turns": unreached,
        **missing("dialogue_exact_success", "result files do not hold the executions"),
    }


def _capped(turn: Turn) -> bool:
    return len(turn) > MAX_STEPS and bool(turn[-1].calls)


def _classes(case: Case) -> list[list[str | None]]:
    """The class of each emission by turn; null for an empty one."""
    return [
        ["lost" if emission.lost else next(iter(emission.actions), None) for emission in turn]
        for turn in case.turns or ()
    ]


def _record(case: Case, category: str, outcome: Outcome | None) -> Json:
    if outcome is None:
        return {"id": case.id, "error": case.error}
    turns = case.turns or ()
    return {
        "id": case.id,
        "emissions": _classes(case),
        "loops": of_case(turns),
        **outcome._asdict(),
        "audit": labels(turns, category, case.entry, passed=outcome.passed),
    }
