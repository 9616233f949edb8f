"""Loop diagnostics of arXiv:2607.07050 (calibration.md section 2): what a model does inside a turn.

Every figure is a ratio of sums over cases, so one bootstrap by cluster serves the whole table.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from bench.intervals import cluster_ratios
from bench.score.emissions import Call, Emission, Offered, Turn, violates

LOOPS: Final = (2, 3, 5, 10)
"""The k of Loop@k."""

LOOPED: Final = ("calls_per_turn", "loop_at_3")
"""What `of_case` has."""

NOTHING: Final = "nothing of the kind was run"
"""The reason of a figure whose denominator is 0."""

Pair = tuple[int, int]
Case = Sequence[Turn]
Counter = Callable[[Case], Pair]


def loops(
    cases: Sequence[Case], clusters: Sequence[Hashable], seed: int, **own: Sequence[Pair]
) -> dict[str, Any]:
    """The diagnostics of some cases, each `{hits, of, ..}` with its interval, or null beside its reason.

    clusters: the sampling unit of each case. own: further ratios of the benchmark's, as (hits, of) of each
    case. A turn counts where it ran, also one without an emission; a *call step* is an emission that calls.
    """
    counters: dict[str, Counter] = {
        "calls_per_turn": _calls_per_turn,
        **{f"loop_at_{k}": _loop_at(k) for k in LOOPS},
        "repeated_calls": _repeated,
        "non_tool_final": _non_tool_final,
        "unparsable_calls": _unparsable,
        "unknown_names": _unknown_names,
        "schema_violations": _schema_violations,
        "invalid_calls": _invalid,
    }
    emissions = [emission for case in cases for turn in case for emission in turn]
    missing = _unmeasurable(emissions)
    counts = {
        name: [counter(case) for case in cases] for name, counter in counters.items() if name not in missing
    }
    figures = _ratios({**counts, **own}, clusters, seed)
    for name, reason in missing.items():
        figures |= {name: None, f"{name}_reason": reason}
    return figures


def of_case(case: Case) -> dict[str, float | None]:
    """The diagnostics that comparisons pair, of one case by itself: null where no turn ran."""
    counted = zip(LOOPED, (_calls_per_turn(case), _loop_at(3)(case)), strict=True)
    return {name: hits / of if of else None for name, (hits, of) in counted}


def _ratios(counts: Mapping[str, Sequence[Pair]], clusters: Sequence[Hashable], seed: int) -> dict[str, Any]:
    """Figures from each case's (hits, of), with their intervals by cluster; null where nothing carries it."""
    pairs = {name: ([hits for hits, _ in each], [of for _, of in each]) for name, each in counts.items()}
    estimates = cluster_ratios(pairs, clusters, means={"calls_per_turn"}, seed=seed)
    figures: dict[str, Any] = {}
    for name, (hits, of) in pairs.items():
        if sum(of):
            figures[name] = {"hits": sum(hits), "of": sum(of), **estimates[name]._asdict()}
        else:
            figures |= {name: None, f"{name}_reason": NOTHING}
    return figures


def _unmeasurable(emissions: Sequence[Emission]) -> dict[str, str]:
    """The figures that the files do not carry, with the reason."""
    missing = {}
    if any(emission.lost for emission in emissions):
        missing["non_tool_final"] = "the files do not hold the text replies"
    calling = [emission for emission in emissions if emission.calls]
    if calling and all(emission.offered is None for emission in calling):
        reason = "the files do not say which tools were offered"
        missing |= dict.fromkeys(("unknown_names", "schema_violations", "invalid_calls"), reason)
    return missing


def _calls_per_turn(case: Case) -> Pair:
    return sum(len(emission.calls) for turn in case for emission in turn), len(case)


def _loop_at(k: int) -> Counter:
    def count(case: Case) -> Pair:
        return sum(sum(bool(emission.calls) for emission in turn) >= k for turn in case), len(case)

    return count


def _repeated(case: Case) -> Pair:
    """Calls with the name and arguments of an earlier call of the same turn, over all executable calls."""
    repeats = calls = 0
    for turn in case:
        seen: list[Call] = []
        for emission in turn:
            for call in emission.calls:
                if call.executable:
                    repeats += call in seen
                    seen.append(call)
        calls += len(seen)
    return repeats, calls


def _non_tool_final(case: Case) -> Pair:
    """Turns that end in a text reply, over turns with an emission."""
    finals = [turn[-1] for turn in case if turn]
    return sum(final.text for final in finals), len(finals)


def _unparsable(case: Case) -> Pair:
    calls = _calls(case)
    return sum(not call.executable for call, _ in calls), len(calls)


def _unknown_names(case: Case) -> Pair:
    """Calls of a name that was not offered, over those of which both are known."""
    known = [(call.name, offered) for call, offered in _calls(case) if offered is not None and call.name]
    return sum(name not in offered for name, offered in known), len(known)


def _schema_violations(case: Case) -> Pair:
    """Executable calls that break the top level of their tool's schema, over those whose schema is known."""
    verdicts = [breaks for call, offered in _calls(case) if (breaks := _breaks(call, offered)) is not None]
    return sum(verdicts), len(verdicts)


def _invalid(case: Case) -> Pair:
    """Calls that are any of the three, over the calls whose offered tools are known."""
    known = [(call, offered) for call, offered in _calls(case) if offered is not None]
    return sum(
        not call.executable or call.name not in offered or bool(_breaks(call, offered))
        for call, offered in known
    ), len(known)


def _breaks(call: Call, offered: Offered | None) -> bool | None:
    """Whether a call breaks its tool's schema; None where that can't be told."""
    if offered is None or call.name is None or call.arguments is None:
        return None
    schema = offered.get(call.name)
    return None if schema is None else violates(schema, call.arguments)


def _calls(case: Case) -> list[tuple[Call, Offered | None]]:
    return [(call, emission.offered) for turn in case for emission in turn for call in emission.calls]
