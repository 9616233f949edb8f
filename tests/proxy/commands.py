"""The `seam` command as a process of its own."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path


def _environment(over: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SEAM_")}
    return {**kept, **over}


async def run_seam(
    *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run the command to its end: exit code, stdout, stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli", *arguments,
        stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd=cwd, env=_environment(environment or {}),
    )  # fmt: skip
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@dataclass(slots=True)
class Serving:
    """A running `seam serve`; its program log is read as it comes."""

    process: Process
    port: int = 0
    log: str = ""
    _reading: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def logged(self, part: str, seconds: float = 60.0) -> None:
        """Wait until the program log holds a part."""
        async with asyncio.timeout(seconds):
            while part not in self.log:
                self._changed.clear()
                await self._changed.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    async def exit_code(self, seconds: float = 60.0) -> int:
        """Wait for the process to end."""
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    async def read_log(self) -> None:
        """Take in what the process writes until it ends."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log += line.decode()
            self._changed.set()


@asynccontextmanager
async def serving(
    config: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Serving]:
    """`seam serve` on a free port, until it listens; ended at the latest when the context is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli", "serve", "--config", str(config), "--port", "0", *arguments,
        stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=_environment(environment or {}),
    )  # fmt: skip
    running = Serving(process)
    reading = asyncio.create_task(running.read_log())
    try:
        await running.logged("Seam on http://")
        found = re.search(r"Seam on http://127\.0\.0\.1:(\d+)", running.log)
        assert found is not None
        running.port = int(found[1])
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading
