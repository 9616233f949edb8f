"""`bench overhead`: the canned upstream, the load generator, the figures, and the whole command once.

Structure and plausibility only: no test here asks for speed.
"""

import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from bench import environments
from bench.errors import CheckFailed, InputError, ServerUnreachable
from bench.overhead import figures, probes
from bench.overhead.load import Block, Job, drive
from bench.overhead.measure import (
    OPEN_CHUNKS,
    Kind,
    Load,
    Measured,
    Settings,
    given_up,
    loads,
    measure_round,
    read_round,
)
from bench.overhead.processes import (
    Server,
    Usage,
    allow_open_files,
    await_ready,
    cpu_seconds,
    free_port,
    peak_mb,
    reset_peaks,
    running,
    tree,
)
from bench.overhead.targets import PROXIES
from bench.overhead.traffic import MODEL, SLOW_MODEL, chat_body, replies, stream_body, turns
from bench.overhead.upstream import serving
from bench.report.overhead import write_report
from bench.runs import Manifest, Plan, RunFolder
from calibrators.actions import asks

BENCH = str(Path(sys.executable).with_name("bench"))


# The canned upstream


def test_the_traffic_is_of_a_realistic_size() -> None:
    request = json.loads(chat_body())
    assert 6_000 < len(chat_body()) < 10_000
    assert (len(request["messages"]), len(request["tools"])) == (11, 8)
    text, calls = (json.loads(reply)["choices"][0] for reply in replies())
    assert (text["finish_reason"], calls["finish_reason"]) == ("stop", "tool_calls")
    assert all(1_200 < len(reply) < 1_800 for reply in replies())


async def test_replies_take_turns_and_one_in_ten_halts() -> None:
    async with serving() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        got = [(await client.post("/v1/chat/completions", content=chat_body())).content for _ in range(12)]
    assert [json.loads(reply) for reply in got] == [*turns(), *turns()[:2]]
    assert got[:4] == [*replies(), *replies()]
    said = [reply["choices"][0] for reply in turns()]
    calls = [choice["finish_reason"] == "tool_calls" for choice in said]
    asking = [asks(choice["message"]["content"]) for choice in said]
    assert (sum(calls), sum(asking)) == (4, 5)
    assert not any(call and ask for call, ask in zip(calls, asking, strict=True))


def events_of(body: str) -> list[Any]:
    *events, end = body.split("\n\n")
    assert end == ""
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


