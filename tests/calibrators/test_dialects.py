import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.actions import Action, reply_action
from calibrators.bias import Bias
from calibrators.body import Body
from calibrators.dialects import DIALECTS, Dialect
from calibrators.entry import Entry, mode_of
from calibrators.flow import Query, Report, calibrated, first_event
from calibrators.reply import Call, Reply
from calibrators.request import case_of, no_decision, repeated_calls, tool_choice_of

CHAT = DIALECTS["/v1/chat/completions"]
RESPONSES = DIALECTS["/v1/responses"]
MESSAGES = DIALECTS["/v1/messages"]
Json = dict[str, Any]


def read(dialect: Dialect, *documents: Json) -> Reply:
    """What is read of a reply, or of a stream's events."""
    reply = Reply(200)
    for document in documents:
        reply.add(dialect.reply(document))
    return reply


def calls(reply: Reply) -> list[tuple[str | None, str, Any]]:
    return [(call.id, call.name, json.loads(call.arguments)) for call in reply.first.calls]


# Replies of /v1/responses ----------------------------------------------------------------------

USAGE = {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17}
COUNTS = {"prompt_tokens": 12, "completion_tokens": 5}


def response(*output: Json, status: str = "completed", **more: Any) -> Json:
    """A whole reply, or what the last event of a stream holds."""
    document = {"id": "resp_1", "object": "response", "model": "m", "usage": USAGE}
    return {**document, "status": status, "output": list(output), **more}


def text_item(text: str, kind: str = "output_text") -> Json:
    part = {"type": kind, "refusal" if kind == "refusal" else "text": text}
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}


def call_item(name: str, arguments: str = "", at: int = 1) -> Json:
    return {
        "type": "function_call",
        "id": f"fc_{at}",
        "call_id": f"call_{at}",
        "name": name,
        "arguments": arguments,
    }


THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}


def response_stream(*events: Json, end: Json) -> list[Json]:
    """A stream as vLLM sends it, around these events."""
    begun = response(status="in_progress", usage=None)
    return [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *events,
        end,
    ]


def added(item: Json, at: int = 0) -> Json:
    return {"type": "response.output_item.added", "output_index": at, "item": item}


def delta(kind: str, text: str, at: int = 0) -> Json:
    return {"type": f"response.{kind}.delta", "output_index": at, "item_id": "x", "delta": text}


def completed(*output: Json, **more: Any) -> Json:
    return {"type": "response.completed", "response": response(*output, **more)}


def test_a_whole_response_is_read_as_a_reply() -> None:
    reply = read(RESPONSES, response(THOUGHT, text_item("It is noon.")))
    assert (reply.id, reply.model, reply.usage) == ("resp_1", "m", COUNTS)
    assert (reply.first.content, reply.first.reasoning) == ("It is noon.", "Hm.")
    assert reply.first.finish_reason == "stop"
    assert reply_action(reply, reply.first) is Action.OTHER


def test_a_whole_responses_parallel_calls_are_calls() -> None:
    items = call_item("ship", '{"to":1}'), call_item("pay", "{}", at=2)
    reply = read(RESPONSES, response(*items))
    assert calls(reply) == [("call_1", "ship", {"to": 1}), ("call_2", "pay", {})]
    assert reply_action(reply, reply.first) is Action.TOOL_CALL


def test_a_custom_tools_call_is_a_call_too() -> None:
    item = {"type": "custom_tool_call", "id": "x", "call_id": "call_1", "name": "shell", "input": '"ls"'}
    assert calls(read(RESPONSES, response(item))) == [("call_1", "shell", "ls")]
    stream = response_stream(
        added({**item, "input": ""}), delta("custom_tool_call_input", '"ls"'), end=completed()
    )
    assert calls(read(RESPONSES, *stream)) == [("call_1", "shell", "ls")]


def test_a_streamed_response_reads_as_the_whole_one_does() -> None:
    whole = response(THOUGHT, text_item("I'll ship it."), call_item("ship", '{"to":1}'))
    stream = response_stream(
        added({**THOUGHT, "content": []}),
        delta("reasoning_text", "Hm."),
        added({**text_item(""), "content": []}, at=1),
        delta("output_text", "I'll ", at=1),
        delta("output_text", "ship it.", at=1),
        {"type": "response.output_text.done", "output_index": 1, "text": "I'll ship it."},
        {"type": "response.output_item.done", "output_index": 1, "item": text_item("I'll ship it.")},
        added(call_item("ship"), at=2),
        delta("function_call_arguments", '{"to"', at=2),
        delta("function_call_arguments", ":1}", at=2),
        {"type": "response.function_call_arguments.done", "output_index": 2, "arguments": '{"to":1}'},
        end=completed(),
    )
    one, other = read(RESPONSES, whole), read(RESPONSES, *stream)
    for reply in (one, other):
        assert calls(reply) == [("call_1", "ship", {"to": 1})]
        assert (reply.id, reply.usage) == ("resp_1", COUNTS)
        assert (reply.first.content, reply.first.reasoning) == ("I'll ship it.", "Hm.")
    assert other.first.delayed
    assert other.first.finish_reason == one.first.finish_reason


