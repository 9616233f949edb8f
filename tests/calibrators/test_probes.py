"""What SRI and CRI share: when a reply is looked at, how is asked again, what may be shown of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators import cri, sri
from calibrators.case import NOTHING, History
from calibrators.cri import Cri
from calibrators.flow import Calibrator, Flow, Outcome, Query, QueryFailed, Report, Role, calibrated
from calibrators.probes import NO_ROLE, Marked, Seat, reveals
from calibrators.reply import Choice, Reply
from calibrators.skip import Skip
from calibrators.sri import LITE_RECENT, Sri
from tests.calibrators import talking
from tests.calibrators.playing import Played, play, refused, request, said
from tests.calibrators.talking import gave, made, user

WORDS = {"sri": sri._OWN, "cri": cri._OWN}
ELSEWHERE = [{"id": "t", "function": {"name": "elsewhere", "arguments": "{}"}}]
"""A call that CRI takes back: the tool is not offered."""


def seat(messages: list[Any], **known: Any) -> Seat:
    return replace(Seat(History({"messages": messages})), **known)


def triggers(probe: str) -> Reply:
    """A first reply at which a probe acts."""
    return said("I will do it.") if probe == "sri" else said("", tool_calls=ELSEWHERE)


def calibrator(probe: str, messages: list[Any] | None = None, **more: Any) -> Calibrator:
    where = more.pop("seat", None) or seat(messages or [])
    return Sri(where, **more) if probe == "sri" else Cri(where, **more)


def played(probe: str, *replies: Reply, fields: dict[str, Any] | None = None, **more: Any) -> Played:
    asked = request(messages=[user("Ship A7.")], **(fields or {}))
    return play(asked, [calibrator(probe, **more)], *replies)


@pytest.fixture(params=["sri", "cri"])
def probe(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def driven(flow: Flow, answer: Callable[[Query], Reply]) -> Reply:
    """Run a flow to the reply that it serves."""
    try:
        query = next(flow)
        while True:
            query = flow.send(answer(query))
    except StopIteration as stop:
        served: Reply = stop.value
        return served


# When a reply is looked at ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"tools": []}, "no_tools"),
        ({"tool_choice": "none"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "ship"}}}, "tool_choice"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"continue_final_message": True}, "continues_message"),
    ],
)
def test_where_nothing_is_to_be_decided_nothing_is_looked_at(
    probe: str, fields: dict[str, Any], code: str
) -> None:
    did = played(probe, triggers(probe), fields=fields)
    assert did.report.skipped[probe].code == code
    assert (did.report.probes, len(did.queries)) == ([], 1)


def test_an_absent_tool_choice_with_tools_is_auto(probe: str) -> None:
    assert played(probe, triggers(probe), said("Done.")).report.probes[0].outcome is Outcome.RETRIED


def cut(reason: str) -> Reply:
    reply = said("I will")
    reply.first.finish_reason = reason
    return reply


def broken() -> Reply:
    reply = said("I will")
    reply.ended, reply.first.finish_reason = False, None
    return reply


def empty() -> Reply:
    return Reply(200, ended=True)


@pytest.mark.parametrize(
    "reply",
    [cut("length"), cut("content_filter"), broken(), refused(status=500), refused(status=200), empty()],
    ids=["length", "filter", "broken", "status", "error", "no choices"],
)
def test_a_reply_that_is_not_whole_never_triggers(probe: str, reply: Reply) -> None:
    did = played(probe, reply)
    assert did.served is reply
    assert probe in did.report.skipped


# How is asked again ----------------------------------------------------------------------------


def test_the_second_query_is_the_first_with_one_message_behind_the_clients_own(probe: str) -> None:
    text = '{ "model":"m", "seed":9007199254740993,"tools":[{"function":{"name":"ship"}}],\n'
    text += ' "messages":[ {"role":"user","content":"\\u00e9"} ] ,"x":1E2 }'
    asked = request()
    asked = type(asked).parse(text)
    did = play(asked, [calibrator(probe)], triggers(probe), said("Done."))
    first, second = (query.body.render() for query in did.queries)
    assert first == text
    kept = text.index("]", text.index('"messages"'))
    assert second[:kept].rstrip() == first[:kept].rstrip()
    assert second.endswith(first[kept:])
    (message,) = json.loads(second)["messages"][1:]
    assert message["role"] == "system"
    assert [query.role for query in did.queries] == [Role.FIRST, Role(probe)]


@pytest.mark.parametrize("no", [refused(), refused(status=422), refused(status=200)])
def test_a_template_that_refuses_one_role_is_asked_under_the_next(probe: str, no: Reply) -> None:
    did = played(probe, triggers(probe), no, said("Done."))
    assert [did.sent(number)["messages"][-1]["role"] for number in (1, 2)] == ["system", "user"]
    assert did.report.probes[0].outcome is Outcome.RETRIED
    assert did.report.late_role == "user"


def test_a_role_that_was_taken_is_learned(probe: str) -> None:
    assert played(probe, triggers(probe), said("Done.")).report.late_role == "system"


def test_a_role_that_was_the_only_one_tells_nothing_of_the_others() -> None:
    did = played("sri", triggers("sri"), said("Done."), variant="lite")
    assert did.report.probes[0].outcome is Outcome.RETRIED
    assert did.report.late_role is None


def test_a_refusal_under_every_role_serves_the_first_reply(probe: str) -> None:
    first = triggers(probe)
    did = played(probe, first, refused(), refused())
    assert did.served is first
    assert did.report.late_role is None
    assert did.report.probes[0].why == "the second query answered 400"


def test_what_sri_learned_of_the_template_cri_does_not_try_again() -> None:
    asked = request(messages=[user("Ship A7.")])
    calls = [calibrator("sri"), calibrator("cri")]
    did = play(asked, calls, triggers("sri"), refused(), triggers("cri"), said("I have no such tool."))
    assert [q.role for q in did.queries] == [Role.FIRST, Role.SRI, Role.SRI, Role.CRI]
    assert did.sent(3)["messages"][-1]["role"] == "user"
    assert [p.outcome for p in did.report.probes] == [Outcome.RETRIED, Outcome.RETRIED]


def test_a_template_that_takes_no_late_message_shuts_the_gate(probe: str) -> None:
    did = played(probe, triggers(probe), seat=seat([], roles=()))
    assert did.report.probes[0].outcome is Outcome.GATED
    assert NO_ROLE in did.report.probes[0].why


def unended() -> Reply:
    reply = said("Done.")
    reply.ended = False
    return reply


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (refused(status=500), "the second query answered 500"),
        (refused(status=503), "the second query answered 503"),
        (unended(), "asked again, and the reply did not end"),
        (broken(), "asked again, and the reply did not end"),
        (cut("length"), "asked again, and the reply was cut (length)"),
        (empty(), "asked again, and the reply could not be read"),
    ],
)
def test_a_second_reply_that_fails_serves_the_first(probe: str, second: Reply, why: str) -> None:
    first = triggers(probe)
    did = played(probe, first, second)
    assert did.served is first
    assert did.report.probes[0].outcome is Outcome.FAILED
    assert did.report.header() == f"none; reason={why}"


def test_a_second_query_that_is_not_answered_serves_the_first(probe: str) -> None:
    report = Report()
    asked = request(messages=[user("Ship A7.")])
    flow = calibrated(Query(asked, asked.fields), [calibrator(probe)], report)
    next(flow)
    first = triggers(probe)
    flow.send(first)
    with pytest.raises(StopIteration) as stop:
        flow.throw(QueryFailed("no first token within 120 s (first_token)"))
    assert stop.value.value is first
    assert report.probes[0].why == "the second query failed: no first token within 120 s (first_token)"


def test_where_all_queries_are_spent_the_first_reply_is_served(probe: str) -> None:
    report = Report(most=1)
    asked = request(messages=[user("Ship A7.")])
    flow = calibrated(Query(asked, asked.fields), [calibrator(probe)], report)
    next(flow)
    with pytest.raises(StopIteration):
        flow.send(triggers(probe))
    assert report.probes[0].outcome is Outcome.FAILED
    assert "limits.max_queries" in report.probes[0].why


def test_messages_that_are_no_list_are_the_servers_to_judge(probe: str) -> None:
    shapes: list[Any] = ["Ship A7.", None, 3, {}]
    for messages in shapes:
        first = triggers(probe)
        asked = request(messages=messages)
        assert play(asked, [calibrator(probe)], first).served is first


def test_a_probe_that_can_do_nothing_holds_no_stream(probe: str) -> None:
    """The reply of a stream is let go with its head, before anything of it has come."""
    acted = NOTHING.marked([probe], History({"messages": [user("Ship A7.")]}))
    messages = [user("Ship A7."), {"role": "assistant", "content": "On it."}]
    known = seat(messages, case=acted)
    begun = Reply(200)
    did = play(request(messages=messages), [calibrator(probe, seat=known)], begun)
    assert did.served is begun
    assert did.queries[0].settled(begun)
    assert did.report.skipped[probe] == Skip("gated", f"{probe.upper()} has acted in this turn")


def test_a_document_is_looked_at_also_where_nothing_can_come_of_it(probe: str) -> None:
    acted = NOTHING.marked([probe], History({"messages": [user("Ship A7.")]}))
    messages = [user("Ship A7."), {"role": "assistant", "content": "On it."}]
    did = played(probe, triggers(probe), seat=seat(messages, case=acted))
    assert did.report.probes[0].outcome is Outcome.GATED
    assert f"{probe.upper()} has acted in this turn" in did.report.probes[0].why


def test_log_only_says_what_would_be_done_and_asks_nothing(probe: str) -> None:
    first = triggers(probe)
    one, two = (played(probe, first, log_only=True) for _ in range(2))
    assert one.served is first
    looked = one.report.probes[0]
    assert looked.outcome is Outcome.LOG_ONLY
    assert looked.why.startswith("log_only: would ")
    assert looked.fired
    assert not looked.acted
    assert looked.pair is not None
    assert looked.pair != two.report.probes[0].pair


# `lite` sends less of the conversation -----------------------------------------------------------


def lite(*messages: Any) -> list[Any]:
    """The client's messages that the second query of `lite` carries."""
    asked = request(messages=list(messages))
    did = play(asked, [Sri(seat(list(messages)), "lite")], said("On it."), said("Done."))
    sent: list[Any] = did.sent(1)["messages"]
    assert sent.pop()["role"] == "user"
    return sent


