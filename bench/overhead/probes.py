"""`python -m bench.overhead.probes`: what the context probes cost where they find nothing to do.

That is the CPU time that SRI and CRI add to one reply of a conversation of 30 messages with 20 tools, by the
part: what is remembered of the case, and each probe's look. What they cost under load, and while they hold
streams, `bench overhead` measures.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from bench.overhead.traffic import chat_body, replies
from calibrators.body import Body
from calibrators.case import NOTHING, Case, History, key_of
from calibrators.cri import Cri
from calibrators.flow import Calibrator, Outcome, Query, Report, calibrated
from calibrators.probes import Seat
from calibrators.reply import Reply
from calibrators.sri import Sri

MESSAGES, TOOLS = 30, 20
CPU_BAR_US = 200.0


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


def shown(costs: Sequence[Cost], first: Spent) -> str:
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
    return "\n".join(lines)


def document(costs: Sequence[Cost], first: Spent) -> Mapping[str, Any]:
    """The figures as JSON."""
    looked = [
        {"name": cost.name, "total": cost.total._asdict(), "memory": cost.memory._asdict()} for cost in costs
    ]
    return {"cpu_us": looked, "first_seen_us": first._asdict()}


def unmet(costs: Sequence[Cost]) -> list[str]:
    """The bars that are not met."""
    return [f"{cost.name}: {cost.total} µs" for cost in costs if cost.total.median >= CPU_BAR_US]


@click.command()
@click.option("--plays", type=click.IntRange(min=1), default=2000, show_default=True,
              help="How often each flow is played.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option("--check", is_flag=True, help="Exit 1 unless the bars are met.")
def main(*, plays: int, as_json: bool, check: bool) -> None:
    """Measure what the probes cost where they do nothing."""
    body = conversation()
    costs = [measured(look, body, plays) for look in looks()]
    first = _spent(lambda: _remembered(body, NOTHING), plays)
    click.echo(json.dumps(document(costs, first), indent=2) if as_json else shown(costs, first))
    if check and (failed := unmet(costs)):
        raise click.ClickException("; ".join(failed))


if __name__ == "__main__":
    main()
