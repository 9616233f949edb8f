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
    """Redis' own account of what it did."""
    return {
        name: float(value)
        for name, value in re.findall(r"(\w+):([\d.]+)\r", redis.say("INFO stats").decode())
    }


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
        moved("total_commands_processed") - 1 / count,  # to ask for the counters is a command too
        moved("total_net_input_bytes", "total_net_output_bytes"),
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


async def main(count: int) -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as name, running_redis(Path(name)) as redis:
        folder = Path(name)
        script = [
            reply for kind in KINDS for reply in [*([] if kind.new else kind.replies), *kind.replies * count]
        ]
        config = {"state": redis.url, "models": {"m": {}}, "reading": "top_logprobs"}
        async with (
            Upstream(script, lists=["m"]) as upstream,
            serving(written(folder, upstream.url, config, PROFILES)) as process,
        ):
            idle = await scraped(process)
            print("| request | Redis commands | Redis bytes | record, bytes | packed |")
            print("| --- | --- | --- | --- | --- |")
            for kind in KINDS:
                cost = await measured(kind, process, redis, folder / "decisions.jsonl", count)
                shown = f"{cost.commands:.1f} | {cost.redis_bytes:.0f}"
                print(f"| {kind.name} | {shown} | {cost.record:.0f} | {cost.packed:.0f} |")
            busy = await scraped(process)
            pairs = len({kind.calibration for kind in KINDS})
            more = [(b - i) / pairs for b, i in zip(busy, idle, strict=True)]
            print(
                f"\n/metrics: {idle[0]} series and {idle[1]} bytes when idle; each pair of model and profile"
            )
            print(f"adds {more[0]:.0f} series and {more[1]:.0f} bytes (mean of {pairs})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("--requests", type=int, default=500, help="of each kind (default 500)")
    asyncio.run(main(parser.parse_args().requests))
