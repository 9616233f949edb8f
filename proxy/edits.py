"""What of a reply is changed for the client: only what its calibration asks for, spliced in."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from calibrators.body import Body, NotAnObject, dumped
from calibrators.reply import Reply
from calibrators.sse import Event
from proxy.selection import Named

Explain = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Edits:
    """The changes to one reply.

    Attributes:
        reply: as far as it has been read.
        model: shows the client the name that it sent.
        hide_usage: the usage chunk of a stream exists only because the proxy asked for it.
        explain: gives the `calibration` object that the client asked for, at the reply's end.
    """

    reply: Reply
    model: Named
    hide_usage: bool = False
    explain: Explain | None = None

    @property
    def any(self) -> bool:
        """Whether anything is to be changed."""
        return self._renames or self.hide_usage or self.explain is not None

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
        if self.explain is not None:
            body = body.with_json(calibration=self.explain())
        return body.render().encode()

    def event(self, event: Event) -> bytes:
        """One event of a stream; empty where it exists only because of us."""
        if event.data is None:
            return event.raw
        if event.data == b"[DONE]":
            return self._explanation() + event.raw
        try:
            text = event.data.decode()
            body = Body.parse(text)
        except (NotAnObject, UnicodeDecodeError):
            return event.raw
        if self.hide_usage and "usage" in body.fields:
            if not body.fields.get("choices"):
                return b""
            body = body.with_raw(usage=None)
        if self._renames:
            body = self._renamed(body)
        changed = body.render()
        if changed == text:
            return event.raw
        if event.data in event.raw:
            return event.raw.replace(event.data, changed.encode(), 1)
        return f"data: {changed}\n\n".encode()  # the data came in several lines

    def _renamed(self, body: Body) -> Body:
        if body.fields.get("model") == self.model.served:
            body = body.with_json(model=self.model.sent)
        error = body.fields.get("error")
        message = error.get("message") if isinstance(error, Mapping) else None
        if isinstance(message, str) and self.model.served and f"`{self.model.served}`" in message:
            shown = message.replace(f"`{self.model.served}`", f"`{self.model.sent}`")
            inner = Body.parse(body.raw("error") or "{}").with_json(message=shown)
            body = body.with_raw(error=inner.render())
        return body

    def _explanation(self) -> bytes:
        if self.explain is None:
            return b""
        chunk: dict[str, Any] = {
            "id": self.reply.id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self.model.sent,
            "choices": [],
            "calibration": self.explain(),
        }
        return f"data: {dumped(chunk)}\n\n".encode()
