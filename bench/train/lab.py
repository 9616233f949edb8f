"""The lab model's training data as trajectories: every first reply of its trees, in their order.

python -m bench.train.lab [--data .cache/lab/data/train.jsonl] [--out .cache/lab/trajectories.jsonl]
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

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


def main() -> None:
    """Write the file and print how many it has."""
    parser = argparse.ArgumentParser(prog="bench.train.lab", description=main.__doc__)
    parser.add_argument("--data", type=Path, default=Path(".cache/lab/data/train.jsonl"))
    parser.add_argument("--out", type=Path, default=Path(".cache/lab/trajectories.jsonl"))
    options = parser.parse_args()
    if not options.data.exists():
        sys.exit(f"error: no {options.data}; run python -m bench.lab.data first")
    found = list(trajectories(options.data))
    write(options.out, found)
    calls = sum(one.should_call for one in found)
    print(f"{options.out}: {len(found)} conversations, {calls} of them with a call")


if __name__ == "__main__":
    main()
