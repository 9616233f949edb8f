"""What of a reply is changed for the client: only what its calibration asks for, spliced in."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrators.body import Body, NotAnObject, cut_array, dumped, map_objects
from calibrators.reply import Reply
from calibrators.sse import Event
from proxy.selection import Named

Explain = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class HideLogprobs:
    """Takes out log-probabilities that only the proxy asked for.

    Attributes:
        keep: how many alternatives the client asked for; None where it asked for no logprobs.
    """

    keep: int | None

    def in_reply(self, body: Body) -> Body:
        """A reply or chunk without them."""
        choices = body.raw("choices")
        if choices is None or '"logprobs"' not in choices:
            return body
        return body.with_raw(choices=map_objects(choices, self._in_choice))

    def made(self, body: Body) -> bool:
        """Whether a chunk is there only because of them: a token that the server's tool parser kept back."""
        choices = body.fields.get("choices")
        return (
            self.keep is None
            and isinstance(choices, list)
            and bool(choices)
            and body.fields.get("usage") is None
            and all(map(_is_bare, choices))
        )

    def _in_choice(self, choice: Body) -> Body:
        if not isinstance(choice.fields.get("logprobs"), Mapping):
            return choice
        if self.keep is None:
            return choice.with_raw(logprobs="null")
        shown = Body.parse(choice.raw("logprobs") or "{}")
        content = shown.raw("content")
        if content is None:
            return choice
        return choice.with_raw(logprobs=shown.with_raw(content=map_objects(content, self._in_entry)).render())

    def _in_entry(self, entry: Body) -> Body:
        listed = entry.raw("top_logprobs")
        if listed is None or self.keep is None:
            return entry
        return entry.with_raw(top_logprobs=cut_array(listed, self.keep))


def _is_bare(choice: Any) -> bool:
    """A choice of a chunk that holds logprobs and nothing else."""
    return (
        isinstance(choice, Mapping)
        and choice.get("logprobs") is not None
        and not choice.get("delta")
        and choice.get("finish_reason") is None
    )


# What may have to be looked at where only the usage chunk is to go: a cheap test, made on every chunk.
_USAGE_OR_END = re.compile(rb'"usage"|"finish_reason"\s*:\s*"')


def _finishes(body: Body) -> bool:
    """Whether a chunk ends one of the reply's choices."""
    choices = body.fields.get("choices")
    return isinstance(choices, list) and any(
        isinstance(choice, Mapping) and choice.get("finish_reason") is not None for choice in choices
    )


def _may_be_last(body: Body) -> bool:
    """Whether a chunk may be the stream's last one: it ends a choice, or holds none."""
    return _finishes(body) or body.fields.get("choices") == []


@dataclass(slots=True)
class Edits:
    """The changes to one reply.

    Attributes:
        reply: as far as it has been read.
        model: shows the client the name that it sent.
        hide_usage: the usage chunk of a stream exists only because the proxy asked for it.
        logprobs: what of them the client did not ask for.
        spent: token counts of queries that were made for this reply and are not the one served.
        explain: gives the `calibration` object that the client asked for, at the reply's end.
    """

    reply: Reply
    model: Named
    hide_usage: bool = False
    logprobs: HideLogprobs | None = None
    spent: Sequence[Mapping[str, Any]] = ()
    explain: Explain | None = None
    _held: Body | None = None

    @property
    def any(self) -> bool:
        """Whether anything is to be changed."""
        return (
            self._renames
            or self.hide_usage
            or self.logprobs is not None
            or bool(self.spent)
            or self.explain is not None
        )

    @property
    def _renames(self) -> bool:
        return self.model.sent != self.model.served

    def document(self, raw: bytes) -> bytes:
        """A whole reply, or an error."""
        try:
            body = Body.parse(raw.decode())
        except (NotAnObject, UnicodeDecodeError):
            return raw
        if self._renames:
            body = self._renamed(body)
        if self.logprobs is not None:
            body = self.logprobs.in_reply(body)
        body = self._with_spent(body)
        if self.explain is not None:
            body = body.with_json(calibration=self.explain())
        return body.render().encode()

    def event(self, event: Event) -> bytes:
        """One event of a stream; empty where it exists only because of us, or waits for what comes after."""
        if event.data is None:
            return event.raw
        if event.data == b"[DONE]":
            return self._told() + event.raw
        if self._only_hides_usage and not _USAGE_OR_END.search(event.data):
            return event.raw
        try:
            text = event.data.decode()
            body = Body.parse(text)
        except (NotAnObject, UnicodeDecodeError):
            return self.flush() + event.raw
        if self.hide_usage and "usage" in body.fields:
            if not body.fields.get("choices"):
                self._mark_held(body.raw("system_fingerprint"))
                return b"" if self.explain else self.flush()
            body = body.with_raw(usage=None)
        return self.flush() + self._chunk(body, text, event)

    def flush(self) -> bytes:
        """The chunk that was held back, if any."""
        held, self._held = self._held, None
        return b"" if held is None else f"data: {held.render()}\n\n".encode()

    def _mark_held(self, fingerprint: str | None) -> None:
        """Give the held chunk its `system_fingerprint`.

        vLLM puts that on the usage chunk where there is one, else on the finishing chunk, which is held until
        the usage chunk, which the client did not ask for, has shown it.
        """
        held = self._held
        if held is not None and fingerprint is not None and held.fields.get("system_fingerprint") is None:
            self._held = held.with_raw(system_fingerprint=fingerprint)

    @property
    def _only_hides_usage(self) -> bool:
        return self.hide_usage and not (self._renames or self.logprobs or self.spent)

    def _chunk(self, body: Body, text: str, event: Event) -> bytes:
        """A chunk with its changes, or nothing yet where it has to wait."""
        if self.logprobs is not None:
            if self.logprobs.made(body):
                return b""
            body = self.logprobs.in_reply(body)
        if self._renames:
            body = self._renamed(body)
        body = self._with_spent(body)
        if (self.hide_usage and _finishes(body)) or (self.explain and _may_be_last(body)):
            self._held = body
            return b""
        changed = body.render()
        if changed == text:
            return event.raw
        if event.data is not None and event.data in event.raw:
            return event.raw.replace(event.data, changed.encode(), 1)
        return f"data: {changed}\n\n".encode()  # the data came in several lines

    def _with_spent(self, body: Body) -> Body:
        """The token counts of all queries together, where the reply shows any."""
        usage = body.fields.get("usage")
        if not self.spent or not isinstance(usage, Mapping) or body.edits.get("usage", "") is None:
            return body
        sums = {
            key: value + sum(more.get(key) or 0 for more in self.spent)
            for key, value in usage.items()
            if key in ("prompt_tokens", "completion_tokens", "total_tokens") and isinstance(value, int)
        }
        return body.with_raw(usage=Body.parse(body.raw("usage") or "{}").with_json(**sums).render())

    def _renamed(self, body: Body) -> Body:
        if body.fields.get("model") == self.model.served:
            body = body.with_json(model=self.model.sent)
        for wrapper in ("response", "message"):  # where other APIs' stream events hold the reply
            held = body.fields.get(wrapper)
            if isinstance(held, Mapping) and held.get("model") == self.model.served:
                inner = Body.parse(body.raw(wrapper) or "{}").with_json(model=self.model.sent)
                body = body.with_raw(**{wrapper: inner.render()})
        error = body.fields.get("error")
        message = error.get("message") if isinstance(error, Mapping) else None
        if isinstance(message, str) and self.model.served and f"`{self.model.served}`" in message:
            shown = message.replace(f"`{self.model.served}`", f"`{self.model.sent}`")
            inner = Body.parse(body.raw("error") or "{}").with_json(message=shown)
            body = body.with_raw(error=inner.render())
        return body

    def _told(self) -> bytes:
        """The last chunk, with the `calibration` object that is due; one of our own where none was held."""
        if self.explain is None:
            return self.flush()
        last = self._held
        if last is None:
            chunk: dict[str, Any] = {
                "id": self.reply.id,
                "object": "chat.completion.chunk",
                "created": int(time.time()),
                "model": self.model.sent,
                "choices": [],
            }
            last = Body.parse(dumped(chunk))
        self._held = last.with_json(calibration=self.explain())
        return self.flush()
