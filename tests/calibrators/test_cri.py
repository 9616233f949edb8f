"""CRI: what its detectors find, and what comes of it. What both probes share is in test_probes.py."""

import json
import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.case import NOTHING, Case, History
from calibrators.conversation import Conversation
from calibrators.cri import (
    ABSTENTION,
    DOUBT,
    HEADER,
    NO_STATE,
    RULE,
    STATE,
    Cri,
    Evidence,
    Finding,
    Variant,
    schema_of,
    unlicensed,
)
from calibrators.flow import Outcome, Role
from calibrators.probes import Marked, Seat
from calibrators.reply import Call, Reply
from calibrators.state import BUDGET
from tests.calibrators import talking
from tests.calibrators.playing import Played, play, request, said
from tests.calibrators.talking import gave, made, user

SCHEMA = {
    "type": "object",
    "properties": {
        "order": {"type": "string"},
        "count": {"type": "integer", "default": 10},
        "speed": {"type": "string", "enum": ["slow", "express"]},
        "zone": {"anyOf": [{"const": "north"}, {"$ref": "#/$defs/far"}]},
        "price": {"type": "number"},
        "note": {"type": "string"},
    },
    "required": ["order", "count", "speed", "zone", "price"],
    "$defs": {"far": {"allOf": [{"enum": ["overseas"]}]}},
}
TOOLS = [{"type": "function", "function": {"name": "ship", "parameters": SCHEMA}}]
TALK: list[Any] = [
    {"role": "system", "content": "Orders look like ORD-7. Our depot is Depot West."},
    user("Ship order A-17 for me, it costs 1,250.50."),
    made(("c1", "find", {"order": "INVENTED-1"})),
    gave("c1", {"customer": "Zoé", "weight": 30, "items": ["lamp"]}),
    made(("c2", "find", {"order": "WRONG-2"})),
    gave("c2", "Error: no order WRONG-2; did you mean WRONG-3?"),
]
GIVEN = {"order": "A-17", "count": 10, "speed": "express", "zone": "north", "price": 1250.5}


def call(arguments: Any, name: str = "ship") -> Call:
    made = Call("t", name)
    made.add({"function": {"arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}})
    return made


def found(messages: list[Any] | None = None, schema: Any = SCHEMA, **arguments: Any) -> str | None:
    """The parameter that UR names."""
    talk = {"messages": TALK if messages is None else messages}
    return unlicensed(call({**GIVEN, **arguments}), schema, Evidence(talk))


# UR ----------------------------------------------------------------------------------------------


def test_a_call_whose_values_all_come_from_somewhere_is_licensed() -> None:
    assert found() is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("order", "a-17"),  # whatever its case
        ("order", " A-17 "),
        ("order", "ORD-7"),  # system
        ("order", "zoé"),  # a result, where JSON writes é in its own way
        ("order", "lamp"),
        ("count", 30),
        ("count", 17),
        ("price", 1250.50),
        ("speed", "slow"),
        ("zone", "overseas"),
    ],
)
def test_a_value_that_stands_somewhere_is_licensed(name: str, value: Any) -> None:
    assert found(**{name: value}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("order", "B-99"),
        ("order", "INVENTED-1"),  # an earlier argument would license itself
        ("order", "WRONG-3"),  # and so would what an error repeats
        ("count", 99),
        ("count", -5),
        ("price", 1251.5),
        ("price", 1e300),
        ("speed", "instant"),
        ("zone", "moon"),
        ("zone", "Depot East"),
    ],
)
def test_a_value_that_stands_nowhere_is_not(name: str, value: Any) -> None:
    assert found(**{name: value}) == name


@pytest.mark.parametrize("value", [True, False, None, "", "x", " y ", 7, [], ["B-99"], {"id": "B-99"}])
def test_what_no_text_could_license_never_counts(value: Any) -> None:
    assert found(order=value) is None


def test_a_missing_parameter_and_one_that_is_not_required_are_no_finding() -> None:
    evidence = Evidence({"messages": []})
    assert unlicensed(call({}), SCHEMA, evidence) is None
    assert unlicensed(call({"note": "B-99"}), SCHEMA, evidence) is None


@pytest.mark.parametrize("arguments", ["", "{", "[]", "null", '"B-99"', "B-99", "[" * 5000])
def test_arguments_that_are_no_object_are_no_finding(arguments: str) -> None:
    assert unlicensed(call(arguments), SCHEMA, Evidence({"messages": []})) is None


@pytest.mark.parametrize(("value", "text"), [(1000, "1,000"), (1000.0, "1000"), (2.5, "2.50"), (12.0, "12")])
def test_numbers_are_found_in_the_ways_in_which_people_write_them(value: float, text: str) -> None:
    assert found([user(f"Order A-17 for {text} please")], count=value, price=11) == "price"


