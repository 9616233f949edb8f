"""`make run` as a person meets it: progress, two requests with their replies, one line on failure."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from bench.errors import ServerUnreachable
from bench.lab import run
from bench.lab.server import ROOT, Service
from bench.overhead.processes import free_port


def command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.lab.run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sleeper(seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])


def test_a_taken_port_is_one_line_and_nothing_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with command("--once", "--port", str(port)) as process:
            printed, told = process.communicate(timeout=300)
    assert process.returncode == 2
    assert printed == ""
    assert told == (
        f"error: port {port} of 127.0.0.1: Address already in use; stop what listens there or pick another\n"
    )


def test_a_folder_without_a_model_is_one_line(tmp_path: Path) -> None:
    with command("--once", "--port", str(free_port()), "--model", str(tmp_path)) as process:
        _, told = process.communicate(timeout=300)
    assert process.returncode == 2
    assert told.count("\n") == 1
    assert f"{tmp_path}: holds no checkpoint" in told


def test_a_step_says_what_is_done_and_how_long_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    with run.step("making tea"):
        pass
    assert capsys.readouterr().out == "· making tea\n· making tea: 0 s, done\n"


def test_a_long_step_shows_that_it_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_LINE_SECONDS", 0.01)
    with run.step("making tea"):
        time.sleep(0.2)
    assert capsys.readouterr().out.startswith("· making tea\n· making tea: 0 s\n")


def test_a_step_that_fails_is_not_called_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ServerUnreachable), run.step("making tea"):
        raise ServerUnreachable("no water", mend="open the tap")
    assert capsys.readouterr().out == "· making tea\n"


def test_it_stays_until_a_service_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Killed\n")
    with sleeper(0) as process:
        process.wait()
        service = Service("vLLM", "http://127.0.0.1:1", log, process)
        with pytest.raises(ServerUnreachable, match="vLLM: ended with code 0: Killed; see"):
            run._stay(service)


@pytest.mark.server
def test_two_requests_are_answered_with_and_without_a_bias(
    vllm_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def running_already(_: object) -> Iterator[Service]:
        with sleeper(600) as process:
            try:
                yield Service("vLLM", vllm_url, tmp_path / "log", process)
            finally:
                process.kill()

    monkeypatch.setattr(run, "lab_server", running_already)
    monkeypatch.setattr(run, "PROXY_LOG", ROOT / ".cache" / "lab" / "test-proxy.log")
    monkeypatch.chdir(tmp_path)
    port = free_port()
    run.run(port, None, tmp_path, once=True)
    printed = capsys.readouterr().out
    replies = re.findall(r"^  bias (\S+) +p\(call\) (\S+)  (\w+|no class) +(\S.*)$", printed, re.MULTILINE)
    assert [bias == "0" for bias, *_ in replies] == [True, False, True, False]
    assert replies[1][0] == replies[3][0]
    assert all(0 <= float(p) <= 1 for _, p, *_ in replies)
    assert f"page   http://127.0.0.1:{port}/seam/" in printed
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")


@pytest.mark.server
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_starts_ends_what_it_started(number: signal.Signals) -> None:
    with command("--port", str(free_port()), "--vllm-port", str(port := free_port())) as process:
        assert process.stdout is not None
        while "starting vLLM" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=300)
    assert process.returncode == 128 + number
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health")
