"""SRI: what each variant asks with, and when it asks at all. What both probes share is in test_probes.py."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.actions import Cues
from calibrators.case import NOTHING, History
from calibrators.conversation import Conversation
from calibrators.flow import Outcome, Role
from calibrators.probes import Seat
from calibrators.reply import Reply
from calibrators.sri import (
    CURRENT,
    CURRENT_MOST,
    EARLIER,
    HEADER,
    LITE_RESULT,
    LITE_RESULTS,
    LITE_STATE,
    NO_STATE,
    REQUEST,
    REQUESTS,
    RULE,
    STATE,
    Sri,
    Variant,
)
from calibrators.state import BUDGET
from tests.calibrators import talking
from tests.calibrators.playing import Played, play, request, said
from tests.calibrators.talking import gave, made, user

TALK: list[Any] = [
    {"role": "system", "content": "You keep files."},
    user("Make a folder reports."),
    made(("c1", "mkdir", {"name": "reports"})),
    gave("c1", {"created": "reports"}),
    {"role": "assistant", "content": "It is there."},
    user("List what is in it."),
    made(("c2", "ls", {"path": "reports"}), ("c3", "ls", {"path": "report"})),
    gave("c2", {"files": ["a.txt"]}),
    gave("c3", "Error: no such folder"),
    user("Move a.txt there and tell me its size."),
]
ALL: list[Variant] = [*get_args(Variant)]


def asked(variant: Variant = "v1", messages: list[Any] | None = None, **more: Any) -> Played:
    talk = TALK if messages is None else messages
    seat = Seat(History({"messages": talk}))
    return play(request(messages=talk), [Sri(seat, variant, **more)], said("I will do it."), said("Done."))


def text(variant: Variant = "v1", messages: list[Any] | None = None, **more: Any) -> str:
    """Our message in the second query."""
    return str(asked(variant, messages, **more).sent(1)["messages"][-1]["content"])


EARLIER_REQUESTS = f"{EARLIER}\n- List what is in it.\n- Make a folder reports."
CURRENT_REQUEST = f"{CURRENT}\nMove a.txt there and tell me its size."
SNAPSHOT = f"{STATE}\nls(path=reports) -> files[0]=a.txt\nmkdir(name=reports) -> created=reports"
LATEST = f'{LITE_STATE}\n- ls: {{"files": ["a.txt"]}}\n- mkdir: {{"created": "reports"}}'

WHOLE = [HEADER, EARLIER_REQUESTS, CURRENT_REQUEST, SNAPSHOT, RULE]
PARTS: dict[Variant, list[str]] = {
    "v1": WHOLE,
    "no_history": WHOLE,
    "no_state": [HEADER, EARLIER_REQUESTS, CURRENT_REQUEST, RULE],
    "no_recon": [HEADER, SNAPSHOT],
    "gate": WHOLE,
    "gate_miss_param": WHOLE,
    "lite": [HEADER, EARLIER_REQUESTS, CURRENT_REQUEST, LATEST, RULE],
}


@pytest.mark.parametrize("variant", ALL)
def test_each_variant_has_its_parts_and_no_others(variant: Variant) -> None:
    assert text(variant).split("\n\n") == PARTS[variant]


@pytest.mark.parametrize("variant", ALL)
def test_the_halted_reply_is_dropped_except_where_the_variant_keeps_it(variant: Variant) -> None:
    *sent, ours = asked(variant).sent(1)["messages"]
    kept = [{"role": "assistant", "content": "I will do it."}]
    assert sent == TALK + (kept if variant == "no_history" else [])
    assert ours["role"] == ("user" if variant == "lite" else "system")


def test_an_empty_reply_is_not_kept() -> None:
    seat = Seat(History({"messages": TALK}))
    did = play(request(messages=TALK), [Sri(seat, "no_history")], said(""), said("Done."))
    assert did.sent(1)["messages"][:-1] == TALK


def test_a_conversation_that_has_just_begun_has_no_earlier_requests_and_no_state() -> None:
    fresh = [user("Make a folder reports.")]
    current = f"{CURRENT}\nMake a folder reports."
    assert text("v1", fresh).split("\n\n") == [HEADER, current, NO_STATE, RULE]
    assert text("lite", fresh).split("\n\n") == [HEADER, current, NO_STATE, RULE]
    assert text("no_recon", fresh).split("\n\n") == [HEADER, NO_STATE]


def test_the_published_state_shows_only_what_its_rules_know() -> None:
    moved = made(("c4", "mv", {"source": "a.txt", "destination": "reports"}))
    talk = [*TALK, moved, gave("c4", "ok")]
    assert f"{STATE}\nmoved: a.txt to reports\n" in text("v1", talk, state="published") + "\n"
    assert NO_STATE in text("v1", TALK, state="published")


def test_requests_are_the_last_four_each_cut_to_its_budget() -> None:
    talk = [user(f"{n} " + "x" * 5000) for n in range(8)]
    _, earlier, current, *_ = text("v1", talk).split("\n\n")
    lines = earlier.split("\n- ")[1:]
    assert [line[0] for line in lines] == ["6", "5", "4", "3"]
    assert {len(line) for line in lines} == {REQUEST}
    assert len(current) == len(CURRENT) + 1 + CURRENT_MOST


def test_lite_shows_the_last_three_results_each_cut_to_its_budget() -> None:
    calls = made(*((f"c{n}", f"tool{n}", {}) for n in range(5)))
    talk = [user("Go on."), calls, *(gave(f"c{n}", "y" * 5000) for n in range(5))]
    (state,) = [part for part in text("lite", talk).split("\n\n") if part.startswith(LITE_STATE)]
    lines = state.split("\n- ")[1:]
    assert [line.partition(":")[0] for line in lines] == ["tool4", "tool3", "tool2"]
    assert {len(line.partition(": ")[2]) for line in lines} == {LITE_RESULT}


@given(talking.messages, st.sampled_from(ALL), st.text(max_size=20))
def test_budgets_hold_whatever_the_conversation(messages: list[Any], variant: Variant, reply: str) -> None:
    sri = Sri(Seat(History({"messages": messages})), variant)
    conversation = Conversation.of({"messages": messages})
    message = sri.message(conversation, said(reply))
    names = sum(len(pair.name) + 4 for pair in conversation.pairs)
    state = max(BUDGET, LITE_RESULTS * LITE_RESULT + (names if variant == "lite" else 0))
    asked_before = REQUESTS * (REQUEST + 3) + CURRENT_MOST
    words = sum(map(len, (HEADER, EARLIER, CURRENT, STATE, LITE_STATE, NO_STATE, RULE)))
    assert len(message.text) <= words + asked_before + state + 20
    assert (message.dropped is None) == (variant != "no_history" or not reply)


# When it asks ------------------------------------------------------------------------------------


def looked(reply: Reply, variant: Variant = "v1", *second: Reply, **more: Any) -> Played:
    seat = more.pop("seat", Seat(History({"messages": TALK})))
    return play(request(messages=TALK), [Sri(seat, variant, **more)], reply, *second)


def outcome(did: Played) -> tuple[Outcome, str]:
    (probed,) = did.report.probes
    return probed.outcome, probed.why


def test_a_reply_without_a_call_is_asked_once_more_and_replaced() -> None:
    second = said("", tool_calls=[{"id": "t", "function": {"name": "mv", "arguments": "{}"}}])
    did = looked(said("I will do it."), "v1", second)
    assert did.served is second
    assert outcome(did) == (Outcome.RETRIED, "the reply has no call")
    assert [query.role for query in did.queries] == [Role.FIRST, Role.SRI]


@pytest.mark.parametrize(
    "reply",
    [
        said("", tool_calls=[{"id": "t", "function": {"name": "mv", "arguments": "{}"}}]),
        said("", function_call={"name": "mv", "arguments": "{}"}),
        said('<tool_call>{"name": "mv", "arguments": {}}</tool_call>'),
        said('{"name": "mv", "parameters": {"source": "a.txt"}}'),
    ],
)
def test_a_reply_with_a_call_in_any_form_is_let_be(reply: Reply) -> None:
    did = looked(reply)
    assert did.served is reply
    assert outcome(did) == (Outcome.PASSED, "the reply has a call")


def test_thoughts_without_an_answer_are_a_halt() -> None:
    thinking = said("", reasoning_content="Which file?")
    assert outcome(looked(thinking, "v1", said("Done.")))[0] is Outcome.RETRIED


@pytest.mark.parametrize(
    ("text", "cues", "asks"),
    [
        ("Which folder do you mean?", Cues.SEAM, True),
        ("Please tell me the folder's name.", Cues.SEAM, True),
        ("It is done. Anything else?", Cues.SEAM, False),
        ("It is done. Anything else?", Cues.PUBLISHED, True),
        ("It is done.", Cues.PUBLISHED, False),
    ],
)
def test_the_gate_lets_replies_be_that_ask(text: str, cues: Cues, asks: bool) -> None:
    second = [] if asks else [said("Done.")]
    did = looked(said(text), "gate", *second, cues=cues)
    assert outcome(did)[0] is (Outcome.GATED if asks else Outcome.RETRIED)
    assert not asks or did.report.header() == "none; reason=the reply asks"


@pytest.mark.parametrize(("marked", "gated"), [(True, True), (False, False)])
def test_the_gate_for_missing_parameters_is_shut_only_in_cases_so_marked(marked: bool, gated: bool) -> None:
    second = [] if gated else [said("Done.")]
    seat = Seat(History({"messages": TALK}), marks=frozenset(["miss_param"] if marked else []))
    did = looked(said("Which folder do you mean?"), "gate_miss_param", *second, seat=seat)
    assert (outcome(did)[0] is Outcome.GATED) == gated


@pytest.mark.parametrize("variant", [v for v in ALL if not v.startswith("gate")])
def test_without_a_gate_a_question_is_asked_about_too(variant: Variant) -> None:
    seat = Seat(History({"messages": TALK}), marks=frozenset(["miss_param"]))
    did = looked(said("Which folder do you mean?"), variant, said("Done."), seat=seat)
    assert outcome(did)[0] is Outcome.RETRIED


def test_it_acts_once_a_turn_and_again_in_the_next() -> None:
    acted = NOTHING.marked(["sri"], History({"messages": TALK}))
    same = [*TALK, {"role": "assistant", "content": "Moved."}]
    known = Seat(History({"messages": same}), acted)
    did = play(request(messages=same), [Sri(known)], said("It has 3 bytes."))
    assert outcome(did) == (Outcome.GATED, "SRI has acted in this turn")
    later = replace(known, history=History({"messages": [*same, user("Go on.")]}))
    assert outcome(looked(said("I will."), "v1", said("Done."), seat=later))[0] is Outcome.RETRIED


def test_a_stream_is_let_go_as_soon_as_a_call_has_begun() -> None:
    settled = looked(said("", tool_calls=[{"id": "t", "function": {"name": "mv"}}])).queries[0].settled
    reply = Reply(200)
    assert not settled(reply)
    reply.add({"choices": [{"index": 0, "delta": {"content": "I will move it."}}]})
    assert not settled(reply)
    reply.add({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "t"}]}}]})
    assert settled(reply)
