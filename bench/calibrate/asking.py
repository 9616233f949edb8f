"""Asking a server many things at once: adaptive, and patient with what passes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import httpx

from bench.calibrate.pace import Pace
from bench.errors import ServerUnreachable

T = TypeVar("T")
Pause = Callable[[float], Awaitable[None]]

CHAT = "/v1/chat/completions"
TRIES = 6
"""How often one query is sent before the server counts as unreachable."""
_LATE_TRIES = 2
"""How often one query that is not answered in time is sent: what waited once for long would wait again."""
_BUSY = (408, 429, 502, 503, 504)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Unanswered(ServerUnreachable):
    """The server is there, and gives one query no whole answer: it lets it wait, or breaks off."""


class Answer(NamedTuple):
    """One answer: its status, its JSON ({} where it is none), and how often it was asked again."""

    status: int
    document: dict[str, Any]
    retries: int

    @property
    def fault(self) -> str | None:
        """The server's own words where it refused; None where it answered."""
        if self.status == 200:
            return None
        error = self.document.get("error", self.document.get("detail"))
        told = error.get("message") if isinstance(error, dict) else error
        return " ".join(f"{self.status} {told or 'without a word'}".split())[:300]


class Asking:
    """A server that is asked; `pause` waits, so that tests need not."""

    def __init__(self, client: httpx.AsyncClient, most: int, pause: Pause) -> None:
        self.client = client
        self.pace = Pace(most)
        self._pause = pause

    async def chat(self, body: str, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
        """The answer to a chat request, as of `post`."""
        return await self.post(CHAT, body, headers)

    async def post(self, path: str, body: str, headers: Mapping[str, str] = MappingProxyType({})) -> Answer:
        """The answer to a JSON body, asked again while the server is busy or can't be reached.

        Only faults of transport are tried again, never a bad answer. Raises ServerUnreachable after `TRIES`;
        Unanswered where the last one reached the server, which broke off or let it wait.
        """
        why, wait, kind, late = "", 0.0, ServerUnreachable, 0
        for retries in range(TRIES):
            if retries:
                self.pace.pushed_back()
                await self._pause(wait or min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (retries - 1)))
            async with self.pace.turn():
                try:
                    response = await self.client.post(
                        path, content=body.encode(), headers={"content-type": "application/json", **headers}
                    )
                except httpx.TransportError as error:
                    why, wait, kind = str(error) or type(error).__name__, 0.0, _kind(error)
                    late += isinstance(error, httpx.ReadTimeout)
                    if late == _LATE_TRIES:
                        break
                    continue
            answer = Answer(response.status_code, _document(response), retries)
            if response.status_code not in _BUSY:
                self.pace.answered()
                return answer
            why, wait, kind = answer.fault or "", _told_to_wait(response), ServerUnreachable
        raise kind(
            f"{why}, {retries + 1} times",
            where=str(self.client.base_url),
            mend="see the server's log, and repeat",
        )

    async def each(
        self, items: Sequence[T], work: Callable[[T], Awaitable[None]], most_waiting: int = 256
    ) -> None:
        """Work on all items, a window of them at once; the first failure ends it all."""
        window = asyncio.Semaphore(most_waiting)

        async def one(item: T) -> None:
            try:
                await work(item)
            finally:
                window.release()

        try:
            async with asyncio.TaskGroup() as tasks:
                for item in items:
                    await window.acquire()
                    tasks.create_task(one(item))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None


@asynccontextmanager
async def asking(
    url: str, key: str | None, most: int, pause: Pause = asyncio.sleep, patience: float = 600
) -> AsyncIterator[Asking]:
    """A server by the URL that paths are put behind, with the key that it wants.

    patience: seconds that one answer may take.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    # An answer may queue behind all others on a slow server; a connection may not.
    limits = httpx.Limits(max_connections=most)
    async with httpx.AsyncClient(
        base_url=url,
        headers=headers,
        timeout=httpx.Timeout(patience, connect=10),
        limits=limits,
        trust_env=False,
    ) as client:
        yield Asking(client, most, pause)


def _kind(error: httpx.TransportError) -> type[ServerUnreachable]:
    nobody = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol)
    return ServerUnreachable if nobody else Unanswered


def _told_to_wait(response: httpx.Response) -> float:
    """Retry-After in seconds; 0 where it is absent or a date."""
    told = response.headers.get("retry-after", "")
    return float(told) if told.isdigit() else 0.0


def _document(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except json.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
