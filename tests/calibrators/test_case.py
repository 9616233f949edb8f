import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.case import MARKS_KEPT, NAMES_KEPT, NOTHING, Case, History, Mark, Point, key_of
from tests.calibrators import talking
from tests.calibrators.talking import user

TALK: list[Any] = [
    {"role": "system", "content": "Be brief."},
    user("Ship A7."),
    {"role": "assistant", "content": "Shipped."},
    user("And B2."),
    {"role": "assistant", "content": "That too."},
]


def history(messages: list[Any], *tools: str) -> History:
    offered = [{"type": "function", "function": {"name": name}} for name in tools]
    return History({"messages": messages, "tools": offered})


def marked(messages: list[Any], *probes: str) -> Case:
    return NOTHING.marked(probes, history(messages))


@given(talking.messages, talking.messages)
def test_a_mark_counts_exactly_for_requests_that_strictly_extend_its_messages(
    before: list[Any], more: list[Any]
) -> None:
    point = history(before).point
    said = [m for m in before if isinstance(m, dict)]
    longer = [m for m in more if isinstance(m, dict)]
    assert history(before + more).extends(point) == bool(said and longer)
    assert not history(before).extends(point)
    assert not history(before[:-1]).extends(point) or not isinstance(before[-1], dict)


@given(talking.messages, talking.messages)
def test_a_mark_means_nothing_to_another_conversation(one: list[Any], other: list[Any]) -> None:
    case = NOTHING.marked(["sri"], history(one))
    start = [m for m in one if isinstance(m, dict)]
    read = [m for m in other if isinstance(m, dict)]
    if json.dumps(read[: len(start)]) != json.dumps(start):
        assert case.acted("sri", history(other)) is None


def test_a_probe_has_acted_in_this_turn_until_the_user_speaks_again() -> None:
    case = marked(TALK[:2], "sri")
    assert case.acted("sri", history(TALK[:2])) is None  # the same messages again are a fresh attempt
    assert case.acted("sri", history(TALK[:3])) == "turn"
    assert case.acted("sri", history(TALK[:4])) == "case"
    assert case.acted("cri", history(TALK[:4])) is None


def test_of_several_marks_this_turns_counts() -> None:
    case = marked(TALK[:2], "sri").marked(["sri", "cri"], history(TALK[:4]))
    assert case.acted("sri", history(TALK)) == "turn"
    assert [mark.probe for mark in case.marks] == ["sri", "sri", "cri"]


@pytest.mark.parametrize(
    "changed",
    [
        [TALK[0], user("Ship B7."), *TALK[2:]],  # another user
        TALK[1:],  # compacted: guidance is gone
        [TALK[0], user("Summary: A7 was shipped."), TALK[3]],
        [{**TALK[0], "name": "x"}, *TALK[1:]],
        [],
        [None, 3],
    ],
)
def test_a_history_that_was_rewritten_has_no_marks(changed: list[Any]) -> None:
    assert marked(TALK[:2], "sri").acted("sri", history(changed)) is None


def test_messages_compare_as_json_does_whatever_the_order_of_their_keys() -> None:
    turned = [dict(reversed(list(message.items()))) for message in TALK]
    assert marked(TALK[:2], "sri").acted("sri", history(turned)) == "case"


def test_marks_are_bounded_and_the_oldest_go_first() -> None:
    case = NOTHING
    for turn in range(2 * MARKS_KEPT):
        case = case.marked(["sri"], history([user(str(turn))]))
    assert len(case.marks) == MARKS_KEPT
    assert case.acted("sri", history([user(str(2 * MARKS_KEPT - 1)), user("Go on.")])) == "case"


def test_tools_have_grown_only_where_some_are_new_since_the_case_began() -> None:
    began = NOTHING.seen(history(TALK[:2], "ship", "cancel"))
    assert not began.grown(history(TALK, "ship", "cancel"))
    assert not began.grown(history(TALK, "cancel"))
    assert not began.grown(history(TALK, "cancel", "ship"))
    assert began.grown(history(TALK, "ship", "cancel", "refund"))
    assert not began.grown(history(TALK[:2], "ship", "refund"))  # a fresh attempt
    assert not NOTHING.grown(history(TALK, "ship"))


def test_a_case_remembers_its_beginning_while_it_goes_on() -> None:
    began = NOTHING.seen(history(TALK[:2], "ship"))
    assert began.seen(history(TALK[:4], "ship", "refund")) is began
    assert began.seen(history(TALK[:2], "ship")) is began
    fresh = began.seen(history(TALK[:2], "refund"))
    assert (fresh.began, fresh.tools) == (began.began, ("refund",))


def test_what_is_kept_of_a_case_is_bounded() -> None:
    endless = history(TALK[:2], *("x" * 60 for _ in range(1 + NAMES_KEPT // 60)))
    assert NOTHING.seen(endless) is NOTHING


points = st.builds(Point, st.integers(0, 99), st.text(max_size=9))
cases = st.builds(
    Case,
    st.none() | points,
    st.lists(st.text(max_size=9), max_size=3).map(tuple),
    st.lists(st.builds(Mark, st.sampled_from(["sri", "cri"]), points, st.integers(0, 9)), max_size=4).map(
        tuple
    ),
)


@given(cases)
def test_a_case_survives_the_store(case: Case) -> None:
    assert Case.loads(case.dumps()) == case
    assert Case.loads(case.dumps().encode()) == case


@given(st.text() | st.binary() | talking.anything.map(json.dumps), talking.messages)
def test_what_the_store_garbled_is_as_good_as_nothing(text: str | bytes, messages: list[Any]) -> None:
    case = Case.loads(text)
    case.acted("sri", history(messages))
    case.grown(history(messages))


@given(
    st.lists(talking.anything, min_size=3, max_size=3).map(lambda rest: json.dumps([1, *rest])),
    talking.messages,
)
def test_what_another_program_wrote_there_does_no_harm(text: str, messages: list[Any]) -> None:
    case = Case.loads(text).seen(history(messages)).marked(["cri"], history(messages))
    assert Case.loads(case.dumps()) == case


@given(cases, cases)
def test_two_memories_of_a_case_are_joined_without_loss(one: Case, other: Case) -> None:
    both = one.joined(other)
    assert {*one.marks, *other.marks} == {*both.marks}
    assert both.began == (one.began or other.began)
    assert one.joined(NOTHING) is one
    assert one.joined(one) is one


def test_a_case_is_known_by_its_clients_id_or_else_by_its_first_words() -> None:
    talk, longer, other = (history(TALK[:n]) for n in (2, 5, 1))
    assert key_of(talk, None) == key_of(longer, None) == key_of(longer, "") != key_of(other, None)
    assert key_of(talk, "run-1") == key_of(other, "run-1") != key_of(talk, "run-2")
    assert len(key_of(talk, "x" * 100_000)) < 40


@given(talking.messages, st.lists(st.integers(0, 12), max_size=4))
def test_a_beginning_is_recognised_in_whatever_order_it_is_asked_for(
    messages: list[Any], asked: list[int]
) -> None:
    points = [history(messages[:count]).point for count in asked]
    longer = history([*messages, user("Go on.")])
    assert all(longer.extends(point) == (point.messages > 0) for point in points)
