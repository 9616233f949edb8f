"""What the two context probes share: when they may look, how they ask again, what may be shown of it.

A probe reads one whole reply and may ask a second time, with one message of ours appended to the client's
own; the second reply is final for that probe (calibration.md section 6). It is held until it is whole: it
may fail, or repeat our message, and then the first one is served.
"""

import re
import secrets
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from calibrators.actions import is_call_text
from calibrators.body import Body, NotAnObject, appended, dumped, elements_of
from calibrators.case import NOTHING, Case, History
from calibrators.flow import (
    Ask,
    Flow,
    LateRole,
    Outcome,
    Probed,
    Query,
    QueryFailed,
    Report,
    Role,
    status_of,
    whole,
)
from calibrators.reply import Choice, Reply
from calibrators.request import Fields, choices_of, no_decision
from calibrators.skip import Skip

Marked = Literal["miss_param", "empty_turn"]
"""A required parameter is missing in this case; this turn must stay without a call."""

UNKNOWN_ROLES: Sequence[LateRole] = ("system", "user")
"""What is tried where nobody knows what the template takes."""

NO_ROLE = "the model's template takes no message behind the client's"


class Message(NamedTuple):
    """What a second query is asked with.

    Attributes:
        text: our message.
        own: what of it are our words, and none of the conversation's.
        dropped: the reply that is kept in front of it; None where it is dropped.
        recent: how many of the last messages are sent, beside guidance and the first request; None for all.
        roles: under which roles the message may stand, tried in this order.
    """

    text: str
    own: str
    roles: Sequence[LateRole]
    dropped: str | None = None
    recent: int | None = None


@dataclass(frozen=True, slots=True)
class Seat:
    """What a probe knows beside the reply: where the conversation stands and what is remembered of it.

    Attributes:
        roles: what the model's template takes as a late message, tried in this order.
        marks: what the caller says of this case or turn.
    """

    history: History
    case: Case = NOTHING
    roles: Sequence[LateRole] = UNKNOWN_ROLES
    marks: Set[Marked] = frozenset()


def not_looked_at(fields: Fields) -> Skip | None:
    """Why there is no seam to look at in this request; None where there is one."""
    if reason := no_decision(fields):
        return reason
    if choices_of(fields) > 1:
        return Skip("n", "probes act on one reply, not n > 1")
    return None


def unfinished(reply: Reply) -> Skip | None:
    """Why a reply can't be judged: an error, a cut text, a body that could not be read."""
    if not reply.good:
        return Skip("error", "the reply is an error")
    if not reply.readable or (reply.ended and not reply.choices):
        return Skip("unreadable", "the reply could not be read")
    if reply.first.cut:
        return Skip("cut", f"the reply was cut ({reply.first.finish_reason})")
    if not (reply.ended or reply.first.finish_reason):
        return _UNENDED
    return None


_UNENDED = Skip("cut", "the reply did not end")


def halts(choice: Choice) -> bool:
    """Whether a reply has no parseable call: neither a structured one nor a text that is one."""
    return not choice.calls and not is_call_text(choice.content)


def second(
    query: Query, ask: Ask, role: Role, message: Message, first: Reply, probed: Probed, report: Report
) -> Flow:
    """Ask again with our message and return what to serve: the second reply, or the first where that failed.

    `probed` is told what came of it.
    """
    try:
        reply = yield from _again(query, ask, role, message, report)
    except (QueryFailed, NotAnObject) as error:
        probed.settle(Outcome.FAILED, f"the second query failed: {error}")
        return first
    probed.after = reply
    if not reply.good:
        probed.settle(Outcome.FAILED, f"the second query answered {status_of(reply)}")
        return first
    if reason := unfinished(reply) or (None if reply.ended else _UNENDED):
        probed.settle(Outcome.FAILED, f"asked again, and {reason.text}")
        return first
    if reveals(reply.first, message.own):
        probed.settle(Outcome.FAILED, "the second reply repeats the message that asked for it")
        return first
    probed.outcome = Outcome.RETRIED
    return reply


def _again(query: Query, ask: Ask, role: Role, message: Message, report: Report) -> Flow:
    """The second query; under the next role where the template refuses a late message under the first."""
    learned = report.late_role
    for late in message.roles if learned not in message.roles or learned is None else (learned,):
        asked = replace(query.until(whole), body=_with_message(query.body, message, late), role=role)
        reply = yield from ask(asked)
        if reply.good or status_of(reply) not in (400, 422):
            break
    if reply.good and len(message.roles) > 1:
        report.late_role = late
    return reply


def _with_message(body: Body, message: Message, role: LateRole) -> Body:
    """The body with our message behind the client's, whose bytes stay."""
    raw = body.raw("messages")
    if raw is None:
        raise NotAnObject("the request has no messages")
    if message.recent is not None:
        raw = "[" + ",".join(_recent(raw, message.recent)) + "]"
    new = [] if message.dropped is None else [{"role": "assistant", "content": message.dropped}]
    new.append({"role": role, "content": message.text})
    return body.with_raw(messages=appended(raw, map(dumped, new)))


def _recent(raw: str, count: int) -> Iterable[str]:
    """Guidance, the first user message and the last `count` messages; a call keeps its results' company."""
    elements = elements_of(raw)
    roles = [_role(element) for element in elements]
    start = max(0, len(elements) - count)
    while 0 < start < len(elements) and roles[start] in ("tool", "function"):
        start -= 1  # a result without its call is an error to most templates
    first = roles.index("user") if "user" in roles else 0
    for at, element in enumerate(elements):
        if at >= start or at == first or roles[at] in ("system", "developer"):
            yield element


def _role(raw: str) -> object:
    return Body.parse(raw).fields.get("role") if raw.startswith("{") else None


def reveals(choice: Choice, own: str) -> bool:
    """Whether a reply repeats so many of our words in a row that it is nobody's accident.

    By words, since models quote a part, set it in bold, or break its lines in another place.
    """
    shown = " ".join([choice.content, choice.reasoning, *(c.arguments for c in choice.calls)]).casefold()
    said = f" {' '.join(_WORD.findall(shown))} "
    return any(run in said for run in _runs(own)) or any(tag in shown for tag in _TAG.findall(own.casefold()))


def _runs(own: str) -> Iterable[str]:
    """Every run of so many words, from one line."""
    for line in own.casefold().splitlines():
        words = _WORD.findall(line)
        for at in range(len(words) - _TELLING + 1):
            yield f" {' '.join(words[at : at + _TELLING])} "


_TELLING = 7
_WORD = re.compile(r"\w+")
_TAG = re.compile(r"\[[^\]]+\]")


def pair_id() -> str:
    """Names a would-be decision and the live one that it stands beside."""
    return secrets.token_hex(6)