scalars = (
    st.text(st.characters(codec="utf-8"), min_size=2, max_size=12)
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
)


@given(talking.messages, scalars, st.sampled_from(["user", "parts", "text result", "JSON result"]), st.data())
def test_ur_never_fires_on_what_stands_verbatim_in_the_users_words_or_in_results(
    messages: list[Any], value: Any, where: str, data: st.DataObject
) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    shown: dict[str, list[Any]] = {
        "user": [user(f"Take {text}, please.")],
        "parts": [user([{"type": "text", "text": f"Take {text}"}, {"type": "text", "text": "please."}])],
        "text result": [made(("new", "find", {})), gave("new", f"found: {text}")],
        "JSON result": [made(("new", "find", {})), gave("new", {"found": {"deep": [value]}})],
    }
    at = data.draw(st.integers(0, len(messages)))
    schema = {"required": ["order"]}
    talk = [*messages[:at], *shown[where], *messages[at:]]
    assert found(talk, schema, order=value) is None


@given(talking.messages, talking.arguments, talking.anything)
def test_no_schema_and_no_arguments_raise(messages: list[Any], arguments: str, schema: Any) -> None:
    shapes = [
        {"required": schema, "properties": schema},
        {"required": ["id", "n"], "properties": {"id": schema}},
    ]
    for shape in shapes:
        unlicensed(call(arguments), shape, Evidence({"messages": messages}))


def test_a_schema_that_refers_to_itself_ends() -> None:
    looped = {"required": ["order"], "properties": {"order": {"$ref": "#/properties/order"}}}
    assert found(schema=looped, order="B-99") == "order"


# MC and both together ----------------------------------------------------------------------------


def calls(*made: tuple[str, Any]) -> Reply:
    functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in made]
    return said("", tool_calls=[{"id": f"t{n}", "function": f} for n, f in enumerate(functions)])


EMPTY_TURN: frozenset[Marked] = frozenset(["empty_turn"])


def looked(
    reply: Reply,
    *second: Reply,
    offered: Any = TOOLS,
    case: Case = NOTHING,
    marks: frozenset[Marked] = frozenset(),
    **more: Any,
) -> Played:
    fields = {"messages": TALK, "tools": offered}
    seat = Seat(History(fields), case, marks=marks)
    return play(request(**fields), [Cri(seat, **more)], reply, *second)


def outcome(did: Played) -> tuple[Outcome, str]:
    (probed,) = did.report.probes
    return probed.outcome, probed.why


NO_SUCH_TOOL = "MC: refund is not offered"
NO_SUCH_VALUE = "UR: the value of ship.order stands nowhere in the conversation"
NOTHING_TO_DO = "the calls follow from the conversation"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ([("ship", GIVEN)], NOTHING_TO_DO),
        ([("refund", {})], NO_SUCH_TOOL),
        ([("ship", {**GIVEN, "order": "B-99"})], NO_SUCH_VALUE),
        ([("ship", GIVEN), ("refund", {})], NO_SUCH_TOOL),
        ([("ship", GIVEN), ("ship", {**GIVEN, "order": "B-99"})], NO_SUCH_VALUE),
    ],
)
def test_the_first_call_that_nothing_licenses_is_named(made: list[tuple[str, Any]], why: str) -> None:
    did = looked(calls(*made), *([] if why == NOTHING_TO_DO else [said("Which order?")]))
    assert outcome(did) == (Outcome.PASSED if why == NOTHING_TO_DO else Outcome.RETRIED, why)


@pytest.mark.parametrize(
    ("detectors", "made", "finds"),
    [
        (["mc"], ("ship", {**GIVEN, "order": "B-99"}), False),
        (["mc"], ("refund", {}), True),
        (["ur"], ("refund", {"order": "B-99"}), False),
        (["ur"], ("ship", {**GIVEN, "order": "B-99"}), True),
    ],
)
def test_only_the_detectors_that_are_asked_for_look(
    detectors: Any, made: tuple[str, Any], finds: bool
) -> None:
    did = looked(calls(made), *([said("Which?")] if finds else []), detectors=detectors)
    assert (outcome(did)[0] is Outcome.RETRIED) == finds


def test_why_names_tool_and_parameter_and_never_a_value() -> None:
    assert "B-99" not in outcome(looked(calls(("ship", {**GIVEN, "order": "B-99"})), said("Which?")))[1]
    assert len(Finding("mc", "x" * 5000).why) > 5000  # which is why `find` cuts what a model makes up
    did = looked(calls(("y" * 5000, {})), said("Which?"))
    assert len(outcome(did)[1]) < 200


