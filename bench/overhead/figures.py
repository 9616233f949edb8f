"""From rounds to figures: ratios and differences are taken within a round, then summed up over rounds."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from bench.overhead.load import Block
from bench.overhead.measure import Load, Measured, Settings, loads, of_load

# A load generator this busy is what limits the fastest targets.
_BUSY = 0.85
# So many CPUs taken by other work show in the figures.
_DISTURBED = 0.2


class Spread(NamedTuple):
    """A figure over rounds."""

    median: float
    low: float
    """Of the lowest round."""
    high: float
    """Of the highest round."""
    rounds: int


class Loop(NamedTuple):
    """One target under a closed loop without stream."""

    target: str
    concurrency: int
    requests_per_second: Spread
    p50_ms: Spread
    p99_ms: Spread
    added_p50_ms: Spread
    """Median latency minus that of direct."""
    added_p99_ms: Spread
    """99th percentile minus that of direct."""
    cpu_us: Spread
    """CPU microseconds of the target's processes per request; for direct, of the upstream's."""
    speed: dict[str, Spread]
    """Requests per second as a multiple of each other target's."""
    cpu: dict[str, Spread]
    """CPU per request as a multiple of each other target's."""
    client_busy: float
    """The load generator's busiest round."""


class Stream(NamedTuple):
    """One target under a long stream."""

    target: str
    cpu_us_per_chunk: Spread
    """CPU microseconds of the target's processes; for direct, of the upstream's."""
    cpu: dict[str, Spread]
    """CPU per chunk as a multiple of each other target's."""
    added_ms: Spread
    """Time to the end of the stream, minus that of direct."""
    chunks_per_read: Spread
    """How many chunks the client got at a time: 1 where none waited for another."""


class Bar(NamedTuple):
    """What the proxy is held to."""

    bar: str
    """In words."""
    limit: float
    at_most: bool
    """Whether `limit` is an upper one."""
    value: float | None
    """Median measured; None where the run did not measure it."""
    met: bool | None


def loops(rounds: Sequence[Sequence[Measured]], settings: Settings) -> list[Loop]:
    """The figures of all closed loops."""
    return [
        _loop(target, load.concurrency, blocks)
        for load in loads(settings)
        if load.chunks is None
        for blocks in (of_load(rounds, load),)
        for target in settings.targets
        if all(target in by_target for by_target in blocks)
    ]


def streams(rounds: Sequence[Sequence[Measured]], settings: Settings) -> list[Stream]:
    """The figures of the streams; none where the run measured none."""
    if not settings.chunks:
        return []
    blocks = of_load(rounds, Load(1, settings.chunks))
    return [
        Stream(
            target,
            _spread(_cpu(b[target]) / settings.chunks for b in blocks),
            _ratios(target, blocks, _cpu),
            _spread(b[target].p50_ms - b["direct"].p50_ms for b in blocks),
            _spread(b[target].chunks / b[target].reads for b in blocks),
        )
        for target in settings.targets
        if all(target in by_target for by_target in blocks)
    ]


def bars(loop: Sequence[Loop], stream: Sequence[Stream]) -> list[Bar]:
    """Seam against the bars it is held to, as far as the run measured them."""
    at = {(one.target, one.concurrency): one for one in loop}
    eight, alone = at.get(("seam", 8)), at.get(("seam", 1))
    chunk = next((s.cpu_us_per_chunk for s in stream if s.target == "seam"), None)
    return [
        _bar("requests/s at concurrency 8, times LiteLLM's", 10, False, eight and eight.speed.get("litellm")),
        _bar("requests/s at concurrency 8, times the bare forwarder's", 0.9, False,
             eight and eight.speed.get("bare")),
        _bar("added median latency at concurrency 1, ms", 1, True, alone and alone.added_p50_ms),
        _bar("CPU per chunk of a stream, microseconds", 60, True, chunk),
    ]  # fmt: skip


def warnings(loop: Sequence[Loop], stream: Sequence[Stream], elsewhere: Sequence[float]) -> list[str]:
    """What limits the figures, in words.

    elsewhere: CPUs that other work on the machine took, by round.
    """
    found = []
    if max(elsewhere) > _DISTURBED:
        found.append(
            f"other work took up to {max(elsewhere):.1f} CPUs meanwhile: ratios hold better than times, "
            "and neither well; repeat on an idle machine"
        )
    found += [
        f"{one.target} at concurrency {one.concurrency}: the load generator was {one.client_busy:.0%} busy, "
        "so the target may be faster than measured"
        for one in loop
        if one.client_busy > _BUSY
    ]
    found += [
        f"{one.target}: {one.chunks_per_read.median:.1f} chunks came at a time, so a chunk that comes "
        "alone costs more than measured; raise --interval-ms"
        for one in stream
        if one.chunks_per_read.median > 1.5
    ]
    return found


def as_json(value: Any) -> Any:
    """Named tuples as objects, all the way down."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: as_json(item) for name, item in value._asdict().items()}
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def _loop(target: str, concurrency: int, rounds: Sequence[dict[str, Block]]) -> Loop:
    def over(figure: Callable[[Block], float]) -> Spread:
        return _spread(figure(blocks[target]) for blocks in rounds)

    def above_direct(figure: Callable[[Block], float]) -> Spread:
        return _spread(figure(blocks[target]) - figure(blocks["direct"]) for blocks in rounds)

    return Loop(
        target,
        concurrency,
        over(_speed),
        over(lambda block: block.p50_ms),
        over(lambda block: block.p99_ms),
        above_direct(lambda block: block.p50_ms),
        above_direct(lambda block: block.p99_ms),
        over(_cpu),
        _ratios(target, rounds, _speed),
        _ratios(target, rounds, _cpu),
        max(blocks[target].client_busy for blocks in rounds),
    )


def _ratios(
    target: str, rounds: Sequence[dict[str, Block]], figure: Callable[[Block], float]
) -> dict[str, Spread]:
    """A figure as a multiple of each other target's in the same round."""
    return {
        other: _spread(figure(blocks[target]) / figure(blocks[other]) for blocks in rounds)
        for other in rounds[0]
        if other != target
    }


def _speed(block: Block) -> float:
    return block.requests / block.seconds


def _cpu(block: Block) -> float:
    return block.cpu_us


def _spread(values: Iterable[float]) -> Spread:
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found), len(found))


def _bar(words: str, limit: float, at_most: bool, measured: Spread | None) -> Bar:
    if measured is None:
        return Bar(words, limit, at_most, None, None)
    met = measured.median <= limit if at_most else measured.median >= limit
    return Bar(words, limit, at_most, measured.median, met)