def test_lite_keeps_guidance_the_first_request_and_the_latest_messages() -> None:
    guidance = {"role": "system", "content": "Be brief."}
    talk = [user("0"), *({"role": "assistant", "content": str(n)} for n in range(1, 40))]
    assert lite(guidance, *talk) == [guidance, talk[0], *talk[-LITE_RECENT:]]
    assert lite(*talk[:5]) == talk[:5]


def test_lite_never_parts_a_call_from_its_results() -> None:
    calls = made(*((f"c{n}", "ship", {"n": n}) for n in range(5)))
    given = [gave(f"c{n}", "shipped") for n in range(5)]
    later = [{"role": "assistant", "content": str(n)} for n in range(LITE_RECENT - 2)]
    sent = lite(user("Ship all."), *[{"role": "assistant", "content": "Yes."}] * 9, calls, *given, *later)
    assert sent == [user("Ship all."), calls, *given, *later]


@given(talking.messages)
def test_lite_sends_only_messages_of_the_client_in_their_order(messages: list[Any]) -> None:
    # Compared by text: NaN is not itself.
    sent = [json.dumps(message) for message in lite(*messages)]
    whole = iter([json.dumps(message) for message in messages])
    assert all(any(kept == one for one in whole) for kept in sent)
    roles = [m.get("role") if isinstance(m, dict) else None for m in map(json.loads, sent)]
    assert len(sent) >= min(len(messages), LITE_RECENT)
    if len(messages) > LITE_RECENT and roles and roles[0] in ("tool", "function"):
        assert sent[0] == json.dumps(messages[0])