@pytest.mark.parametrize(
    ("offered", "name"),
    [
        ([{"name": "ship", "parameters": SCHEMA}], "ship"),  # legacy, or another API's
        ([None, 3, {"function": None}, {"function": {"name": "ship"}}], "ship"),
        ([{"type": "custom", "custom": {"name": "shell"}}], "shell"),
    ],
)
def test_offered_is_offered_in_any_shape(offered: Any, name: str) -> None:
    reply = calls((name, GIVEN))
    if name == "shell":
        reply = said("", tool_calls=[{"id": "t", "type": "custom", "custom": {"name": name, "input": "ls"}}])
    assert outcome(looked(reply, offered=offered)) == (Outcome.PASSED, NOTHING_TO_DO)


def test_the_schema_of_a_tool_is_found_by_name() -> None:
    assert schema_of({"tools": TOOLS}, "ship") == SCHEMA
    assert schema_of({"tools": TOOLS}, "refund") == {}
    assert schema_of({"tools": [{"function": {"name": "ship", "parameters": None}}]}, "ship") == {}


def test_a_text_is_let_be_and_so_is_a_call_that_is_one() -> None:
    assert outcome(looked(said("Which order?"))) == (Outcome.PASSED, "the reply has no call")
    written = said('<tool_call>{"name": "refund", "arguments": {}}</tool_call>')
    told = "the call is written as text, which CRI does not judge"
    assert outcome(looked(written)) == (Outcome.PASSED, told)


# What comes of it --------------------------------------------------------------------------------

SNAPSHOT = f"{STATE}\nfind(order=INVENTED-1) -> customer=Zoé weight=30 items[0]=lamp"


def test_retry_asks_once_more_with_the_state_and_drops_the_call() -> None:
    second = said("Which order do you mean?")
    did = looked(calls(("refund", {})), second)
    assert did.served is second
    *sent, ours = did.sent(1)["messages"]
    assert sent == TALK
    assert ours == {"role": "system", "content": "\n\n".join([HEADER, DOUBT, SNAPSHOT, RULE])}
    assert [query.role for query in did.queries] == [Role.FIRST, Role.CRI]


def test_retry_says_so_where_nothing_was_run_yet() -> None:
    fields = {"messages": [user("Refund it.")], "tools": TOOLS}
    did = play(request(**fields), [Cri(Seat(History(fields)))], calls(("refund", {})), said("Which?"))
    assert did.sent(1)["messages"][-1]["content"].split("\n\n") == [HEADER, DOUBT, NO_STATE, RULE]


@given(talking.messages)
def test_the_message_keeps_its_budget(messages: list[Any]) -> None:
    message = Cri(Seat(History({"messages": messages}))).message(Conversation.of({"messages": messages}))
    assert len(message.text) <= sum(map(len, (HEADER, DOUBT, STATE, NO_STATE, RULE))) + BUDGET + 10


def test_a_second_reply_that_calls_again_is_final() -> None:
    second = calls(("refund", {}))
    assert looked(calls(("refund", {})), second).served is second


def test_bypass_answers_with_a_fixed_abstention_and_asks_nothing() -> None:
    first = calls(("refund", {}))
    did = looked(first, variant="bypass", marks=EMPTY_TURN)
    assert outcome(did) == (Outcome.BYPASSED, NO_SUCH_TOOL)
    assert (did.served.first.content, did.served.first.calls) == (ABSTENTION, [])
    assert did.served.first.finish_reason == "stop"
    assert did.served.instead_of is first
    assert did.report.header() == "cri=bypassed"
    assert re.fullmatch(r"[ -~]+", ABSTENTION)


def test_bypass_acts_only_where_the_caller_marks_the_turn() -> None:
    did = looked(calls(("refund", {})), variant="bypass")
    assert outcome(did)[0] is Outcome.GATED
    assert "marks" in outcome(did)[1]
    assert NO_SUCH_TOOL in outcome(did)[1]


@pytest.mark.parametrize("variant", get_args(Variant))
@pytest.mark.parametrize(("before", "scope"), [(TALK[:2], "turn"), (TALK[:1], "case")])
def test_it_acts_once_a_turn_and_once_a_case(variant: Variant, before: list[Any], scope: str) -> None:
    case = NOTHING.marked(["cri"], History({"messages": before}))
    did = looked(calls(("refund", {})), variant=variant, marks=EMPTY_TURN, case=case)
    assert outcome(did) == (Outcome.GATED, f"CRI has acted in this {scope} ({NO_SUCH_TOOL})")


def test_it_does_not_act_once_the_tools_have_grown() -> None:
    case = NOTHING.seen(History({"messages": TALK[:2], "tools": TOOLS}))
    more = [*TOOLS, {"type": "function", "function": {"name": "find"}}]
    did = looked(calls(("refund", {})), offered=more, case=case)
    assert outcome(did) == (
        Outcome.GATED,
        f"the tools have grown since the case began ({NO_SUCH_TOOL})",
    )
    assert outcome(looked(calls(("refund", {})), said("Which?"), case=case))[0] is Outcome.RETRIED
