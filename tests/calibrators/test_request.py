from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.reply import Call
from calibrators.request import (
    case_of,
    choices_of,
    messages_of,
    no_decision,
    repeated_calls,
    tool_choice_of,
    tools_of,
)

SYSTEM = {"role": "system", "content": "Be brief."}
FIRST = {"role": "user", "content": "Ship A7."}
CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "function": {"name": "ship", "arguments": '{"id":"A7"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "ok"}
SECOND = {"role": "user", "content": "And B2."}


def made(name: str, arguments: str = "{}") -> Call:
    call = Call()
    call.add({"function": {"name": name, "arguments": arguments}})
    return call


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "tools",
    "functions",
    "tool_choice",
    "function_call",
    "n",
    "messages",
    "response_format",
    "guided_json",
]
message = st.fixed_dictionaries({}, optional={"role": st.just("user") | anything, "tool_calls": anything})
bodies = st.dictionaries(st.sampled_from(KEYS), anything | st.lists(message | anything, max_size=3))


@given(bodies)
def test_no_request_is_too_odd_to_be_read(fields: dict[str, Any]) -> None:
    case_of(fields)
    no_decision(fields)
    tools_of(fields)
    assert isinstance(tool_choice_of(fields), str)
    assert choices_of(fields) >= 1
    assert repeated_calls(fields, [made("ship")]) in (0, 1)
    messages_of(fields)


def test_a_conversation_keeps_its_case_while_its_turn_counts_the_users_messages() -> None:
    begun, turn = case_of({"messages": [SYSTEM, FIRST]})
    assert turn == 1
    assert case_of({"messages": [SYSTEM, FIRST, CALLED, RESULT]}) == (begun, 1)
    assert case_of({"messages": [SYSTEM, FIRST, CALLED, RESULT, SECOND]}) == (begun, 2)


def test_conversations_that_begin_differently_are_different_cases() -> None:
    cases = [[FIRST], [SYSTEM, FIRST], [SECOND], [{**FIRST, "content": "Ship A8."}]]
    assert len({case_of({"messages": messages})[0] for messages in cases}) == len(cases)


def test_a_case_does_not_depend_on_what_stands_beside_the_messages() -> None:
    one = {"messages": [FIRST], "temperature": 0}
    assert case_of(one) == case_of({"model": "m", "messages": [FIRST], "stream": True})


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, "none"),
        ({"tools": [1]}, "auto"),
        ({"functions": [1]}, "auto"),
        ({"tools": [1], "tool_choice": "required"}, "required"),
        ({"tools": [1], "tool_choice": {"type": "function"}}, "named"),
        ({"functions": [1], "function_call": "none"}, "none"),
        ({"tools": [1], "tool_choice": None}, "auto"),
    ],
)
def test_an_absent_tool_choice_is_auto_where_tools_are_offered(fields: dict[str, Any], choice: str) -> None:
    assert tool_choice_of(fields) == choice


def test_a_call_that_was_made_in_this_turn_already_is_a_repeat() -> None:
    again = [made("ship", '{"id":"A7"}')]
    assert repeated_calls({"messages": [FIRST, CALLED, RESULT]}, again) == 1
    assert repeated_calls({"messages": [FIRST, CALLED, RESULT]}, [made("ship", '{"id":"B2"}')]) == 0
    assert repeated_calls({"messages": [FIRST, CALLED, RESULT, SECOND]}, again) == 0


def test_calls_that_repeat_each_other_in_one_reply_are_repeats() -> None:
    assert repeated_calls({"messages": [FIRST]}, [made("ship"), made("ship"), made("ship")]) == 2


def test_a_word_of_the_clients_is_not_put_into_the_reason() -> None:
    reason = no_decision({"tools": [1], "tool_choice": "x\r\ny"})
    assert reason is not None
    assert reason.text == "tool_choice is another word"