@pytest.mark.parametrize("interval", [0.0, 0.001])
async def test_a_stream_has_as_many_chunks_as_it_may_have_tokens(interval: float) -> None:
    body = json.loads(stream_body(300)) | {"stream_options": {"include_usage": True}}
    async with serving(interval=interval) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        reply = await client.post(url, json=body)
    first, *content, last, usage = events_of(reply.text)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(content) == 300
    assert all(event["choices"][0]["delta"]["content"] for event in content)
    assert last["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["completion_tokens"] == 300


async def test_streams_take_turns_and_end_as_their_replies_do() -> None:
    async with serving() as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        streams = [events_of((await client.post(url, content=stream_body(30))).text) for _ in range(10)]
    for events, reply in zip(streams, turns(), strict=True):
        deltas = [event["choices"][0]["delta"] for event in events]
        message = reply["choices"][0]["message"]
        assert message["content"].endswith("".join(delta.get("content", "") for delta in deltas).lstrip())
        parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
        told = [part["function"] for part in parts]
        names = [function["name"] for function in told if "name" in function]
        assert names == [call["function"]["name"] for call in message["tool_calls"]]
        arguments = "".join(function["arguments"] for function in told)
        assert arguments == "".join(call["function"]["arguments"] for call in message["tool_calls"])
        assert events[-1]["choices"][0]["finish_reason"] == reply["choices"][0]["finish_reason"]


async def test_the_upstream_says_how_many_streams_were_open_at_once() -> None:
    async with (
        serving(interval=0.01) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        bodies = [stream_body(20)] * 3
        await asyncio.gather(*(client.post("/v1/chat/completions", content=body) for body in bodies))
        assert (await client.get("/streams")).json() == {"most_open": 3}
        assert (await client.get("/streams")).json() == {"most_open": 0}


async def test_a_slow_stream_takes_its_time() -> None:
    begun = time.monotonic()
    async with serving() as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        await client.post(url, content=stream_body(1, SLOW_MODEL))
    assert time.monotonic() - begun >= 1.5  # after its head, its chunk and its finish


async def test_a_slow_reader_still_gets_every_chunk() -> None:
    body = stream_body(5_000)
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await asyncio.sleep(0.2)  # the upstream must wait, not buffer or lose
        got = b""
        while not got.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
            got += await reader.read(2**16)
        writer.close()
    assert got.count(b'"content":') == 5_001


async def test_a_client_that_leaves_a_stream_leaves_the_server_well() -> None:
    async with serving(interval=0.001) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with client.stream("POST", url, content=stream_body(10_000)) as reply:
            await anext(reply.aiter_raw())
        assert (await client.post(url, content=chat_body())).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models", 200), ("/health", 200), ("/version", 200), ("/v1/nothing", 404)]
)
async def test_other_routes_answer_as_vllm_does(path: str, status: int) -> None:
    async with serving() as port, httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{port}{path}")).status_code == status


# The load generator


def job(port: int, **changed: Any) -> Job:
    default = Job(
        port, concurrency=2, seconds=0.2, limit=None, model=MODEL, chunks=None, pid=os.getpid(), patience=60
    )
    return default._replace(**changed)


async def test_a_block_counts_what_came_whole() -> None:
    async with serving() as port:
        block = await drive(job(port, limit=7, seconds=10))
    assert (block.requests, block.failures) == (7, 0)
    assert 0 < block.p50_ms <= block.p99_ms
    assert block.cpu_us > 0
    assert block.peak_mb > 10
    assert block.first_ms is None


async def test_a_block_ends_when_its_time_is_over() -> None:
    async with serving() as port:
        block = await drive(job(port))
    assert block.requests > 2
    assert block.seconds == pytest.approx(0.2, abs=0.15)


async def test_a_stream_is_counted_by_its_chunks() -> None:
    async with serving(interval=0.001) as port:
        block = await drive(job(port, concurrency=1, chunks=50, limit=1))
    assert (block.requests, block.failures) == (1, 0)
    assert 48 <= block.chunks <= 51
    assert block.reads >= 10
    assert block.first_ms is not None
    assert block.first_ms < block.p50_ms


async def served(answer: bytes) -> tuple[asyncio.Server, int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}]}")  # somewhere in the body: enough to answer
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    return server, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\nboom", "HTTP 500 boom"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", "connection closed"),
    ],
)
async def test_an_answer_that_is_none_is_a_failure(answer: bytes, failure: str) -> None:
    server, port = await served(answer)
    async with server:
        block = await drive(job(port))
    assert (block.requests, block.failures) == (0, 1)
    assert block.failure is not None
    assert failure in block.failure


@pytest.mark.parametrize(("chunks", "waited"), [(None, "0.1"), (50, "0.3")])
async def test_a_target_that_answers_nothing_does_not_hang_the_run(chunks: int | None, waited: str) -> None:
    silent = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    async with silent:
        block = await drive(job(silent.sockets[0].getsockname()[1], chunks=chunks, patience=0.1))
    assert block.failure == f"no answer in {waited} s"


async def test_what_has_not_come_in_time_is_given_up_and_counted() -> None:
    body = b'data: {"content":"a"}\n\n' * 5
    answers = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)]

    class AnswersOnce(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.Transport, transport)

        def data_received(self, data: bytes) -> None:
            if answers and data.endswith(b"}"):
                self.transport.write(answers.pop())

    server = await asyncio.get_running_loop().create_server(AnswersOnce, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        block = await drive(job(port, concurrency=3, limit=3, chunks=5, patience=0.1))
    assert (block.requests, block.unfinished, block.failures) == (1, 2, 0)
    assert block.seconds >= 0.3  # of all that time, so that a slow target does not look quick


async def test_a_stream_that_lost_chunks_is_a_failure() -> None:
    short = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
    server, port = await served(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(short), short))
    async with server:
        block = await drive(job(port, concurrency=1, chunks=50, limit=1))
    assert block.failure == "1 of 50 chunks came"


