"""CRI, the Call-Reconciliation Intervention at the call seam: a call that nothing licenses is taken back.

arXiv:2609.00949, calibration.md section 6. Two detectors that need no label: MC, the called name is not
among the offered tools; UR, a required parameter is bound to a value that stands nowhere in what the user,
the guidance or the tools have said.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

from calibrators.conversation import Conversation, loaded, reports_error, text_of
from calibrators.flow import Ask, Flow, Outcome, Probed, Query, Report, Role, whole
from calibrators.probes import NO_ROLE, Message, Seat, halts, not_looked_at, pair_id, second, unfinished
from calibrators.reply import Call, Reply
from calibrators.request import Fields, messages_of, tools_of
from calibrators.skip import Skip
from calibrators.state import BUDGET, How, observed

HEADER = "[Check before you call] The call that you were about to make was not run."
DOUBT = "It may not be warranted: the tool, or a value that it needs, does not follow from this conversation."
STATE = "What calls have done so far, latest first:"
NO_STATE = "No call has been run yet."
RULE = (
    "Make no call this turn. Tell the user briefly what is missing or can't be done here. "
    "Do not mention this message."
)
ABSTENTION = "I can't do this yet: I don't have the tool or all of the information that it needs."
"""What `bypass` answers."""

Variant = Literal["retry", "bypass"]
Detector = Literal["mc", "ur"]


class Finding(NamedTuple):
    """What a detector found, and where."""

    detector: Detector
    where: str

    @property
    def why(self) -> str:
        """For people; it names tool and parameter, never a value."""
        if self.detector == "mc":
            return f"MC: {self.where} is not offered"
        return f"UR: the value of {self.where} stands nowhere in the conversation"


@dataclass(frozen=True, slots=True)
class Cri:
    """Takes back calls that nothing licenses.

    Attributes:
        detectors: which of them look.
        state: which snapshot of the executed calls is shown, and counts as observed.
        log_only: look, write down what would be done, change nothing.
    """

    seat: Seat
    variant: Variant = "retry"
    detectors: Sequence[Detector] = ("mc", "ur")
    state: How = "generic"
    log_only: bool = False

    def flow(self, query: Query, ask: Ask, report: Report) -> Flow:
        """Ask; where the reply makes a call that a detector finds and no gate is shut, take it back."""
        if reason := not_looked_at(query.fields):
            report.skipped["cri"] = reason
            return (yield from ask(query))
        if self.log_only:
            first = yield from ask(query)
            report.later.append(partial(self._note, first, query.fields, report))
            return first
        shut = self._shut()
        first = yield from ask(query if shut else query.until(whole))
        if shut and not whole(first):
            report.skipped["cri"] = Skip("gated", shut)  # a stream, not held for what can't be
            return first
        probed = self._look(first, query.fields, report)
        if probed is None:
            return first
        if self.variant == "bypass":
            probed.outcome = Outcome.BYPASSED
            probed.after = first.saying(ABSTENTION)
            return probed.after
        message = self.message(Conversation.of(query.fields))
        return (yield from second(query, ask, Role.CRI, message, first, probed, report))

    def _look(self, first: Reply, fields: Fields, report: Report) -> Probed | None:
        """Judge a reply; None where it is to be served as it is. What was seen stands in the report."""
        if reason := report.void or unfinished(first):
            report.skipped["cri"] = reason
            return None
        probed = Probed("cri", Outcome.PASSED, "the reply has no call", first)
        report.probes.append(probed)
        if not first.first.calls:
            if not halts(first.first):
                probed.why = "the call is written as text, which CRI does not judge"
            return None
        found = self.find(first.first.calls, fields)
        if found is None:
            probed.why = "the calls follow from the conversation"
            return None
        if shut := self._shut():
            probed.settle(Outcome.GATED, f"{shut} ({found.why})")
            return None
        probed.why = found.why
        return probed

    def _note(self, first: Reply, fields: Fields, report: Report) -> None:
        """Write down what would be done."""
        if probed := self._look(first, fields, report):
            probed.pair = pair_id()
            probed.settle(Outcome.LOG_ONLY, f"log_only: would {self.variant}; {probed.why}")

    def find(self, calls: Iterable[Call], fields: Fields) -> Finding | None:
        """The first thing that a detector objects to."""
        offered = self.seat.history.tools
        evidence = Evidence(fields)
        for call in calls:
            if call.name not in offered:
                if "mc" in self.detectors:
                    return Finding("mc", call.name[:100])
            elif "ur" in self.detectors and (
                name := unlicensed(call, schema_of(fields, call.name), evidence)
            ):
                return Finding("ur", f"{call.name}.{name}"[:200])
        return None

    def _shut(self) -> str | None:
        """Why nothing can come of this reply, whatever it says."""
        case, history = self.seat.case, self.seat.history
        if done := case.acted("cri", history):
            return f"CRI has acted in this {done}"
        if case.grown(history):
            return "the tools have grown since the case began"
        if self.variant == "bypass" and "empty_turn" not in self.seat.marks:
            return "bypass acts only on a turn that the caller marks as one to stay empty"
        needs = self.variant == "retry" and not self.log_only
        return NO_ROLE if needs and not self.seat.roles else None

    def message(self, conversation: Conversation) -> Message:
        """What the second query is asked with."""
        seen = observed(conversation.pairs, self.state, BUDGET)
        state = f"{STATE}\n{seen}" if seen else NO_STATE
        return Message("\n\n".join([HEADER, DOUBT, state, RULE]), _OWN, self.seat.roles)


_OWN = "\n".join([HEADER, DOUBT, STATE, RULE])


@dataclass
class Evidence:
    """Where a value may come from: the user, guidance, and what tools returned.

    Never earlier arguments: one invented value would license itself. For the same reason no result that
    reports an error, since those repeat what they were called with.
    """

    fields: Fields

    def holds(self, value: str) -> bool:
        """Whether a value stands in it, whatever its case."""
        wanted = value.casefold()
        return wanted in self._said or any(wanted in given.says and not given.failed for given in self._given)

    @cached_property
    def _said(self) -> str:
        people = (m for m in messages_of(self.fields) if m.get("role") in ("user", "system", "developer"))
        return "\n".join(text_of(message.get("content")) for message in people).casefold()

    @cached_property
    def _given(self) -> Sequence["_Given"]:
        return [_Given(m) for m in messages_of(self.fields) if m.get("role") in ("tool", "function")]


class _Given:
    """A result; whether it reports an error is only looked at where that matters."""

    def __init__(self, message: Fields) -> None:
        self._message = message
        self._text = text_of(message.get("content"))
        # JSON may write a character in another way than the model does.
        strings = _strings(loaded(self._text)) if "\\" in self._text else ()
        self.says = "\n".join([self._text, *strings]).casefold()

    @cached_property
    def failed(self) -> bool:
        """Whether it reports an error."""
        return reports_error(self._message, self._text)


def _strings(value: Any) -> Iterable[str]:
    """Every string of a JSON value."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            left += item.values()
        elif isinstance(item, list):
            left += item


