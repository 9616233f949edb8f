import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from calibrators.actions import reply_action
from calibrators.reply import Choice, Reply
from calibrators.request import repeated_calls


def reply_of(*chunks: dict[str, Any], status: int = 200) -> Reply:
    reply = Reply(status)
    for chunk in chunks:
        reply.add(chunk)
    reply.ended = True
    return reply


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def call(
    index: int | None = None, id: str | None = None, name: str | None = None, arguments: str | None = None
) -> Any:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


def calls_of(choice: Choice) -> list[tuple[str | None, str, str]]:
    return [(c.id, c.name, c.arguments) for c in choice.calls]


# The shapes that servers send, and the wrong value at each place.
NAMES = ["choices", "delta", "message", "tool_calls", "function_call", "function", "index", "id", "name"]
NAMES += ["arguments", "content", "reasoning", "reasoning_content", "refusal", "usage", "error", "logprobs"]
NAMES += ["finish_reason", "top_logprobs", "token", "logprob", "text", "model", "role"]
leaves = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.sampled_from(["", "a", "stop", "{}"])
)
shapes = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)
nested = st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries(
                {
                    "delta": st.fixed_dictionaries(
                        {"tool_calls": st.lists(shapes, max_size=4), "content": shapes}
                    )
                },
                optional={"index": leaves, "finish_reason": leaves, "logprobs": shapes},
            )
            | shapes,
            max_size=3,
        )
    },
    optional={"usage": shapes, "error": shapes, "id": shapes, "model": shapes},
)


@given(st.lists(nested | st.dictionaries(st.sampled_from(NAMES), shapes), max_size=5))
def test_no_shape_of_a_reply_is_too_odd_to_be_read(chunks: list[dict[str, Any]]) -> None:
    reply = reply_of(*chunks)
    for choice in (reply.first, *reply.choices.values()):
        assert isinstance(choice.content + choice.reasoning, str)
        assert all(isinstance(c.name + c.arguments, str) for c in choice.calls)
        reply_action(reply, choice)
        repeated_calls({"messages": chunks}, choice.calls)


@st.composite
def split(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    edges = [0, *cuts, len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


called = st.tuples(
    st.sampled_from(["call_a", "call_b", "call_c"]), st.sampled_from(["ship", "list_queues"]), st.text()
)


@given(st.text(), st.lists(called, max_size=3, unique_by=lambda c: c[0]), st.text(), st.data())
def test_a_stream_reads_like_the_whole_message(
    content: str, calls: list[tuple[str, str, str]], thoughts: str, data: st.DataObject
) -> None:
    whole = {
        "role": "assistant",
        "content": content,
        "reasoning": thoughts,
        "tool_calls": [{"id": i, "function": {"name": n, "arguments": a}} for i, n, a in calls],
    }
    chunks = [delta(role="assistant")]
    chunks += [delta(reasoning=part) for part in data.draw(split(thoughts))]
    chunks += [delta(content=part) for part in data.draw(split(content))]
    for index, (identity, name, arguments) in enumerate(calls):
        first, *rest = data.draw(split(arguments))
        chunks.append(delta(tool_calls=[call(index, identity, name, first)]))
        again = data.draw(st.sampled_from([None, identity]))
        chunks += [delta(tool_calls=[call(index, again, None, part)]) for part in rest]
    chunks.append(delta("stop"))
    one = reply_of({"choices": [{"index": 0, "message": whole, "finish_reason": "stop"}]})
    many = reply_of(*chunks)
    assert many.first.content == one.first.content == content
    assert many.first.reasoning == one.first.reasoning == thoughts
    assert calls_of(many.first) == calls_of(one.first) == [(i, n, a or "{}") for i, n, a in calls]
    assert many.first.delayed == one.first.delayed
    assert reply_action(many, many.first) == reply_action(one, one.first)


def test_calls_at_one_index_are_told_apart_by_their_ids() -> None:
    reply = reply_of(
        delta(tool_calls=[call(0, "a", "ship", '{"n":1}')]),
        delta(tool_calls=[call(0, "b", "ship", '{"n":2}')]),
    )
    assert calls_of(reply.first) == [("a", "ship", '{"n":1}'), ("b", "ship", '{"n":2}')]


def test_a_piece_without_index_goes_on_with_the_last_call() -> None:
    reply = reply_of(
        delta(tool_calls=[{"id": "a", "function": {"name": "ship", "arguments": '{"n":'}}]),
        delta(tool_calls=[{"function": {"arguments": "1}"}}]),
    )
    assert calls_of(reply.first) == [("a", "ship", '{"n":1}')]


def test_interleaved_calls_are_joined_by_index() -> None:
    reply = reply_of(
        delta(tool_calls=[call(0, "a", "ship", "{"), call(1, "b", "list", "[")]),
        delta(tool_calls=[call(1, None, None, "]"), call(0, None, None, "}")]),
    )
    assert calls_of(reply.first) == [("a", "ship", "{}"), ("b", "list", "[]")]


def test_the_legacy_function_call_is_a_call() -> None:
    reply = reply_of(
        delta(function_call={"name": "ship", "arguments": "{"}), delta(function_call={"arguments": "}"})
    )
    assert calls_of(reply.first) == [(None, "ship", "{}")]


def test_a_call_after_text_is_delayed() -> None:
    late = reply_of(delta(content="Let me see."), delta(tool_calls=[call(0, "a", "ship", "{}")]))
    at_once = reply_of(
        delta(content="\n"), delta(tool_calls=[call(0, "a", "ship", "{}")]), delta(content="Done.")
    )
    assert late.first.delayed
    assert not at_once.first.delayed


def test_content_as_a_list_of_parts_is_text() -> None:
    parts = [{"type": "text", "text": "It is "}, {"type": "image_url"}, {"type": "text", "text": "noon."}]
    assert reply_of({"choices": [{"message": {"content": parts}}]}).first.content == "It is noon."


def test_choices_are_kept_apart_by_index() -> None:
    reply = reply_of(
        {"choices": [{"index": 1, "delta": {"content": "b"}}]},
        {"choices": [{"index": 0, "delta": {"content": "a"}}]},
    )
    assert {index: choice.content for index, choice in reply.choices.items()} == {0: "a", 1: "b"}
    assert reply.first.content == "a"


def test_an_error_inside_a_stream_makes_the_reply_bad() -> None:
    reply = reply_of(delta(content="The invoice"), {"error": {"message": "engine stopped"}})
    assert not reply.good
    assert json.loads(json.dumps(reply.error)) == {"message": "engine stopped"}


def test_usage_is_the_last_that_came() -> None:
    assert reply_of(
        {"usage": {"prompt_tokens": 1}}, {"usage": None}, {"usage": {"prompt_tokens": 2}}
    ).usage == {"prompt_tokens": 2}