# What may be shown -----------------------------------------------------------------------------


@pytest.mark.parametrize("line", [line for own in WORDS.values() for line in own.split("\n")])
def test_a_reply_that_repeats_a_line_of_ours_is_not_shown(line: str) -> None:
    short = len(line.split()) < 7
    for text in (line, line.upper(), f"You said: “{line}”", line.replace(" ", "\n> "), f"**{line[:-1]}**!"):
        choice = Choice("stop")
        choice.add({"content": text})
        assert reveals(choice, "\n".join(WORDS.values())) is not short, text


@pytest.mark.parametrize(
    "text",
    [
        "Your last response held no call that could be run",
        "I was told: “make exactly one call now that brings it forward”, so here I am.",
        "As asked I do not mention this message. Otherwise answer the user as you would have done!",
        "[check before you stop] Done.",
        "[Check before you call]",
        "The call that you were about to make was not run.",
    ],
)
def test_a_part_of_a_line_is_enough(text: str) -> None:
    choice = Choice("stop")
    choice.add({"content": text})
    assert reveals(choice, "\n".join(WORDS.values()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I can't do this yet. Tell me what is missing here.",
        "No call has been run yet. What the user asks now is unclear.",
        "Check before you stop the engine that the doors are locked.",
        "What the latest tools returned: nothing.",
        "Your last response was fine; otherwise answer the user.",
    ],
)
def test_words_that_anybody_may_use_are_shown(text: str) -> None:
    choice = Choice("stop")
    choice.add({"content": text})
    assert not reveals(choice, "\n".join(WORDS.values()))


