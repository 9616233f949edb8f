"""A vLLM server on the CPU: the lab model, our logits processor, gone with all its processes at the end.

    with lab_server(Settings(model=checkpoint())) as server:
        httpx.get(server.url + "/v1/models")

vLLM lives in an environment of its own and is reached through HTTP only.
"""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from bench.errors import InputError, ServerUnreachable
from bench.overhead.processes import free_port, last_line, running

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
LOG = ROOT / ".cache" / "lab" / "vllm.log"
NAME = "lab"

Progress = Callable[[float], None]
"""Called twice a second while a server starts, with the seconds since it was asked to."""

_MAKER = "bench.lab.merge"
_CONTEXT = 8192
_NEEDED_BYTES = 200_000_000  # the log and vLLM's own caches
_POLL_SECONDS = 0.5
# vLLM's account of a failure: an exception's line, or argparse's.
_FAILURE = re.compile(r"\b(?:\w+\.)*\w*(?:Error|Exception|error): .+")
# What the front end says when the engine died; the engine's own line before it has the cause.
_SECONDHAND = "Engine core initialization failed"


@dataclass(frozen=True, slots=True)
class Settings:
    """What to serve, where, and with which Python.

    Attributes:
        model: a checkpoint's folder.
        port: None for any that is free.
        kv_cache_gb: memory for the KV cache; 1 GB holds 23,000 tokens of the lab model.
        start_seconds: how long a start may take.
        arguments: added to vLLM's own command line, where they win over ours.
    """

    model: Path
    port: int | None = None
    python: Path = PYTHON
    kv_cache_gb: int = 1
    log: Path = LOG
    start_seconds: float = 300.0
    arguments: tuple[str, ...] = ()

    def command(self, port: int) -> list[str]:
        """The command line; it names the module, since `vllm serve` needs metadata the CPU wheel lacks."""
        return [
            str(self.python),
            *("-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.model)),
            *("--served-model-name", NAME),
            *("--host", "127.0.0.1"),
            *("--port", str(port)),
            # In bf16 some decisions tie; in fp32 vLLM and transformers agree to 4e-5 (lab-model.md).
            *("--dtype", "float32"),
            "--enforce-eager",
            # Sampling defaults would otherwise come from the checkpoint, unseen by clients.
            *("--generation-config", "vllm"),
            *("--max-model-len", str(_CONTEXT)),
            # Below a prompt's length, a request with a seed would kill the engine (vllm-facts 0.11).
            *("--max-num-batched-tokens", str(_CONTEXT)),
            # The prefix cache holds whole blocks, and the CPU's usual 128 tokens outlast our prompts.
            *("--block-size", "32"),
            "--enable-auto-tool-choice",
            *("--tool-call-parser", "hermes"),
            *("--logits-processors", "calibrators.processor:ToolEntryBias"),
            *self.arguments,
        ]

    def environment(self) -> dict[str, str]:
        """What the server's environment has beyond ours: offline, and with our packages importable."""
        # The engine's threads wait for each other at every layer. One that finds no free core, since
        # it is bound to a busy one or there are as many threads as cores, costs most of the speed.
        threads = {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) - 1)),
        }
        return {name: os.environ.get(name, value) for name, value in threads.items()} | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_cache_gb),
        }


@dataclass(frozen=True, slots=True)
class Service:
    """A server that we started.

    Attributes:
        name: what to call it in a message.
        url: its root, without a trailing slash.
        log: where its output goes.
        told: finds the line of the log that tells best why it ended.
    """

    name: str
    url: str
    log: Path
    process: subprocess.Popen[bytes]
    told: Callable[[Path], str] = last_line

    def check_alive(self) -> None:
        """Raise ServerUnreachable if it has ended by itself."""
        if (code := self.process.poll()) is not None:
            raise self._failure(f"ended with code {code}")

    def await_ready(self, path: str, seconds: float, progress: Progress | None = None) -> None:
        """Wait until it answers a path with 200.

        Raises:
            ServerUnreachable: it ended, or the seconds have passed.
        """
        began = time.monotonic()
        while not _answers(self.url + path):
            waited = time.monotonic() - began
            if progress:
                progress(waited)
            self.check_alive()
            if waited > seconds:
                raise self._failure(f"isn't ready after {waited:.0f} s")
            time.sleep(_POLL_SECONDS)

    def _failure(self, what: str) -> ServerUnreachable:
        return ServerUnreachable(f"{what}: {self.told(self.log)}", where=self.name, mend=f"see {self.log}")


@contextmanager
def lab_server(settings: Settings, progress: Progress | None = None) -> Iterator[Service]:
    """Start a server and wait until it answers; it ends with the block, or with us.

    Raises:
        InputError: environment, checkpoint or disk space is missing, or the port is taken.
        ServerUnreachable: the server ended or hangs.
    """
    port = free_port() if settings.port is None else settings.port
    _check(settings, port)
    settings.log.unlink(missing_ok=True)
    # vLLM leaves the sockets between its processes behind, and they must have short paths.
    with (
        TemporaryDirectory(prefix="seam-vllm-", ignore_cleanup_errors=True) as sockets,
        running(
            settings.command(port), settings.log, settings.environment() | {"VLLM_RPC_BASE_PATH": sockets}
        ) as process,
    ):
        server = Service("vLLM", f"http://127.0.0.1:{port}", settings.log, process, last_failure)
        server.await_ready("/health", settings.start_seconds, progress)
        yield server


def checkpoint(python: Path = PYTHON) -> Path:
    """Make the lab model's folder where it isn't up to date, and return it.

    Raises:
        InputError: the environment is missing, or the model can't be made.
    """
    _check_python(python)
    made = subprocess.run(
        [python, "-m", _MAKER], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if made.returncode:
        said = made.stderr.strip().splitlines() or ["it said nothing"]
        raise InputError(said[-1].removeprefix("error: "), where=_MAKER, mend=f"run {python} -m {_MAKER}")
    return Path(made.stdout.strip().splitlines()[-1])


def check_port(port: int) -> None:
    """Raise InputError if something listens on a port of 127.0.0.1 already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(
                f"port {port} of 127.0.0.1: {os.strerror(error.errno or 0)}",
                mend="stop what listens there or pick another",
            ) from None


def last_failure(log: Path) -> str:
    """The line of a vLLM log that tells best why the server ended."""
    lines = log.read_text(errors="replace").splitlines()
    failures = [match.group(0) for line in lines if (match := _FAILURE.search(line))]
    first_hand = [line for line in failures if _SECONDHAND not in line]
    return next(reversed(first_hand or failures), last_line(log))


def _check(settings: Settings, port: int) -> None:
    _check_python(settings.python)
    if not (settings.model / "config.json").exists():
        raise InputError("holds no checkpoint", where=str(settings.model), mend="name another folder")
    settings.log.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(settings.log.parent).free
    if free < _NEEDED_BYTES:
        raise InputError(
            f"{free / 1e6:.0f} MB free, vLLM needs {_NEEDED_BYTES / 1e6:.0f}",
            where=str(settings.log.parent),
            mend="make room",
        )
    check_port(port)


def _check_python(python: Path) -> None:
    if not python.exists():
        raise InputError("missing", where=str(python), mend="run `make run`, which makes it")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
