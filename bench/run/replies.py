"""Whole replies to single requests, one of each arm: what runs of decisions and of When2Call are made of."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple
from urllib.parse import quote

from bench.calibrate.asking import Asking, asking
from bench.calibrate.figures import adjusted
from bench.calibrate.generation import GREEDY, changes, replied
from bench.decisions.example import Example
from bench.progress import progress
from bench.report.words import change_text, p_text, rate_name
from bench.run.arms import Arm
from bench.run.dry import DryPass
from bench.run.rounds import rounds
from bench.runs import Record, RecordFile
from calibrators.actions import Cues
from proxy.upstream import base_url

Json = dict[str, Any]


class Requests(NamedTuple):
    """What is asked of whom."""

    arms: Sequence[Arm]
    urls: Mapping[str, str]
    """By arm the proxy to go through."""
    examples: Sequence[Example]
    fields: Mapping[str, Any]
    """Added to every request."""
    cues: Cues
    attempt: int
    """Names this call, so that a case that is asked again has a case id of its own."""
    key: str | None
    concurrency: int
    """Requests in flight at most, to each proxy."""
    explain: bool
    """Whether replies are to say what was applied, in how many queries: a running proxy may not allow it."""

    @property
    def order(self) -> list[str]:
        """The cases in the order they run."""
        return [example.id for example in self.examples]

    @property
    def names(self) -> list[str]:
        """The arms' names."""
        return [arm.name for arm in self.arms]

    def body(self, arm: Arm, example: Example) -> Json:
        """The request: greedy unless `fields` says otherwise, and without a list of tools that is empty."""
        asked = {name: value for name, value in example.request.items() if value != []}
        explain = {"calibration": {"explain": True}} if self.explain else {}
        return {"model": arm.model, **asked, **GREEDY, **self.fields, **explain}

    def headers(self, arm: Arm, example: Example) -> dict[str, str]:
        """Which calibration, and which case for the decision log."""
        case = f"{quote(example.id, safe='')}/{arm.name}/{self.attempt}"
        return {**arm.headers, "X-Case-Id": case}


async def generate(asked: Requests, records: RecordFile, dry: DryPass) -> None:
    """Write a reply for each arm and example that has none yet, arms taking turns by blocks.

    A reply that the server refuses (a prompt that does not fit) is an errored record. Raises
    ServerUnreachable where a server stops answering, CheckFailed where every case of the dry pass ended in an
    error.
    """
    examples = {example.id: example for example in asked.examples}
    arms = {arm.name: arm for arm in asked.arms}
    total = len(examples) * len(arms)
    for record in records:
        _look(dry, record)
    dry.begin()
    async with AsyncExitStack() as stack:
        servers = {
            url: await stack.enter_async_context(asking(base_url(url), asked.key, asked.concurrency))
            for url in dict.fromkeys(asked.urls.values())
        }
        with progress("replies", total, len(records)) as advance:
            for arm, cases in rounds(asked.order, asked.names):
                server = servers[asked.urls[arm]]

                async def one(case: str, arm: Arm = arms[arm], server: Asking = server) -> None:
                    example = examples[case]
                    body = json.dumps(asked.body(arm, example), ensure_ascii=False)
                    answer = await server.chat(body, asked.headers(arm, example))
                    gold = {"due": example.should_call, "gold": example.action, "group": example.group}
                    record = {"arm": arm.name, "id": case, **gold, **replied(answer, example, asked.cues)}
                    records.append(f"{arm.name}/{case}", record)
                    _look(dry, record)
                    advance(note=arm.name)

                await server.each([case for case in cases if f"{arm}/{case}" not in records], one)
                dry.settle(total - len(records))


def _look(dry: DryPass, record: Mapping[str, Any]) -> None:
    tokens = record.get("prompt_tokens")
    dry.add((record["arm"], record["id"]), record.get("fault"), [tokens] if tokens else [])


def by_arm(records: Iterable[Record], arms: Iterable[str]) -> dict[str, dict[str, Json]]:
    """The replies of each arm by case."""
    found: dict[str, dict[str, Json]] = {arm: {} for arm in arms}
    for record in records:
        found[record["arm"]][record["id"]] = record
    return found


def changed(
    examples: Sequence[Example], replies: Mapping[str, Mapping[str, Json]], seed: int
) -> dict[str, dict[str, Json]]:
    """What each arm changes against the first one: over-calling and call recall, paired.

    All are one family of claims, by whose size each p is adjusted.
    """
    first, *others = replies
    found = {arm: changes(examples, replies[first], replies[arm], seed) for arm in others}
    adjusted({f"{arm} {name}": claim for arm, family in found.items() for name, claim in family.items()})
    return found


def errors(replies: Mapping[str, Json]) -> dict[str, int]:
    """The servers' words of refusal with how often."""
    found: dict[str, int] = {}
    for reply in replies.values():
        if reply["status"] != 200:
            found[reply["fault"]] = found.get(reply["fault"], 0) + 1
    return found


def applied(replies: Mapping[str, Json]) -> dict[str, int] | None:
    """How many replies had which calibration, as the proxy says; None where it was not asked."""
    found: dict[str, int] = {}
    for reply in replies.values():
        if reply.get("applied") is not None:
            found[reply["applied"]] = found.get(reply["applied"], 0) + 1
    return found or None


def change_lines(told: Mapping[str, Mapping[str, Json]], first: str) -> Iterator[str]:
    """The differences to the first arm, a line each, with their p adjusted for their number."""
    for arm, family in told.items():
        for name, change in family.items():
            p = p_text(change["test"]["p_holm"])
            yield f"{arm} against {first}, {rate_name(name)}: {change_text(change)} points, p {p}"
