"""A client that sees exact bytes, can leave early, and tells a whole answer from a cut one."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import h11

Headers = Mapping[str, str]


@dataclass(slots=True)
class Answer:
    """What came back; `cut` where the body broke off before its end."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    cut: bool = False

    def header(self, name: str) -> str | None:
        """The values of a header, joined as HTTP joins them; None where it is absent."""
        values = [value for key, value in self.headers if key == name]
        return ", ".join(values) if values else None

    @property
    def decoded(self) -> bytes:
        """The body without its content encoding."""
        return gzip.decompress(self.body) if self.header("content-encoding") == "gzip" else self.body

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.decoded)

    @property
    def error(self) -> Mapping[str, Any]:
        """The OpenAI error object that this answer is."""
        document = self.json
        assert set(document) == {"error"}, document
        assert set(document["error"]) == {"message", "type", "param", "code"}, document
        assert isinstance(document["error"]["message"], str)
        return dict(document["error"])

    @property
    def data(self) -> list[str]:
        """The data of each event of a stream."""
        return event_data(self.decoded)

    @property
    def events(self) -> list[Any]:
        """The JSON events of a stream."""
        return [json.loads(data) for data in self.data if data != "[DONE]"]

    @property
    def text(self) -> str:
        """The joined text of choice 0, of a stream or a whole reply."""
        if not (self.header("content-type") or "").startswith("text/event-stream"):
            return str(self.json["choices"][0]["message"]["content"])
        deltas = (c for e in self.events for c in e.get("choices", ()) if c["index"] == 0)
        return "".join(c["delta"].get("content") or "" for c in deltas)


def event_data(body: bytes) -> list[str]:
    """The data of each event, read in the plainest way: normalise line ends, split at blank lines."""
    text = re.sub("\r\n|\r", "\n", body.decode())
    blocks = [
        [line[5:].removeprefix(" ") for line in b.split("\n") if line[:5] == "data:"]
        for b in text.split("\n\n")
    ]
    return ["\n".join(lines) for lines in blocks if lines]


class Exchange:
    """One request on a connection of its own and its answer, read as far as the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.CLIENT)
        self.answer = Answer(0, [])

    async def send(self, method: str, target: str, headers: Headers, body: bytes) -> None:
        """Write the request."""
        given = {name.lower() for name in headers}
        own = {} if "host" in given else {"Host": "seam.test"}
        if body and not given & {"content-length", "transfer-encoding"}:
            own["Content-Length"] = str(len(body))
        request = h11.Request(method=method, target=target, headers=list({**own, **headers}.items()))
        parts = [request, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
        self._writer.write(b"".join(self._h11.send(part) or b"" for part in parts))
        with suppress(ConnectionError):  # refused before it was read: the answer says why
            await self._writer.drain()

    async def head(self) -> Answer:
        """Read up to the answer's headers."""
        event = await self._event()
        assert isinstance(event, h11.Response), event
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in event.headers]
        self.answer = Answer(event.status_code, headers)
        return self.answer

    async def more(self) -> bool:
        """Read one more piece of the body; False at its end, clean or not."""
        try:
            event = await self._event()
        except (h11.RemoteProtocolError, ConnectionError):
            self.answer.cut = True
            return False
        if isinstance(event, h11.Data):
            self.answer.body += bytes(event.data)
            return True
        assert isinstance(event, h11.EndOfMessage), event
        return False

    async def until(self, part: bytes) -> None:
        """Read until a part of the body has come."""
        while part not in self.answer.body:
            assert await self.more(), f"the answer ended without {part!r}: {self.answer.body!r}"

    async def rest(self) -> Answer:
        """Read to the end."""
        while await self.more():
            pass
        return self.answer

    async def _event(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._h11.receive_data(await self._reader.read(65536))
        return event


@asynccontextmanager
async def exchange(
    port: int, method: str, target: str, headers: Headers | None = None, body: bytes = b""
) -> AsyncIterator[Exchange]:
    """A request that has been sent; leaving the context is the client's leaving."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        made = Exchange(reader, writer)
        await made.send(method, target, headers or {}, body)
        yield made
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ask(
    port: int, method: str, target: str, headers: Headers | None = None, body: bytes = b""
) -> Answer:
    """A request and its whole answer."""
    async with asyncio.timeout(60), exchange(port, method, target, headers, body) as made:
        await made.head()
        return await made.rest()
