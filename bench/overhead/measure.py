"""Rounds of interleaved blocks: each round puts every load on every target once, in a drawn order.

All targets run at once and a round is recorded as a whole, so that a figure compares blocks that were
minutes apart at most; what else the machine does meets all targets alike.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from bench.errors import CheckFailed
from bench.overhead.load import Block, Job
from bench.overhead.processes import Server, Usage, asked, cpu_seconds, tree
from bench.overhead.targets import PROBED
from bench.overhead.traffic import MODEL, SLOW_MODEL
from calibrators.flow import Outcome

OPEN_CHUNKS = 16
"""Chunks of a stream that is held open; half a second lies between them."""
# How long answers are waited for once a block's time is over. Opening streams in a slow proxy takes longer.
_PATIENCE_SECONDS, _OPEN_PATIENCE_SECONDS = 15.0, 45.0
# A proxy that was given up goes on working; it is left alone until it is idle, but no longer than this.
_SETTLE_SECONDS, _SETTLE_STEP, _IDLE_SHARE = 30.0, 0.25, 0.1
_WARM_CONNECTIONS = 15


class Kind(StrEnum):
    """What a block asks for."""

    REPLY = "reply"
    """Replies without stream, in a closed loop."""
    STREAM = "stream"
    """Streams in a closed loop."""
    LONG = "long stream"
    """One long stream."""
    OPEN = "open streams"
    """Slow streams, all open at once."""


class Settings(NamedTuple):
    """What is measured and for how long."""

    targets: tuple[str, ...]
    """Names, `direct` among them."""
    rounds: int
    """How often everything is repeated."""
    seconds: float
    """Length of a block of a closed loop."""
    concurrency: tuple[int, ...]
    """Connections of the closed loops."""
    chunks: int
    """Length of the streams in closed loops; 0 measures none."""
    long_stream: int
    """Chunks of the one long stream; 0 measures none."""
    open_streams: int
    """How many streams are opened at once; 0 measures none."""
    interval_ms: float
    """Between the chunks that the upstream sends, but in open streams."""
    limit: int | None
    """At most so many requests a block of a closed loop."""
    seed: int
    """Draws the order of the targets."""


class Load(NamedTuple):
    """One kind of load."""

    kind: Kind
    concurrency: int
    chunks: int | None
    """None: replies without stream."""

    def __str__(self) -> str:
        return f"{self.kind}, concurrency {self.concurrency:,}"


class Measured(NamedTuple):
    """A block and what it measured: one target under one load."""

    target: str
    load: Load
    block: Block
    most_open: int
    """Most streams that the upstream had open at once."""


def loads(settings: Settings, number: int = 0) -> list[Load]:
    """The loads of a round; streams are held open in the first alone, since they take memory, not time."""
    found = [Load(Kind.REPLY, concurrency, None) for concurrency in settings.concurrency]
    if settings.chunks:
        found += [Load(Kind.STREAM, concurrency, settings.chunks) for concurrency in settings.concurrency]
    if settings.long_stream:
        found.append(Load(Kind.LONG, 1, settings.long_stream))
    if settings.open_streams and number == 0:
        found.append(Load(Kind.OPEN, settings.open_streams, OPEN_CHUNKS))
    return found


def given_up(measured: Iterable[Measured]) -> set[tuple[str, Load]]:
    """Targets under loads that they did not get through in time: later rounds don't wait for them again."""
    return {(one.target, one.load) for one in measured if one.block.unfinished or not one.block.requests}


