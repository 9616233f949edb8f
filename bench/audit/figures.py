"""Figures of an audit: coverage@K, retained mass and entry rank by side, replays, and the verdict."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from bench.intervals import Estimate, cluster_ratios, rate

Json = dict[str, Any]
Record = Mapping[str, Any]

TOPS: Final = (32, 64, 128, 256)
"""K at which a support is audited unless others are asked for."""
SIDES: Final = {"response": "response prompts", "tool": "tool prompts"}
"""Prompts where no call is due, and where one is."""
_CURVE_POINTS = 200


def side_of(should_call: bool) -> str:
    """Which side a prompt is on."""
    return "tool" if should_call else "response"


def figures(records: Sequence[Record], tops: Sequence[int], seed: int) -> Json:
    """All figures by side, and the verdict in one line."""
    sides = {}
    for name in SIDES:
        own = [record for record in records if record["side"] == name]
        sides[name] = _side(own, tops, seed) if own else None
    return {"tops": list(tops), "sides": sides, "verdict": verdict(sides, tops[0])}


def _side(records: Sequence[Record], tops: Sequence[int], seed: int) -> Json:
    scored = [record for record in records if "mass" in record]
    groups = [record["group"] for record in scored]
    found: Json = {
        "counts": {
            "run": len(records),
            "scored": len(scored),
            "errored": sum("errored" in record for record in records),
            "unmeasurable": sum("unmeasurable" in record for record in records),
        },
        "coverage": {str(top): _coverage(scored, top, seed)._asdict() for top in tops},
        "mass": {str(top): _mass(scored, str(top), seed)._asdict() for top in tops},
        "rank": _ranks(scored),
        "probability": _probabilities(scored),
        "curve": _curve(scored),
        "replay": _replay([record for record in scored if record.get("replay")], seed),
    }
    if any("absent" in record for record in scored):
        tokens = sorted({token for record in scored for token in record["absent"]})
        found["absent"] = {
            str(token): rate([token in record["absent"] for record in scored], groups, seed=seed)._asdict()
            for token in tokens
        }
    return found


def _coverage(records: Sequence[Record], top: int, seed: int) -> Estimate:
    """The share of prompts whose K likeliest tokens hold an entry token."""
    # Without the prompts whose short support misses the entry, only those would be left that hold it.
    shortest = min((r["beyond"] for r in records if r["rank"] is None), default=top)
    if shortest < top:
        return Estimate(None, None, None, None, 0, 0, f"supports of {shortest} tokens don't show it")
    hits = [r["rank"] is not None and r["rank"] <= top for r in records]
    return rate(hits, [r["group"] for r in records], seed=seed)


def _mass(records: Sequence[Record], top: str, seed: int) -> Estimate:
    known = [r for r in records if r["mass"].get(top) is not None]
    if records and not known:
        return Estimate(None, None, None, None, 0, 0, f"no {top} log-probabilities are shown")
    return _mean([r["mass"][top] for r in known], [r["group"] for r in known], seed)


def _mean(values: Sequence[float], groups: Sequence[str], seed: int) -> Estimate:
    pairs = {"": (values, np.ones(len(values)))}
    return cluster_ratios(pairs, groups, means=("",), seed=seed)[""]


def _ranks(records: Sequence[Record]) -> Json:
    """Median and range of the entry's rank; null where it is only known to be beyond what was kept."""
    ranks = sorted(r["rank"] if r["rank"] is not None else np.inf for r in records)
    if not ranks:
        return {"median": None, "low": None, "high": None, "beyond": 0}
    # The lower one of two in the middle, so that a rank beyond the list is never averaged.
    median, low, high = ranks[(len(ranks) - 1) // 2], ranks[0], ranks[-1]
    shown = {"median": median, "low": low, "high": high}
    return {
        **{name: int(value) if np.isfinite(value) else None for name, value in shown.items()},
        "beyond": sum(r["rank"] is None for r in records),
    }


def _probabilities(records: Sequence[Record]) -> Json:
    """Median and range of P(E), where it is known."""
    known = np.exp([r["log_p"] for r in records if r.get("log_p") is not None])
    if not len(known):
        return {"median": None, "low": None, "high": None, "n": 0}
    low, median, high = (float(value) for value in np.quantile(known, (0, 0.5, 1)))
    return {"median": median, "low": low, "high": high, "n": len(known)}


def _curve(records: Sequence[Record]) -> Json:
    """Coverage over K: the ranks at which it steps, the share covered there, and how far it is known.

    `known` is null where it is known for every K.
    """
    ranks = sorted(r["rank"] for r in records if r["rank"] is not None)
    steps = sorted(set(ranks))
    if len(steps) > _CURVE_POINTS:
        chosen = np.linspace(0, len(steps) - 1, _CURVE_POINTS).round().astype(int)
        steps = [steps[i] for i in chosen]
    shares = np.searchsorted(ranks, steps, side="right") / max(1, len(records))
    known = min((r["beyond"] for r in records if r["rank"] is None), default=None)
    return {"rank": steps, "share": shares.tolist(), "known": known}


def _replay(records: Sequence[Record], seed: int) -> Json | None:
    """Mean divergence a position of forced and of masked replies, and the ratio of the two.

    Prompts where either reply ended at once have nothing to compare and are counted apart.
    """
    if not records:
        return None
    both = [r for r in records if r["replay"]["forced"] and r["replay"]["masked"]]
    if not both:
        return {"prompts": 0, "ended_at_once": len(records)}
    groups = [r["group"] for r in both]
    means = {path: [float(np.mean(r["replay"][path])) for r in both] for path in ("forced", "masked")}
    pairs: dict[str, tuple[Any, Any]] = {
        **{path: (values, np.ones(len(both))) for path, values in means.items()},
        "ratio": (means["forced"], means["masked"]),
    }
    found = cluster_ratios(pairs, groups, means=pairs, seed=seed)
    return {
        "prompts": len(both),
        "ended_at_once": len(records) - len(both),
        **{name: estimate._asdict() for name, estimate in found.items()},
        "positions": {path: _by_position([r["replay"][path] for r in both]) for path in means},
    }


def _by_position(replies: Sequence[Sequence[float]]) -> list[float]:
    longest = max(map(len, replies))
    return [float(np.mean([reply[i] for reply in replies if len(reply) > i])) for i in range(longest)]


def verdict(sides: Mapping[str, Json | None], top: int) -> str:
    """Whether supports of the response side leave the entry out, in one line with the number of prompts."""
    told = []
    for name, words in SIDES.items():
        side = sides[name]
        found = side["coverage"][str(top)] if side else None
        if not found or found["estimate"] is None:
            told.append(f"{words}: {found['reason'] if found else 'none'}")
            continue
        assert side is not None
        missed = 1 - found["estimate"]
        limits = (
            "" if found["low"] is None else f", {_percent(1 - found['high'])}–{_percent(1 - found['low'])}"
        )
        rank = side["rank"]["median"]
        middle = f"median rank {rank:,}" if rank else "median rank beyond the list"
        told.append(
            f"{words}: the top {top} miss the entry token in {_percent(missed)} % "
            f"(n = {found['n']:,}{limits}; {middle})"
        )
    return f"{_head(sides['response'], top)}. {'; '.join(told)}."


def _head(side: Json | None, top: int) -> str:
    found = side["coverage"][str(top)] if side else None
    if not found or found["estimate"] is None:
        return "No verdict on response prompts"
    if found["estimate"] <= 0.05:
        return "Support omission: these supports teach no restraint at the decision"
    if found["estimate"] >= 0.95:
        return "No support omission"
    return "Partial support omission"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
