"""A conversation as the chat template writes it: with calls, with answers, and up to the reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from calibrators.entry import Mode, NoEntry
from calibrators.openers.asks import Asking, Tokenizer
from calibrators.openers.sequences import common_prefix

NAMES = ("get_weather", "book_table", "send_email")
"""Names that start differently: with one, the function's name would pass for the opener."""

ANSWERS = ("The", "I", "Sure", "{", "[", "Yes", "42")
"""First tokens of ordinary answers, so that no opener is taken for one of them."""

QUESTION = "What should I do next?"
THOUGHT = "Weighing."
ARGUMENTS = {"place": "Oslo"}

# vLLM sets the first for a request's reasoning_effort; DeepSeek's templates read the second.
SWITCH: Mapping[Mode, Mapping[str, Any]] = {
    "default": {},
    "on": {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
    "off": {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
}


@dataclass(frozen=True, slots=True)
class Rendering:
    """A text and its tokens."""

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Renderings:
    """What the template makes of the same question.

    Attributes:
        calls: answered by a call of each of NAMES.
        answers: answered by each of ANSWERS.
        prompts: waiting for the reply, by how thinking is switched; those that the template takes.
        thoughts: answered after THOUGHT, by an answer and by a call; empty where it is not rendered.
        followed: whether another message had to follow the reply.
    """

    calls: tuple[Rendering, ...]
    answers: tuple[Rendering, ...]
    prompts: Mapping[Mode, Rendering]
    thoughts: tuple[Rendering, ...]
    followed: bool = False


class _Way(NamedTuple):
    """One of the ways to write a call that some template insists on."""

    content: str | None = ""
    call_id: str = "call00001"  # nine alphanumerics: what Mistral's templates take
    settings: Mapping[str, Any] = {"add_generation_prompt": False}
    then: tuple[str, ...] = ()


_WAYS = (
    _Way(),
    _Way(content=None),
    _Way(call_id="functions.{name}:0"),  # Kimi K2 writes the id and not the name
    _Way(settings={"add_generation_prompt": False, "continue_final_message": True}),
    _Way(then=("tool", "user")),
)


def tool(name: str) -> dict[str, Any]:
    """A tool's definition in a request."""
    place = {"type": "string", "description": "where"}
    parameters = {"type": "object", "properties": {"place": place}, "required": ["place"]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def render(tokenizer: Tokenizer) -> Asking[Renderings]:
    """Render what discovery compares.

    Raises:
        NoEntry: the template refuses calls, drops them, or writes no answers.
    """
    refusal: NoEntry | None = None
    for way in _WAYS:
        try:
            calls = yield from _calls(tokenizer, way)
            answers = yield from _answers(tokenizer, way)
            break
        except NoEntry as error:
            # The plainest way's trouble is the one to report.
            refusal = refusal or error
    else:
        raise refusal or NoEntry("the chat template renders no call")
    prompts = yield from render_prompts(tokenizer)
    thoughts = yield from _thoughts(tokenizer, way)
    return Renderings(calls, answers, prompts, thoughts, followed=bool(way.then))


def render_prompts(tokenizer: Tokenizer) -> Asking[Mapping[Mode, Rendering]]:
    """The prompt of the question under each switch, as far as the template takes them."""
    prompts: dict[Mode, Rendering] = {}
    for mode, switch in SWITCH.items():
        try:
            ids = yield from tokenizer.chat([_user(QUESTION)], tools=[tool(n) for n in NAMES], **switch)
        except NoEntry:
            continue
        prompts[mode] = Rendering(ids, (yield from tokenizer.text(ids)))
    return prompts


def _calls(tokenizer: Tokenizer, way: _Way) -> Asking[tuple[Rendering, ...]]:
    made = []
    for name in NAMES:
        made.append((yield from _rendered(tokenizer, way, _call(way, name))))
    if not _show(made, NAMES):
        raise NoEntry("the chat template drops calls from the history")
    return tuple(made)


def _answers(tokenizer: Tokenizer, way: _Way) -> Asking[tuple[Rendering, ...]]:
    made = []
    for text in ANSWERS:
        made.append((yield from _rendered(tokenizer, way, {"role": "assistant", "content": text})))
    if not _show(made, ANSWERS):
        raise NoEntry("the chat template does not render answers as they are")
    return tuple(made)


def _thoughts(tokenizer: Tokenizer, way: _Way) -> Asking[tuple[Rendering, ...]]:
    made = []
    for message in ({"role": "assistant", "content": ANSWERS[0]}, _call(way, NAMES[0])):
        try:
            seen = yield from _rendered(tokenizer, way, {**message, "reasoning": THOUGHT})
        except NoEntry:
            continue
        if THOUGHT in seen.text:
            made.append(seen)
    return tuple(made)


def _rendered(tokenizer: Tokenizer, way: _Way, message: Mapping[str, Any]) -> Asking[Rendering]:
    after = [_after(role, message) for role in way.then]
    messages = [_user(QUESTION), message, *filter(None, after)]
    ids = yield from tokenizer.chat(messages, tools=[tool(n) for n in NAMES], **way.settings)
    return Rendering(ids, (yield from tokenizer.text(ids)))


def _after(role: str, message: Mapping[str, Any]) -> dict[str, Any] | None:
    """What follows a message where a template wants something to: a call's result, or the next question."""
    calls = message.get("tool_calls")
    if (role == "tool") != bool(calls):
        return None
    if not calls:
        return _user("Go on.")
    return {"role": "tool", "tool_call_id": calls[0]["id"], "content": "{}"}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _call(way: _Way, name: str) -> dict[str, Any]:
    # A dict of arguments is a 400: vLLM parses the string itself.
    function = {"name": name, "arguments": '{"place": "Oslo"}'}
    call = {"id": way.call_id.replace("{name}", name), "type": "function", "function": function}
    return {"role": "assistant", "content": way.content, "tool_calls": [call]}


def _show(renderings: Sequence[Rendering], marks: Sequence[str]) -> bool:
    """Whether the renderings part exactly where each shows its own mark."""
    at = common_prefix([seen.text for seen in renderings])
    return all(seen.text.startswith(mark, at) for seen, mark in zip(renderings, marks, strict=True))
