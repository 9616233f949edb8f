"""`python -m bench.overhead.probes`: what the context probes cost where they find nothing to do, and while
they hold streams.

The first is the CPU time that SRI and CRI add to one reply of a conversation of 30 messages with 20 tools,
by the part: what is remembered of the case, and each probe's look. The second puts many streams at once on
`seam serve`, with a canned upstream that takes its time: SRI holds each of them, asks again, and holds the
second reply too.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import uvloop

from bench.overhead.load import Block, Job, drive
from bench.overhead.processes import require_linux, tree
from bench.overhead.targets import all_serving, seam
from bench.overhead.traffic import chat_body, replies
from calibrators.body import Body
from calibrators.case import NOTHING, Case, History, key_of
from calibrators.cri import Cri
from calibrators.flow import Calibrator, Outcome, Query, Report, calibrated
from calibrators.probes import Seat
from calibrators.reply import Reply
from calibrators.sri import Sri

MESSAGES, TOOLS = 30, 20
CPU_BAR_US, MEMORY_BAR_MIB = 200.0, 400.0


class Look(NamedTuple):
    """A probe's look that finds nothing to do."""

    name: str
    reply: Reply
    probes: Callable[[Seat], Sequence[Calibrator]]


class Spent(NamedTuple):
    """CPU microseconds of one play."""

    median: float
    low: float
    """The lowest decile: what it takes where other work does not share the core."""

    def __str__(self) -> str:
        return f"{self.median:.0f} ({self.low:.0f})"


class Cost(NamedTuple):
    """CPU time that is added to a reply."""

    name: str
    memory: Spent
    """What is remembered of the case: its key, and the digests that its marks need."""
    total: Spent
    """That and the look itself, without what a flow costs that has no probe."""


def conversation() -> Body:
    """The recorded request, made longer: calls and results repeat, tools get numbers."""
    request = json.loads(chat_body())
    *told, last = request["messages"]
    steps = [message for message in told if message["role"] in ("assistant", "tool")][-6:]
    while len(told) < MESSAGES - 1:
        told += steps[: MESSAGES - 1 - len(told)]
    tools = request["tools"]
    for number in range(TOOLS - len(tools)):
        function = tools[number]["function"]
        tools.append({"type": "function", "function": {**function, "name": f"{function['name']}_{number}"}})
    return Body.parse(json.dumps(request | {"messages": [*told, last]}))


def looks() -> list[Look]:
    """One for each way in which a probe finds nothing to do."""
    text, call = (_read(raw) for raw in replies())
    return [
        Look("SRI: the reply has a call", call, lambda seat: [Sri(seat)]),
        Look("SRI `gate`: the reply asks", _saying("Which order do you mean?"), lambda s: [Sri(s, "gate")]),
        Look("CRI: the reply has no call", text, lambda seat: [Cri(seat)]),
        Look("CRI: the calls follow from the conversation", call, lambda seat: [Cri(seat)]),
        Look("both: the calls follow from the conversation", call, lambda seat: [Sri(seat), Cri(seat)]),
    ]


def _read(raw: bytes) -> Reply:
    reply = Reply(200)
    reply.add(json.loads(raw))
    reply.ended = True
    return reply


def _saying(text: str) -> Reply:
    return Reply(200).saying(text)


def measured(look: Look, body: Body, plays: int) -> Cost:
    """Play the flow of one reply many times, with and without its probes."""
    case = _going_on(body)

    def play() -> Report:
        history = _remembered(body, case)
        return _played(body, look.reply, look.probes(Seat(history, case)))

    idle = (Outcome.PASSED, Outcome.GATED)
    report = play()
    assert all(probed.outcome in idle for probed in report.probes), report.header()
    without = _spent(lambda: _played(body, look.reply, ()), plays)
    with_probes = _spent(play, plays)
    added = Spent(with_probes.median - without.median, with_probes.low - without.low)
    return Cost(look.name, _spent(lambda: _remembered(body, case), plays), added)


