"""SRI, the State-Reconciliation Intervention at the halt seam: a reply without a call is asked once more.

arXiv:2609.00949, calibration.md section 6. The halted reply is dropped, and a message shows the model what
was asked and what has been done; if something is missing it makes one call now, else it answers as before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from calibrators.actions import Cues, asks
from calibrators.conversation import Conversation
from calibrators.flow import Ask, Flow, Outcome, Probed, Query, Report, Role
from calibrators.probes import NO_ROLE, Message, Seat, halts, not_looked_at, pair_id, second, unfinished
from calibrators.reply import Reply
from calibrators.skip import Skip
from calibrators.state import BUDGET, How, cut, observed

HEADER = "[Check before you stop] Your last response held no call that could be run."
EARLIER = "What the user asked before, latest first:"
CURRENT = "What the user asks now:"
STATE = "What calls have done so far, latest first:"
NO_STATE = "No call has been run yet."
RULE = (
    "Compare the two. If any part of what was asked is not done yet and a tool here can do it, make exactly "
    "one call now that brings it forward. Otherwise answer the user as you would have done. "
    "Do not mention this message."
)
LITE_STATE = "What the latest tools returned:"

REQUESTS, REQUEST = 4, 700
"""How many earlier requests are shown, and how many characters of each [C]."""
CURRENT_MOST = 4 * REQUEST
LITE_RESULTS, LITE_RESULT, LITE_RECENT = 3, 1200, 12
"""`lite`: results shown, characters of each, and how many of the last messages are sent again [tau2]."""

Variant = Literal["v1", "no_history", "no_state", "no_recon", "gate", "gate_miss_param", "lite"]


class Parts(NamedTuple):
    """What of the message a variant has."""

    requests: bool = True
    state: bool = True
    rule: bool = True


_PARTS = {"no_state": Parts(state=False), "no_recon": Parts(requests=False, rule=False)}


@dataclass(frozen=True, slots=True)
class Sri:
    """Asks once more where a reply halts.

    Attributes:
        state: which snapshot of the executed calls is shown.
        cues: the classifier that the gate asks by.
        log_only: look, write down what would be done, change nothing.
    """

    seat: Seat
    variant: Variant = "v1"
    state: How = "generic"
    cues: Cues = Cues.SEAM
    log_only: bool = False

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        """Ask; where the reply halts and no gate is shut, ask again and serve that."""
        if query.role is not Role.FIRST:
            return (yield from ask(query))
        if reason := not_looked_at(query.fields):
            report.skipped["sri"] = reason
            return (yield from ask(query))
        if self.log_only:
            first = yield from ask(query)
            report.later.append(partial(self._note, first, report))
            return first
        shut = self._shut()
        first = yield from ask(query if shut else query.until(decided))
        if shut and not decided(first):
            report.skipped["sri"] = Skip("gated", shut)  # a stream, not held for what can't be
            return first
        probed = self._look(first, report)
        if probed is None:
            return first
        message = self.message(Conversation.of(query.fields), first)
        return (yield from second(query, ask, Role.SRI, message, first, probed, report))

    def _look(self, first: Reply, report: Report) -> Probed | None:
        """Judge a reply; None where it is to be served as it is. What was seen stands in the report."""
        begun = first.good and bool(first.first.calls)
        if reason := report.void or (None if begun else unfinished(first)):
            report.skipped["sri"] = reason
            return None
        probed = Probed("sri", Outcome.PASSED, "the reply has a call", first)
        report.probes.append(probed)
        if not halts(first.first):
            return None
        if gate := self._shut() or self._gate(first):
            probed.settle(Outcome.GATED, gate)
            return None
        probed.why = "the reply has no call"
        return probed

    def _note(self, first: Reply, report: Report) -> None:
        """Write down what would be done."""
        if probed := self._look(first, report):
            probed.pair = pair_id()
            probed.settle(Outcome.LOG_ONLY, f"log_only: would ask again, since {probed.why}")

    def _shut(self) -> str | None:
        """Why nothing can come of this reply, whatever it says."""
        if self.seat.case.acted("sri", self.seat.history) == "turn":
            return "SRI has acted in this turn"
        return None if self.seat.roles or self.log_only else NO_ROLE

    def _gate(self, first: Reply) -> str | None:
        gated = self.variant == "gate" or (
            self.variant == "gate_miss_param" and "miss_param" in self.seat.marks
        )
        if gated and asks(first.first.content, self.cues):
            return "the reply asks"
        return None

    def message(self, conversation: Conversation, first: Reply) -> Message:
        """The reconciliation message of this variant, with what goes with it."""
        if self.variant == "lite":
            text = "\n\n".join([HEADER, *self._requests(conversation), *_latest(conversation), RULE])
            return Message(text, _OWN, ("user",), recent=LITE_RECENT)
        parts = _PARTS.get(self.variant, Parts())
        sections = [HEADER]
        if parts.requests:
            sections += self._requests(conversation)
        if parts.state:
            seen = observed(conversation.pairs, self.state, BUDGET)
            sections.append(f"{STATE}\n{seen}" if seen else NO_STATE)
        if parts.rule:
            sections.append(RULE)
        # Templates refuse an empty message.
        kept = first.first.content or None if self.variant == "no_history" else None
        return Message("\n\n".join(sections), _OWN, self.seat.roles, dropped=kept)

    def _requests(self, conversation: Conversation) -> Iterable[str]:
        *earlier, current = conversation.requests or ("",)
        latest: Sequence[str] = earlier[: -REQUESTS - 1 : -1]
        if latest:
            yield "\n".join([EARLIER, *(f"- {cut(text, REQUEST)}" for text in latest)])
        yield f"{CURRENT}\n{cut(current, CURRENT_MOST)}"


_OWN = "\n".join([HEADER, EARLIER, STATE, RULE, LITE_STATE])


def _latest(conversation: Conversation) -> Iterable[str]:
    results = [pair for pair in conversation.pairs if pair.executed][-LITE_RESULTS:]
    if not results:
        yield NO_STATE
        return
    lines = [f"- {pair.name}: {cut(pair.result or '', LITE_RESULT)}" for pair in reversed(results)]
    yield "\n".join([LITE_STATE, *lines])


def decided(reply: Reply) -> bool:
    """Settled once a call has begun, after which SRI lets a reply be, or when the reply is complete."""
    return bool(reply.choices and reply.first.calls) or reply.ended or reply.error is not None