class Broken(BaseHTTPRequestHandler):
    """Says that no stream is open, and fails at everything else."""

    def do_GET(self) -> None:
        self._answer(200, b'{"most_open":0}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(500, b"boom")

    def log_message(self, format: str, *args: Any) -> None: ...

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def broken() -> Iterator[Server]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Server(server.server_address[1], os.getpid())
        server.shutdown()
        thread.join()


def test_an_upstream_that_fails_ends_the_run(broken: Server) -> None:
    with pytest.raises(
        CheckFailed, match=r"reply, concurrency 8: 1 failed answers beside 0 whole ones .*boom"
    ):
        measure_round(0, settings(seconds=0.1), {"direct": broken}, lambda steps, note: None)


def test_a_proxy_that_fails_is_on_record_and_has_no_figures(broken: Server, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "bench.overhead.upstream", "--port", str(port)]
    with running(command, log) as upstream:
        await_ready("upstream", upstream, port, chat_body(), log, 60)
        servers = {"direct": Server(port, upstream.pid), "seam": broken}
        record = measure_round(0, settings(seconds=0.1), servers, lambda steps, note: None)
    measured = list(read_round(json.loads(json.dumps(record))))
    rounds = figures.by_load([measured])
    assert [one.target for one in figures.loops(rounds, settings())] == ["direct"]
    (note,) = figures.warnings([], [], measured, [0.0])
    assert note.startswith("seam, reply, concurrency 8: HTTP 500 boom (1 failed, 0 whole)")


# Processes

SPIN = "import time\nwhile time.process_time() < 0.2: pass\nprint('spun', flush=True)\ntime.sleep(60)"


def test_cpu_time_is_that_of_the_whole_tree(tmp_path: Path) -> None:
    log = tmp_path / "log"
    shell = f'"{sys.executable}" -c "$SPIN" & "{sys.executable}" -c "$SPIN"; wait'
    with running(["sh", "-c", shell], log, {"SPIN": SPIN}) as process:
        while log.read_text().count("spun") < 2:
            time.sleep(0.02)
        pids = tree(process.pid)
        assert len(pids) >= 3
        assert 0.4 <= cpu_seconds(pids) < 2
    deadline = time.monotonic() + 60
    while cpu_seconds(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert cpu_seconds(pids) == 0  # all of them end, and count no more


def test_memory_is_the_peak_since_it_was_last_asked_to_count(tmp_path: Path) -> None:
    hog = "b = bytearray(100_000_000); b = None; print('let go', flush=True); import time; time.sleep(60)"
    with running([sys.executable, "-c", hog], tmp_path / "log") as process:
        while "let go" not in (tmp_path / "log").read_text():
            time.sleep(0.02)
        pids = tree(process.pid)
        assert 100 < peak_mb(pids) < 200
        reset_peaks(pids)
        assert peak_mb(pids) < 100


def test_the_limit_of_open_files_is_raised_or_the_mend_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, now = [(256, 4096)], resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    allow_open_files(200)
    allow_open_files(2512)
    assert limits[1:] == [(2512, 4096)]
    with pytest.raises(
        InputError, match=r"9,000 files .* and 4,096 may be; raise the limit \(ulimit -Hn 9000\)"
    ):
        allow_open_files(9000)
    monkeypatch.undo()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == now


def test_work_elsewhere_is_told_from_ours() -> None:
    before = Usage.now()
    subprocess.run([sys.executable, "-c", SPIN.replace("60", "0")], check=True, stdout=subprocess.DEVNULL)
    now = Usage.now()
    assert now.ours - before.ours >= 0.2
    assert now.elsewhere_since(before) >= 0


def test_servers_end_with_the_bench_however_it_ends(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from bench.overhead.processes import running\n"
        "with running(['sleep', '60'], Path(sys.argv[1])) as server:\n"
        "    print(server.pid, flush=True); time.sleep(60)"
    )
    bench = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "log")], stdout=subprocess.PIPE)
    assert bench.stdout is not None
    server = int(bench.stdout.readline())
    bench.kill()
    bench.wait()
    bench.stdout.close()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{server}/cmdline").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.02)
    assert not Path(f"/proc/{server}").exists()


def test_a_server_that_does_not_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with (
        running([sys.executable, "-c", "exit('no such model')"], log) as process,
        pytest.raises(ServerUnreachable, match=r"seam: ended at once \(exit 1\): no such model; see "),
    ):
        await_ready("seam", process, free_port(), b"{}", log, 20)


# Environments


