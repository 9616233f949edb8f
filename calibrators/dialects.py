"""The APIs that carry a tool-calling decision, each read as if it were a chat completion.

`/v1/chat/completions` is the common tongue: the calibrators look at requests and replies in its shape alone.
The others are translated for reading; what is sent on stays in its own words.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from calibrators.body import dumped

Json = Mapping[str, Any]


class Dialect(NamedTuple):
    """One API.

    Attributes:
        route: a short name for logs and metrics.
        request: a request's fields in the shape of a chat request, as far as the decision needs them.
        reply: a reply or one stream event in the shape of a chat reply or chunk.
        last_event: the type of the event that ends a stream; None where `[DONE]` does.
        reads: whether replies can show log-probabilities.
    """

    route: str
    request: Callable[[Json], Json]
    reply: Callable[[Json], Json]
    last_event: str | None = None
    reads: bool = False


def _same(document: Json) -> Json:
    return document


def _responses_request(fields: Json) -> Json:
    """OpenAI's Responses API: flat tools, `input` for messages, `text.format` for the reply's form."""
    asked = fields.get("input")
    items = _objects(asked) if isinstance(asked, list) else [{"role": "user", "content": asked}]
    effort = _object(fields.get("reasoning")).get("effort")
    continues = bool(items) and _is_partial(items[-1])
    return {
        **fields,
        "messages": [*_system(fields.get("instructions")), *map(_responses_item, items)],
        "response_format": _object(fields.get("text")).get("format"),
        **({"reasoning_effort": effort} if effort is not None else {}),
        **({"continue_final_message": True} if continues else {}),
    }


def _system(text: object) -> list[Json]:
    return [{"role": "system", "content": text}] if text else []


def _responses_item(item: Json) -> Json:
    """An item of `input` as a message: a call, what came of one, or a message as it is."""
    kind = str(item.get("type"))
    if kind in _RESPONSE_CALLS:
        return {"role": "assistant", "tool_calls": [_responses_call(0, item)]}
    return {**item, "role": "tool"} if kind in ("function_call_output", "custom_tool_call_output") else item


_RESPONSE_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The items that are calls, and where each has its arguments."""


def _responses_call(index: int, item: Json) -> Json:
    arguments = item.get(_RESPONSE_CALLS[str(item.get("type"))])
    return _call(index, item.get("call_id"), item.get("name"), arguments)


def _is_partial(item: Json) -> bool:
    """Whether vLLM goes on writing an item instead of beginning a reply."""
    started = item.get("status") in ("in_progress", "incomplete")
    return started and item.get("type", "message") in ("message", "reasoning")


def _messages_request(fields: Json) -> Json:
    """Anthropic's Messages API: tool_choice is an object of type auto, any, tool or none."""
    kind = str(_object(fields.get("tool_choice")).get("type", "auto"))
    choice = {"any": "required", "tool": {"type": "function"}}.get(kind, kind)
    output = _object(fields.get("output_config"))
    off = _object(fields.get("thinking")).get("type") == "disabled"
    effort = "none" if off else output.get("effort")
    return {
        **fields,
        "messages": [
            *_system(fields.get("system")),
            *map(_messages_message, _objects(fields.get("messages"))),
        ],
        "response_format": output.get("format"),
        **({"tool_choice": choice} if fields.get("tools") else {}),
        **({"reasoning_effort": effort} if effort is not None else {}),
    }


def _messages_message(message: Json) -> Json:
    """A message with its calls where a chat message has them; what came of calls is no user's message."""
    blocks = _objects(message.get("content"))
    calls = [_messages_call(at, block) for at, block in enumerate(blocks) if block.get("type") == "tool_use"]
    if calls:
        return {**message, "tool_calls": calls}
    results = bool(blocks) and all(block.get("type") == "tool_result" for block in blocks)
    return {**message, "role": "tool"} if results else message


def _messages_call(index: int, block: Json) -> Json:
    return _call(index, block.get("id"), block.get("name"), dumped(block.get("input") or {}))