def test_streamed_parallel_calls_keep_their_arguments_apart() -> None:
    stream = response_stream(
        added(call_item("ship")),
        delta("function_call_arguments", '{"to":1}'),
        added(call_item("pay", at=2), at=1),
        delta("function_call_arguments", '{"sum":2}', at=1),
        end=completed(),
    )
    assert calls(read(RESPONSES, *stream)) == [("call_1", "ship", {"to": 1}), ("call_2", "pay", {"sum": 2})]


def test_a_refusal_is_text() -> None:
    whole = read(RESPONSES, response(text_item("I can't do that.", "refusal")))
    streamed = read(RESPONSES, *response_stream(delta("refusal", "I can't do that."), end=completed()))
    for reply in (whole, streamed):
        assert reply_action(reply, reply.first) is Action.REFUSE


def test_a_cut_response_has_no_class() -> None:
    cut = response(text_item("I can't"), status="incomplete")
    ends = [
        {"type": "response.completed", "response": cut},  # vLLM
        {"type": "response.incomplete", "response": cut},  # OpenAI
    ]
    replies = [read(RESPONSES, *response_stream(delta("output_text", "I can't"), end=end)) for end in ends]
    for reply in [read(RESPONSES, cut), *replies]:
        assert reply.first.cut
        assert reply_action(reply, reply.first) is None


@pytest.mark.parametrize(
    "failure",
    [
        {"type": "error", "code": "server_error", "message": "It broke."},
        {"type": "error", "error": {"message": "It broke."}},
        {"type": "response.failed", "response": response(status="failed", error={"message": "It broke."})},
    ],
)
def test_a_stream_that_fails_is_an_error(failure: Json) -> None:
    reply = read(RESPONSES, *response_stream(delta("output_text", "It"), end=failure))
    assert not reply.good
    assert reply_action(reply, reply.first) is None


@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES])
def test_an_error_in_openais_shape_is_an_error(dialect: Dialect) -> None:
    reply = read(dialect, {"error": {"message": "no", "code": 400}})
    assert not reply.good
    assert not reply.choices


# Replies of /v1/messages -----------------------------------------------------------------------


def message(*blocks: Json, stop_reason: str | None = "end_turn") -> Json:
    document = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    usage = {"input_tokens": 12, "output_tokens": 5}
    return {**document, "content": list(blocks), "stop_reason": stop_reason, "usage": usage}


def tool_use(name: str, at: int = 1, **given: Any) -> Json:
    return {"type": "tool_use", "id": f"call_{at}", "name": name, "input": given}


def message_stream(*events: Json, stop_reason: str | None = "end_turn") -> list[Json]:
    """A stream as vLLM sends it, around these events."""
    begun = {**message(stop_reason=None), "usage": {"input_tokens": 12, "output_tokens": 0}}
    usage = {"input_tokens": 12, "output_tokens": 5}
    stopped = {"stop_reason": stop_reason, "stop_sequence": None}
    return [
        {"type": "message_start", "message": begun},
        {"type": "ping"},
        *events,
        {"type": "message_delta", "delta": stopped, "usage": usage},
        {"type": "message_stop"},
    ]


def block(at: int, start: Json, *deltas: Json) -> list[Json]:
    """The events of one content block."""
    events = [{"type": "content_block_delta", "index": at, "delta": one} for one in deltas]
    begin = {"type": "content_block_start", "index": at, "content_block": start}
    return [begin, *events, {"type": "content_block_stop", "index": at}]


def text_block(at: int, *pieces: str) -> list[Json]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(at, {"type": "text", "text": ""}, *deltas)


def call_block(at: int, name: str, *pieces: str) -> list[Json]:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(at, tool_use(name, at), *deltas)


def test_a_whole_message_is_read_as_a_reply() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    reply = read(MESSAGES, message(thought, {"type": "text", "text": "It is noon."}))
    assert (reply.id, reply.model, reply.usage) == ("msg_1", "m", COUNTS)
    assert (reply.first.content, reply.first.reasoning) == ("It is noon.", "Hm.")
    assert reply.first.finish_reason == "stop"


def test_a_whole_messages_parallel_calls_are_calls_with_their_input() -> None:
    reply = read(MESSAGES, message(tool_use("ship", to=1), tool_use("pay", 2), stop_reason="tool_use"))
    assert calls(reply) == [("call_1", "ship", {"to": 1}), ("call_2", "pay", {})]
    assert reply.first.finish_reason == "tool_calls"
    assert reply_action(reply, reply.first) is Action.TOOL_CALL


