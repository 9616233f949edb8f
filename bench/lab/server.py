"""Starts and stops a vLLM server on the CPU: the lab model, our logits processor, one process group.

    with LabServer(Settings(model=checkpoint())) as server:
        httpx.get(server.url + "/v1/models")

vLLM lives in an environment of its own and is reached through HTTP only, so this module needs
nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
ADAPTER = Path(__file__).with_name("adapter")
PROCESSOR = "calibrators.processor:ToolEntryBias"

Progress = Callable[[float], None]
"""Called twice a second while the server starts, with the seconds since it was asked to."""

_CONTEXT = 8192
_NEEDED_BYTES = 200_000_000  # the log and vLLM's own caches
_POLL_SECONDS = 0.5
# vLLM's account of a failure: an exception's line, or argparse's.
_FAILURE = re.compile(r"\b(?:\w+\.)*\w*(?:Error|Exception|error): .+")
# What the front end says when the engine died; the engine's own line before it has the cause.
_SECONDHAND = "Engine core initialization failed"


class ServerError(Exception):
    """The server can't be started; the text is one line for the person at the terminal."""


@dataclass(frozen=True)
class Settings:
    """What to serve, where, and with which Python.

    `arguments` are added to vLLM's own command line and win over the ones chosen here.
    """

    model: Path
    python: Path = PYTHON
    port: int = 8100
    host: str = "127.0.0.1"
    name: str = "lab"
    kv_cache_gb: int = 1
    log: Path = ROOT / ".cache" / "lab" / "vllm.log"
    start_seconds: float = 300.0
    arguments: tuple[str, ...] = field(default=())

    def command(self) -> list[str]:
        """Return the command line, which names the module since `vllm serve` needs a metadata
        that the CPU wheel lacks."""
        return [
            str(self.python),
            *("-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.model)),
            *("--served-model-name", self.name),
            *("--host", self.host),
            *("--port", str(self.port)),
            # Two of 400 decisions tie in bf16; in fp32 vLLM and transformers agree to 4e-5.
            *("--dtype", "float32"),
            "--enforce-eager",
            # Sampling defaults would otherwise come from the checkpoint, unseen by clients.
            *("--generation-config", "vllm"),
            *("--max-model-len", str(_CONTEXT)),
            # Below every prompt's length, a request with a seed would kill the engine.
            *("--max-num-batched-tokens", str(_CONTEXT)),
            # The prefix cache holds whole blocks, and the CPU's usual 128 tokens outlast our prompts.
            *("--block-size", "32"),
            "--enable-auto-tool-choice",
            *("--tool-call-parser", "hermes"),
            *("--logits-processors", PROCESSOR),
            *self.arguments,
        ]

    def environment(self) -> dict[str, str]:
        """Return the child's environment: ours, offline, and with our packages importable."""
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        # The engine's threads wait for each other at every layer. One that finds no free core, since
        # it is bound to a busy one or there are as many threads as cores, costs most of the speed.
        threads = {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) - 1)),
        }
        ours = {
            "PYTHONPATH": path,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_cache_gb),
        }
        return {**threads, **os.environ, **ours}


class LabServer:
    """A vLLM server as a context manager: ready on entry, gone with all its processes on exit."""

    def __init__(self, settings: Settings, progress: Progress | None = None) -> None:
        self.settings = settings
        self._progress = progress or (lambda _: None)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The server's root URL, without a trailing slash."""
        return f"http://{self.settings.host}:{self.settings.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            ServerError: something is missing, the port is taken, or the server died or hangs.
        """
        self._check()
        with self.settings.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.settings.command(),
                env=self.settings.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own, so that stopping reaches the engine's processes too, and
                # Ctrl-C at the terminal reaches only us.
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and every process that it started; safe to call twice."""
        if self._process is None:
            return
        process, self._process = self._process, None
        for number, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
            if _gone(process, patience):
                break

    def check_alive(self) -> None:
        """Raise ServerError if the server has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ServerError(self._autopsy(f"vLLM ended with code {code}"))

    def _check(self) -> None:
        settings = self.settings
        _check_python(settings.python)
        if not (settings.model / "config.json").exists():
            raise ServerError(f"{settings.model} holds no checkpoint: python -m bench.lab.checkpoint")
        settings.log.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(settings.log.parent).free
        if free < _NEEDED_BYTES:
            raise ServerError(
                f"{settings.log.parent} has {free / 1e6:.0f} MB free, "
                f"vLLM needs {_NEEDED_BYTES / 1e6:.0f}: make room"
            )
        check_port(settings.host, settings.port)

    def _wait(self) -> None:
        began = time.monotonic()
        while not _answers(self.url + "/health"):
            seconds = time.monotonic() - began
            self._progress(seconds)
            self.check_alive()
            if seconds > self.settings.start_seconds:
                raise ServerError(self._autopsy(f"vLLM isn't ready after {seconds:.0f} s"))
            time.sleep(_POLL_SECONDS)

    def _autopsy(self, what: str) -> str:
        return f"{what}: {last_failure(self.settings.log)} (log: {self.settings.log})"


def checkpoint(python: Path = PYTHON) -> Path:
    """Make the lab model's folder where it isn't up to date, and return it.

    Raises:
        ServerError: the environment is missing, or its converter failed.
    """
    _check_python(python)
    module = "bench.lab.merge" if ADAPTER.exists() else "bench.lab.checkpoint"
    made = subprocess.run(
        [python, "-m", module], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if made.returncode:
        said = made.stderr.strip().splitlines() or ["it said nothing"]
        raise ServerError(f"{module} failed: {said[-1].removeprefix('error: ')}")
    return Path(made.stdout.strip().splitlines()[-1])


def _check_python(python: Path) -> None:
    if not python.exists():
        raise ServerError(f"{python} is missing: `make run` makes it")


def check_port(host: str, port: int) -> None:
    """Raise ServerError if something listens on the port already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServerError(
                f"port {port} on {host} is in use: stop what listens there or pick another"
            ) from error


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def last_failure(log: Path) -> str:
    """Return the line of a vLLM log that tells best why the server ended."""
    lines = log.read_text(errors="replace").splitlines()
    failures = [match.group(0) for line in lines if (match := _FAILURE.search(line))]
    first_hand = [line for line in failures if _SECONDHAND not in line]
    spoken = [line.strip() for line in lines if line.strip()]
    return next(reversed(first_hand or failures or spoken), "it wrote nothing")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _gone(process: subprocess.Popen[bytes], patience: float) -> bool:
    """Tell whether the whole group ended within so many seconds."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        process.poll()  # reaps the leader, which would else keep the group alive as a zombie
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
