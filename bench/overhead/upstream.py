"""The canned upstream: an OpenAI-compatible server that answers at once with recorded replies.

    python -m bench.overhead.upstream --port 8000 --interval-ms 1

It prints one line of JSON, `{"port": N}`, when it listens. In a test it runs in the test's own loop:

    async with serving(interval=0.001) as port: ...

POST /v1/chat/completions answers with the replies of `traffic` in turn, or with one of them as a stream: as
many content chunks as the request's `max_tokens` (`max_completion_tokens`) says, 100 without it, the text's
end last, one HTTP chunk and one write each, `interval` seconds apart, or half a second for the model
`canned-slow`; then calls, finish, usage if asked for, and [DONE]. GET /v1/models, /health and /version answer
as vLLM does; GET /streams says how many streams were open at once at the most since it was last asked. Other
paths are 404. It reads no header, and takes one request at a time on a connection.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import cast

import click
import httptools
import uvloop

from bench.overhead.traffic import MODEL, SLOW_MODEL, Json, compact, turns, words

_STREAMS = re.compile(rb'"stream"\s*:\s*true')
_SLOW = re.compile(rb'"model"\s*:\s*"%s"' % SLOW_MODEL.encode())
_SLOW_SECONDS = 0.5
_LENGTH = re.compile(rb'"max(?:_completion)?_tokens"\s*:\s*(\d+)')
_USAGE = re.compile(rb'"include_usage"\s*:\s*true')
_DEFAULT_CHUNKS = 100
_CHUNK = {
    "id": "chatcmpl-9c1f6e5d2b7a4380b8d5f0a1c3e27d94",
    "object": "chat.completion.chunk",
    "created": 1747296000,
    "model": MODEL,
}


def _head(status: str, kind: bytes, length: int | None) -> bytes:
    framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
    return b"HTTP/1.1 %s\r\ncontent-type: %s\r\n%s\r\n\r\n" % (status.encode(), kind, framing)


def _answer(body: bytes, status: str = "200 OK") -> bytes:
    return _head(status, b"application/json", len(body)) + body


def _event(data: bytes) -> bytes:
    """One server-sent event as one HTTP chunk."""
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def _chunk(delta: Json, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    return compact(_CHUNK | {"choices": [choice]})


class _Streamed:
    """A reply as the events of a stream, encoded once."""

    def __init__(self, reply: Json) -> None:
        choice = reply["choices"][0]
        self._content = [_event(_chunk({"content": word})) for word in words(choice["message"]["content"])]
        self._calls = [
            _event(_chunk({"tool_calls": [part]}))
            for index, call in enumerate(choice["message"]["tool_calls"])
            for part in _parts(index, call)
        ]
        self._last = _event(_chunk({}, choice["finish_reason"]))

    def events(self, chunks: int) -> Iterator[bytes]:
        """So many content events that end as the text ends, the calls, and the finish."""
        begin = -chunks % len(self._content)
        yield from islice(cycle(self._content), begin, begin + chunks)
        yield from self._calls
        yield self._last


def _parts(index: int, call: Json) -> Iterator[Json]:
    """A call as vLLM's parsers send it: its head first, then its arguments."""
    function = call["function"]
    yield {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
    yield {"index": index, "function": {"arguments": function["arguments"]}}


class Canned:
    """Everything the server says, encoded once, and how many streams it has open."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._replies = cycle([_answer(compact(reply)) for reply in turns()])
        self._streams = cycle([_Streamed(reply) for reply in turns()])
        self._head = _head("200 OK", b"text/event-stream; charset=utf-8", None)
        self._first = _event(_chunk({"role": "assistant", "content": ""}))
        self._done = _event(b"[DONE]") + b"0\r\n\r\n"
        models = [{"id": name, "object": "model", "max_model_len": 32768} for name in (MODEL, SLOW_MODEL)]
        self._documents = {
            b"/v1/models": _answer(compact({"object": "list", "data": models})),
            b"/version": _answer(b'{"version":"0.32.0"}'),
            b"/health": _answer(b""),
        }
        self._unknown = _answer(b'{"detail":"Not Found"}', "404 Not Found")
        self._open = 0
        self._most_open = 0

    def answer(self, path: bytes, body: bytes) -> bytes | None:
        """The whole answer to a request; None where it is a stream."""
        if path == b"/streams":
            most, self._most_open = self._most_open, self._open
            return _answer(compact({"most_open": most}))
        if path != b"/v1/chat/completions":
            return self._documents.get(path, self._unknown)
        return None if _STREAMS.search(body) else next(self._replies)

    def interval(self, body: bytes) -> float:
        """Seconds between the events of a stream."""
        return _SLOW_SECONDS if _SLOW.search(body) else self._interval

    def events(self, body: bytes) -> Generator[bytes]:
        """The events of the stream that a request asks for, which is open until they end or are closed."""
        asked = _LENGTH.search(body)
        chunks = int(asked[1]) if asked else _DEFAULT_CHUNKS
        self._open += 1
        self._most_open = max(self._most_open, self._open)
        try:
            yield self._head + self._first
            yield from next(self._streams).events(chunks)
        finally:
            self._open -= 1
        yield (self._usage(chunks) if _USAGE.search(body) else b"") + self._done

    def _usage(self, chunks: int) -> bytes:
        """The usage event of a stream."""
        count = {"prompt_tokens": 2071, "total_tokens": 2071 + chunks, "completion_tokens": chunks}
        return _event(compact(_CHUNK | {"choices": [], "usage": count}))


class _Connection(asyncio.Protocol):
    """One client connection: parses requests, writes answers as fast as the client takes them."""

    def __init__(self, canned: Canned) -> None:
        self._canned = canned
        self._loop = asyncio.get_running_loop()
        self._events: Generator[bytes] | None = None
        self._interval = 0.0
        self._timer: asyncio.Handle | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's by form only.
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._events is not None:
            self._events.close()
            self._events = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._events is not None:
            self._send_event()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._path, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        answer = self._canned.answer(self._path.partition(b"?")[0], self._body)
        if answer is not None:
            self._transport.write(answer)
            return
        self._interval = self._canned.interval(self._body)
        self._events = self._canned.events(self._body)
        self._send_event()

    def _send_event(self) -> None:
        """Write one event and come back for the next, unless the client is behind or has left."""
        event = next(self._events, None) if self._events is not None else None
        if event is None:
            self._events = None
            return
        self._transport.write(event)
        if self._paused:
            return
        if self._interval:
            self._timer = self._loop.call_later(self._interval, self._send_event)
        else:
            self._timer = self._loop.call_soon(self._send_event)


@asynccontextmanager
async def serving(port: int = 0, interval: float = 0.0) -> AsyncIterator[int]:
    """Serve on 127.0.0.1 in the running loop; yields the port.

    interval: seconds between the chunks of a stream; 0 sends them as fast as the client reads.
    """
    canned = Canned(interval)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(canned), "127.0.0.1", port, backlog=2048)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _serve(port: int, interval: float) -> None:
    async with serving(port, interval) as bound:
        click.echo(json.dumps({"port": bound}))
        await asyncio.Event().wait()


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 picks a free one.")
@click.option(
    "--interval-ms", type=click.FloatRange(min=0), default=0.0, help="Between the chunks of a stream."
)
def main(port: int, interval_ms: float) -> None:
    """Run the canned upstream until it is terminated."""
    uvloop.run(_serve(port, interval_ms / 1000))


if __name__ == "__main__":
    main()