def test_a_streamed_message_reads_as_the_whole_one_does() -> None:
    thinking = {"type": "thinking_delta", "thinking": "Hm."}
    reply = read(
        MESSAGES,
        *message_stream(
            *block(0, {"type": "thinking", "thinking": ""}, thinking),
            *text_block(1, "I'll ", "ship it."),
            *call_block(2, "ship", '{"to"', ":1}"),
            *call_block(3, "pay"),
            stop_reason="tool_use",
        ),
    )
    assert calls(reply) == [("call_2", "ship", {"to": 1}), ("call_3", "pay", {})]
    assert (reply.first.content, reply.first.reasoning) == ("I'll ship it.", "Hm.")
    assert (reply.id, reply.model, reply.usage) == ("msg_1", "m", COUNTS)
    assert reply.first.finish_reason == "tool_calls"
    assert reply.first.delayed


@pytest.mark.parametrize(
    ("stop_reason", "action"),
    [
        ("end_turn", Action.REFUSE),
        ("stop_sequence", Action.REFUSE),
        ("max_tokens", None),
        ("model_context_window_exceeded", None),
        ("refusal", None),
        (None, None),  # vLLM: aborted
    ],
)
def test_a_message_that_was_cut_has_no_class(stop_reason: str | None, action: Action | None) -> None:
    whole = read(MESSAGES, message({"type": "text", "text": "I can't."}, stop_reason=stop_reason))
    stream = message_stream(*text_block(0, "I can't."), stop_reason=stop_reason)
    for reply in (whole, read(MESSAGES, *stream)):
        assert reply_action(reply, reply.first) is action


def test_a_message_that_fails_is_an_error() -> None:
    failure = {"type": "error", "error": {"type": "internal_error", "message": "It broke."}}
    for reply in (read(MESSAGES, failure), read(MESSAGES, *text_block(0, "It"), failure)):
        assert reply.error == {"type": "internal_error", "message": "It broke."}
        assert reply_action(reply, reply.first) is None


def test_an_empty_message_has_no_class() -> None:
    reply = read(MESSAGES, message({"type": "text", "text": ""}))
    assert reply_action(reply, reply.first) is None


# What a stream holds back ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "events"),
    [
        (RESPONSES, response_stream(added(THOUGHT), end=added(THOUGHT))),
        (RESPONSES, response_stream(added(text_item("")), end=added(text_item("")))),
        (MESSAGES, message_stream(*block(0, {"type": "thinking", "thinking": ""}))),
        (MESSAGES, message_stream(*text_block(0))),
    ],
    ids=["response, thoughts", "response, text", "message, thoughts", "message, text"],
)
def test_a_biased_stream_is_held_no_longer_than_until_its_first_part_begins(
    dialect: Dialect, events: list[Json]
) -> None:
    reply = Reply(200)
    held: list[str] = []
    for document in events:
        reply.add(dialect.reply(document))
        held.append(document["type"])
        if first_event(reply):
            break
    assert held[-1] in ("response.output_item.added", "content_block_start")


# Requests --------------------------------------------------------------------------------------

FLAT_TOOLS = [{"type": "function", "name": "ship", "parameters": {"type": "object"}}]
INPUT_TOOLS = [{"name": "ship", "input_schema": {"type": "object"}}]


def as_response(**fields: Any) -> Json:
    return dict(RESPONSES.request({"model": "m", "input": "Go on.", "tools": FLAT_TOOLS, **fields}))


def as_message(**fields: Any) -> Json:
    turn = [{"role": "user", "content": "Go on."}]
    base = {"model": "m", "max_tokens": 9, "messages": turn, "tools": INPUT_TOOLS}
    return dict(MESSAGES.request({**base, **fields}))


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        (as_response(), "auto"),
        (as_response(tool_choice="auto"), "auto"),
        (as_response(tool_choice="none"), "none"),
        (as_response(tool_choice="required"), "required"),
        (as_response(tool_choice={"type": "function", "name": "ship"}), "named"),
        (as_response(tools=[]), "none"),
        (as_message(), "auto"),
        (as_message(tool_choice={"type": "auto"}), "auto"),
        (as_message(tool_choice={"type": "auto", "disable_parallel_tool_use": True}), "auto"),
        (as_message(tool_choice={"type": "none"}), "none"),
        (as_message(tool_choice={"type": "any"}), "required"),
        (as_message(tool_choice={"type": "tool", "name": "ship"}), "named"),
        (as_message(tools=None), "none"),
    ],
)
def test_every_form_of_tool_choice_is_understood(fields: Json, choice: str) -> None:
    assert tool_choice_of(fields) == choice
    assert (no_decision(fields) is None) is (choice == "auto")


SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (as_response(text={"format": {"type": "text"}}), None),
        (as_response(text={"format": {"type": "json_schema", "name": "x", "schema": {}}}), "response_format"),
        (
            as_response(input=[{"role": "assistant", "content": "It is", "status": "in_progress"}]),
            "continues",
        ),
        (as_response(input=[{"role": "assistant", "content": "Done.", "status": "completed"}]), None),
        (as_message(output_config={"effort": "low"}), None),
        (as_message(output_config={"format": SCHEMA}), "response_format"),
    ],
)
def test_what_fixes_the_form_of_a_reply_leaves_no_decision(fields: Json, code: str | None) -> None:
    reason = no_decision(fields)
    assert reason is None if code is None else reason is not None and reason.code.startswith(code)


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        (as_response(), "default"),
        (as_response(reasoning={"effort": "none"}), "off"),
        (as_response(reasoning={"effort": "low"}), "on"),
        (as_response(chat_template_kwargs={"enable_thinking": False}), "off"),
        (as_message(), "default"),
        (as_message(thinking={"type": "disabled"}), "off"),
        (as_message(thinking={"type": "disabled"}, output_config={"effort": "low"}), "off"),
        (as_message(thinking={"type": "enabled", "budget_tokens": 1024}), "default"),
        (as_message(output_config={"effort": "low"}), "on"),
    ],
)
def test_the_switches_for_thinking_are_understood(fields: Json, mode: str) -> None:
    assert mode_of(fields) == mode


ASKED = {"role": "user", "content": "Ship it."}
RESPONSES_TURN = [
    ASKED,
    {"type": "function_call", "call_id": "c", "name": "ship", "arguments": '{"to":1}'},
    {"type": "function_call_output", "call_id": "c", "output": "failed"},
]
MESSAGES_TURN = [
    ASKED,
    {"role": "assistant", "content": [tool_use("ship", to=1)]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "failed"}]},
]


@pytest.mark.parametrize("fields", [as_response(input=RESPONSES_TURN), as_message(messages=MESSAGES_TURN)])
def test_what_came_of_a_call_is_no_new_turn_and_the_same_call_again_is_a_repeat(fields: Json) -> None:
    again, other = Call(name="ship"), Call(name="pay")
    again.add({"function": {"arguments": '{"to":1}'}})
    assert case_of(fields)[1] == 1
    assert repeated_calls(fields, [again, other]) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (as_response(instructions="Be brief."), as_response(instructions="Be kind.")),
        (as_message(system="Be brief."), as_message(system="Be kind.")),
    ],
)
def test_other_instructions_make_another_case(one: Json, other: Json) -> None:
    assert case_of(one)[0] != case_of(other)[0]


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (RESPONSES, '{"model":"m", "input":"Go on.","tools":[{"type":"function","name":"ship"}], "x":1.10}'),
        (MESSAGES, '{"model":"m", "messages":[],"tools":[{"name":"ship"}], "x":1.10}'),
    ],
)
def test_a_bias_by_the_processor_is_all_that_is_added_to_a_request(dialect: Dialect, body: str) -> None:
    asked = Body.parse(body)
    query = Query(asked, dialect.request(asked.fields))
    sent = next(calibrated(query, [Bias(-1.5, Entry((7,)))], Report())).body.render()
    assert sent == body[:-1] + ',"vllm_xargs":{"seam_bias":-1.5,"seam_entry":[7]}}'


# Odd documents ---------------------------------------------------------------------------------

KEYS = [
    *("type", "item", "delta", "response", "message", "output", "content", "content_block", "usage", "error"),
    *("choices", "stop_reason", "status", "index", "input", "messages", "tools", "tool_choice", "text"),
    *("thinking", "reasoning", "output_config", "name", "call_id", "role", "format", "effort"),
]
WORDS = [
    *("message", "text", "tool_use", "tool_result", "function_call", "reasoning", "thinking", "any"),
    *("response.completed", "response.output_item.added", "response.output_text.delta", "message_delta"),
    *("content_block_start", "content_block_delta", "input_json_delta", "error", "incomplete"),
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
documents = st.dictionaries(st.sampled_from(KEYS), values, max_size=6)


@given(st.sampled_from([CHAT, RESPONSES, MESSAGES]), st.lists(documents, max_size=3))
def test_odd_replies_never_raise(dialect: Dialect, odd: Iterable[Json]) -> None:
    reply = read(dialect, *odd)
    for choice in reply.choices.values():
        reply_action(reply, choice)


@given(st.sampled_from([CHAT, RESPONSES, MESSAGES]), documents)
def test_odd_requests_never_raise(dialect: Dialect, odd: Json) -> None:
    fields = dialect.request(odd)
    no_decision(fields)
    mode_of(fields)
    case_of(fields)
    repeated_calls(fields, [Call(name="ship")])
