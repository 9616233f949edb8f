"""The load generator: a closed loop of raw HTTP/1.1 keep-alive connections, in a process of its own.

    python -m bench.overhead.load < job.json

Each connection sends the next request when the last answer is complete. It parses answers with a C
parser and decodes no JSON, so that it needs a small part of what any proxy needs; `client_busy` says
how near it was to its own limit.
"""

import asyncio
import json
import statistics
import sys
import time
from typing import Any, NamedTuple, cast

import httptools
import uvloop

from bench.overhead.processes import cpu_seconds, peak_mb, reset_peaks, tree
from bench.overhead.traffic import chat_body, stream_body

# Requests by which a connection is warmed, and so many at most by all connections of a block together.
_WARM_UP, _WARM_UP_ALL = 5, 100
_CHUNK_MARK = b'"content":"'


class Job(NamedTuple):
    """One block of load."""

    port: int
    """On 127.0.0.1."""
    concurrency: int
    """Connections, each with one request at a time."""
    seconds: float
    """How long new requests are begun."""
    limit: int | None
    """At most so many requests; None: no limit."""
    model: str
    """Asked for."""
    chunks: int | None
    """Chunks of a stream; None: requests without stream."""
    pid: int
    """Root of the target's process tree, for its CPU time and memory."""
    patience: float
    """Seconds after `seconds` that answers are waited for, so that no run hangs on a target."""


class Block(NamedTuple):
    """What a block measured."""

    requests: int
    """Answers that came whole with status 200."""
    seconds: float
    """From the first request to the last answer."""
    p50_ms: float
    """Median time from request to whole answer."""
    p99_ms: float
    """Its 99th percentile; the largest of fewer than 100."""
    first_ms: float | None
    """Median time from request to the first content of a stream; None without stream."""
    cpu_us: float
    """CPU microseconds of the target's processes per request."""
    peak_mb: float
    """The most that the target's processes had resident, in MB."""
    chunks: int
    """Content chunks received, as far as they lay within one read."""
    reads: int
    """Times that data came: about `chunks` where every chunk came alone."""
    client_busy: float
    """Share of the time that the load generator was at work; near 1 it measures itself."""
    unfinished: int
    """Requests that were given up at the end of the patience, and count nowhere else."""
    failures: int
    """Answers of another status, and connections that broke."""
    failure: str | None
    """The first of them."""


class _Failed(Exception):
    """An answer that is none."""


class _Connection(asyncio.Protocol):
    """A keep-alive connection that answers one request at a time."""

    def __init__(self) -> None:
        self.chunks = 0
        self.reads = 0
        self.first: float | None = None
        self._answer: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's by form only.
        self.transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()

    def ask(self, request: bytes) -> asyncio.Future[None]:
        """Send a request; the future is done when its answer is whole. _Failed where it can't be sent."""
        if self.transport.is_closing():
            raise _Failed("connection closed between requests")
        self._parser = httptools.HttpResponseParser(self)
        self._error = b""
        self.chunks = self.reads = 0
        self.first = None
        self._answer = self._loop.create_future()
        self.transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"connection closed: {exc or 'by the server'}")

    def on_body(self, body: bytes) -> None:
        self.chunks += body.count(_CHUNK_MARK)
        if self.first is None and self.chunks:
            self.first = time.perf_counter()
        if self._parser.get_status_code() != 200:
            self._error += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._fail(f"HTTP {status} {self._error[:200].decode(errors='replace')}")
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(_Failed(why))


