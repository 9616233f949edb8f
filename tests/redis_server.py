"""A real Redis of the tests' own, which they may stop, start and pause."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REDIS = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(REDIS is None, reason="redis-server is missing (apt install redis-server)")


class Server:
    """A Redis of this test session's own, which a test may stop and start."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, unless it runs, with nothing in it, and wait until it answers."""
        if self._process is None:
            own = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
            with (self._folder / "redis.log").open("ab") as log:
                self._process = subprocess.Popen([str(REDIS), *own], stdout=log, stderr=log)
        while self.say("PING") != b"+PONG\r\n":
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()

    def stop(self) -> None:
        """Kill it, as a host that goes down would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile it is there and does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def say(self, command: str) -> bytes:
        """An inline command and the beginning of its answer; nothing where it is not there."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(command.encode() + b"\r\n")
                return connection.recv(4096)
        except OSError:
            return b""