def test_an_environment_is_made_once_and_again_when_its_requirements_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "place", lambda name: tmp_path / name)
    commands: list[list[str]] = []
    real = subprocess.run

    def record(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return real([sys.executable, "-c", "pass"], **options)

    monkeypatch.setattr(subprocess, "run", record)
    (tmp_path / "tool").mkdir()
    for requirement in ("tool==1", "tool==1", "tool==2"):
        assert environments.make("tool", [requirement]) == tmp_path / "tool" / "bin"
        assert environments.made("tool", [requirement])
    assert [command[-1] for command in commands if "install" in command] == ["tool==1", "tool==2"]


def test_an_environment_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "place", lambda name: tmp_path / name)
    (tmp_path / "tool").write_text("in the way")
    with pytest.raises(InputError, match=r"could not be made: .*; see to that, and repeat"):
        environments.make("tool", ["tool"])


# Figures


REPLIES = Load(Kind.REPLY, 8, None)


def block(requests: int, p50: float = 1.0, cpu: float = 100.0, **changed: Any) -> Block:
    made = Block(requests, 1.0, p50, 2 * p50, None, cpu, 50.0, 0, requests, 0.1, 0, 0, None)
    return made._replace(**changed)


def rounds(*pairs: tuple[Block, Block], load: Load = REPLIES) -> figures.Rounds:
    return figures.by_load(
        [Measured("direct", load, direct, 0), Measured("seam", load, seam, 0)] for direct, seam in pairs
    )


def settings(**changed: Any) -> Settings:
    default = Settings(
        ("direct", "seam"), 3, 1.0, (8,), chunks=0, long_stream=0, open_streams=0, interval_ms=1.0,
        limit=None, seed=0,
    )  # fmt: skip
    return default._replace(**changed)


def test_ratios_and_added_times_are_taken_within_a_round() -> None:
    measured = rounds(
        (block(1000, 1.0), block(500, 2.0)),
        (block(100, 10.0), block(80, 10.5)),  # a disturbed round: slow for both
        (block(1000, 1.0), block(600, 1.5)),
    )
    direct, seam = figures.loops(measured, settings())
    assert seam.speed["direct"] == figures.Spread(0.6, 0.5, 0.8, 3)
    assert direct.speed["seam"] == pytest.approx((1 / 0.6, 1.25, 2, 3))
    assert seam.added_p50_ms == (0.5, 0.5, 1.0, 3)
    assert seam.p99_above_ms == {"direct": (1.0, 1.0, 2.0, 3)}
    assert seam.requests_per_second == (500, 80, 600, 3)
    assert seam.cpu["direct"].median == 1.0


def test_a_target_has_figures_of_the_rounds_that_it_got_through() -> None:
    fell = block(0, failures=3, failure="HTTP 504")
    measured = rounds((block(1000), block(500)), (block(1000), fell), (block(1000), block(700)))
    direct, seam = figures.loops(measured, settings())
    assert seam.requests_per_second == (600, 500, 700, 2)
    assert direct.requests_per_second.rounds == 3
    assert direct.speed["seam"].rounds == 2


def test_streams_are_told_by_their_first_chunk_too() -> None:
    load = Load(Kind.STREAM, 8, 30)
    measured = rounds((block(9, 40.0, first_ms=1.0), block(9, 42.0, first_ms=2.5)), load=load)
    _, seam = figures.loops(measured, settings(chunks=30))
    assert (seam.kind, seam.added_first_ms) == (Kind.STREAM, (1.5, 1.5, 1.5, 1))


def test_a_long_stream_is_counted_per_chunk() -> None:
    stream = block(1, p50=2100.0, cpu=90_000.0, chunks=2000, reads=1000)
    measured = rounds((block(1, 2000.0, chunks=2000, reads=2000), stream), load=Load(Kind.LONG, 1, 2000))
    _, seam = figures.longs(measured, settings(long_stream=2000))
    assert (seam.cpu_us_per_chunk.median, seam.added_ms.median, seam.chunks_per_read.median) == (45, 100, 2)


def opened(seam: Block, streams: int = 1000) -> list[figures.Open]:
    measured = rounds((block(streams), seam), load=Load(Kind.OPEN, streams, OPEN_CHUNKS))
    return figures.opens(measured, settings(open_streams=streams))


def test_open_streams_are_told_by_their_memory() -> None:
    assert [(one.target, one.peak_mb) for one in opened(block(1000, peak_mb=200.0))] == [
        ("direct", 50.0),
        ("seam", 200.0),
    ]
    # What was given up held fewer streams than it was asked for.
    assert [one.target for one in opened(block(600, unfinished=400))] == ["direct"]


