"""One upstream server: its address, its connections, and what is known of it."""

import functools
import json
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from calibrators.entry import Entry, NoEntry
from calibrators.flow import LateRole
from calibrators.openers import Asking, Hint, for_tools
from calibrators.request import tool_names
from proxy import config
from proxy.connections import Address, Pool, Response
from proxy.errors import ConfigError, TimedOut, Unreachable
from proxy.headers import Headers

T = TypeVar("T")

# A request that may have been acted upon is not sent twice: a stored response would exist twice.
UNREPEATABLE_PATHS = ("/v1/responses",)
NAMED_KEPT = 1000
"""Lists of tool names whose entry sets are remembered."""
RELIST_SECONDS = 30.0
"""How long an answer of /v1/models is believed for a name that it does not hold."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the server told of one of its models: its entry tokens, or why there are none.

    Attributes:
        late: under which roles its template takes a message behind the client's; None where nobody knows.
        hinted: the same for what profiles tell discovery to fall back to.
    """

    entry: Entry | None = None
    no_entry: str | None = None
    late: Sequence[LateRole] | None = None
    hinted: Mapping[Hint, "ModelFacts"] = field(default_factory=dict)

    def under(self, hint: Hint) -> "ModelFacts":
        """What is known with a profile's hint; without it, or before it was tried, what the server shows."""
        return self.hinted.get(hint, self)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a server; replaced as a whole by each probe.

    Attributes:
        kind: vllm or openai; None before the first successful probe.
        version: of vLLM.
        models: by the names that it lists.
        processor: what our logits processor says of itself; None where it is not loaded.
        top_logprobs: how many alternatives it shows at most; None where that was not tried.
        problem: why the last probe failed.
    """

    kind: str | None = None
    version: str | None = None
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    processor: Mapping[str, Any] | None = None
    top_logprobs: int | None = None
    problem: str | None = None


class Upstream:
    """Connections to one server. `facts` is swapped by the prober, never written to."""

    def __init__(self, name: str, settings: config.Upstream) -> None:
        self.name = name
        self.settings = settings
        self.facts = Facts(kind="openai") if settings.kind == "openai" else Facts()
        self.api_key = _key(settings.api_key_env) if settings.api_key_env else None
        self.learned: dict[str, LateRole] = {}
        """What probes found out about late messages on a server that can't be asked beforehand, by model."""
        self._named: dict[tuple[Entry, tuple[str, ...]], Entry] = {}
        self._listed: frozenset[str] = frozenset()
        self._listed_at: float | None = None
        self._base = base_url(settings.url)
        where = urlsplit(self._base)
        tls = _certificates() if where.scheme == "https" else None
        address = Address(where.hostname or "", where.port or (443 if tls else 80), tls)
        self._prefix = where.path
        self._host = address.authority.encode()
        timeouts = settings.timeouts
        # Reads are bounded by the exchange's own clock, which knows a first token from the rest.
        self._pool = Pool(
            address,
            most=settings.connections.max,
            kept=settings.connections.keepalive,
            idle_seconds=settings.connections.idle_seconds,
            connect_seconds=timeouts.connect,
            write_seconds=timeouts.write,
        )
        self._client = httpx.AsyncClient(
            base_url=self._base,
            headers={"authorization": f"Bearer {self.api_key}"} if self.api_key else {},
            timeout=httpx.Timeout(timeouts.total, connect=timeouts.connect, write=timeouts.write),
            limits=httpx.Limits(keepalive_expiry=settings.connections.idle_seconds),
            verify=tls or False,
            trust_env=False,  # an upstream is named by the operator; no proxy variable reroutes it
        )

    async def send(self, method: str, target: str, headers: Headers, body: bytes) -> Response:
        """Send a request and return the answer with its body unread.

        `target` is path and query as the client wrote them.

        Raises:
            Unreachable, TimedOut
        """
        lines = [f"{method} {self._prefix}{target} HTTP/1.1\r\nhost: ".encode("latin-1"), self._host]
        for name, value in headers:
            lines += (b"\r\n", name, b": ", value)
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(b"\r\ncontent-length: %d" % len(body))
        lines += (b"\r\n\r\n", body)
        repeatable = not target.startswith(UNREPEATABLE_PATHS)
        return await self._pool.send(b"".join(lines), bodiless=method == "HEAD", repeatable=repeatable)

    async def get_json(
        self, method: str, path: str, body: bytes = b"", headers: Headers | tuple[()] = ()
    ) -> tuple[int, Any]:
        """A small request of our own: its status and JSON (None where the answer is none).

        Raises:
            Unreachable, TimedOut
        """
        sent = [*headers, *([(b"content-type", b"application/json")] if body else [])]
        try:
            response = await self._client.request(method, path, content=body or None, headers=sent)
            return response.status_code, response.json()
        except httpx.TimeoutException as error:
            raise TimedOut(f"the upstream did not answer {path} in time: {_words(error)}") from None
        except httpx.TransportError as error:
            raise Unreachable(f"the upstream can't be reached: {_words(error)}") from None
        except ValueError:
            return response.status_code, None

    async def answered(self, asking: Asking[T], headers: Headers | tuple[()] = ()) -> T:
        """Ask the server what a generator wants to know.

        Raises:
            Unreachable, TimedOut, and what the generator raises
        """
        try:
            ask = next(asking)
            while True:
                _, document = await self.get_json("POST", ask.path, json.dumps(ask.body).encode(), headers)
                ask = asking.send(document if isinstance(document, dict) else {})
        except StopIteration as stop:
            found: T = stop.value
            return found

    async def facts_for(self, model: str | None, fields: Mapping[str, Any]) -> Facts:
        """The facts with the entry set of this request, where that depends on the tools it offers.

        Pythonic openers run into the function's name (`[get_weather(`), and the tokenizer may cut anywhere.
        Asked once for each list of names; where the server does not answer, the common set serves.
        """
        found = self.facts.models.get(model or "")
        if found is None or found.entry is None or not found.entry.named or model is None:
            return self.facts
        key = (found.entry, tuple(tool_names(fields)))
        if key not in self._named:
            try:
                tokens = await self.answered(for_tools(model, found.entry, key[1]))
            except (Unreachable, TimedOut, NoEntry):
                return self.facts
            if len(self._named) >= NAMED_KEPT:
                self._named.clear()
            self._named[key] = replace(found.entry, tokens=tokens)
        models = {**self.facts.models, model: replace(found, entry=self._named[key])}
        return replace(self.facts, models=models)

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
        self._pool.close()
        await self._client.aclose()


def _key(variable: str) -> str:
    """The key in a variable. Without it the client's would be sent, so that is no way to go on.

    Raises:
        ConfigError
    """
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        what = "holds no printable ASCII" if key else "is not set"
        raise ConfigError(f"upstreams: api_key_env: {variable} {what}; export the server's key in it")
    return key


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