def test_reasoning_and_arguments_are_looked_at_too(probe: str) -> None:
    line = WORDS[probe].split("\n")[0]
    call = [{"id": "t", "function": {"name": "ship", "arguments": json.dumps({"note": line})}}]
    for second in (said("Done.", reasoning_content=f"It says: {line}"), said("", tool_calls=call)):
        first = triggers(probe)
        did = played(probe, first, second)
        assert did.served is first
        assert did.report.probes[0].outcome is Outcome.FAILED
        assert "repeats the message" in did.report.probes[0].why


# Whatever comes --------------------------------------------------------------------------------

choices = st.fixed_dictionaries(
    {},
    optional={
        "message": st.fixed_dictionaries(
            {}, optional={"content": talking.contents, "tool_calls": st.lists(talking.calls, max_size=2)}
        )
        | talking.anything,
        "finish_reason": st.sampled_from(["stop", "length", "tool_calls", None]) | talking.anything,
    },
)
probes = st.builds(Sri, st.just(None), st.sampled_from(get_args(sri.Variant))) | st.builds(
    Cri, st.just(None), st.sampled_from(get_args(cri.Variant))
)
functions = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": talking.names})})
tools = st.lists(functions | talking.anything) | talking.anything


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    reply = Reply(draw(st.sampled_from([200, 200, 200, 400, 500])))
    reply.add({"choices": draw(st.lists(choices, max_size=2))})
    reply.ended = draw(st.booleans())
    return reply


@given(talking.messages | talking.anything, tools, st.lists(probes, min_size=1, max_size=2), st.data())
def test_no_conversation_and_no_reply_make_a_flow_fail(
    messages: Any, offered: Any, acting: list[Any], data: st.DataObject
) -> None:
    asked = request(messages=messages, tools=offered)
    case = NOTHING.seen(History(asked.fields)).marked(data.draw(st.sampled_from([[], ["sri"]])), History({}))
    marks = data.draw(st.sampled_from([frozenset(), frozenset(get_args(Marked))]))
    known = Seat(History(asked.fields), case, marks=marks)
    report = Report()
    flow = calibrated(Query(asked, asked.fields), [replace(each, seat=known) for each in acting], report)

    def answer(query: Query) -> Reply:
        json.loads(query.body.render())
        reply = data.draw(replies())
        query.settled(reply)
        return reply

    assert isinstance(driven(flow, answer), Reply)
    assert report.queries <= report.most
    assert report.header()
