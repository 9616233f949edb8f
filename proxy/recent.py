"""The last decisions, in memory, for the status page: the log's records, whether a log is written or not."""

import secrets
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from calibrators.drift import EDGES, NONE
from proxy.tail import Wanted, acted

Record = Mapping[str, Any]

KEPT = 10_000
"""How many decisions a process remembers, of 3 to 5 KB each."""
TEXT_CHARS = 2_000
"""How much of a reply's text, and of its arguments together, is remembered if `decisions.text` allows it."""
MOST_NAMES = 20
"""How many models, profiles and reasons a summary names; clients choose some of these names."""


@dataclass(frozen=True)
class Found:
    """An answer to `Recent.newer`.

    Attributes:
        cursor: ask with it for what is newer than this answer.
        whole: whether this replaces what was answered before, since the cursor was none of this process.
        decisions: newest first, each with its `id`.
    """

    cursor: str
    whole: bool
    decisions: list[Record]


@dataclass(frozen=True)
class Binned:
    """Margins of one class: how many lie between two edges, and how many were not read."""

    counts: list[int]
    unread: int


@dataclass(frozen=True)
class Margins:
    """Margins in nats; `edges` part the bins, of which there is one more."""

    edges: Sequence[float]
    actions: Mapping[str, Binned]


@dataclass(frozen=True)
class Interventions:
    """What acted on whole replies; names are counted, the most frequent ones alone.

    Attributes:
        acted: replies by what acted on them: bias, sri, cri, none.
        probes: looks by probe and outcome.
        moved: looks by the classes before and after, where these differ.
        reasons: replies on which nothing acted, by why.
    """

    replies: int
    acted: Mapping[str, int]
    probes: Mapping[str, Mapping[str, int]]
    moved: Mapping[str, int]
    reasons: Mapping[str, int]


@dataclass(frozen=True)
class Summary:
    """Counts of what is remembered: `kept` decisions of at most `most`, the oldest from `since`."""

    kept: int
    most: int
    since: str | None
    actions: Mapping[str, int]
    models: Mapping[str, Mapping[str, int]]
    profiles: Mapping[str, Mapping[str, int]]
    margins: Margins
    interventions: Interventions


class Recent:
    """A ring of records. Readers may be in other threads: they copy it in one step."""

    def __init__(self) -> None:
        self._ring: deque[tuple[int, Record]] = deque(maxlen=KEPT)
        self._count = 0
        # Of this process: with several workers, or after a restart, another's cursor means nothing here.
        self._mark = secrets.token_hex(4)

    def put(self, record: Record, said: Mapping[str, Any]) -> None:
        """Remember a record and, cut short, what was said in it."""
        self._count += 1
        self._ring.append((self._count, {**record, **_cut(said)} if said else record))

    def newer(self, cursor: str, wanted: Wanted, limit: int) -> Found:
        """The newest `limit` wanted decisions that came after the cursor; of all where it is none of ours."""
        ring = list(self._ring)
        after = self._number(cursor)
        fresh = (pair for pair in reversed(ring) if after is None or pair[0] > after)
        taken = ({"id": self._id(number), **record} for number, record in fresh if wanted.takes(record))
        return Found(self._id(ring[-1][0] if ring else 0), after is None, [*islice(taken, limit)])

    def one(self, id_: str) -> Record | None:
        """One decision; None where it is not, or no longer, remembered."""
        number = self._number(id_)
        ring = list(self._ring)
        place = bisect_left(ring, number, key=lambda pair: pair[0]) if number is not None else len(ring)
        if place == len(ring) or ring[place][0] != number:
            return None
        return {"id": id_, **ring[place][1]}

    def summary(self) -> Summary:
        """Count what is remembered: classes, margins, and what acted."""
        records = [record for _, record in list(self._ring)]
        # Equal ones are counted first: a page asks every two seconds, and the server has replies to give.
        kinds = Counter((str(r["model"]), str(r["profile"]), r["action"] or NONE) for r in records)
        return Summary(
            kept=len(records),
            most=KEPT,
            since=records[0]["time"] if records else None,
            actions=_summed((action, count) for (_, _, action), count in kinds.items()),
            models=_by((model, action, count) for (model, _, action), count in kinds.items()),
            profiles=_by((profile, action, count) for (_, profile, action), count in kinds.items()),
            margins=Margins(EDGES, _binned(records)),
            interventions=_interventions(records),
        )

    def _id(self, number: int) -> str:
        return f"{self._mark}-{number}"

    def _number(self, id_: str) -> int | None:
        mark, _, number = id_.partition("-")
        return int(number) if mark == self._mark and number.isdecimal() and len(number) < 20 else None


def _cut(said: Mapping[str, Any]) -> dict[str, Any]:
    left, arguments = TEXT_CHARS, []
    for one in said["arguments"]:
        arguments.append(one[:left])
        left -= len(arguments[-1])
        if not left:
            break
    text = said["text"]
    return {**said, "text": text and text[:TEXT_CHARS], "arguments": arguments}


def _interventions(records: Iterable[Record]) -> Interventions:
    firsts = [record for record in records if record["choice"] == 0]  # what acts, acts on a whole reply
    probes = [probe for record in firsts for probe in record["probes"]]
    applied = Counter(str(record["applied"]) for record in firsts)
    return Interventions(
        replies=len(firsts),
        acted=_summed((name, n) for told, n in applied.items() for name in acted({"applied": told})),
        probes=_by((str(probe["probe"]), str(probe["outcome"]), 1) for probe in probes),
        moved=Counter(f"{p['action_before']} → {p['action_after']}" for p in probes if _moved(p)),
        reasons=_most(_summed((_reason(told), n) for told, n in applied.items() if _reason(told))),
    )


def _moved(probe: Record) -> bool:
    return probe["action_after"] is not None and probe["action_after"] != probe["action_before"]


def _reason(applied: str) -> str:
    """Why nothing acted, where something was to."""
    head, _, reason = applied.partition("; reason=")
    return reason if head == "none" else ""


def _summed(counts: Iterable[tuple[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for name, count in counts:
        sums[name] += count
    return sums


def _by(counts: Iterable[tuple[str, str, int]]) -> dict[str, Counter[str]]:
    """Counts in two levels; of the first the most frequent names alone."""
    sums: dict[str, Counter[str]] = {}
    for name, part, count in counts:
        sums.setdefault(name, Counter())[part] += count
    return dict(sorted(sums.items(), key=lambda item: -item[1].total())[:MOST_NAMES])


def _most(counts: Counter[str]) -> dict[str, int]:
    return dict(counts.most_common(MOST_NAMES))


def _binned(records: Iterable[Record]) -> dict[str, Binned]:
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(EDGES) + 1))
    unread: Counter[str] = Counter()
    for record in records:
        bins = counts[action := record["action"] or NONE]
        if record["margin"] is None:
            unread[action] += 1
        else:
            bins[bisect_left(EDGES, record["margin"])] += 1
    return {action: Binned(bins, unread[action]) for action, bins in counts.items()}