class _Load:
    """The connections of a block, sharing a deadline and a count."""

    def __init__(self, job: Job) -> None:
        body = chat_body() if job.chunks is None else stream_body(job.chunks, job.model)
        self._job = job
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: */*\r\n"
            b"authorization: Bearer none\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        ) % (job.port, len(body), body)
        self._begun = 0
        self.connections: list[_Connection] = []
        self.times: list[float] = []
        self.firsts: list[float] = []
        self.failures: list[str] = []
        self.chunks = 0
        self.reads = 0
        self.last = 0.0

    async def connect(self) -> None:
        """Open the connections and use them until both sides are warm."""
        loop = asyncio.get_running_loop()
        for _ in range(self._job.concurrency):
            _, connection = await loop.create_connection(_Connection, "127.0.0.1", self._job.port)
            self.connections.append(connection)
        if self._job.chunks is None:
            # All at once: servers close connections that have been idle for seconds.
            for _ in range(min(_WARM_UP, _WARM_UP_ALL // self._job.concurrency)):
                await asyncio.gather(*(connection.ask(self._request) for connection in self.connections))

    async def use(self, connection: _Connection, deadline: float) -> None:
        """Ask until the deadline, or the limit, or the connection fails."""
        limit = self._job.limit
        clock = time.perf_counter
        while clock() < deadline and (limit is None or self._begun < limit):
            self._begun += 1
            begun = clock()
            try:
                await connection.ask(self._request)
            except _Failed as error:
                self.failures.append(str(error))
                return
            self.last = clock()
            self.times.append(self.last - begun)
            if self._job.chunks and connection.first is not None:
                self.firsts.append(connection.first - begun)
            self._check(connection)

    def _check(self, connection: _Connection) -> None:
        """A stream that lost chunks is no answer; a mark may lie across two reads, so not to the last one."""
        wanted, got = self._job.chunks or 0, connection.chunks
        self.chunks += got
        self.reads += connection.reads
        if got < 0.95 * wanted:
            self.failures.append(f"{got} of {wanted} chunks came")


async def drive(job: Job) -> Block:
    """Run a block and measure it; one that brought no answer at all has failed."""
    load = _Load(job)
    try:
        async with asyncio.timeout(job.patience):
            await load.connect()
        return await _measured(load, job)
    except TimeoutError:
        return _failed(f"no answer in {job.patience:g} s")
    except (_Failed, OSError) as error:
        return _failed(str(error))
    finally:
        for connection in load.connections:
            connection.transport.abort()


def _failed(why: str) -> Block:
    return Block(0, 0, 0, 0, None, 0, 0, 0, 0, 0, 0, 1, why)


async def _measured(load: _Load, job: Job) -> Block:
    pids = tree(job.pid)
    reset_peaks(pids)
    before, own, begun = cpu_seconds(pids), time.process_time(), time.perf_counter()
    users = [asyncio.ensure_future(load.use(c, begun + job.seconds)) for c in load.connections]
    done, unfinished = await asyncio.wait(users, timeout=job.seconds + job.patience)
    after, busy, ended = cpu_seconds(pids), time.process_time() - own, time.perf_counter()
    for user in unfinished:
        user.cancel()
    for user in done:
        user.result()
    if not load.times and not load.failures:
        raise _Failed(f"no answer in {job.seconds + job.patience:g} s")
    requests, seconds = len(load.times), (ended if unfinished or not load.times else load.last) - begun
    return Block(
        requests=requests,
        seconds=seconds,
        p50_ms=1e3 * statistics.median(load.times or [0.0]),
        p99_ms=1e3 * _percentile(load.times or [0.0], 0.99),
        first_ms=1e3 * statistics.median(load.firsts) if load.firsts else None,
        cpu_us=1e6 * (after - before) / max(requests, 1),
        peak_mb=peak_mb(pids),
        chunks=load.chunks,
        reads=load.reads,
        client_busy=busy / seconds,
        unfinished=len(unfinished),
        failures=len(load.failures),
        failure=load.failures[0] if load.failures else None,
    )


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    """Read a job from stdin, run it, print the block; both JSON."""
    job: dict[str, Any] = json.load(sys.stdin)
    json.dump(uvloop.run(drive(Job(**job)))._asdict(), sys.stdout)


if __name__ == "__main__":
    main()