@pytest.mark.parametrize(
    ("seam", "streams", "met"),
    [
        (block(1000, peak_mb=399.0), 1000, True),
        (block(1000, peak_mb=401.0), 1000, False),
        (block(100, peak_mb=100.0), 100, None),
    ],
)
def test_the_bar_of_memory_is_of_a_thousand_streams(seam: Block, streams: int, met: bool | None) -> None:
    bars = figures.bars([], [], opened(seam, streams), [], settings())
    assert next(bar for bar in bars if "memory" in bar.bar).met is met


@pytest.mark.parametrize(
    ("probes", "met"),
    [
        (block(1000, peak_mb=399.0), True),
        (block(1000, peak_mb=401.0), False),
        (block(999, unfinished=1), None),
        (block(999, failures=1, failure="HTTP 504"), None),
        (block(0, failures=1, failure="no answer in 45 s"), None),
    ],
)
def test_the_heaviest_seam_is_known_where_every_seam_held_its_streams(
    probes: Block, met: bool | None
) -> None:
    of = settings(targets=("direct", "seam", "seam-probes"), open_streams=1000)
    load = Load(Kind.OPEN, 1000, OPEN_CHUNKS)
    blocks = zip(of.targets, (block(1000), block(1000), probes), strict=True)
    measured = [Measured(name, load, one, 1000) for name, one in blocks]
    held = figures.opens(figures.by_load([measured]), of)
    bars = figures.bars([], [], held, measured, of)
    assert next(bar for bar in bars if "memory" in bar.bar).met is met


def test_bars_are_met_missed_or_not_measured() -> None:
    def of(load: Load, *blocks: Block) -> dict[str, bool | None]:
        names = ("direct", "bare", "litellm", "seam")
        measured = [Measured(name, load, block, 0) for name, block in zip(names, blocks, strict=True)]
        of = settings(targets=names, concurrency=(load.concurrency,))
        loop = figures.loops(figures.by_load([measured]), of)
        return {bar.bar: bar.met for bar in figures.bars(loop, [], [], measured, of)}

    fifteen = Load(Kind.REPLY, 15, None)
    met = of(fifteen, block(9000), block(1000, 3.0), block(50), block(1400, 2.0))
    assert met["requests/s at concurrency 15, times LiteLLM's"] is True
    assert met["requests/s at concurrency 15, times the bare forwarder's"] is True
    assert met["99th percentile at concurrency 15, ms above the bare forwarder's"] is True
    assert met["added median latency at concurrency 1, ms"] is None
    missed = of(fifteen, block(9000), block(1000, 3.0), block(90), block(1200, 3.1))
    assert {bar for bar, met in missed.items() if met is False} == {
        "requests/s at concurrency 15, times LiteLLM's",
        "requests/s at concurrency 15, times the bare forwarder's",
        "99th percentile at concurrency 15, ms above the bare forwarder's",
    }
    alone = of(Load(Kind.REPLY, 1, None), block(9), block(9), block(9), block(9, 1.4))
    assert alone["added median latency at concurrency 1, ms"] is True
    lost = "answers of every Seam that failed or did not come, under all loads"
    assert alone[lost] is True
    failing = of(fifteen, block(9000), block(1000), block(50), block(1400, failures=1, failure="HTTP 504"))
    assert failing[lost] is False
    assert failing["requests/s at concurrency 15, times LiteLLM's"] is None
    slow = of(fifteen, block(9000), block(1000), block(50), block(1400, unfinished=1))
    assert slow[lost] is False


def test_what_limits_the_figures_is_said() -> None:
    measured = rounds((block(9000, client_busy=0.97), block(500)))
    slow = Measured("litellm", Load(Kind.STREAM, 1000, 30), block(300, unfinished=700), 0)
    notes = figures.warnings(figures.loops(measured, settings()), [], [slow, slow], [0.1, 1.4])
    assert [note.partition(":")[0] for note in notes] == [
        "other work took up to 1.4 CPUs meanwhile",
        "the load generator was at its limit, so these may be faster than measured",
        "litellm, stream, concurrency 1,000",
    ]
    assert "direct (reply, 8)" in notes[1]
    assert "700 of 1000 answers" in notes[2]
    assert figures.warnings([], [], [], [0.1]) == []
    assert given_up([slow]) == {("litellm", Load(Kind.STREAM, 1000, 30))}


