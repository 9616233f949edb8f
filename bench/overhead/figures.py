"""From rounds to figures: ratios and differences are taken within a round, then summed up over rounds."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.overhead.load import Block
from bench.overhead.measure import Kind, Load, Measured, Settings, loads
from bench.overhead.targets import SEAMS
from calibrators.flow import Outcome

# A load generator this busy is what limits the fastest targets.
_BUSY = 0.85
# So many CPUs taken by other work show in the figures.
_DISTURBED = 0.2
_BAR_CONCURRENCY, _BAR_STREAMS = 15, 1000
_IDLE = (Outcome.PASSED, Outcome.GATED)

Rounds = Sequence[Mapping[Load, Mapping[str, Measured]]]
"""What each round measured, by load and target."""


class Spread(NamedTuple):
    """A figure over rounds."""

    median: float
    low: float
    """Of the lowest round."""
    high: float
    """Of the highest round."""
    rounds: int


class Loop(NamedTuple):
    """One target under a closed loop."""

    target: str
    kind: Kind
    """Replies or streams."""
    concurrency: int
    requests_per_second: Spread
    p50_ms: Spread
    """Median time to the whole answer."""
    p99_ms: Spread
    """Its 99th percentile."""
    added_p50_ms: Spread
    """Median latency minus that of direct."""
    added_p99_ms: Spread
    """99th percentile minus that of direct."""
    added_first_ms: Spread | None
    """Median time to a stream's first content, minus that of direct."""
    p99_above_ms: dict[str, Spread]
    """99th percentile minus that of each other target."""
    cpu_us: Spread
    """CPU microseconds of the target's processes per request; for direct, of the upstream's."""
    peak_mb: Spread
    """The most that they had resident, in MB."""
    speed: dict[str, Spread]
    """Requests per second as a multiple of each other target's."""
    cpu: dict[str, Spread]
    """CPU per request as a multiple of each other target's."""
    client_busy: float
    """The load generator's busiest round."""


class Long(NamedTuple):
    """One target under one long stream."""

    target: str
    cpu_us_per_chunk: Spread
    """CPU microseconds of the target's processes; for direct, of the upstream's."""
    cpu: dict[str, Spread]
    """CPU per chunk as a multiple of each other target's."""
    added_ms: Spread
    """Time to the end of the stream, minus that of direct."""
    chunks_per_read: Spread
    """How many chunks the client got at a time: 1 where none waited for another."""


class Open(NamedTuple):
    """One target with many slow streams open at once."""

    target: str
    streams: int
    """Asked for at once; all came whole."""
    most_open: int
    """Open at the upstream at the same time: fewer than all where the target was slow to open them."""
    peak_mb: float
    """The most that the target's processes had resident, in MB."""
    seconds: float
    """From the first request to the end of the last stream."""
    cpu_us: float
    """CPU microseconds of the target's processes per stream."""


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


def by_load(rounds: Iterable[Iterable[Measured]]) -> Rounds:
    """Blocks by load and target, round by round; those with failed answers are no measurement."""
    found = []
    for measured in rounds:
        blocks: dict[Load, dict[str, Measured]] = {}
        for one in measured:
            if not one.block.failures:
                blocks.setdefault(one.load, {})[one.target] = one
        found.append(blocks)
    return found


def loops(rounds: Rounds, settings: Settings) -> list[Loop]:
    """The figures of all closed loops."""
    return [
        _loop(target, load, blocks)
        for load in loads(settings)
        if load.kind in (Kind.REPLY, Kind.STREAM)
        for target, blocks in _of(load, rounds, settings)
    ]


def longs(rounds: Rounds, settings: Settings) -> list[Long]:
    """The figures of the long streams; none where the run measured none."""
    return [
        Long(
            target,
            _spread(_cpu(b[target]) / settings.long_stream for b in blocks),
            _ratios(target, blocks, _cpu),
            _spread(b[target].p50_ms - b["direct"].p50_ms for b in blocks),
            _spread(b[target].chunks / b[target].reads for b in blocks),
        )
        for load in loads(settings)
        if load.kind is Kind.LONG
        for target, blocks in _of(load, rounds, settings)
    ]


