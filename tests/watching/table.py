"""`python -m tests.watching.table [--workers N]`: each query of deploy/ with what Prometheus returned for it.

Starts Prometheus and a proxy, sends mixed traffic (tests/watching/live.py), and prints one block a query:
where it stands, the query, and the newest number of each of its series. Exit code 1 where one has no data.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.watching.live import Answered, evaluated

SHOWN = 6
"""Series that are printed of one query."""


def block(answered: Answered) -> str:
    """One query and its numbers."""
    listed = [f"    {value:>12.6g}  {labels}" for labels, value in answered.values.items()]
    more = [f"    … {len(listed) - SHOWN} more"] if len(listed) > SHOWN else []
    query = " ".join(answered.query.expr.split())
    return "\n".join([answered.query.where, f"  {query}", *(listed[:SHOWN] or ["    no data"]), *more])


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.watching.table")
    parser.add_argument("--workers", type=int, default=1, help="processes of the proxy (default 1)")
    workers = parser.parse_args().workers
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(evaluated(Path(folder), workers))
    for answered in found:
        print(block(answered))
    empty = [answered.query.where for answered in found if not answered.values]
    print(f"\n{len(found)} queries, {len(found) - len(empty)} with data", *empty, sep="\n")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
