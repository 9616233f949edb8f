"""One upstream server: its address, its connections, and what is known of it."""

import functools
import os
import ssl
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx

from calibrators.entry import Entry
from proxy import config
from proxy.errors import TimedOut, Unreachable
from proxy.headers import Headers

# A request that may have been acted upon is not sent twice: a stored response would exist twice.
UNREPEATABLE_PATHS = ("/v1/responses",)
RELIST_SECONDS = 30.0
"""How long an answer of /v1/models is believed for a name that it does not hold."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the server told of one of its models: its entry tokens, or why there are none."""

    entry: Entry | None = None
    no_entry: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a server; replaced as a whole by each probe.

    Attributes:
        kind: vllm or openai; None before the first successful probe.
        version: of vLLM.
        models: by the names that it lists.
        processor: what our logits processor says of itself; None where it is not loaded.
        problem: why the last probe failed.
    """

    kind: str | None = None
    version: str | None = None
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    processor: Mapping[str, Any] | None = None
    problem: str | None = None


class Upstream:
    """Connections to one server. `facts` is swapped by the prober, never written to."""

    def __init__(self, name: str, settings: config.Upstream) -> None:
        self.name = name
        self.settings = settings
        self.facts = Facts(kind="openai") if settings.kind == "openai" else Facts()
        self.api_key = os.environ.get(settings.api_key_env) if settings.api_key_env else None
        self._listed: frozenset[str] = frozenset()
        self._listed_at: float | None = None
        self._base = base_url(settings.url)
        self._transport = self._connections(settings.connections.keepalive)
        self._fresh = self._connections(0)
        timeouts = settings.timeouts
        # Reads are bounded by the exchange's own clock, which knows a first token from the rest.
        self._timeout = {"connect": timeouts.connect, "write": timeouts.write, "pool": timeouts.connect}
        self._url = functools.lru_cache(maxsize=1024)(lambda target: httpx.URL(self._base + target))

    def _connections(self, kept: int) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(
            verify=_certificates() if self._base.startswith("https:") else False,
            trust_env=False,  # an upstream is named by the operator; no proxy variable reroutes it
            limits=httpx.Limits(
                max_connections=self.settings.connections.max,
                max_keepalive_connections=kept,
                keepalive_expiry=self.settings.connections.idle_seconds,
            ),
        )

    async def send(self, method: str, target: str, headers: Headers, body: bytes) -> httpx.Response:
        """Send a request and return the answer with its body unread.

        `target` is path and query as the client wrote them. A request that finds its reused connection closed
        before any byte of the answer is sent once more, on a new one: servers close idle connections at any
        time.

        Raises:
            Unreachable, TimedOut
        """
        try:
            return await self._attempt(self._transport, method, target, headers, body)
        except _Stale:
            return await self._attempt(self._fresh, method, target, headers, body)

    async def _attempt(
        self, transport: httpx.AsyncHTTPTransport, method: str, target: str, headers: Headers, body: bytes
    ) -> httpx.Response:
        fresh = False
        _answered.set(False)

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            nonlocal fresh
            if event == "connection.connect_tcp.started":
                fresh = True
            if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
                _note_reads(info["return_value"])

        request = httpx.Request(
            method,
            self._url(target),
            headers=[*headers, (b"content-length", b"%d" % len(body))] if body else headers,
            content=body or None,
            extensions={"timeout": self._timeout, "trace": trace},
        )
        try:
            return await transport.handle_async_request(request)
        except httpx.ConnectTimeout:
            raise TimedOut(
                f"no connection to the upstream within {self._timeout['connect']:g} s (connect)"
            ) from None
        except httpx.WriteTimeout:
            raise TimedOut(f"the upstream took no data for {self._timeout['write']:g} s (write)") from None
        except httpx.PoolTimeout:
            raise TimedOut("no free connection to the upstream (connections.max reached)") from None
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            if not (fresh or _answered.get() or target.startswith(UNREPEATABLE_PATHS)):
                raise _Stale from None
            raise Unreachable(f"the upstream broke the connection: {_words(error)}") from None
        except httpx.TransportError as error:
            raise Unreachable(f"the upstream can't be reached: {_words(error)}") from None

    async def get_json(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        """A small request of our own: its status and JSON (None where the answer is none).

        Raises:
            Unreachable, TimedOut
        """
        headers: Headers = [(b"accept", b"application/json")]
        if body:
            headers.append((b"content-type", b"application/json"))
        if self.api_key:
            headers.append((b"authorization", b"Bearer " + self.api_key.encode()))
        response = await self.send(method, path, headers, body)
        try:
            await response.aread()
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, None
        except httpx.TransportError as error:
            raise Unreachable(f"the upstream broke off its answer: {_words(error)}") from None
        finally:
            await response.aclose()

    async def lists(self, model: str) -> bool:
        """Whether the server lists a model of that name; asked of it where the last probe does not know."""
        if model in self.facts.models or model in self._listed:
            return True
        if self._listed_at is not None and time.monotonic() - self._listed_at < RELIST_SECONDS:
            return False
        self._listed_at = time.monotonic()
        try:
            _, document = await self.get_json("GET", "/v1/models")
        except (Unreachable, TimedOut):
            return False
        self._listed = model_names(document)
        return model in self._listed

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()
        await self._fresh.aclose()


class _Stale(Exception):
    """A reused connection was closed before it answered."""


_answered: ContextVar[bool] = ContextVar("answered", default=False)


def _note_reads(stream: Any) -> None:
    """Make a new connection note in `_answered` that bytes came; httpcore tells of none before a head."""
    read = stream.read

    async def noting(*limits: Any, **more: Any) -> bytes:
        data: bytes = await read(*limits, **more)
        if data:
            _answered.set(True)
        return data

    stream.read = noting


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The certificates to trust, read once: that takes longer than all else at start and reload."""
    return httpx.create_ssl_context(trust_env=False)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def base_url(url: str) -> str:
    """The address that request paths are put behind: without a slash and without a last segment `v1`."""
    url = url.rstrip("/")
    return url.removesuffix("/v1").rstrip("/") if url.endswith("/v1") else url


def model_names(document: Any) -> frozenset[str]:
    """The ids in an answer of /v1/models; empty for any other document."""
    data = document.get("data") if isinstance(document, dict) else None
    items = data if isinstance(data, list) else []
    return frozenset(str(item["id"]) for item in items if isinstance(item, dict) and "id" in item)
