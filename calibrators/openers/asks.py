"""Questions to a served tokenizer, as generators that do no I/O.

Whoever has a connection drives them: it is handed each `Ask`, and sends the JSON of the answer back. The
proxy, the bench and the tests drive the same generators.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from calibrators.entry import NoEntry

T = TypeVar("T")


class Ask(NamedTuple):
    """One request to the server: a POST path and its JSON body."""

    path: str
    body: Mapping[str, Any]


Answer = Mapping[str, Any]
Asking = Generator[Ask, Answer, T]
"""Yields requests, is sent the JSON answers (an error's too), returns what it found."""


def answered(asking: Asking[T], answer: Callable[[Ask], Answer]) -> T:
    """Drive a generator with a function that answers; for notebooks and tests."""
    try:
        ask = next(asking)
        while True:
            ask = asking.send(answer(ask))
    except StopIteration as stop:
        found: T = stop.value
        return found


def told(answer: Answer) -> str:
    """Why a server refused, in its own words."""
    error = answer.get("error", answer)
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("detail")
    return " ".join(str(error).split()) if error else "no token ids in its answer"


class Tokenizer:
    """A served model's tokenizer and chat template, asked through /tokenize and /detokenize.

    No question is asked twice. Special tokens are never added: chat templates bring their own, and probes of
    raw text stand in the middle of a reply.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self._ids: dict[str, tuple[int, ...]] = {}
        self._texts: dict[tuple[int, ...], str] = {}

    def ids(self, text: str) -> Asking[tuple[int, ...]]:
        """The tokens of a text that stands alone.

        Raises:
            NoEntry: the server does not tokenize.
        """
        if text not in self._ids:
            body = {"model": self.model, "prompt": text, "add_special_tokens": False}
            self._ids[text] = _tokens((yield Ask("/tokenize", body)), "a text")
        return self._ids[text]

    def ids_after(self, context: str, text: str) -> Asking[tuple[int, ...] | None]:
        """The tokens that a text has behind a context; None where they merge across the seam."""
        before = (yield from self.ids(context)) if context else ()
        whole = yield from self.ids(context + text)
        return whole[len(before) :] if whole[: len(before)] == before else None

    def text(self, ids: Sequence[int]) -> Asking[str]:
        """The text of tokens."""
        known = tuple(ids)
        if not known:
            return ""
        if known not in self._texts:
            answer = yield Ask("/detokenize", {"model": self.model, "tokens": list(known)})
            self._texts[known] = str(answer.get("prompt", ""))
        return self._texts[known]

    def chat(self, messages: Sequence[Mapping[str, Any]], **settings: Any) -> Asking[tuple[int, ...]]:
        """The tokens of a conversation in the chat template.

        Raises:
            NoEntry: the template, or the server, refuses it.
        """
        answer = yield Ask("/tokenize", {"model": self.model, "messages": list(messages), **settings})
        return _tokens(answer, "the conversation")


def _tokens(answer: Answer, what: str) -> tuple[int, ...]:
    ids = answer.get("tokens")
    if not isinstance(ids, list) or not ids:
        raise NoEntry(f"/tokenize refused {what}: {told(answer)}")
    return tuple(ids)
