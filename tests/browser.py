"""Chromium, driven over a pair of pipes by its own protocol: no driver and no port."""

import asyncio
import fcntl
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE = 60.0


def chromium() -> str | None:
    """The browser's path; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One page, and all that its console said."""

    def __init__(self, reader: asyncio.StreamReader, pipe: int) -> None:
        self._reader, self._pipe = reader, pipe
        self._count = 0
        self._session: str | None = None
        self.complaints: list[Any] = []

    async def open(self, url: str, width: int = 1280) -> None:
        """Show a URL in a window so many pixels wide."""
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        session = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = session["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        await self.call("Page.navigate", url=url)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser something; what its console says meanwhile is kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._pipe, json.dumps(message).encode() + b"\0")
        while True:
            async with asyncio.timeout(PATIENCE):
                told = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            if told.get("id") == self._count:
                assert "error" not in told, told
                result: dict[str, Any] = told["result"]
                return result
            if told.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(told["params"])

    async def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        async with asyncio.timeout(PATIENCE):
            while not await self.run(f"Boolean({expression})"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """A page of a browser of its own, whose profile lies in `folder`."""
    program = chromium()
    assert program is not None
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    # The shell puts them where Chromium looks; from 10 on, so that neither stands in the other's place.
    given = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (theirs_in, theirs_out)]
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        f'exec "$@" 3<&{given[0]} 4>&{given[1]}',
        "bash",
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder / 'browser'}",
        pass_fds=given,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    for one in (theirs_in, theirs_out, *given):
        os.close(one)
    reader = asyncio.StreamReader(limit=2**26)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_in, "rb")
    )
    try:
        yield Page(reader, ours_out)
    finally:
        os.close(ours_out)  # at which it ends
        try:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        transport.close()
