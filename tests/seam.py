"""A real proxy for one test: its own server, files and metrics, in front of a scripted upstream."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from proxy.runtime import Runtime
from proxy.server import Server, prepared
from tests.upstream import CHAT, compact
from tests.wire import Answer, Exchange, Headers, ask, exchange

Profile = Mapping[str, Any]

USER = [{"role": "user", "content": "Go on."}]
TOOLS = [{"type": "function", "function": {"name": "finish", "parameters": {"type": "object"}}}]


def chat(**fields: Any) -> dict[str, Any]:
    """A chat request with these fields."""
    return {"model": "m", "messages": USER, **fields}


@dataclass(frozen=True, slots=True)
class Seam:
    """A running proxy."""

    port: int
    folder: Path
    server: Server

    @property
    def runtime(self) -> Runtime:
        """What the process holds."""
        return self.server.runtime

    @property
    def log(self) -> Path:
        """The decision log."""
        return self.folder / "decisions.jsonl"

    async def ask(
        self, target: str, *, method: str = "GET", headers: Headers | None = None, body: bytes = b""
    ) -> Answer:
        """Any request."""
        return await ask(self.port, method, target, headers, body)

    async def chat(self, *, to: str = CHAT, headers: Headers | None = None, **fields: Any) -> Answer:
        """A chat request with these fields."""
        return await self.ask(to, method="POST", headers=headers, body=compact(chat(**fields)))

    def open_chat(
        self, headers: Headers | None = None, **fields: Any
    ) -> AbstractAsyncContextManager[Exchange]:
        """A chat request whose answer the test reads as far as it likes."""
        return exchange(self.port, "POST", CHAT, headers, compact(chat(**fields)))

    async def records(self, count: int) -> list[dict[str, Any]]:
        """The decision records, once there are so many."""
        await eventually(lambda: len(self._lines()) >= count)
        assert len(self._lines()) == count, f"{len(self._lines())} records instead of {count}"
        return [json.loads(line) for line in self._lines()]

    def _lines(self) -> list[str]:
        return self.log.read_text("utf-8").splitlines() if self.log.exists() else []

    def sample(self, name: str, **labels: str) -> float:
        """A metric's value; 0 where it has no such series yet."""
        return self.runtime.metrics.registry.get_sample_value(name, labels) or 0.0

    async def exposition(self) -> str:
        """What Prometheus scrapes, which has to be in its format."""
        text = (await self.ask("/metrics")).body.decode()
        assert list(text_string_to_metric_families(text))
        return text

    async def idle(self) -> None:
        """Wait until nothing is in flight any more."""
        await eventually(lambda: not self.runtime.in_flight)


async def eventually(reached: Callable[[], bool | Awaitable[bool]], seconds: float = 60.0) -> None:
    """Wait for something that no event tells of; `reached` may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while True:
            found = reached()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.005)


def written(folder: Path, upstream: str, config: Mapping[str, Any], profiles: Iterable[Profile] = ()) -> Path:
    """Write profiles and a seam.yaml in front of `upstream`, and return the latter's path."""
    (folder / "profiles").mkdir(exist_ok=True)
    for profile in profiles:
        (folder / "profiles" / f"{profile['name']}.yaml").write_text(yaml.safe_dump(dict(profile)))
    base = {
        "upstreams": {"default": {"url": upstream, "kind": "openai"}},
        "profiles": {"folder": str(folder / "profiles")},
        "decisions": {"path": str(folder / "decisions.jsonl")},
        "drift": {"path": str(folder / "drift.json")},
    }
    path = folder / "seam.yaml"
    path.write_text(yaml.safe_dump(merged(base, config)))
    return path


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """One configuration over another, mapping by mapping."""
    both = dict(base)
    for key, value in over.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


@asynccontextmanager
async def seam(
    folder: Path, upstream: str, config: Mapping[str, Any] | None = None, profiles: Iterable[Profile] = ()
) -> AsyncIterator[Seam]:
    """A proxy in this event loop, without the signal handlers and ticks of a process of its own."""
    server = prepared(written(folder, upstream, config or {}, profiles), {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup([listener])
        try:
            yield Seam(listener.getsockname()[1], folder, server)
        finally:
            for listening in server.servers:
                listening.close()
            for connection in list(server.server_state.connections):
                connection.shutdown()
            await server.lifespan.shutdown()
