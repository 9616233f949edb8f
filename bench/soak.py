"""Hours of mixed traffic with faults through one proxy, and the accounts afterwards.

    python -m bench.soak --seconds 1800 --rate 50

Requests leave by the clock, whether or not earlier ones are answered. Each says in a header what the
scripted server is to do with it (answer, call, stream, break off, refuse, hang), so that it is known what
the client must see; twice a minute the server is away for a second, and a profile is written anew. At the
end every request must be in the decision log and in the metrics, once, and memory and descriptors must
be where they were. Exits 1 where they are not.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvloop
import yaml
from prometheus_client.parser import text_string_to_metric_families

from bench.lab.server import Service
from bench.overhead.processes import cpu_seconds, free_port, running
from bench.overhead.traffic import chat_body, replies, words

_CHAT = "/v1/chat/completions"
_TIMEOUTS = {"connect": 2, "write": 5, "first_token": 2, "total": 5}
_AWAY_EVERY, _AWAY_SECONDS = 30.0, 1.0
_SAMPLE_SECONDS = 5.0
_CHUNKS = 20
# Whole pages and caches fill for a while; afterwards memory may move by this much and no more.
_GROWTH = 1.05


class Kind(NamedTuple):
    """One kind of request: how often, what it is sent as, and what the client must see."""

    weight: int
    stream: bool
    expected: frozenset[int]
    """Statuses; 0 is a client that leaves on its own account."""
    profile: str = "soak"


KINDS: Mapping[str, Kind] = {
    "text": Kind(30, False, frozenset({200})),
    "call": Kind(30, False, frozenset({200})),
    "stream": Kind(25, True, frozenset({200})),
    "probe": Kind(6, False, frozenset({200}), "probe"),
    "leave": Kind(3, True, frozenset({0})),
    "reset": Kind(2, True, frozenset({200})),
    "busy": Kind(2, False, frozenset({429})),
    "garbage": Kind(1, False, frozenset({502})),
    "hang": Kind(1, False, frozenset({504})),
}
AWAY = frozenset({502})
"""What any request may see while the server is away."""


class Sent(NamedTuple):
    """A request and what its client saw."""

    id: str
    kind: str
    status: int
    """0: the client left; -1: no HTTP answer came at all."""


class Sample(NamedTuple):
    """The proxy's process at one time."""

    seconds: float
    rss_mb: float
    descriptors: int
    in_flight: int


# The server ------------------------------------------------------------------------------------


