"""The last decisions, in memory, for the status page: the log's records, whether a log is written or not."""

import secrets
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from calibrators.drift import EDGES, NONE
from proxy.tail import Wanted, acted

Record = Mapping[str, Any]

KEPT = 10_000
"""How many decisions a process remembers: about 3 KB each."""
TEXT_CHARS = 2_000
"""How much of a reply's text, and of its arguments together, is remembered if `decisions.text` allows it."""
MOST_NAMES = 20
"""How many models, profiles and reasons a summary names; clients choose some of these names."""


class Found(NamedTuple):
    """An answer to `Recent.newer`.

    Attributes:
        cursor: ask with it for what is newer than this answer.
        whole: whether this replaces what was answered before, since the cursor was none of this process.
        decisions: newest first, each with its `id`.
    """

    cursor: str
    whole: bool
    decisions: list[Record]


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

    def newer(self, cursor: str | None, wanted: Wanted, limit: int) -> Found:
        """The newest `limit` decisions that came after the cursor and are wanted."""
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

    def summary(self) -> Mapping[str, Any]:
        """Counts of what is remembered: classes, margins in nats, and what acted."""
        records = [record for _, record in list(self._ring)]
        firsts = [record for record in records if record["choice"] == 0]  # what acts, acts on a whole reply
        probes = [probe for record in firsts for probe in record["probes"]]
        return {
            "kept": len(records),
            "most": KEPT,
            "since": records[0]["time"] if records else None,
            "actions": Counter(map(_action, records)),
            "models": _by(records, "model"),
            "profiles": _by(records, "profile"),
            "margins": {"edges": EDGES, "actions": _margins(records)},
            "interventions": {
                "replies": len(firsts),
                "acted": Counter(name for record in firsts for name in acted(record)),
                "probes": _counted(probes, lambda p: str(p["probe"]), lambda p: str(p["outcome"])),
                "moved": Counter(f"{p['action_before']} → {p['action_after']}" for p in probes if _moved(p)),
                "reasons": dict(Counter(filter(None, map(_reason, firsts))).most_common(MOST_NAMES)),
            },
        }

    def _id(self, number: int) -> str:
        return f"{self._mark}-{number}"

    def _number(self, id_: str | None) -> int | None:
        mark, _, number = (id_ or "").partition("-")
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


def _action(record: Record) -> str:
    return record["action"] or NONE


def _moved(probe: Record) -> bool:
    return probe["action_after"] is not None and probe["action_after"] != probe["action_before"]


def _reason(record: Record) -> str | None:
    """Why nothing acted, where something was to."""
    head, _, reason = str(record["applied"]).partition("; reason=")
    return reason if head == "none" else None


def _counted(
    records: Iterable[Record], one: Callable[[Record], str], other: Callable[[Record], str]
) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for record in records:
        counts.setdefault(one(record), Counter())[other(record)] += 1
    return counts


def _by(records: Iterable[Record], field: str) -> dict[str, Counter[str]]:
    """Classes by a field's values, the most frequent ones alone."""
    counts = _counted(records, lambda record: str(record[field]), _action)
    return dict(sorted(counts.items(), key=lambda item: -item[1].total())[:MOST_NAMES])


def _margins(records: Iterable[Record]) -> dict[str, Any]:
    """How many margins of each class fall between two edges, and how many were not read."""
    found: dict[str, Any] = {}
    for record in records:
        one = found.setdefault(_action(record), {"counts": [0] * (len(EDGES) + 1), "unread": 0})
        if record["margin"] is None:
            one["unread"] += 1
        else:
            one["counts"][bisect_left(EDGES, record["margin"])] += 1
    return found
