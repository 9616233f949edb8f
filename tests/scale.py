"""What a request costs outside of the proxy: `python -m tests.scale` prints the tables of docs/scale.md.

A real proxy and a real Redis. For each kind of request: commands and bytes of Redis, and the bytes of its
decision record. Then the series and bytes of `/metrics` for each pair of model and profile.
"""

import argparse
import asyncio
import json
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from bench.overhead.traffic import chat_body
from tests.proxy.commands import Serving, serving
from tests.redis_server import Server
from tests.seam import eventually, written
from tests.upstream import CHAT, Reply, Upstream, compact, said
from tests.watching.live import drawn
from tests.wire import ask

PROFILES = (
    {"name": "bias", "entry": {"tokens": [7]}, "bias": {"value": -0.7, "apply": "logit_bias"}},
    {"name": "probes", "sri": True, "cri": True},
)
TOOLS = [tool["function"]["name"] for tool in json.loads(chat_body())["tools"]]
CALL = {"id": "a", "type": "function", "function": {"name": TOOLS[0], "arguments": "{}"}}
CALLS, HALTS = said(None, tool_calls=[CALL]), said("I will look at the order.")


class Kind(NamedTuple):
    """Requests of one kind: the calibration, what the server answers each, whether each begins a case."""

    name: str
    calibration: str | None
    replies: Sequence[Reply]
    new: bool = True


KINDS = (
    Kind("no calibration", None, [CALLS]),
    Kind("bias, margin read", "bias", [drawn(0.8, "Which order do you mean?")]),
    Kind("probes, first request of a case", "probes", [CALLS]),
    Kind("probes, a later request", "probes", [CALLS], new=False),
    Kind("probes, one acts", "probes", [HALTS, CALLS]),
)


class Cost(NamedTuple):
    """Of one request."""

    commands: float
    redis_bytes: float
    record: float
    packed: float


def body(kind: Kind, number: int) -> bytes:
    """A conversation of 9 kB; a case is known by its first user message."""
    document: dict[str, Any] = json.loads(chat_body())
    first = next(m for m in document["messages"] if m["role"] == "user")
    first["content"] += f" ({kind.name} {number if kind.new else 0})"
    return compact(
        document | {"model": "m"} | ({"calibration": kind.calibration} if kind.calibration else {})
    )


def counters(redis: Server) -> Mapping[str, float]:
    """Redis' own account: calls of GET and SET, bytes that came and went."""
    told = redis.say("INFO commandstats").decode() + redis.say("INFO stats").decode()
    calls = re.findall(r"cmdstat_(get|set):calls=(\d+)", told)
    moved = re.findall(r"total_net_(input|output)_bytes:(\d+)", told)
    return Counter({name: int(number) for name, number in (*calls, *moved)})


def records_of(log: Path) -> list[bytes]:
    """The lines that have been written."""
    return log.read_bytes().splitlines(keepends=True) if log.exists() else []


async def measured(kind: Kind, process: Serving, redis: Server, log: Path, count: int) -> Cost:
    """The mean over so many requests, one after the other."""

    async def one(number: int) -> None:
        assert (await ask(process.port, "POST", CHAT, {}, body(kind, number))).status == 200

    if not kind.new:
        await one(0)
        await asyncio.sleep(0.2)  # until its record is written
    known, before = len(records_of(log)), counters(redis)
    for number in range(count):
        await one(number)
    after = counters(redis)
    await eventually(lambda: len(records_of(log)) == known + count)
    records = b"".join(records_of(log)[known:])

    def moved(*names: str) -> float:
        return sum(after[name] - before[name] for name in names) / count

    return Cost(
        moved("get", "set"),
        moved("input", "output"),
        len(records) / count,
        len(zlib.compress(records)) / count,
    )


async def scraped(process: Serving) -> tuple[int, int]:
    """Series and bytes of a scrape."""
    text = (await ask(process.port, "GET", "/metrics")).body
    families = text_string_to_metric_families(text.decode())
    return sum(len(family.samples) for family in families), len(text)


@contextmanager
def running_redis(folder: Path) -> Iterator[Server]:
    """A Redis of our own."""
    redis = Server(folder)
    redis.start()
    try:
        yield redis
    finally:
        redis.stop()


async def costs(folder: Path, count: int) -> tuple[Mapping[str, Cost], Sequence[tuple[int, int]]]:
    """What a request of each kind costs, and a scrape before and after all of them."""
    script = [r for kind in KINDS for _ in range(count + (not kind.new)) for r in kind.replies]
    config = {"models": {"m": {}}, "reading": "top_logprobs"}
    with running_redis(folder) as redis:
        async with (
            Upstream(script, lists=["m"]) as upstream,
            serving(written(folder, upstream.url, {**config, "state": redis.url}, PROFILES)) as process,
        ):
            idle = await scraped(process)
            log = folder / "decisions.jsonl"
            found = {kind.name: await measured(kind, process, redis, log, count) for kind in KINDS}
            return found, [idle, await scraped(process)]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("--requests", type=int, default=500, help="of each kind (default 500)")
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        found, (idle, busy) = asyncio.run(costs(Path(folder), count))
    print(
        "| request | Redis commands | Redis bytes | record, bytes | packed |\n| --- | --- | --- | --- | --- |"
    )
    for name, cost in found.items():
        asked = f"{cost.commands:.1f} | {cost.redis_bytes:.0f}"
        print(f"| {name} | {asked} | {cost.record:.0f} | {cost.packed:.0f} |")
    pairs = len({kind.calibration for kind in KINDS})
    series, size = ((after - before) / pairs for before, after in zip(idle, busy, strict=True))
    print(f"\n/metrics: {idle[0]} series and {idle[1]} bytes when idle; each pair of model and profile")
    print(f"adds {series:.0f} series and {size:.0f} bytes (mean of {pairs})")


if __name__ == "__main__":
    main()