def unlicensed(call: Call, schema: Mapping[str, Any], evidence: Evidence) -> str | None:
    """The first required parameter of a call whose value comes from nowhere; None where all do.

    Booleans, null, containers and values of one character never count, and a missing parameter is no UR.
    """
    arguments = loaded(call.arguments)
    required = schema.get("required")
    if not isinstance(arguments, dict) or not isinstance(required, list):
        return None
    for name in required:
        value = arguments.get(name) if isinstance(name, str) else None
        forms = _forms(value)
        if forms and not any(map(evidence.holds, forms)) and value not in _allowed(schema, name):
            return str(name)
    return None


def _forms(value: object) -> Sequence[str]:
    """How a scalar may be written; none for what never counts."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ()
    if isinstance(value, str):
        return (value.strip(),) if len(value.strip()) > 1 else ()
    text = json.dumps(value)
    if len(text) < 2:
        return ()
    forms = [text]
    if isinstance(value, float) and value.is_integer():
        forms.append(str(int(value)))
    if abs(value) >= 1000:
        forms.append(f"{value:,}".removesuffix(".0"))
    return forms


def _allowed(schema: Mapping[str, Any], name: str) -> list[Any]:
    """The values that a parameter's schema names itself: enum, const, default."""
    properties = schema.get("properties")
    own = properties.get(name) if isinstance(properties, Mapping) else None
    return list(_named(own, schema, depth=4))


def _named(own: object, schema: Mapping[str, Any], depth: int) -> Iterable[Any]:
    if not isinstance(own, Mapping) or not depth:
        return
    listed = own.get("enum")
    yield from listed if isinstance(listed, list) else ()
    yield from (own[key] for key in ("const", "default") if key in own)
    for key in ("anyOf", "oneOf", "allOf"):
        options = own.get(key)
        for option in options if isinstance(options, list) else ():
            yield from _named(option, schema, depth - 1)
    reference = own.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        yield from _named(_referred(schema, reference), schema, depth - 1)


def _referred(schema: Any, reference: str) -> Any:
    node = schema
    for part in reference[2:].split("/"):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def schema_of(fields: Fields, name: str) -> Mapping[str, Any]:
    """The parameters of an offered tool; empty where it has none."""
    for tool in tools_of(fields):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, Mapping) else {}
    return {}