def test_the_share_that_probes_act_on_is_that_of_the_replies_they_looked_at() -> None:
    counted = {"seam-probes": {"sri passed": 6, "sri gated": 3, "sri retried": 1, "cri passed": 10}}
    assert figures.looks([{"probes": counted}, {"probes": counted}]) == {
        "seam-probes": {"sri": {"looked": 20, "acted": 2}, "cri": {"looked": 20, "acted": 0}}
    }


def test_a_round_puts_every_load_on_every_target() -> None:
    every = settings(concurrency=(1, 8), chunks=30, long_stream=2000, open_streams=100)
    closed = [Load(kind, n, c) for kind, c in ((Kind.REPLY, None), (Kind.STREAM, 30)) for n in (1, 8)]
    assert loads(every, 1) == [*closed, Load(Kind.LONG, 1, 2000)]
    assert loads(every, 0) == [*loads(every, 1), Load(Kind.OPEN, 100, OPEN_CHUNKS)]
    assert loads(settings()) == [REPLIES]


# The page


def shown(tmp_path: Path, of: Settings, *measured: list[Measured]) -> str:
    """The page of a run that measured so."""
    by_load = figures.by_load(measured)
    loop, long = figures.loops(by_load, of), figures.longs(by_load, of)
    opened = figures.opens(by_load, of)
    result = {
        "settings": of._asdict(),
        "cpus": 2,
        "cpus_elsewhere": [0.1],
        "loops": loop,
        "long_streams": long,
        "open_streams": opened,
        "probes": figures.looks([{"probes": {"seam-probes": {"sri passed": 9, "sri retried": 1}}}]),
        "bars": figures.bars(loop, long, opened, chain(*measured), of),
        "skipped": {},
        "notes": figures.warnings(loop, long, chain(*measured), [0.1]),
    }
    plan = Plan(command="overhead", arguments={}, seed=0)
    run = RunFolder(tmp_path, Manifest(state="done", plan=plan, sessions=()))
    return write_report(run, figures.as_json(result), tmp_path).read_text()


