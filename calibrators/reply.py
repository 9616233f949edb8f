"""A reply as far as it has been read: text, reasoning, calls, finish reason, usage.

One reader for whole replies and for streams, in every shape that servers send. What is read here decides
the action class and the probes; what the client gets are the server's own bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Json = Mapping[str, Any]

_LOGPROBS_KEPT = 8


@dataclass(slots=True)
class Call:
    """One tool call of a reply; `arguments` is the JSON text as the model wrote it, "{}" where empty."""

    id: str | None = None
    name: str = ""
    _pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The argument text, "{}" where the model sent none."""
        return "".join(self._pieces) or "{}"

    def add(self, delta: Json) -> None:
        """Take in one more piece; a later null never erases what was known."""
        if identity := delta.get("id"):
            self.id = str(identity)
        function = _object(delta.get("function") or delta.get("custom"))
        piece = function.get("name")
        # Some servers send a name in pieces, others repeat the whole name in every chunk.
        if isinstance(piece, str) and piece != self.name:
            self.name += piece
        arguments = function.get("arguments", function.get("input"))
        if isinstance(arguments, str):
            self._pieces.append(arguments)


@dataclass(slots=True, eq=False)
class Choice:
    """One of a reply's n alternatives.

    Attributes:
        delayed: its first call came after text.
        logprobs: those of the first few tokens, where the decision is.
    """

    finish_reason: str | None = None
    calls: list[Call] = field(default_factory=list)
    delayed: bool = False
    logprobs: list[Json] = field(default_factory=list)
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _by_index: dict[int, Call] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """The text that the client reads, without reasoning."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """The thoughts, under whichever name the server sent them."""
        return "".join(self._reasoning)

    @property
    def cut(self) -> bool:
        """Whether the server says that the text stopped before its end."""
        return self.finish_reason in ("length", "content_filter", "abort", "error")

    def add(self, message: Json) -> None:
        """Take in a whole message or a delta of one."""
        for key, value in message.items():
            if value is None:
                continue
            if key in ("content", "refusal"):
                _collect(self._content, value)
            elif key == "reasoning" or (key == "reasoning_content" and message.get("reasoning") is None):
                _collect(self._reasoning, value)  # vLLM renamed the field; servers send either
        # After the text, so that a call beside text in a whole message counts as delayed.
        for delta in _sequence(message.get("tool_calls")):
            if isinstance(delta, dict):
                self._call_for(delta).add(delta)
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            self._at(-1).add({"function": legacy})

    def _call_for(self, delta: Json) -> Call:
        index = delta.get("index")
        identity = delta.get("id")
        last = self.calls[-1] if self.calls else None
        known = self._by_index.get(index) if isinstance(index, int) else last
        # A new id opens a new call, also at an index that is taken; without one the call goes on.
        if known is None or (identity and known.id and identity != known.id):
            return self._open(index)
        return known

    def _at(self, index: int) -> Call:
        return self._by_index.get(index) or self._open(index)

    def _open(self, index: object) -> Call:
        call = Call()
        self.delayed = self.delayed or (not self.calls and bool(self.content.strip()))
        self.calls.append(call)
        if isinstance(index, int):
            self._by_index[index] = call
        return call


@dataclass(slots=True)
class Reply:
    """What one upstream query answered, as far as it has come.

    Attributes:
        status: HTTP status of the answer.
        choices: alternatives by index.
        usage: the server's token counts, if it sent any.
        error: the server's error object, also one that came inside a stream.
        ended: the server finished the reply ([DONE], or the whole body came).
        readable: false where the body could not be read (encoding, not JSON): it has no class.
        instead_of: the upstream's reply that this one, of ours, is served for.
    """

    status: int
    id: str | None = None
    model: str | None = None
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Json | None = None
    error: Any = None
    ended: bool = False
    readable: bool = True
    instead_of: "Reply | None" = None

    def saying(self, text: str) -> "Reply":
        """A complete reply with this text in place of what the model said."""
        choice = Choice("stop", _content=[text])
        return replace(self, choices={0: choice}, ended=True, instead_of=self)

    @property
    def first(self) -> Choice:
        """The choice that has come first (index 0 where there is one)."""
        return self.choices[min(self.choices)] if self.choices else Choice()

    @property
    def good(self) -> bool:
        """An answer without an error."""
        return self.status < 400 and self.error is None

    def add(self, document: Json) -> None:
        """Take in a whole reply or one chunk of a stream; shapes that nobody knows are passed over."""
        self.id = self.id or _text(document.get("id"))
        self.model = self.model or _text(document.get("model"))
        if document.get("error") is not None:
            self.error = document["error"]
        usage = document.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        for position, item in enumerate(_sequence(document.get("choices"))):
            if isinstance(item, dict):
                index = item.get("index")
                self._choice(index if isinstance(index, int) else position, item)

    def _choice(self, index: int, item: Json) -> None:
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = Choice()
        message = item.get("delta") or item.get("message")
        if isinstance(message, dict):
            choice.add(message)
        if item.get("finish_reason") is not None:
            choice.finish_reason = str(item["finish_reason"])
        if item.get("logprobs") is not None and len(choice.logprobs) < _LOGPROBS_KEPT:
            entries = _sequence(_object(item.get("logprobs")).get("content"))
            choice.logprobs += [e for e in entries if isinstance(e, dict)][:_LOGPROBS_KEPT]


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _collect(into: list[str], value: object) -> None:
    """Text as a string, or as the list of parts that some servers send."""
    if isinstance(value, str):
        into.append(value)
        return
    for part in _sequence(value):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            into.append(part["text"])
