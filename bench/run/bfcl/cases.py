"""Which of BFCL's cases run, in which order, and what the proxy is told of them."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from bench.errors import InputError
from bench.score.bfcl import GOLD
from bench.score.bfcl_turns import turns_due

MULTI_TURN: Final = tuple(GOLD)
SINGLE_TURN: Final = (
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
)
"""BFCL's memory and web search categories need services of their own, and are not run."""
_GROUPS: Final = {"multi_turn": MULTI_TURN, "single_turn": SINGLE_TURN}
_NO_CALL_DUE: Final = ("irrelevance", "live_irrelevance")


def categories(text: str) -> list[str]:
    """The categories that a comma list names; `multi_turn` and `single_turn` name their groups.

    Raises InputError naming the nearest for an unknown one.
    """
    found: list[str] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        known = [*_GROUPS, *MULTI_TURN, *SINGLE_TURN]
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            raise InputError(
                f"no category {name!r}; the nearest is {near!r}",
                where="--categories",
                mend=f"valid: {', '.join(known)}",
            )
        found += _GROUPS.get(name, (name,))
    return list(dict.fromkeys(found))


def planned(
    site: Path, categories: Sequence[str], limit: int | None, ids: Iterable[str]
) -> dict[str, list[str]]:
    """The ids to run by category, in the benchmark's order.

    site: where bfcl-eval is installed; its data files are read, its code is not imported. limit: the first so
    many of each category. ids: only these, whatever the category. Raises InputError for an unknown id.
    """
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return {category: _ids(site, category)[:limit] for category in categories}
    every = {category: _ids(site, category) for category in (*MULTI_TURN, *SINGLE_TURN)}
    known = [id for found in every.values() for id in found]
    for id in wanted:
        if id not in known:
            near = difflib.get_close_matches(id, known, n=1, cutoff=0)[0]
            raise InputError(f"no case {id!r}", where="--ids", mend=f"the nearest is {near!r}")
    chosen = {category: [id for id in found if id in wanted][:limit] for category, found in every.items()}
    return {category: found for category, found in chosen.items() if found}


def _ids(site: Path, category: str) -> list[str]:
    file = site / "bfcl_eval" / "data" / f"BFCL_v4_{category}.json"
    try:
        lines = file.read_text("utf-8").splitlines()
        return [json.loads(line)["id"] for line in lines if line.strip()]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(str(error), where=str(file), mend="bench setup bfcl repairs it") from None


def order(planned: Mapping[str, Sequence[str]]) -> list[str]:
    """The cases as they run: the categories in turns, so that a run that is cut short has whole scenarios."""
    return [id for each in zip_longest(*planned.values()) for id in each if id is not None]


def marks(planned: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """By case what X-Case-Marks says: of the whole case, and of which turns; cases without a mark are absent.

    These tell the proxy what a label says (arXiv:2609.00949's gated variants): they are for the probes that
    ask for a caller's mark, and never reach the model.
    """
    told: dict[str, dict[str, Any]] = {}
    for category, ids in planned.items():
        for id in ids:
            case = ["miss_param"] if category == "multi_turn_miss_param" else []
            empty = _empty_turns(category, id)
            if case or empty:
                told[id] = {"case": case, "empty": empty}
    return told


def _empty_turns(category: str, id: str) -> list[int]:
    """The turns whose ground truth has no call."""
    if category in MULTI_TURN:
        due = turns_due(category, int(id.rpartition("_")[2]))
        return [turn for turn, call in enumerate(due) if not call]
    return [0] if category in _NO_CALL_DUE else []


def scenarios(planned: Mapping[str, Sequence[str]]) -> int:
    """How many independent cases these are: entry N of the multi-turn categories is one scenario."""
    multi = {
        id.rpartition("_")[2] for category in planned if category in MULTI_TURN for id in planned[category]
    }
    single = sum(len(ids) for category, ids in planned.items() if category not in MULTI_TURN)
    return len(multi) + single