def measure_round(
    number: int,
    settings: Settings,
    servers: Mapping[str, Server],
    advance: Callable[[int, str], None],
    without: Container[tuple[str, Load]] = (),
) -> dict[str, Any]:
    """One round, as the record that `read_round` reads; without some targets under some loads.

    Raises CheckFailed where the upstream itself fails. A proxy that fails under a load is on record with
    what it answered.
    """
    draw = random.Random(f"{settings.seed}/{number}")
    measured = []
    looked = {target: _looks(servers[target]) for target in PROBED if target in servers}
    before, begun = Usage.now(), time.monotonic()
    for load in loads(settings, number):
        for target in draw.sample(sorted(servers), len(servers)):
            if (target, load) in without:
                advance(1, "")
                continue
            advance(0, f"{target}, {load}")
            _most_open(servers["direct"])  # counts anew
            block = _block(load, settings, servers[target])
            if block.failures and target == "direct":
                raise CheckFailed(
                    f"{block.failures} failed answers beside {block.requests} whole ones ({block.failure})",
                    where=f"the canned upstream under {load}",
                    mend="see servers/upstream in the run folder",
                )
            # Streams that an earlier block gave up may still have been closing.
            most = min(_most_open(servers["direct"]), load.concurrency)
            measured.append(
                {"target": target, "load": load._asdict(), "block": block._asdict(), "most_open": most}
            )
            if block.unfinished or block.failures:
                _settle(servers[target])
            advance(1, "")
    elsewhere = Usage.now().elsewhere_since(before) / (time.monotonic() - begun)
    probes = {
        target: {key: count - earlier.get(key, 0) for key, count in _looks(servers[target]).items()}
        for target, earlier in looked.items()
    }
    return {"cpus_elsewhere": elsewhere, "probes": probes, "measured": measured}


def read_round(record: Mapping[str, Any]) -> Iterator[Measured]:
    """The blocks of a recorded round."""
    for entry in record["measured"]:
        load = Load(**entry["load"])
        yield Measured(entry["target"], load, Block(**entry["block"]), entry["most_open"])


def warm_up(settings: Settings, servers: Mapping[str, Server]) -> None:
    """Put short closed loops on every target, so that no round meets a cold one."""
    brief = settings._replace(
        seconds=min(1.0, settings.seconds),
        concurrency=(min(_WARM_CONNECTIONS, *settings.concurrency),),
        long_stream=0,
        open_streams=0,
    )
    for load in loads(brief):
        for server in servers.values():
            _block(load, brief, server)


def _block(load: Load, settings: Settings, server: Server) -> Block:
    opened = load.kind is Kind.OPEN
    job = Job(
        port=server.port,
        concurrency=load.concurrency,
        seconds=settings.seconds,
        # Of streams that are long or held open each is asked for once.
        limit=load.concurrency if load.kind in (Kind.LONG, Kind.OPEN) else settings.limit,
        model=SLOW_MODEL if opened else MODEL,
        chunks=load.chunks,
        pid=server.pid,
        patience=_OPEN_PATIENCE_SECONDS if opened else _PATIENCE_SECONDS,
    )
    done = subprocess.run(
        [sys.executable, "-m", "bench.overhead.load"],
        input=json.dumps(job._asdict()),
        capture_output=True,
        text=True,
        check=True,
    )
    return Block(**json.loads(done.stdout))


def _settle(server: Server) -> None:
    """Wait until a server has nothing more to do."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        before = cpu_seconds(tree(server.pid))
        time.sleep(_SETTLE_STEP)
        if cpu_seconds(tree(server.pid)) - before < _IDLE_SHARE * _SETTLE_STEP:
            return


def _most_open(upstream: Server) -> int:
    most: int = json.loads(asked(upstream.port, "/streams"))["most_open"]
    return most


def _looks(server: Server) -> dict[str, int]:
    """How often each probe has looked at a reply since the server started, by `probe outcome`."""
    families = text_string_to_metric_families(asked(server.port, "/metrics").decode())
    found = next(family for family in families if family.name == "seam_interventions")
    return {
        f"{sample.labels['calibrator']} {sample.labels['outcome']}": int(sample.value)
        for sample in found.samples
        if sample.name == "seam_interventions_total"
        and sample.labels["calibrator"] in ("sri", "cri")
        and sample.labels["outcome"] in list(Outcome)
    }
