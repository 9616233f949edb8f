"""`bench overhead`: the canned upstream, the load generator, the figures, and the whole command once.

Structure and plausibility only: no test here asks for speed.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench import environments
from bench.errors import CheckFailed, InputError, ServerUnreachable
from bench.overhead import figures, probes
from bench.overhead.load import Block, Job, drive
from bench.overhead.measure import Load, Measured, Settings, loads, measure_round
from bench.overhead.processes import Server, Usage, await_ready, cpu_seconds, free_port, running, tree
from bench.overhead.traffic import chat_body, replies, stream_body
from bench.overhead.upstream import serving

BENCH = str(Path(sys.executable).with_name("bench"))


# The canned upstream


def test_the_traffic_is_of_a_realistic_size() -> None:
    request = json.loads(chat_body())
    assert 6_000 < len(chat_body()) < 10_000
    assert (len(request["messages"]), len(request["tools"])) == (11, 8)
    text, calls = (json.loads(reply)["choices"][0] for reply in replies())
    assert (text["finish_reason"], calls["finish_reason"]) == ("stop", "tool_calls")
    assert all(1_200 < len(reply) < 1_800 for reply in replies())


async def test_replies_take_turns() -> None:
    async with serving() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        got = [(await client.post("/v1/chat/completions", content=chat_body())).content for _ in range(4)]
    assert got == [*replies(), *replies()]


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
    return Job(port, concurrency=2, seconds=0.2, limit=None, chunks=None, pid=os.getpid())._replace(**changed)


async def test_a_block_counts_what_came_whole() -> None:
    async with serving() as port:
        block = await drive(job(port, limit=7, seconds=10))
    assert (block.requests, block.failures) == (7, 0)
    assert 0 < block.p50_ms <= block.p99_ms
    assert block.cpu_us > 0


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


async def test_a_target_that_answers_nothing_does_not_hang_the_run() -> None:
    silent = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    async with silent:
        block = await drive(job(silent.sockets[0].getsockname()[1]), patience=0.1)
    assert block.failure == "no answer in 0.3 s"


async def test_a_stream_that_lost_chunks_is_a_failure() -> None:
    short = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
    server, port = await served(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(short), short))
    async with server:
        block = await drive(job(port, concurrency=1, chunks=50, limit=1))
    assert block.failure == "1 of 50 chunks came"


def test_failing_answers_end_the_run() -> None:
    settings = Settings(("direct",), 1, 0.1, (1,), 0, 0, None, 0)
    nobody = Server(free_port(), os.getpid())
    with pytest.raises(CheckFailed, match="direct at concurrency 1: 1 failed answers beside 0 whole ones"):
        measure_round(0, settings, {"direct": nobody}, lambda steps, note: None)


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


def block(requests: int, p50: float = 1.0, cpu: float = 100.0, **changed: Any) -> Block:
    return Block(requests, 1.0, p50, 2 * p50, cpu, 0, requests, 0.1, 0, None)._replace(**changed)


def rounds(*pairs: tuple[Block, Block], load: Load) -> list[list[Measured]]:
    return [[Measured("direct", load, direct), Measured("seam", load, seam)] for direct, seam in pairs]


def settings(**changed: Any) -> Settings:
    return Settings(("direct", "seam"), 3, 1.0, (8,), 0, 1.0, None, 0)._replace(**changed)


def test_ratios_and_added_times_are_taken_within_a_round() -> None:
    measured = rounds(
        (block(1000, 1.0), block(500, 2.0)),
        (block(100, 10.0), block(80, 10.5)),  # a disturbed round: slow for both
        (block(1000, 1.0), block(600, 1.5)),
        load=Load(8, None),
    )
    direct, seam = figures.loops(measured, settings())
    assert seam.speed["direct"] == figures.Spread(0.6, 0.5, 0.8, 3)
    assert direct.speed["seam"] == pytest.approx((1 / 0.6, 1.25, 2, 3))
    assert seam.added_p50_ms == (0.5, 0.5, 1.0, 3)
    assert seam.requests_per_second == (500, 80, 600, 3)
    assert seam.cpu["direct"].median == 1.0


def test_a_stream_is_counted_per_chunk() -> None:
    stream = block(1, p50=2100.0, cpu=90_000.0, chunks=2000, reads=1000)
    measured = rounds((block(1, 2000.0, chunks=2000, reads=2000), stream), load=Load(1, 2000))
    _, seam = figures.streams(measured, settings(chunks=2000))
    assert (seam.cpu_us_per_chunk.median, seam.added_ms.median, seam.chunks_per_read.median) == (45, 100, 2)


def test_bars_are_met_missed_or_not_measured() -> None:
    measured = rounds((block(1000, 1.0), block(500, 1.4)), load=Load(1, None))
    loop = figures.loops(measured, settings(concurrency=(1,)))
    met = {bar.bar: bar.met for bar in figures.bars(loop, [])}
    assert met["added median latency at concurrency 1, ms"] is True
    assert met["requests/s at concurrency 8, times LiteLLM's"] is None
    slow = figures.loops(
        rounds((block(1000, 1.0), block(500, 2.4)), load=Load(1, None)), settings(concurrency=(1,))
    )
    assert {bar.bar: bar.met for bar in figures.bars(slow, [])}[
        "added median latency at concurrency 1, ms"
    ] is False


def test_what_limits_the_figures_is_said() -> None:
    measured = rounds((block(9000, client_busy=0.97), block(500)), load=Load(8, None))
    notes = figures.warnings(figures.loops(measured, settings()), [], [0.1, 1.4])
    assert [note.partition(":")[0] for note in notes] == [
        "other work took up to 1.4 CPUs meanwhile",
        "direct at concurrency 8",
    ]
    assert figures.warnings([], [], [0.1]) == []


def test_a_round_puts_every_load_on_every_target() -> None:
    assert loads(settings(concurrency=(1, 8), chunks=2000)) == [Load(1, None), Load(8, None), Load(1, 2000)]
    assert loads(settings(chunks=0)) == [Load(8, None)]


# The whole command


def overhead(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    small = ["--targets", "bare,seam", "--seconds", "0.3", "--rounds", "1", "--chunks", "40"]
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
    assert {(one["target"], one["concurrency"]) for one in result["loops"]} == {
        (target, concurrency) for target in ("direct", "bare", "seam") for concurrency in (1, 8)
    }
    for one in result["loops"]:
        assert one["requests_per_second"]["rounds"] == 1
        assert 0 < one["requests_per_second"]["low"] <= one["requests_per_second"]["high"]
        assert 5 < one["cpu_us"]["median"] < 100_000
        if one["target"] != "direct":
            # Work in between costs something; and a target can't be faster than what it asks.
            assert one["speed"]["direct"]["median"] < 1
            assert one["cpu"]["direct"]["median"] > 1
    assert {one["target"] for one in result["streams"]} == {"direct", "bare", "seam"}
    assert all(one["cpu_us_per_chunk"]["median"] > 1 for one in result["streams"])
    bars = {bar["bar"]: bar for bar in result["bars"]}
    assert len(bars) == 4
    assert bars["requests/s at concurrency 8, times LiteLLM's"]["met"] is None
    assert result["skipped"] == {}

    # Seam was measured with everything on.
    decisions = (out / "servers" / "seam" / "decisions.jsonl").read_text().splitlines()
    assert len(decisions) > 20
    record = json.loads(decisions[-1])
    assert record["profile"] == "overhead"

    # Killed before it could sum up: what was measured is not measured again.
    manifest = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(manifest | {"state": "planned"}))
    again = overhead(out)
    assert again.returncode == 0, again.stderr
    assert "starting" not in again.stderr
    assert "requests/s at concurrency 8, times the bare forwarder's" in again.stdout
    assert json.loads((out / "run.json").read_text())["state"] == "done"

    # What is missing for --check is a failed check.
    checked = overhead(out, "--check")
    assert checked.returncode == 1
    assert "bars not met or not measured" in checked.stderr.splitlines()[-1]
    other = overhead(out, "--seed", "1")
    assert other.returncode == 2
    assert "seed was 0 and is 1" in other.stderr


def test_litellm_is_left_out_with_the_reason_when_its_environment_fails(tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = (
        "import bench.environments as e, bench.overhead.command as c\nfrom bench.errors import InputError\n"
        "def make(name, requirements): raise InputError('no index', where='.venv-litellm', mend='repeat')\n"
        "c.make = make; c.made = lambda *_: True\n"
        "import sys; from bench.cli import main; main(sys.argv[1:])"
    )
    arguments = ["--targets", "litellm", "--seconds", "0.1", "--rounds", "1", "--chunks", "0", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", script, "overhead", *arguments, "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "litellm is left out: .venv-litellm: no index; repeat" in done.stderr
    result = json.loads(done.stdout)
    assert result["skipped"] == {"litellm": ".venv-litellm: no index; repeat"}
    assert {one["target"] for one in result["loops"]} == {"direct"}


# The probes' own cost


def test_the_probes_cost_is_measured_where_they_find_nothing() -> None:
    body = probes.conversation()
    assert (len(body.fields["messages"]), len(body.fields["tools"])) == (probes.MESSAGES, probes.TOOLS)
    costs = [probes.measured(look, body, 3) for look in probes.looks()]
    assert len({cost.name for cost in costs}) == len(costs)
    assert all(cost.total.median > 0 for cost in costs)


def test_streams_that_a_probe_holds_all_come_whole() -> None:
    held = probes.hold(streams=5, chunks=4, interval_ms=20)
    assert (held.block.requests, held.block.failures) == (5, 0)
    assert held.block.p50_ms > 2 * 4 * 20  # held, asked again, held again
    assert 10 < held.memory_mib < 1000
    assert probes.unmet([], held._replace(memory_mib=401)) == ["401 MiB"]
