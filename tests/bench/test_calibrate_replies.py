"""Whole replies and re-asked first tokens: what counts as what."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from bench.calibrate.asking import Answer
from bench.calibrate.flips import MOST, flips
from bench.calibrate.generation import AGAIN, OFF, figures, replied
from bench.calibrate.rerun import NEAR, agreement
from bench.decisions.example import Example
from tests.bench.deciding import TOOL
from tests.bench.test_calibrate import drawn, measured

DUE = Example("d", "s", "d", True, {"tools": [TOOL]}, gold=[{"name": "find", "arguments": {"of": "x"}}])
NOT_DUE = Example("n", "s", "n", False, {"tools": [TOOL]})


def answer(message: Mapping[str, Any], finish: str = "stop", status: int = 200) -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 9, "completion_tokens": 4}
    return Answer(status, {"choices": [choice], "usage": usage, "calibration": {"queries": 2}}, 0)


def call(name: str = "find", arguments: str = '{"of": "x"}', text: str | None = None) -> dict[str, Any]:
    return {"content": text, "tool_calls": [{"id": "c", "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("message", "action", "valid", "right"),
    [
        (call(), "tool_call", True, True),
        (call(arguments="{}"), "tool_call", False, True),  # a required parameter is missing
        (call(arguments='{"of": 1}'), "tool_call", False, True),
        (call(arguments='{"of": "x"'), "tool_call", False, True),
        (call(name="other"), "tool_call", False, False),
        # It tried to call and did not parse: no abstention, and no valid call.
        ({"content": '<tool_call>{"name": "find", "argu'}, "tool_call", False, False),
        ({"content": "Which one do you mean?"}, "ask", False, False),
    ],
)
def test_a_reply_is_judged_by_its_call(
    message: Mapping[str, Any], action: str, valid: bool, right: bool
) -> None:
    record = replied(answer(message), DUE)
    assert (record["action"], record["valid"], record["right_tool"]) == (action, valid, right)
    assert (record["queries"], record["completion_tokens"]) == (2, 4)


def test_a_call_after_text_is_delayed() -> None:
    assert replied(answer(call(text="Let me see.")), DUE)["delayed"]
    assert not replied(answer(call()), DUE)["delayed"]


def records(arm: str, *replies: tuple[Example, Answer]) -> list[dict[str, Any]]:
    return [{"arm": arm, "id": one.id, **replied(reply, one)} for one, reply in replies]


def test_cut_and_errored_replies_are_counted_apart_and_never_as_abstentions() -> None:
    third = Example("t", "s", "t", False, {"tools": [TOOL]})
    rows = records(
        OFF,
        (DUE, answer({"content": "I was say"}, finish="length")),
        (NOT_DUE, answer({"content": "No."})),
        (third, Answer(500, {"error": {"message": "boom"}}, 0)),
    )
    found = figures([DUE, NOT_DUE, third], [*rows, *records(AGAIN)], [OFF, AGAIN], seed=0)
    counts = found["arms"][OFF]["counts"]
    assert counts == {"planned": 3, "run": 3, "scored": 1, "errored": 1, "unmeasurable": 1}
    assert found["arms"][OFF]["over_calling"]["n"] == 1
    assert found["arms"][OFF]["call_recall"]["reason"] == "no case was scored"
    assert found["noise_floor"]["decision"]["estimate"] is None


def test_changes_are_on_the_examples_that_both_arms_scored() -> None:
    examples = [Example(str(n), "s", str(n), n % 2 == 0, {"tools": [TOOL]}) for n in range(40)]
    called = answer(call())
    off = records(OFF, *((one, called) for one in examples))
    said = [answer({"content": "No."}) if n < 20 else called for n in range(40)]
    said[39] = Answer(500, {}, 0)
    on = records("b = -1", *zip(examples, said, strict=True))
    again = records(AGAIN, *((one, called) for one in examples))
    found = figures(examples, [*off, *on, *again], [OFF, AGAIN, "b = -1"], seed=0)
    change = found["changes"]["b = -1"]
    assert (change["over_calling"]["estimate"], change["over_calling"]["n"]) == (pytest.approx(-10 / 19), 19)
    assert change["call_recall"]["estimate"] == -0.5
    assert change["call_recall"]["test"]["lost"] == 10
    assert found["noise_floor"]["wording"]["estimate"] == 0
    assert set(found["arms"]) == {OFF, "b = -1"}
    for name, mean in (("completion_tokens", 4), ("queries", 2)):
        own = found["arms"]["b = -1"][name]
        assert (own["estimate"], own["n"], own["low"]) == (mean, 39, None)  # 39 conversations: too few


# Asked again ------------------------------------------------------------------------------------------------


def rows_of(b: float, table: Any, greedy: Any, sampled: Any) -> list[dict[str, Any]]:
    return [
        {"bias": b, "id": one.id, "greedy": bool(g), "sampled": bool(s)}
        for one, g, s in zip(table.examples, greedy, sampled, strict=True)
    ]


def test_first_tokens_that_follow_the_formula_agree_and_others_do_not() -> None:
    table = drawn(600, 3)
    random = np.random.default_rng(1)
    greedy, chances = table.entries(-1.0, "greedy"), table.entries(-1.0, "sampled")
    sampled = random.random(600) < chances
    (point,) = agreement(table, rows_of(-1.0, table, greedy, sampled))
    assert point["agrees"]
    # As if the bias had not acted.
    (point,) = agreement(table, rows_of(-1.0, table, table.entries(0, "greedy"), sampled))
    assert not point["agrees"]
    assert point["greedy_turned"] > 100
    unbiased = random.random(600) < table.entries(0, "sampled")
    (point,) = agreement(table, rows_of(-1.0, table, greedy, unbiased))
    assert not point["agrees"]


def test_a_greedy_decision_on_its_edge_may_go_either_way() -> None:
    table = measured([1.0 + NEAR / 2, 5, -5], [True, True, False])
    (point,) = agreement(table, rows_of(-1.0, table, [False, True, False], [True, True, False]))
    assert (point["greedy_turned"], point["greedy_near"]) == (0, 1)
    assert point["agrees"]


# Flips ------------------------------------------------------------------------------------------------------


def test_flips_are_the_decisions_that_turn_a_few_of_each_kind() -> None:
    table = drawn(400, 4)
    shown = flips(table, -1.5, {f"{OFF}/1": {"status": 200, "calls": [], "text": "Yes.\nNo."}})
    assert len(shown) == 2 * MOST
    by_id = {one.id: (one, gap) for one, gap in zip(table.examples, table.gap, strict=True)}
    for flip in shown:
        one, gap = by_id[flip["id"]]
        assert not flip["opens_call"]
        assert 0 < gap <= 1.5
        assert flip["should_call"] == one.should_call
        assert flip["off"] == ("Yes. No." if flip["id"] == "1" else None)
    assert flips(table, 0.0, {}) == []
