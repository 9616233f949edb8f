"""A conversation as its request tells it: user requests, guidance, calls and what came of them.

Read from the messages alone, in every shape that clients send: content as a string, as parts or null,
parallel calls, legacy function roles, results out of order, missing, or without their call.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibrators.request import Fields, messages_of


@dataclass(slots=True)
class Pair:
    """A call that the conversation shows, and what came of it.

    Attributes:
        arguments: the JSON text as it was sent.
        result: the text of its result; None where the conversation holds none.
        failed: the result reports an error.
    """

    name: str
    arguments: str
    result: str | None = None
    failed: bool = False

    @property
    def executed(self) -> bool:
        """Whether it ran and did not fail."""
        return self.result is not None and not self.failed


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request's messages hold.

    Attributes:
        requests: the user's texts, oldest first; the last one is the current request.
        guidance: what system and developer say.
        pairs: calls with their results, oldest call first.
        loose: results whose call is not shown (a compacted history), unless they report an error.
    """

    requests: Sequence[str]
    guidance: Sequence[str]
    pairs: Sequence[Pair]
    loose: Sequence[str]

    @classmethod
    def of(cls, fields: Fields) -> "Conversation":
        """Read the messages of a chat request; whatever is no message is passed over."""
        reading = _Reading()
        for message in messages_of(fields):
            reading.take(message)
        reading.end()
        return cls(reading.requests, reading.guidance, reading.pairs, reading.loose)

    @property
    def results(self) -> Iterable[str]:
        """The texts of all results that report no error."""
        yield from (pair.result for pair in self.pairs if pair.result is not None and not pair.failed)
        yield from self.loose


@dataclass(slots=True)
class _Reading:
    """One pass over the messages.

    A result belongs to the latest message that makes a call of its id (or name); within that message to the
    first call that has none yet, since some servers give parallel calls one id.
    """

    requests: list[str] = field(default_factory=list)
    guidance: list[str] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    _early: list[tuple[str, str, bool]] = field(default_factory=list)
    _waiting: dict[str, deque[Pair]] = field(default_factory=dict)
    _latest: deque[Pair] = field(default_factory=deque)

    def take(self, message: Fields) -> None:
        role = message.get("role")
        if role == "user":
            self.requests.append(text_of(message.get("content")))
        elif role in ("system", "developer"):
            self.guidance.append(text_of(message.get("content")))
        elif role == "assistant":
            self._calls(message)
        elif role in ("tool", "function"):
            self._result(message)

    def end(self) -> None:
        """Give results that came before their call to it; what is left over has none that is shown."""
        for key, text, failed in self._early:
            self._give(_next(self._waiting.get(key)), text, failed)

    def _calls(self, message: Fields) -> None:
        made = list(_calls_of(message))
        opened: dict[str, deque[Pair]] = {}
        for pair, *keys in made:
            self.pairs.append(pair)
            for key in keys:
                opened.setdefault(key, deque()).append(pair)
        self._waiting.update(opened)
        if made:
            self._latest = deque(pair for pair, *_ in made)

    def _result(self, message: Fields) -> None:
        text = text_of(message.get("content"))
        failed = reports_error(message, text)
        identity, name = message.get("tool_call_id"), message.get("name")
        if isinstance(identity, str) and identity:
            key = "id:" + identity
            pair = _next(self._waiting.get(key))
            if pair is None:
                self._early.append((key, text, failed))
                return
        elif isinstance(name, str) and name:
            pair = _next(self._waiting.get("name:" + name))
        else:
            pair = _next(self._latest)
        self._give(pair, text, failed)

    def _give(self, pair: Pair | None, text: str, failed: bool) -> None:
        if pair is not None:
            pair.result, pair.failed = text, failed
        elif not failed:
            self.loose.append(text)


def _next(waiting: deque[Pair] | None) -> Pair | None:
    """The first call that has no result yet."""
    while waiting:
        pair = waiting.popleft()
        if pair.result is None:
            return pair
    return None


def _calls_of(message: Fields) -> Iterable[tuple[Any, ...]]:
    """The calls of an assistant message, each with the keys under which its result may come."""
    made = message.get("tool_calls")
    for call in made if isinstance(made, list) else ():
        if isinstance(call, dict):
            pair = _pair(call.get("function") if "function" in call else call.get("custom"))
            identity = call.get("id")
            keys = ["id:" + identity] if isinstance(identity, str) and identity else []
            yield pair, *keys, "name:" + pair.name
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        pair = _pair(legacy)
        yield pair, "name:" + pair.name


def _pair(function: object) -> Pair:
    told = function if isinstance(function, Mapping) else {}
    arguments = told.get("arguments", told.get("input"))
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else json.dumps(arguments)
    return Pair(str(told.get("name") or ""), arguments or "{}")


def text_of(content: object) -> str:
    """A message's content as text: a string, the texts of its parts, or the JSON that it is."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(part for part in parts if isinstance(part, str))
    return "" if content is None else json.dumps(content, ensure_ascii=False)


_ERROR_TEXT = re.compile(
    r"\s*(?:\W{0,4}error\b|traceback \(|\w*(?:error|exception)\s*:|exception\b|failed\b|failure\b)",
    re.IGNORECASE,
)
_ERROR_WORDS = ("error", "failed", "failure", "fail")
_TELLING = ("error", "exception", "fail", '"success"', '"ok"')


def reports_error(message: Fields, text: str) -> bool:
    """Whether a result says that the call failed: in its own fields, in its JSON, or in its first words."""
    if message.get("is_error") is True or message.get("status") in _ERROR_WORDS:
        return True
    if text.lstrip()[:1] != "{":
        return _ERROR_TEXT.match(text) is not None
    lowered = text.lower()
    if not any(word in lowered for word in _TELLING):
        return False  # without reading it: results are long, and few fail
    document = loaded(text)
    if not isinstance(document, dict):
        return False
    if any(document.get(key) for key in ("error", "errors", "exception", "is_error", "isError")):
        return True
    if document.get("success") is False or document.get("ok") is False:
        return True
    status = document.get("status")
    return isinstance(status, str) and status.lower() in _ERROR_WORDS


def loaded(text: str | bytes) -> Any:
    """JSON, or None for any other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
