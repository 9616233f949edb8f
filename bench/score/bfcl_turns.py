"""What BFCL's multi-turn cases are about, turn by turn: facts read from its package."""

from functools import cache
from importlib import resources
from typing import Any

import yaml


def turns_due(category: str, entry: int) -> list[bool]:
    """For each turn of an entry whether its ground truth has a call; empty for an entry BFCL doesn't have."""
    facts = _data("bfcl_turns.yaml")
    if entry >= len(facts["turns"]):
        return []
    due = [place not in facts["empty"].get(entry, ()) for place in range(facts["turns"][entry])]
    gold = gold_turns(category).get(entry)
    if gold is not None:
        due.insert(gold, False)
    return due


@cache
def gold_turns(category: str) -> dict[int, int]:
    """The turn at which the gold class is due, by entry; empty where it is due at every turn."""
    return dict(enumerate(_data("bfcl_gold_turns.yaml").get(category.removeprefix("multi_turn_"), ())))


def held_out(entry: int) -> frozenset[str]:
    """The functions that an entry of miss_func holds back until the turn after its gold turn."""
    every = _data("bfcl_held_out.yaml")
    return frozenset(every[entry]) if entry < len(every) else frozenset()


@cache
def _data(name: str) -> Any:
    return yaml.safe_load(resources.files("bench").joinpath(f"data/{name}").read_text("utf-8"))