def opens(rounds: Rounds, settings: Settings) -> list[Open]:
    """The figures of the streams that were open at once; none where the run measured none."""
    return [
        Open(target, load.concurrency, one.most_open, one.block.peak_mb, one.block.seconds, one.block.cpu_us)
        for load in loads(settings)
        if load.kind is Kind.OPEN
        for blocks in rounds
        for target in settings.targets
        if (one := blocks.get(load, {}).get(target)) and not one.block.unfinished
    ]


def looks(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    """By target and probe: how many replies it looked at, and at how many of them it acted or would have."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for record in records:
        for target, counts in record["probes"].items():
            for key, count in counts.items():
                probe, outcome = key.split(" ")
                told = found.setdefault(target, {}).setdefault(probe, {"looked": 0, "acted": 0})
                told["looked"] += count
                told["acted"] += 0 if outcome in _IDLE else count
    return found


def bars(
    loop: Sequence[Loop],
    long: Sequence[Long],
    opened: Sequence[Open],
    measured: Iterable[Measured],
    settings: Settings,
) -> list[Bar]:
    """Seam against the bars it is held to, as far as the run measured them; measured: all blocks."""
    replies = {(one.target, one.concurrency): one for one in loop if one.kind is Kind.REPLY}
    some, alone = replies.get(("seam", _BAR_CONCURRENCY)), replies.get(("seam", 1))
    chunk = next((one.cpu_us_per_chunk.median for one in long if one.target == "seam"), None)
    blocks = [one.block for one in measured if one.target in SEAMS]
    lost = sum(block.failures + block.unfinished for block in blocks)
    held = {one.target: one.peak_mb for one in opened if one.target in SEAMS and one.streams == _BAR_STREAMS}
    # One that did not hold all its streams may be the heaviest.
    heaviest = max(held.values(), default=None) if held.keys() >= {*SEAMS} & {*settings.targets} else None
    at = f"at concurrency {_BAR_CONCURRENCY}"
    return [
        _bar(f"requests/s {at}, times LiteLLM's", 20, False, _median(some and some.speed.get("litellm"))),
        _bar(f"requests/s {at}, times the bare forwarder's", 1.3, False,
             _median(some and some.speed.get("bare"))),
        _bar(f"99th percentile {at}, ms above the bare forwarder's", 0, True,
             _median(some and some.p99_above_ms.get("bare"))),
        _bar(f"memory with {_BAR_STREAMS:,} open streams, MB, of the heaviest Seam", 400, True,
             heaviest),
        _bar("added median latency at concurrency 1, ms", 1, True, _median(alone and alone.added_p50_ms)),
        _bar("CPU per chunk of a long stream, microseconds", 60, True, chunk),
        _bar("answers of every Seam that failed or did not come, under all loads", 0, True,
             lost if blocks else None),
    ]  # fmt: skip


def warnings(
    loop: Sequence[Loop],
    long: Sequence[Long],
    measured: Iterable[Measured],
    elsewhere: Sequence[float],
) -> list[str]:
    """What limits the figures, in words.

    measured: all blocks; elsewhere: CPUs that other work on the machine took, by round.
    """
    found = []
    if max(elsewhere) > _DISTURBED:
        found.append(
            f"other work took up to {max(elsewhere):.1f} CPUs meanwhile: ratios hold better than times, "
            "and neither well; repeat on an idle machine"
        )
    busy = [f"{one.target} ({one.kind}, {one.concurrency:,})" for one in loop if one.client_busy > _BUSY]
    if busy:
        found.append(
            f"the load generator was at its limit, so these may be faster than measured: {', '.join(busy)}"
        )
    found += [
        f"{one.target}: {one.chunks_per_read.median:.1f} chunks of the long stream came at a time, so a "
        "chunk that comes alone costs more than measured; raise --interval-ms"
        for one in long
        if one.chunks_per_read.median > 1.5
    ]
    return found + _incomplete(measured)


def as_json(value: Any) -> Any:
    """Named tuples as objects, all the way down."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: as_json(item) for name, item in value._asdict().items()}
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def _incomplete(measured: Iterable[Measured]) -> list[str]:
    """Blocks that failed, or that ended before all answers had come: once for each target and load."""
    found: dict[str, str] = {}
    for target, load, block, _ in measured:
        if block.failures:
            found[f"{target}, {load}, failed"] = (
                f"{target}, {load}: {block.failure} ({block.failures} failed, {block.requests} whole), so "
                "such rounds are left out"
            )
        elif block.unfinished:
            spoilt = "left out" if load.kind is Kind.OPEN else "without these, so its times are too low"
            found[f"{target}, {load}, unfinished"] = (
                f"{target}, {load}: {block.unfinished} of {block.unfinished + block.requests} answers had "
                f"not come when it was given up: {spoilt}"
            )
    return list(found.values())


def _of(load: Load, rounds: Rounds, settings: Settings) -> Iterable[tuple[str, list[dict[str, Block]]]]:
    """The targets that answered under a load, each with the blocks of all targets in its rounds."""
    found = [{name: one.block for name, one in blocks.get(load, {}).items()} for blocks in rounds]
    for target in settings.targets:
        own = [blocks for blocks in found if target in blocks and "direct" in blocks]
        if own:
            yield target, own


def _loop(target: str, load: Load, rounds: Sequence[dict[str, Block]]) -> Loop:
    def over(figure: Callable[[Block], float]) -> Spread:
        return _spread(figure(blocks[target]) for blocks in rounds)

    def above(other: str, figure: Callable[[Block], float]) -> Spread:
        return _spread(figure(blocks[target]) - figure(blocks[other]) for blocks in rounds if other in blocks)

    others = {other for blocks in rounds for other in blocks} - {target}
    return Loop(
        target=target,
        kind=load.kind,
        concurrency=load.concurrency,
        requests_per_second=over(_speed),
        p50_ms=over(_p50),
        p99_ms=over(_p99),
        added_p50_ms=above("direct", _p50),
        added_p99_ms=above("direct", _p99),
        added_first_ms=above("direct", _first) if load.kind is Kind.STREAM else None,
        p99_above_ms={other: above(other, _p99) for other in sorted(others)},
        cpu_us=over(_cpu),
        peak_mb=over(lambda block: block.peak_mb),
        speed=_ratios(target, rounds, _speed),
        cpu=_ratios(target, rounds, _cpu),
        client_busy=max(blocks[target].client_busy for blocks in rounds),
    )


def _ratios(
    target: str, rounds: Sequence[dict[str, Block]], figure: Callable[[Block], float]
) -> dict[str, Spread]:
    """A figure as a multiple of each other target's in the same round."""
    others = {other for blocks in rounds for other in blocks} - {target}
    return {
        other: _spread(figure(blocks[target]) / figure(blocks[other]) for blocks in rounds if other in blocks)
        for other in sorted(others)
    }


def _speed(block: Block) -> float:
    return block.requests / block.seconds


def _p50(block: Block) -> float:
    return block.p50_ms


def _p99(block: Block) -> float:
    return block.p99_ms


def _first(block: Block) -> float:
    assert block.first_ms is not None, "a stream has a first chunk"
    return block.first_ms


def _cpu(block: Block) -> float:
    return block.cpu_us


def _spread(values: Iterable[float]) -> Spread:
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found), len(found))


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _bar(words: str, limit: float, at_most: bool, value: float | None) -> Bar:
    if value is None:
        return Bar(words, limit, at_most, None, None)
    return Bar(words, limit, at_most, value, value <= limit if at_most else value >= limit)
