"""What a calibrator is: a generator that asks upstream queries and returns the reply to serve.

It does no I/O. It yields a `Query`, is sent the `Reply` as soon as that is settled for it, may yield another
query, and returns the reply that the client gets. One driver (proxy/driver.py) runs it for streams and
non-streams alike. Calibrators nest: each asks through the one inside it, so that a probe's second query
carries the bias like the first.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Literal, Protocol

from calibrators.body import Body
from calibrators.reply import Reply
from calibrators.request import Fields
from calibrators.skip import Skip


class Role(StrEnum):
    """Why a query was made (decision log)."""

    FIRST = "first"
    RESAMPLE = "resample"
    SRI = "sri"
    CRI = "cri"
    SHADOW = "shadow"


class Outcome(StrEnum):
    """What came of a probe that has looked at a reply."""

    PASSED = "passed"
    """It found nothing to do."""
    GATED = "gated"
    """It found something, and a gate was shut."""
    LOG_ONLY = "log_only"
    """It would have acted."""
    RETRIED = "retried"
    BYPASSED = "bypassed"
    FAILED = "failed"
    """It asked again, and the first reply is served after all."""


@dataclass(slots=True)
class Probed:
    """One probe's look at one reply.

    Attributes:
        why: for people; never a text of the conversation.
        before: the reply that it looked at.
        after: what its second query answered.
        pair: names the would-be decision that stands beside the live one (log_only).
    """

    probe: str
    outcome: Outcome
    why: str
    before: Reply
    after: Reply | None = None
    pair: str | None = None

    def settle(self, outcome: Outcome, why: str) -> None:
        """What came of it in the end."""
        self.outcome, self.why = outcome, why

    @property
    def acted(self) -> bool:
        """Whether what is served is its doing."""
        return self.outcome in (Outcome.RETRIED, Outcome.BYPASSED)

    @property
    def fired(self) -> bool:
        """Whether it is spent for this turn."""
        return self.acted or self.outcome in (Outcome.LOG_ONLY, Outcome.FAILED)


LateRole = Literal["system", "developer", "user"]
"""The role of a message that comes last and is not the client's."""


class QueryFailed(Exception):
    """Thrown into a flow at its query: no answer came. A flow with a reply in hand may serve that."""


Settled = Callable[[Reply], bool]
"""Whether a calibrator has seen enough of a reply to go on; asked again as the reply grows."""


def at_once(_: Reply) -> bool:
    """Settled as soon as the status is known: nothing of the reply is held back."""
    return True


def first_event(reply: Reply) -> bool:
    """Settled with the first event of a stream, which is where a server reports what it refuses late."""
    return bool(reply.choices) or reply.error is not None or reply.ended


def whole(reply: Reply) -> bool:
    """Settled when the reply is complete."""
    return reply.ended or reply.error is not None


@dataclass(frozen=True, slots=True)
class Query:
    """One query to the upstream and how much of its reply must be seen before the flow goes on.

    Attributes:
        body: what is sent.
        fields: the client's request in the shape of a chat request (calibrators/dialects.py).
    """

    body: Body
    fields: Fields
    role: Role = Role.FIRST
    settled: Settled = at_once

    def until(self, settled: Settled) -> "Query":
        """This query, held back until `settled` as well as what was asked before."""
        before = self.settled
        if before is at_once or before is settled:
            return replace(self, settled=settled)
        return replace(self, settled=lambda reply: before(reply) and settled(reply))

    def with_body(self, body: Body) -> "Query":
        """This query with another body."""
        return replace(self, body=body)


Flow = Generator[Query, Reply, Reply]
Ask = Callable[[Query], Flow]


@dataclass(slots=True)
class Report:
    """What really happened to one reply, in the words of the X-Calibration-Applied header.

    Attributes:
        applied: what acted, by calibrator ("bias" -> "-1.5/processor").
        skipped: why a calibrator did not act, by calibrator.
        probes: the looks that probes took, in order.
        void: why nothing of what was applied is in the reply that is served.
        queries: how many were made.
        most: how many may be made.
        late_role: under which role the template took a message behind the client's; None: not learned.
        later: looks at the reply that are due when it is complete, and hold nothing.
    """

    applied: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, Skip] = field(default_factory=dict)
    probes: list[Probed] = field(default_factory=list)
    void: Skip | None = None
    queries: int = 0
    most: int = 6
    late_role: LateRole | None = None
    later: list[Callable[[], None]] = field(default_factory=list)

    def conclude(self) -> None:
        """Take the looks that are due: the reply is complete, or will not be."""
        due, self.later = self.later, []
        for look in due:
            look()

    def header(self) -> str:
        """The summary, and what the server said of a query that it refused."""
        quoted = f": {self.void.quoted}" if self.void and self.void.quoted else ""
        return self.summary() + quoted

    def summary(self) -> str:
        """`bias=-1.5/processor; sri=retried`, or `none; reason=...` where nothing acted."""
        if self.void is not None:
            return f"none; reason={self.void.text}"
        acted = {**self.applied, **{p.probe: str(p.outcome) for p in self.probes if p.acted}}
        idle = {name: why.text for name, why in self.skipped.items()}
        idle |= {p.probe: p.why for p in self.probes if not p.acted}
        if acted:
            parts = [f"{name}={what}" for name, what in acted.items()]
            return "; ".join(parts + [f"{name}=none ({why})" for name, why in idle.items()])
        return "none; reason=" + ", ".join(idle.values()) if idle else "none"

    def spend(self) -> None:
        """Count one more query.

        Raises:
            QueryFailed: all that may be made for one reply have been made.
        """
        if self.queries >= self.most:
            raise QueryFailed(f"{self.most} queries were made for this reply already (limits.max_queries)")
        self.queries += 1


class Calibrator(Protocol):
    """A calibration strategy."""

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        """Ask `query` through `ask` in one's own way and return the reply to serve."""
        ...


def plain(query: Query) -> Flow:
    """The innermost ask: the query itself."""
    reply = yield query
    return reply


def forgiving(query: Query, asked: Body, report: Report) -> Flow:
    """Ask; where the upstream refuses a first query that we added to, ask once more as the client did.

    A bad value of ours is a 400, or in a stream a 200 whose first event is the error (vllm-facts 3.3).
    A fault of the client's own is refused again, and that answer is served.
    """
    report.spend()
    if query.role is not Role.FIRST or query.body is asked:
        return (yield from plain(query))
    reply = yield query.until(first_event)
    if reply.choices or status_of(reply) not in (400, 422):
        return reply
    report.void = Skip("refused", "the upstream refused what was added", _told(reply))
    # In place of the one that was refused, so it is not counted: the client's own query is always asked.
    return (yield from plain(query.with_body(asked)))


def status_of(reply: Reply) -> int:
    """The reply's status; of an error inside a stream its code, 400 where it has none."""
    if reply.status >= 400 or reply.error is None:
        return reply.status
    code = reply.error.get("code") if isinstance(reply.error, Mapping) else None
    return code if isinstance(code, int) else 400


def _told(reply: Reply) -> str:
    """The upstream's own words, as far as a header may hold them."""
    message = reply.error.get("message") if isinstance(reply.error, Mapping) else None
    return str(message or f"status {reply.status}")[:200]


def calibrated(asked: Query, calibrators: Sequence[Calibrator], report: Report) -> Flow:
    """The flow of one reply: all calibrators around the query, the first of them innermost."""
    ask: Ask = partial(forgiving, asked=asked.body, report=report)
    for calibrator in calibrators:
        ask = partial(calibrator.flow, ask=ask, report=report)
    return (yield from ask(asked))
