"""Print the table of docs/faults.md as the faults look now: `python -m tests.faults.table`."""

import asyncio
import tempfile
from dataclasses import astuple
from pathlib import Path

from tests.faults.faults import FAULTS, look


async def main() -> None:
    """One fault after the other, each with a proxy of its own."""
    print("| fault | client | decision log | metrics |\n| --- | --- | --- | --- |")
    for name in FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            seen = await look(name, Path(folder))
        print(f"| {' | '.join((name, *astuple(seen)))} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
