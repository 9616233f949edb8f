"""The process: it starts with one line, drains on SIGTERM, and ends with 0."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.cli import main
from tests.proxy.commands import serving
from tests.seam import chat, written
from tests.upstream import CHAT, DONE, Reply, Upstream, Wait, chunk, compact, said
from tests.wire import ask, exchange

Command = Callable[..., tuple[int, str]]

BODY = compact(chat(stream=True))
SLOW = Reply(writes=(chunk(content="Hel"), Wait(3), chunk(content="lo."), chunk("stop"), DONE))


@pytest.mark.whole
async def test_sigterm_lets_open_streams_end_and_refuses_new_requests(tmp_path: Path) -> None:
    async with Upstream([SLOW] * 3) as upstream:
        async with serving(written(tmp_path, upstream.url, {})) as process:
            streams = [exchange(process.port, "POST", CHAT, {}, BODY) for _ in range(3)]
            opened = [await stream.__aenter__() for stream in streams]
            for stream in opened:
                await stream.head()
            process.signal(signal.SIGTERM)
            await process.logged("stopping: 3 requests in flight")
            refused = await ask(process.port, "POST", CHAT, {}, BODY)
            assert refused.status == 503
            assert refused.header("retry-after") == "1"
            assert refused.error["code"] == "busy"
            ready = await ask(process.port, "GET", "/readyz")
            assert (ready.status, ready.json["draining"]) == (503, True)
            for stream in opened:
                answer = await stream.rest()
                assert not answer.cut
                assert answer.text == "Hello."
            for context in streams:
                await context.__aexit__(None, None, None)
            assert await process.exit_code() == 0
        assert len((tmp_path / "decisions.jsonl").read_text().splitlines()) == 3
        assert "Traceback" not in process.log


@pytest.mark.whole
async def test_a_connection_is_kept_for_longer_than_an_sdk_keeps_it(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, serving(written(tmp_path, upstream.url, {})) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        for idle in (6, 0):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(60):
                await reader.readuntil(b'{"status":"ok"}')
            await asyncio.sleep(idle)
        writer.close()


async def test_ctrl_c_stops_an_idle_process_quietly(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        serving(written(tmp_path, upstream.url, {})) as process,
        exchange(process.port, "POST", CHAT, {}, compact(chat())) as kept_alive,
    ):
        await kept_alive.head()
        await kept_alive.rest()
        process.signal(signal.SIGINT)
        assert await process.exit_code() == 0
        assert "Traceback" not in process.log


async def test_draining_ends_when_its_time_is_over(tmp_path: Path) -> None:
    endless = Reply(writes=(chunk(content="x"), Wait(60)))
    config = {"listen": {"drain_seconds": 0.3}}
    async with (
        Upstream([endless]) as upstream,
        serving(written(tmp_path, upstream.url, config)) as process,
        exchange(process.port, "POST", CHAT, {}, BODY) as stream,
    ):
        await stream.head()
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
        assert (await stream.rest()).cut
        record = json.loads((tmp_path / "decisions.jsonl").read_text())
        assert (record["action"], record["outcome"]) == (None, "error")
        assert "Traceback" not in process.log


async def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    endless = Reply(writes=(chunk(content="x"), Wait(60)))
    async with (
        Upstream([endless]) as upstream,
        serving(written(tmp_path, upstream.url, {})) as process,
        exchange(process.port, "POST", CHAT, {}, BODY) as stream,
    ):
        await stream.head()
        process.signal(signal.SIGTERM)
        await process.logged("stopping")
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
        assert "Traceback" not in process.log


async def test_neither_log_holds_keys_or_prompts_at_any_level(tmp_path: Path) -> None:
    broken = [Reply(500, body=b"{}"), Reply(close_on_request=True), Reply(close_on_request=True)]
    async with Upstream([said("Hello."), *broken]) as upstream:
        path = written(tmp_path, upstream.url, {})
        async with serving(path, "--log-level", "debug") as process:
            secrets = {"Authorization": "Bearer sk-test-4c1f", "Cookie": "s=c2VjcmV0", "X-Api-Key": "key-77"}
            body = compact(chat(messages=[{"role": "user", "content": "my street is Elm"}]))
            for _ in range(3):
                await ask(process.port, "POST", CHAT, secrets, body)
            metrics = (await ask(process.port, "GET", "/metrics")).body.decode()
            process.signal(signal.SIGTERM)
            await process.exit_code()
        written_down = process.log + metrics + (tmp_path / "decisions.jsonl").read_text()
        for secret in ("sk-test-4c1f", "c2VjcmV0", "key-77", "my street", "Elm"):
            assert secret not in written_down


# What can be wrong at the start ----------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `seam` in this process, where it does not get as far as serving: exit code and stderr."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["seam", *arguments])
        monkeypatch.setattr("proxy.server.set_up_logging", lambda level: None)
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert shown.out == ""
        assert isinstance(ended.value.code, int)
        return ended.value.code, shown.err

    return run


def test_a_port_in_use_is_one_line(tmp_path: Path, command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = written(tmp_path, "http://127.0.0.1:9", {})
        told = command("serve", "--config", str(path), "--port", str(port))
    mend = "choose another with --port"
    assert told == (2, f"seam: listen: 127.0.0.1:{port}: Address already in use; {mend}\n")


def test_a_bad_configuration_is_one_line(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path, "http://127.0.0.1:9", {"lisen": {}})
    for name in ("serve", "check"):
        told = command(name, "--config", str(path))
        assert told == (2, f"seam: {path}: lisen: no such key; nearest: listen\n")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path, command: Command) -> None:
    code, told = command("serve", "--config", str(tmp_path / "none.yaml"))
    assert (code, told.count("\n")) == (2, 1)
    assert "No such file or directory" in told


def test_no_upstream_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    code, told = command("serve")
    assert (code, told.count("\n")) == (2, 1)
    assert "upstreams: field required" in told