def _going_on(body: Body) -> Case:
    """A case that began with its first request, and in which SRI has acted in an earlier turn."""
    first, earlier = (
        History({**body.fields, "messages": body.fields["messages"][:count]}) for count in (2, MESSAGES // 2)
    )
    return NOTHING.seen(first).marked(["sri"], earlier)


def _remembered(body: Body, case: Case) -> History:
    """What proxy/chat.py does for a request with its case, where no probe acts."""
    history = History(body.fields)
    key_of(history, None)
    case.acted("sri", history)
    case.seen(history).marked((), history)
    return history


def _played(body: Body, reply: Reply, probes: Sequence[Calibrator]) -> Report:
    report = Report()
    flow = calibrated(Query(body, body.fields), probes, report)
    next(flow)
    try:
        flow.send(reply)
    except StopIteration:
        return report
    raise AssertionError("a probe that was to find nothing asked again")


def _spent(play: Callable[[], object], plays: int) -> Spent:
    times = []
    for _ in range(plays):
        before = time.thread_time_ns()
        play()
        times.append((time.thread_time_ns() - before) / 1000)
    return Spent(statistics.median(times), sorted(times)[len(times) // 10])


class Held(NamedTuple):
    """Many streams that a probe holds at once."""

    streams: int
    block: Block
    memory_mib: float
    """The most that the proxy's processes had in memory."""


def hold(streams: int, chunks: int, interval_ms: float) -> Held:
    """Put the streams on `seam serve` and wait for all of them."""
    target = seam("Seam with SRI on", sri=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        all_serving([target], Path(folder), interval_ms) as servers,
    ):
        server = servers["seam"]
        job = Job(server.port, streams, 60.0, streams, chunks, server.pid)
        block = uvloop.run(drive(job))
        return Held(streams, block, sum(map(_peak_mib, tree(server.pid))))


def _peak_mib(pid: int) -> float:
    """The most memory that a process has had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def shown(costs: Sequence[Cost], first: Spent, held: Held | None, seconds: float) -> str:
    """The figures as Markdown."""
    lines = [
        f"{MESSAGES} messages, {TOOLS} tools: CPU µs a reply, median (lowest decile); bar: {CPU_BAR_US:g}",
        "",
        "| nothing to do | in all | of it the case's memory |",
        "| --- | ---: | ---: |",
        *(f"| {cost.name} | {cost.total} | {cost.memory} |" for cost in costs),
        "",
        f"A case that is first seen with all of its messages: {first} for its memory, once.",
    ]
    if held is not None:
        block = held.block
        lines += [
            "",
            f"{held.streams:,} streams held twice for {seconds:.1f} s each: {block.requests:,} whole, "
            f"{block.failures} failed{f' ({block.failure})' if block.failure else ''}, "
            f"proxy at most {held.memory_mib:.0f} MiB (bar: {MEMORY_BAR_MIB:g}), "
            f"median {block.p50_ms / 1000:.1f} s from request to [DONE], "
            f"{block.cpu_us / 1000:.1f} ms of CPU a stream",
        ]
    return "\n".join(lines)


def document(costs: Sequence[Cost], first: Spent, held: Held | None) -> Mapping[str, Any]:
    """The figures as JSON."""
    streams = held and {**held._asdict(), "block": held.block._asdict()}
    looked = [
        {"name": cost.name, "total": cost.total._asdict(), "memory": cost.memory._asdict()} for cost in costs
    ]
    return {"cpu_us": looked, "first_seen_us": first._asdict(), "held": streams}


def unmet(costs: Sequence[Cost], held: Held | None) -> list[str]:
    """The bars that are not met."""
    dear = [f"{cost.name}: {cost.total} µs" for cost in costs if cost.total.median >= CPU_BAR_US]
    if held is None:
        return dear
    failed = [f"{held.block.failures} streams failed"] if held.block.failures else []
    heavy = [f"{held.memory_mib:.0f} MiB"] if held.memory_mib >= MEMORY_BAR_MIB else []
    return dear + failed + heavy


@click.command()
@click.option("--plays", type=click.IntRange(min=1), default=2000, show_default=True,
              help="How often each flow is played.")  # fmt: skip
@click.option("--streams", type=click.IntRange(min=0), default=1000, show_default=True,
              help="Streams held at once; 0 measures none.")  # fmt: skip
@click.option("--chunks", type=click.IntRange(min=1), default=20, show_default=True,
              help="Length of each stream.")  # fmt: skip
@click.option("--interval-ms", type=click.FloatRange(min=0), default=500.0, show_default=True,
              help="Between its chunks.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option("--check", is_flag=True, help="Exit 1 unless the bars are met.")
def main(*, plays: int, streams: int, chunks: int, interval_ms: float, as_json: bool, check: bool) -> None:
    """Measure what the probes cost where they do nothing, and while they hold streams."""
    require_linux()
    body = conversation()
    costs = [measured(look, body, plays) for look in looks()]
    first = _spent(lambda: _remembered(body, NOTHING), plays)
    held = hold(streams, chunks, interval_ms) if streams else None
    if as_json:
        click.echo(json.dumps(document(costs, first, held), indent=2))
    else:
        click.echo(shown(costs, first, held, chunks * interval_ms / 1000))
    if check and (failed := unmet(costs, held)):
        raise click.ClickException("; ".join(failed))


if __name__ == "__main__":
    main()