def test_the_page_shows_every_target_and_each_bar(tmp_path: Path) -> None:
    names = ("direct", *PROXIES)
    of = settings(targets=names, concurrency=(1, 15), chunks=30, long_stream=2000, open_streams=1000)
    measured = [
        Measured(name, load, block(2000 // (3 + place), 1.0 + place, chunks=9, first_ms=1.0), 1000)
        for load in loads(of)
        for place, name in enumerate(names)
    ]
    page = shown(tmp_path, of, measured, measured)
    assert {file.stem for file in (tmp_path / "charts").glob("*.svg")} == {
        "reply-speed", "reply-tail", "stream-speed", "stream-tail", "ratios", "cpu", "memory",
    }  # fmt: skip
    text = re.sub(r"<[^>]+>", " ", page.partition('<script type="application/json"')[0])
    assert all(f" {name} " in text for name in names)
    assert "Requests/s at concurrency 15, times LiteLLM's" in text.replace("&#x27;", "'")
    assert "SRI 10.0 % of 10" in text
    assert "15 at a time" in text


def test_the_page_does_without_what_was_not_measured(tmp_path: Path) -> None:
    fell = Measured("seam", REPLIES, block(0, failures=8, failure="HTTP 504"), 0)
    page = shown(tmp_path, settings(), [Measured("direct", REPLIES, block(1000), 0), fell])
    assert {file.stem for file in (tmp_path / "charts").glob("*.svg")} == {"reply-speed", "reply-tail", "cpu"}
    assert "HTTP 504 (8 failed, 0 whole)" in page
    assert "not measured" in page


# The whole command


def overhead(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    small = ["--targets", "nginx,bare,seam,seam-probes", "--seconds", "0.3", "--rounds", "1"]
    small += ["--concurrency", "15", "--long-stream", "40", "--open-streams", "20"]
    return subprocess.run(
        [BENCH, "overhead", *small, "--out", str(out), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.whole
def test_the_command_measures_resumes_and_explains(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = overhead(out, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    targets = {"direct", "bare", "seam", "seam-probes"}
    if PROXIES["nginx"].missing() is None:
        targets.add("nginx")
    assert result["skipped"].keys() == {"nginx"} - targets
    assert {(one["target"], one["kind"], one["concurrency"]) for one in result["loops"]} == {
        (target, kind, 15) for target in targets for kind in ("reply", "stream")
    }
    for one in result["loops"]:
        assert one["requests_per_second"]["rounds"] == 1
        assert 0 < one["requests_per_second"]["low"] <= one["requests_per_second"]["high"]
        assert 5 < one["cpu_us"]["median"] < 1_000_000
        assert 1 < one["peak_mb"]["median"] < 2_000
        if one["kind"] == "reply" and one["target"] not in ("direct", "nginx"):
            # Work in between costs something; and a target can't be faster than what it asks.
            assert one["speed"]["direct"]["median"] < 1
            assert one["cpu"]["direct"]["median"] > 1
    assert {one["target"] for one in result["long_streams"]} == targets
    assert all(one["cpu_us_per_chunk"]["median"] > 1 for one in result["long_streams"])
    assert {one["target"]: one["most_open"] for one in result["open_streams"]} == dict.fromkeys(targets, 20)
    bars = {bar["bar"]: bar for bar in result["bars"]}
    assert len(bars) == 7
    assert bars["requests/s at concurrency 15, times LiteLLM's"]["met"] is None
    assert bars["requests/s at concurrency 15, times the bare forwarder's"]["value"] > 0

    # Seam was measured with everything on, and its probes looked at replies and acted on some.
    decisions = (out / "servers" / "seam" / "decisions.jsonl").read_text().splitlines()
    assert len(decisions) > 20
    record = json.loads(decisions[-1])
    assert record["profile"] == "overhead"
    looked = result["probes"]["seam-probes"]
    assert looked.keys() == {"sri", "cri"}
    assert 0 < looked["sri"]["acted"] < 0.3 * looked["sri"]["looked"]
    assert looked["cri"]["acted"] == 0

    # A page shows it, with all that it needs, and is made again as it was.
    page = (out / "report.html").read_text()
    made = subprocess.run([BENCH, "report", str(out), "--out", str(tmp_path / "page")], check=False)
    assert made.returncode == 0
    assert (tmp_path / "page" / "report.html").read_text() == page

    # Killed before it could sum up: what was measured is not measured again.
    manifest = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(manifest | {"state": "planned"}))
    again = overhead(out)
    assert again.returncode == 0, again.stderr
    assert "starting" not in again.stderr
    assert "requests/s at concurrency 15, times the bare forwarder's" in again.stdout
    assert json.loads((out / "run.json").read_text())["state"] == "done"

    # What is missing for --check is a failed check.
    checked = overhead(out, "--check")
    assert checked.returncode == 1
    assert "bars not met or not measured" in checked.stderr.splitlines()[-1]
    other = overhead(out, "--seed", "1")
    assert other.returncode == 2
    assert "seed was 0 and is 1" in other.stderr


def test_what_cannot_run_is_left_out_with_the_reason(tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = (
        "import shutil, bench.overhead.targets as t\nfrom bench.errors import InputError\n"
        "def make(name, requirements): raise InputError('no index', where='.venv-litellm', mend='repeat')\n"
        "t.make = make; t.made = lambda *_: True; shutil.which = lambda *_, **__: None\n"
        "import sys; from bench.cli import main; main(sys.argv[1:])"
    )
    arguments = ["--targets", "nginx,litellm", "--seconds", "0.1", "--rounds", "1", "--concurrency", "2"]
    arguments += ["--chunks", "0", "--long-stream", "0", "--open-streams", "0", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", script, "overhead", *arguments, "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "litellm is left out: .venv-litellm: no index; repeat" in done.stderr
    result = json.loads(done.stdout)
    assert result["skipped"] == {
        "nginx": "nginx is not installed (apt install nginx-light)",
        "litellm": ".venv-litellm: no index; repeat",
    }
    assert {one["target"] for one in result["loops"]} == {"direct"}


# The probes' own cost


def test_the_probes_cost_is_measured_where_they_find_nothing() -> None:
    body = probes.conversation()
    assert (len(body.fields["messages"]), len(body.fields["tools"])) == (probes.MESSAGES, probes.TOOLS)
    costs = [probes.measured(look, body, 3) for look in probes.looks()]
    assert len({cost.name for cost in costs}) == len(costs)
    assert all(cost.total.median > 0 for cost in costs)
