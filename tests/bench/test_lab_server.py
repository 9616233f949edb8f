"""Starting and stopping the lab's vLLM server, with a small program in vLLM's place."""

import itertools
import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from bench.errors import InputError, ServerUnreachable
from bench.lab.server import Settings, check_port, checkpoint, lab_server, last_failure

# What stands in for vLLM: it answers /health after a while, and has a child, as the engine is one.
HEALTHY = """
import http.server, json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(os.environ["TOLD"], "w") as told:
    json.dump({"arguments": sys.argv[1:], "environment": dict(os.environ), "child": child.pid}, told)
time.sleep(0.5)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
DYING = """
import sys
print("(EngineCore pid=7) ERROR [core.py:1] ValueError: no room for the KV cache", file=sys.stderr)
print("(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.")
print("done")
sys.exit(1)
"""
HANGING = "import time; time.sleep(600)"


class Fake(NamedTuple):
    """Settings that start a program of ours, and what it told of its start."""

    settings: Settings
    told: Path

    def start(self) -> dict[str, object]:
        told: dict[str, object] = json.loads(self.told.read_text())
        return told


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Maker":
    monkeypatch.setenv("TOLD", str(tmp_path / "told.json"))
    return Maker(tmp_path)


class Maker:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, program: str, **changed: object) -> Fake:
        (self.folder / "program.py").write_text(program)
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {self.folder / "program.py"} "$@"\n')
        python.chmod(0o755)
        model = self.folder / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        given = {"model": model, "python": python, "log": self.folder / "logs" / "vllm.log", **changed}
        return Fake(Settings(**given), self.folder / "told.json")  # type: ignore[arg-type]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_answers_inside_the_block_and_is_gone_with_its_children_after(make: Maker) -> None:
    fake = make(HEALTHY)
    waited: list[float] = []
    with lab_server(fake.settings, waited.append) as server:
        assert httpx.get(server.url + "/health").status_code == 200
        server.check_alive()
    child = fake.start()["child"]
    assert isinstance(child, int)
    wait_until_gone(child)
    assert waited
    assert waited == sorted(waited)
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/health")


def test_it_serves_offline_in_fp32_with_our_processor(make: Maker) -> None:
    fake = make(HEALTHY, arguments=("--seed", "7"))
    with lab_server(fake.settings):
        pass
    arguments, environment = fake.start()["arguments"], fake.start()["environment"]
    assert isinstance(arguments, list)
    assert isinstance(environment, dict)
    assert arguments[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    options = dict(itertools.pairwise(arguments))
    assert options["--logits-processors"] == "calibrators.processor:ToolEntryBias"
    assert options["--dtype"] == "float32"
    assert int(options["--max-num-batched-tokens"]) >= int(options["--max-model-len"])
    assert arguments[-2:] == ["--seed", "7"]
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert not Path(environment["VLLM_RPC_BASE_PATH"]).exists()
    root = environment["PYTHONPATH"].split(os.pathsep)[0]
    assert (Path(root) / "calibrators" / "processor.py").exists()


def test_an_interrupt_while_it_starts_ends_it(make: Maker) -> None:
    fake = make(HEALTHY.replace("time.sleep(0.5)", "time.sleep(600)"))

    def interrupt(_: float) -> None:
        if fake.told.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lab_server(fake.settings, interrupt):
        pass
    child = fake.start()["child"]
    assert isinstance(child, int)
    wait_until_gone(child)


def test_a_death_is_one_line_with_the_cause_and_the_log(make: Maker) -> None:
    fake = make(DYING)
    with pytest.raises(ServerUnreachable) as caught, lab_server(fake.settings):
        pass
    assert str(caught.value) == (
        "vLLM: ended with code 1: ValueError: no room for the KV cache; see " + str(fake.settings.log)
    )


def test_a_later_death_is_noticed(make: Maker) -> None:
    with lab_server(make(HEALTHY).settings) as server:
        server.process.kill()
        server.process.wait()
        with pytest.raises(ServerUnreachable, match="ended with code -9"):
            server.check_alive()


def test_a_start_that_takes_too_long_is_given_up(make: Maker) -> None:
    fake = make(HANGING, start_seconds=0.2)
    with pytest.raises(ServerUnreachable, match="isn't ready after"), lab_server(fake.settings):
        pass


def test_a_port_in_use_is_named(make: Maker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = f"port {port} of 127.0.0.1: Address already in use; stop what listens there or pick another"
        with pytest.raises(InputError) as caught, lab_server(make(HEALTHY, port=port).settings):
            pass
        assert str(caught.value) == line
    check_port(port)


def test_what_is_missing_is_named(make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = make(HEALTHY)
    nowhere = tmp_path / "nowhere"
    with pytest.raises(InputError, match="nowhere: missing; run `make run`"):
        checkpoint(nowhere)
    absent = Settings(model=nowhere, python=fake.settings.python, log=fake.settings.log)
    with pytest.raises(InputError, match="nowhere: holds no checkpoint"), lab_server(absent):
        pass
    full = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with (
        pytest.raises(InputError, match="1 MB free, vLLM needs 200; make room"),
        lab_server(fake.settings),
    ):
        pass


def test_a_checkpoint_that_cannot_be_made_says_why(make: Maker) -> None:
    python = make(
        "import sys; print('error: the disk is full', file=sys.stderr); sys.exit(1)"
    ).settings.python
    with pytest.raises(InputError, match="the disk is full; run"):
        checkpoint(python)


def test_a_checkpoint_is_where_its_maker_says(make: Maker, tmp_path: Path) -> None:
    python = make(f"print('made something'); print({str(tmp_path)!r})").settings.python
    assert checkpoint(python) == tmp_path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("api_server.py: error: unrecognized arguments: --x\n", "error: unrecognized arguments: --x"),
        ("Traceback\ntorch.OutOfMemoryError: no\n\n", "torch.OutOfMemoryError: no"),
        ("INFO it goes on\nKilled\n\n", "Killed"),
        ("", "it said nothing"),
        (
            "RuntimeError: Engine core initialization failed.\n",
            "RuntimeError: Engine core initialization failed.",
        ),
    ],
)
def test_the_telling_line_of_a_log(tmp_path: Path, text: str, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    assert last_failure(log) == line