class Scripted:
    """Does with a request what its X-Soak header says; may go away and come back."""

    def __init__(self) -> None:
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        text, call = (json.loads(reply) for reply in replies())
        self._answers = {"text": _whole(text), "call": _whole(call), "probe": _whole(text)}

    async def come(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def go(self) -> None:
        """Stop listening and break off what is open, as a server that dies."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, RuntimeError, asyncio.IncompleteReadError):
            pass  # closed by the other side, or by us: uvloop then raises RuntimeError
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        fields = dict(line.split(": ", 1) for line in head.strip().split("\r\n")[1:])
        await reader.readexactly(int(fields.get("content-length", "0")))
        if head.startswith("get "):
            models = {"object": "list", "data": [{"id": "canned", "object": "model"}]}
            writer.write(_whole(models))
            return True
        kind = fields.get("x-soak", "text")
        if kind in self._answers:
            writer.write(self._answers[kind])
        elif kind == "busy":
            writer.write(_whole({"error": {"message": "full", "code": "busy"}}, "429 Too Many Requests"))
        elif kind == "garbage":
            writer.write(b"this is no HTTP\r\n\r\n")
            return False
        elif kind == "hang":
            await reader.read(1)  # until the proxy has had enough
            return False
        else:
            await _stream(writer, kind)
        await writer.drain()
        return kind != "reset"


def _whole(document: Any, status: str = "200 OK") -> bytes:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _stream(writer: asyncio.StreamWriter, kind: str) -> None:
    """A stream of text; `reset` ends within it, `leave` is long enough to be left."""

    def event(data: bytes) -> bytes:
        text = b"data: " + data + b"\n\n"
        return b"%x\r\n%s\r\n" % (len(text), text)

    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        frame = {"id": "s", "object": "chat.completion.chunk", "created": 1, "model": "canned"}
        return event(json.dumps(frame | {"choices": [choice]}).encode())

    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    writer.write(chunk({"role": "assistant", "content": ""}))
    said = words()
    for number in range(_CHUNKS * (20 if kind == "leave" else 1)):
        writer.write(chunk({"content": said[number % len(said)]}))
        await writer.drain()
        await asyncio.sleep(0.01)
        if kind == "reset" and number == _CHUNKS // 2:
            writer.transport.abort()
            raise ConnectionResetError
    writer.write(chunk({}, "stop") + event(b"[DONE]") + b"0\r\n\r\n")


@asynccontextmanager
async def _coming_and_going(server: Scripted) -> AsyncIterator[None]:
    async def take_turns() -> None:
        while True:
            await asyncio.sleep(_AWAY_EVERY - _AWAY_SECONDS)
            await server.go()
            await asyncio.sleep(_AWAY_SECONDS)
            await server.come()

    turns = asyncio.create_task(take_turns())
    try:
        yield
    finally:
        turns.cancel()
        with suppress(asyncio.CancelledError):
            await turns


# The clients -----------------------------------------------------------------------------------


class Clients:
    """Sends requests by the clock and keeps what each client saw."""

    def __init__(self, url: str, rate: float, seed: int) -> None:
        self.sent: list[Sent] = []
        self.lateness = 0.0
        self._rate = rate
        self._draw = random.Random(seed)
        self._http = httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None))
        whole = json.loads(chat_body())
        self._bodies = {
            name: json.dumps(
                whole
                | ({"stream": True} if kind.stream else {})
                | {"model": "canned", "calibration": kind.profile}
            ).encode()
            for name, kind in KINDS.items()
        }

    async def run(self, seconds: float) -> None:
        """Send for so long, then wait until everything is answered."""
        loop = asyncio.get_running_loop()
        begun, tasks, number = loop.time(), set[asyncio.Task[None]](), 0
        names, weights = list(KINDS), [kind.weight for kind in KINDS.values()]
        while (due := number / self._rate) < seconds:
            await asyncio.sleep(max(0.0, begun + due - loop.time()))
            self.lateness = max(self.lateness, loop.time() - begun - due)
            kind = self._draw.choices(names, weights)[0]
            task = asyncio.create_task(self._one(f"soak-{number}", kind))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.gather(*tasks)
        await self._http.aclose()

    async def _one(self, request_id: str, kind: str) -> None:
        headers = {"X-Request-Id": request_id, "X-Soak": kind, "Content-Type": "application/json"}
        status = -1
        try:
            async with self._http.stream(
                "POST", _CHAT, content=self._bodies[kind], headers=headers
            ) as answer:
                status = answer.status_code
                async for _ in answer.aiter_raw():
                    if kind == "leave" and status == 200:
                        status = 0
                        break
        except httpx.RemoteProtocolError:
            pass  # a stream that was broken off keeps its status
        except httpx.HTTPError as error:
            print(f"{request_id} ({kind}): {error!r}", file=sys.stderr)
            status = -1
        self.sent.append(Sent(request_id, kind, status))


# What is held against each other ---------------------------------------------------------------


class Check(NamedTuple):
    """One claim about the run."""

    claim: str
    found: str
    met: bool


def checks(
    sent: Sequence[Sent],
    logged: Counter[str],
    counted: float,
    samples: Sequence[Sample],
    log: str,
    dropped: float,
) -> list[Check]:
    """All claims; `logged` are records by request id, `counted` what the metrics say was answered."""
    unlike = [s for s in sent if s.status not in KINDS[s.kind].expected | AWAY]
    missing = [s.id for s in sent if logged[s.id] != 1]
    settled, late = samples[len(samples) // 3 : -len(samples) // 3], samples[-len(samples) // 3 :]
    rss = [statistics.median(s.rss_mb for s in part) for part in (settled, late)]
    descriptors = [max(s.descriptors for s in part) for part in (settled, late)]
    return [
        Check(
            "every client saw what its request was to bring",
            f"{len(unlike)} did not {unlike[:2]}",
            not unlike,
        ),
        Check(
            "every request has one record",
            f"{len(sent)} sent, {sum(logged.values())} records, {len(missing)} not once {missing[:3]}",
            not missing and sum(logged.values()) == len(sent),
        ),
        Check("the metrics count the same", f"{counted:g} requests", counted == len(sent)),
        Check("no record was dropped", f"{dropped:g} dropped", dropped == 0),
        Check(
            "memory is flat",
            f"{rss[0]:.1f} MB in the middle third, {rss[1]:.1f} MB in the last",
            rss[1] <= _GROWTH * rss[0],
        ),
        Check(
            "descriptors are not leaked",
            f"at most {descriptors[0]} in the middle third, {descriptors[1]} in the last, "
            f"{samples[-1].descriptors} at the end",
            samples[-1].descriptors <= samples[0].descriptors + 40,
        ),
        Check("nothing is left in flight", f"{samples[-1].in_flight}", samples[-1].in_flight == 0),
        Check("no traceback in the program log", f"{log.count('Traceback')}", "Traceback" not in log),
    ]


def _metrics(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def _process(pid: int) -> tuple[float, int]:
    """Resident megabytes and open descriptors."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def _sample(service: Service, begun: float) -> tuple[Sample, str]:
    """The process as it is, and its metrics."""
    rss, descriptors = _process(service.process.pid)
    async with httpx.AsyncClient(timeout=30) as http:
        text = (await http.get(f"{service.url}/metrics")).text
    flying = sum(value for name, _, value in _metrics(text) if name == "seam_requests_in_flight")
    return Sample(round(time.monotonic() - begun, 1), rss, descriptors, int(flying)), text


async def soak(folder: Path, seconds: float, rate: float, seed: int) -> tuple[dict[str, Any], list[Check]]:
    """One run; everything it wrote is left in `folder`."""
    server = Scripted()
    await server.come()
    profiles = folder / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "probe.yaml").write_text(yaml.safe_dump({"name": "probe", "sri": True}))
    config = {
        "upstreams": {
            "default": {"url": f"http://127.0.0.1:{server.port}", "kind": "openai", "timeouts": _TIMEOUTS}
        },
        "models": {"canned": {}},
        "profiles": {"folder": str(profiles)},
        "decisions": {"path": str(folder / "decisions.jsonl"), "max_bytes": 10**10},
        "drift": {"path": str(folder / "drift.json")},
    }
    _write_profile(profiles, 0)
    (folder / "seam.yaml").write_text(yaml.safe_dump(config))
    port, log = free_port(), folder / "proxy.log"
    command = [sys.executable, "-m", "proxy.cli", "serve", "--config", str(folder / "seam.yaml")]
    with running([*command, "--port", str(port)], log) as process:
        service = Service("the proxy", f"http://127.0.0.1:{port}", log, process)
        await asyncio.to_thread(service.await_ready, "/readyz", 120.0)
        clients, begun = Clients(service.url, rate, seed), time.monotonic()
        samples: list[Sample] = []
        async with _coming_and_going(server):
            traffic = asyncio.create_task(clients.run(seconds))
            while not traffic.done():
                samples.append((await _sample(service, begun))[0])
                with (folder / "samples.jsonl").open("a") as lines:
                    lines.write(json.dumps(samples[-1]._asdict()) + "\n")
                _write_profile(profiles, len(samples))
                print(f"\r{samples[-1]} {len(clients.sent)} answered ", end="", file=sys.stderr)
                await asyncio.wait([traffic], timeout=_SAMPLE_SECONDS)
            await traffic
        print(file=sys.stderr)
        cpu = cpu_seconds([process.pid])
        # The last clients that left are noticed, and the log's last records written.
        for _ in range(60):
            last, text = await _sample(service, begun)
            if not last.in_flight:
                break
            await asyncio.sleep(0.5)
        await asyncio.sleep(2)
        last, text = await _sample(service, begun)
        samples.append(last)
    logged: Counter[str] = Counter()
    with (folder / "decisions.jsonl").open() as lines:
        for line in lines:
            logged[json.loads(line)["request_id"]] += 1
    rows = list(_metrics(text))
    counted = sum(v for n, labels, v in rows if n == "seam_requests_total" and labels["route"] == "chat")
    dropped = sum(v for n, _, v in rows if n == "seam_decisions_dropped_total")
    found = checks(clients.sent, logged, counted, samples, log.read_text(), dropped)
    seen = Counter(f"{s.kind} {s.status}" for s in clients.sent)
    document = {
        "seconds": seconds,
        "rate": rate,
        "seed": seed,
        "requests": len(clients.sent),
        "seen": dict(sorted(seen.items())),
        "cpu_us_per_request": 1e6 * cpu / max(1, len(clients.sent)),
        "latest_start_seconds": clients.lateness,
        "checks": [check._asdict() for check in found],
    }
    (folder / "soak.json").write_text(json.dumps(document, indent=2) + "\n")
    return document, found


def _write_profile(folder: Path, number: int) -> None:
    """A profile whose bias changes, so that reloads have something to take up."""
    profile = {
        "name": "soak",
        "entry": {"tokens": [7]},
        "bias": {"value": -1 - number % 2, "apply": "logit_bias"},
    }
    part = folder.parent / "soak.part"
    part.write_text(yaml.safe_dump(profile))
    part.replace(folder / "soak.yaml")


def main() -> None:
    """Run, print the accounts, exit 1 where a claim isn't met."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--rate", type=float, default=50, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, help="an empty or new folder; default: one in the temporary folder"
    )
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp(prefix="seam-soak-"))
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"soak: {folder} isn't empty; name a new folder with --out")
    document, found = uvloop.run(soak(folder, options.seconds, options.rate, options.seed))
    for name, count in document["seen"].items():
        print(f"{count:8} {name}")
    for check in found:
        print(f"{'met    ' if check.met else 'NOT MET'} {check.claim}: {check.found}")
    print(f"{document['cpu_us_per_request']:.0f} us of the proxy's CPU a request; records: {folder}")
    sys.exit(0 if all(check.met for check in found) else 1)


if __name__ == "__main__":
    main()
