from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.conversation import Conversation, Pair, reports_error, text_of
from tests.calibrators import talking
from tests.calibrators.talking import gave, made, user

SHIP = ("c1", "ship", {"id": "A7"})
CANCEL = ("c2", "cancel", {"id": "B2"})


def of(*messages: Any) -> Conversation:
    return Conversation.of({"messages": list(messages)})


def told(*messages: Any) -> list[tuple[str, str | None, bool]]:
    """Name, result and failure of each call."""
    return [(pair.name, pair.result, pair.failed) for pair in of(*messages).pairs]


@given(talking.messages | talking.anything)
def test_no_message_list_raises(messages: Any) -> None:
    conversation = Conversation.of({"messages": messages})
    list(conversation.results)
    assert all(isinstance(text, str) for text in (*conversation.requests, *conversation.guidance))


@given(talking.messages)
def test_every_result_without_an_error_is_kept_once(messages: list[Any]) -> None:
    sent = [m for m in messages if isinstance(m, dict) and m.get("role") in ("tool", "function")]
    texts = [text_of(m.get("content")) for m in sent]
    good = [text for m, text in zip(sent, texts, strict=True) if not reports_error(m, text)]
    assert sorted(Conversation.of({"messages": messages}).results) == sorted(good)


def test_requests_and_guidance_are_read_in_order() -> None:
    conversation = of(
        {"role": "system", "content": "Be brief."},
        user("Ship A7."),
        {"role": "assistant", "content": "Where to?"},
        {"role": "developer", "content": [{"type": "text", "text": "Never guess."}]},
        user([{"type": "text", "text": "To Oslo"}, {"type": "image_url", "image_url": {}}, "and fast"]),
        user(None),
    )
    assert conversation.requests == ["Ship A7.", "To Oslo\nand fast", ""]
    assert conversation.guidance == ["Be brief.", "Never guess."]


def test_parallel_calls_get_their_results_by_id_in_any_order() -> None:
    assert told(made(SHIP, CANCEL), gave("c2", "cancelled"), gave("c1", "shipped")) == [
        ("ship", "shipped", False),
        ("cancel", "cancelled", False),
    ]


def test_parallel_calls_of_one_id_get_their_results_in_order() -> None:
    twice = made(SHIP, ("c1", "cancel", {}))
    assert [r for _, r, _ in told(twice, gave("c1", "one"), gave("c1", "two"))] == ["one", "two"]


def test_a_call_whose_result_is_missing_has_none_and_is_not_executed() -> None:
    (pair,) = of(made(SHIP)).pairs
    assert (pair.name, pair.arguments, pair.result, pair.executed) == ("ship", '{"id": "A7"}', None, False)


def test_a_result_in_front_of_its_call_is_its_result() -> None:
    assert told(gave("c1", "shipped"), made(SHIP)) == [("ship", "shipped", False)]


def test_an_id_that_is_used_again_means_the_latest_call() -> None:
    again: tuple[str, str, dict[str, Any]] = ("c1", "cancel", {})
    assert told(made(SHIP), gave("c1", "shipped"), made(again), gave("c1", "cancelled")) == [
        ("ship", "shipped", False),
        ("cancel", "cancelled", False),
    ]


def test_a_stray_result_of_an_id_that_is_used_again_does_not_take_the_calls_own_place() -> None:
    """What a compacted history leaves: the call is gone, its result is not."""
    conversation = of(gave("c1", "old"), made(SHIP), gave("c1", "shipped"))
    assert [pair.result for pair in conversation.pairs] == ["shipped"]
    assert conversation.loose == ["old"]


def test_results_without_an_id_go_by_name_and_else_to_the_latest_calls() -> None:
    by_name = {"role": "tool", "name": "cancel", "content": "cancelled"}
    nameless = {"role": "tool", "content": "shipped"}
    assert [r for _, r, _ in told(made(SHIP, CANCEL), by_name, nameless)] == ["shipped", "cancelled"]


def test_legacy_functions_are_calls_and_results_too() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "ship", "arguments": "{}"}}
    assert told(call, {"role": "function", "name": "ship", "content": "shipped"}) == [
        ("ship", "shipped", False)
    ]


def test_custom_tools_are_calls_too() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    (pair,) = of({"role": "assistant", "tool_calls": [call]}, gave("c1", "a.txt")).pairs
    assert pair == Pair("shell", "ls", "a.txt")


def test_arguments_that_were_sent_as_an_object_are_read_as_their_json() -> None:
    function = {"name": "ship", "arguments": {"id": "A7"}}
    (pair,) = of({"role": "assistant", "tool_calls": [{"function": function}]}).pairs
    assert pair.arguments == '{"id": "A7"}'


@pytest.mark.parametrize("empty", [None, "", "absent"])
def test_arguments_that_are_not_there_are_an_empty_object(empty: str | None) -> None:
    function = {"name": "ship"} if empty == "absent" else {"name": "ship", "arguments": empty}
    (pair,) = of({"role": "assistant", "tool_calls": [{"function": function}]}).pairs
    assert pair.arguments == "{}"


def test_results_of_a_compacted_history_are_still_known() -> None:
    conversation = of(user("Go on."), gave("gone", "order A7 is in Oslo"), gave("gone too", "Error: none"))
    assert conversation.pairs == []
    assert list(conversation.results) == ["order A7 is in Oslo"]


FAILURES = [
    "Error: no such order",
    "error - no such order",
    "[ERROR] no such order",
    "Traceback (most recent call last):\n  ...",
    "ValueError: no such order",
    "Failed to ship",
    '{"error": "no such order"}',
    '{"errors": ["no such order"]}',
    '{"isError": true, "content": []}',
    '{"success": false}',
    '{"ok": false, "reason": "no such order"}',
    '{"status": "Error"}',
    ' {"exception": "KeyError"}',
]
SUCCESSES = [
    "",
    "0 errors",
    "No error was found.",
    "The terror of the seas, 1881",
    '{"error": null, "order": "A7"}',
    '{"errors": []}',
    '{"error": "", "order": "A7"}',
    '{"success": true}',
    '{"status": "shipped"}',
    '{"note": "error"}',
    "{not json, error",
    "[]",
    "null",
]


@pytest.mark.parametrize("text", FAILURES)
def test_a_result_that_reports_an_error_is_told_from_others(text: str) -> None:
    assert told(made(SHIP), gave("c1", text)) == [("ship", text, True)]


@pytest.mark.parametrize("text", SUCCESSES)
def test_a_result_that_only_speaks_of_errors_is_none(text: str) -> None:
    assert told(made(SHIP), gave("c1", text)) == [("ship", text, False)]


@pytest.mark.parametrize("mark", [{"is_error": True}, {"status": "error"}])
def test_a_message_may_say_itself_that_the_call_failed(mark: dict[str, Any]) -> None:
    assert told(made(SHIP), gave("c1", "no such order", **mark)) == [("ship", "no such order", True)]


@given(st.text(max_size=200))
def test_a_result_is_judged_without_raising(text: str) -> None:
    assert reports_error({}, text) in (True, False)
