import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.conversation import Conversation, Pair
from calibrators.state import BUDGET, FIELDS, LINE, How, cut, observed, scalars, within
from tests.calibrators import talking


def pair(name: str, arguments: Any, result: Any, **more: Any) -> Pair:
    text = result if isinstance(result, str | None) else json.dumps(result)
    return Pair(name, json.dumps(arguments), text, **more)


@given(talking.messages, st.sampled_from(["generic", "published"]), st.integers(0, 3000))
def test_a_snapshot_never_raises_and_keeps_its_budget(messages: list[Any], how: How, budget: int) -> None:
    seen = observed(Conversation.of({"messages": messages}).pairs, how, budget)
    assert len(seen) <= budget
    assert all(0 < len(line) <= LINE for line in seen.split("\n") if seen)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=9000), max_size=12))
def test_long_results_keep_the_budget_too(results: list[str]) -> None:
    pairs = [pair("look", {"n": at}, text) for at, text in enumerate(results)]
    assert len(observed(pairs)) <= BUDGET


@given(st.lists(st.text(min_size=1, max_size=30), max_size=9), st.integers(0, 90))
def test_whole_lines_are_kept_as_long_as_they_fit(lines: list[str], budget: int) -> None:
    fitting = ["\n".join(lines[:count]) for count in range(len(lines) + 1)]
    assert within(lines, budget) == max((text for text in fitting if len(text) <= budget), key=len)


@given(st.text(), st.integers(1, 50))
def test_a_cut_text_shows_that_it_was_cut(text: str, most: int) -> None:
    shown = cut(text, most)
    assert len(shown) <= most
    assert shown == text if len(text) <= most else shown == text[: most - 1] + "…"


@given(talking.anything)
def test_scalar_fields_are_bounded_and_hold_no_nulls(value: Any) -> None:
    found = scalars(value)
    assert len(found) <= FIELDS
    assert ("x", "null") not in scalars({"x": None})


def test_scalar_fields_have_paths() -> None:
    value = {"order": {"id": "A7", "paid": True, "note": None}, "items": [{"n": 2}, {"n": 0.5}]}
    assert scalars(value) == [
        ("order.id", "A7"),
        ("order.paid", "true"),
        ("items[0].n", "2"),
        ("items[1].n", "0.5"),
    ]


def test_the_generic_state_shows_any_tool_newest_first() -> None:
    pairs = [
        pair("mkdir", {"name": "reports"}, {"created": "reports", "path": None}),
        pair("cp", {"from": "a.txt", "to": ["b", "c"]}, ""),
        pair("price", {"symbol": "ABC"}, "41.5"),
        pair("say", {"text": "Hi\n there"}, "sent\n  ok"),
    ]
    assert observed(pairs).split("\n") == [
        "say(text=Hi there) -> sent ok",
        "price(symbol=ABC) -> 41.5",
        "cp(from=a.txt, to=list of 2) -> (no output)",
        "mkdir(name=reports) -> created=reports",
    ]


@pytest.mark.parametrize("how", ["generic", "published"])
def test_calls_that_failed_or_have_no_result_are_left_out(how: How) -> None:
    pairs = [pair("mv", {"source": "a"}, "Error: no a", failed=True), pair("mv", {"source": "b"}, None)]
    assert observed(pairs, how) == ""


def test_one_long_result_does_not_push_out_the_others() -> None:
    pairs = [pair("ls", {}, "a.txt"), pair("cat", {}, "x" * 5000)]
    newest, oldest = observed(pairs).split("\n")
    assert len(newest) == LINE
    assert oldest == "ls() -> a.txt"


def test_the_published_state_knows_its_four_tools_and_no_others() -> None:
    pairs = [
        pair("VehicleControlAPI.startEngine", {"ignitionMode": "START"}, {"engineState": "running"}),
        pair("startEngine", {"ignitionMode": "STOP"}, {}),
        pair("lockDoors", {"unlock": False, "door": ["driver", "passenger"]}, {}),
        pair("lockDoors", {"unlock": True}, {}),
        pair("mv", {"source": "a.txt", "destination": "docs"}, {}),
        pair("send_message", {"receiver_id": "USR002", "message": "Secret."}, {}),
        pair("cp", {"source": "a.txt"}, {}),
    ]
    assert observed(pairs, "published").split("\n") == [
        "message sent to: USR002",
        "moved: a.txt to docs",
        "doors unlocked: all",
        "doors locked: driver, passenger",
        "engine: stopped",
        "engine: running",
    ]
