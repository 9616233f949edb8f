"""Rounds of interleaved blocks: each round puts every load on every target once, in a drawn order.

All targets run at once and a round is recorded as a whole, so that a figure compares blocks that were
minutes apart at most; what else the machine does meets all targets alike.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench.errors import CheckFailed
from bench.overhead.load import Block, Job
from bench.overhead.processes import Server, Usage


class Settings(NamedTuple):
    """What is measured and for how long."""

    targets: tuple[str, ...]
    """Names, `direct` among them."""
    rounds: int
    """How often everything is repeated."""
    seconds: float
    """Length of a block."""
    concurrency: tuple[int, ...]
    """Connections of the closed loops."""
    chunks: int
    """Length of the measured stream; 0 measures none."""
    interval_ms: float
    """Between the chunks that the upstream sends."""
    limit: int | None
    """At most so many requests a block."""
    seed: int
    """Draws the order of the targets."""


class Load(NamedTuple):
    """One kind of load."""

    concurrency: int
    chunks: int | None
    """None: replies without stream."""


class Measured(NamedTuple):
    """A block and what it measured: one target under one load."""

    target: str
    load: Load
    block: Block


def loads(settings: Settings) -> list[Load]:
    """The loads of a round."""
    closed = [Load(concurrency, None) for concurrency in settings.concurrency]
    return [*closed, Load(1, settings.chunks)] if settings.chunks else closed


def measure_round(
    number: int, settings: Settings, servers: Mapping[str, Server], advance: Callable[[int, str], None]
) -> dict[str, Any]:
    """One round, as the record that `read_round` reads.

    Raises CheckFailed where a target answers with errors, since its figures would mean nothing.
    """
    draw = random.Random(f"{settings.seed}/{number}")
    measured = []
    before, begun = Usage.now(), time.monotonic()
    for load in loads(settings):
        for target in draw.sample(sorted(servers), len(servers)):
            advance(0, f"{target}, {'stream' if load.chunks else f'concurrency {load.concurrency}'}")
            block = _block(target, load, settings, servers[target])
            measured.append({"target": target, "load": load._asdict(), "block": block._asdict()})
            advance(1, "")
    elsewhere = Usage.now().elsewhere_since(before) / (time.monotonic() - begun)
    return {"cpus_elsewhere": elsewhere, "measured": measured}


def read_round(record: Mapping[str, Any]) -> Iterator[Measured]:
    """The blocks of a recorded round."""
    for entry in record["measured"]:
        yield Measured(entry["target"], Load(**entry["load"]), Block(**entry["block"]))


def warm_up(settings: Settings, servers: Mapping[str, Server]) -> None:
    """Put every load on every target briefly, so that no round meets a cold one."""
    brief = settings._replace(seconds=min(1.0, settings.seconds))
    for load in loads(settings):
        short = load._replace(chunks=min(100, load.chunks)) if load.chunks else load
        for target, server in servers.items():
            _block(target, short, brief, server)


def _block(target: str, load: Load, settings: Settings, server: Server) -> Block:
    # One stream is a block: it is as long as its chunks take.
    limit = 1 if load.chunks else settings.limit
    job = Job(server.port, load.concurrency, settings.seconds, limit, load.chunks, server.pid)
    done = subprocess.run(
        [sys.executable, "-m", "bench.overhead.load"],
        input=json.dumps(job._asdict()),
        capture_output=True,
        text=True,
        check=True,
    )
    block = Block(**json.loads(done.stdout))
    if block.failures:
        raise CheckFailed(
            f"{block.failures} failed answers beside {block.requests} whole ones ({block.failure})",
            where=f"{target} at concurrency {load.concurrency}",
            mend="see its server.log in the run folder",
        )
    return block


def of_load(rounds: Sequence[Sequence[Measured]], load: Load) -> list[dict[str, Block]]:
    """The blocks of one load, by target, round by round."""
    return [{m.target: m.block for m in measured if m.load == load} for measured in rounds]