def _responses_reply(document: Json) -> Json:
    kind = document.get("type")
    if not isinstance(kind, str):  # the whole reply of a request that is no stream
        return _responses_whole(document)
    index = document.get("output_index")
    item = _object(document.get("item"))
    if kind == "response.output_text.delta":
        return _delta({"content": document.get("delta")})
    if kind == "response.refusal.delta":
        return _delta({"refusal": document.get("delta")})
    if kind == "response.reasoning_text.delta":
        return _delta({"reasoning": document.get("delta")})
    if kind == "response.output_item.added":
        if str(item.get("type")) in _RESPONSE_CALLS:
            return _delta({"tool_calls": [_call(index, item.get("call_id"), item.get("name"))]})
        return _delta({})
    if kind in ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"):
        return _delta({"tool_calls": [_call(index, arguments=document.get("delta"))]})
    if kind in _RESPONSE_ENDS:
        whole = _object(document.get("response"))
        ends = {"usage": _usage(whole), "choices": [{"index": 0, "finish_reason": _finish(whole)}]}
        return {**ends, "error": whole.get("error")}
    if kind == "error":
        return {"error": document.get("error") or document.get("message") or kind}
    return {"id": _object(document.get("response")).get("id")}


_RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")


def _responses_whole(document: Json) -> Json:
    calls: list[Json] = []
    texts: list[str] = []
    thoughts: list[str] = []
    for item in _objects(document.get("output")):
        kind = str(item.get("type"))
        if kind in _RESPONSE_CALLS:
            calls.append(_responses_call(len(calls), item))
        elif kind == "message":
            texts += [str(p.get("text") or p.get("refusal") or "") for p in _objects(item.get("content"))]
        elif kind == "reasoning":
            thoughts += [str(p.get("text") or "") for p in _objects(item.get("content"))]
    message = {"content": "".join(texts), "reasoning": "".join(thoughts), "tool_calls": calls}
    choices = [{"index": 0, "message": message, "finish_reason": _finish(document)}]
    shown = choices if "output" in document else []
    return {**document, "choices": shown, "usage": _usage(document)}


def _messages_reply(document: Json) -> Json:
    kind = document.get("type")
    index = document.get("index")
    if kind == "message":
        return _messages_whole(document)
    if kind == "message_start":
        message = _object(document.get("message"))
        return {"id": message.get("id"), "model": message.get("model"), "usage": _usage(message)}
    if kind == "content_block_start":
        block = _object(document.get("content_block"))
        if block.get("type") == "tool_use":
            return _delta({"tool_calls": [_call(index, block.get("id"), block.get("name"))]})
        return _delta({"content": block.get("text")})
    if kind == "content_block_delta":
        delta = _object(document.get("delta"))
        if delta.get("type") == "input_json_delta":
            return _delta({"tool_calls": [_call(index, arguments=delta.get("partial_json"))]})
        return _delta({"content": delta.get("text"), "reasoning": delta.get("thinking")})
    if kind == "message_delta":
        ended = _stopped(_object(document.get("delta")))
        return {"choices": [{"index": 0, "finish_reason": ended}], "usage": _usage(document)}
    return {"error": document.get("error")}


def _messages_whole(document: Json) -> Json:
    calls: list[Json] = []
    texts: list[str] = []
    thoughts: list[str] = []
    for block in _objects(document.get("content")):
        if block.get("type") == "tool_use":
            calls.append(_messages_call(len(calls), block))
        elif block.get("type") == "text":
            texts.append(str(block.get("text") or ""))
        elif block.get("type") == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
    message = {"content": "".join(texts), "reasoning": "".join(thoughts), "tool_calls": calls}
    choices = [{"index": 0, "message": message, "finish_reason": _stopped(document)}]
    return {**document, "choices": choices, "usage": _usage(document)}


def _stopped(ended: Json) -> str:
    """The finish reason; vLLM has no stop reason where the reply was aborted."""
    reason = ended.get("stop_reason")
    return "abort" if reason is None else _STOP_REASONS.get(str(reason), "stop")


_STOP_REASONS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def _finish(response: Json) -> str:
    return "stop" if response.get("status") in (None, "completed") else "length"


def _usage(document: Json) -> Json | None:
    usage = document.get("usage")
    if not isinstance(usage, Mapping):
        return None
    return {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")}


def _delta(delta: Json) -> Json:
    return {"choices": [{"index": 0, "delta": delta}]}


def _call(index: object, id: object = None, name: object = None, arguments: object = None) -> Json:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


def _object(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


CHAT = Dialect("chat", _same, _same, reads=True)

DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": Dialect("responses", _responses_request, _responses_reply, "response.completed"),
    "/v1/messages": Dialect("messages", _messages_request, _messages_reply, "message_stop"),
}
"""By path."""
