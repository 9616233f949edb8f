"""The lab model's training data as trajectories: first replies of its trees, half of them calls.

python -m bench.train.lab [--data .cache/lab/data/train.jsonl] [--out .cache/lab/trajectories.jsonl]
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench.train.trajectories import Trajectory, write


def trajectories(data: Path) -> Iterator[Trajectory]:
    """One for each branch whose reply is whole; those that are cut teach no end."""
    for line in data.read_text("utf-8").splitlines():
        tree = json.loads(line)
        for branch in tree["branches"]:
            messages = branch["messages"]
            reply = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), None)
            if reply is not None and branch["whole"]:
                yield Trajectory(messages=messages[: reply + 1], tools=tree["tools"])


def balanced(found: list[Trajectory]) -> list[Trajectory]:
    """As many prompts of each side as the smaller one has, those kept in their order.

    Which are left out is drawn, and the same each time.
    """
    sides = [[one for one in found if one.should_call is call] for call in (True, False)]
    count = min(map(len, sides))
    kept = {id(one) for side in sides for one in Random("balance").sample(side, count)}
    return [one for one in found if id(one) in kept]


def main() -> None:
    """Write the file and print how many it has."""
    parser = argparse.ArgumentParser(prog="bench.train.lab", description=main.__doc__)
    parser.add_argument("--data", type=Path, default=Path(".cache/lab/data/train.jsonl"))
    parser.add_argument("--out", type=Path, default=Path(".cache/lab/trajectories.jsonl"))
    options = parser.parse_args()
    if not options.data.exists():
        sys.exit(f"error: no {options.data}; run python -m bench.lab.data first")
    found = balanced(list(trajectories(options.data)))
    write(options.out, found)
    calls = sum(one.should_call for one in found)
    print(f"{options.out}: {len(found)} conversations, {calls} of them with a call")


if __name__ == "__main__":
    main()
