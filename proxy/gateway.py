"""The ASGI application that clients' requests pass through."""

import asyncio
import logging
import secrets
import time
from urllib.parse import quote, unquote

from calibrators.dialects import DIALECTS
from proxy import headers as h
from proxy.answer import Clock
from proxy.auth import admitted
from proxy.chat import Incoming, parse_body, serve_calibrated
from proxy.client import Client, ClientGone, Receive, Scope, Send
from proxy.connections import Response
from proxy.errors import BadRequest, BadSelection, Busy, HttpError, NotForwarded
from proxy.metrics import OTHER
from proxy.program_log import current_request
from proxy.runtime import Runtime
from proxy.selection import OFF, menu

logger = logging.getLogger("seam")

FORWARD = "forward"
"""What metrics call a route that is passed on as it is."""

# Beside /v1: what vLLM documents for users. Its other routes (adapters, dev) need `forward: all`.
DOCUMENTED = frozenset(
    (
        "/classify",
        "/detokenize",
        "/health",
        "/load",
        "/ping",
        "/pooling",
        "/rerank",
        "/score",
        "/tokenize",
        "/tokenizer_info",
        "/version",
    )
)


# Under /v1, and yet for operators: adapters are loaded into all clients' server.
ADMIN = frozenset(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"))


class Gateway:
    """Answers every request that is none of the proxy's own routes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, from its first byte to the last one of its answer."""
        if scope["type"] != "http":
            return
        client = Client(scope, receive, send)
        request_id = _request_id(client)
        current_request.set(request_id)
        try:
            with self._runtime.serving():
                await self._answer(scope, client, request_id)
        except ClientGone:
            logger.info("the client left before its request was complete")
        except HttpError as error:
            self._count(str(error.status), _route(scope))
            await client.fail(error, [(b"x-request-id", request_id.encode("latin-1"))])
        except asyncio.CancelledError:
            if not self._runtime.draining:
                raise
            # The end of the drain; to raise on would only show a traceback for what is meant.
            await client.fail(Busy("the proxy stopped before the reply's end", retry_after=1), [])
        except Exception:
            logger.exception("this is a fault of Seam's")
            self._count("500", _route(scope))
            await client.fail(HttpError("the proxy failed; its log says why"), [])

    async def _answer(self, scope: Scope, client: Client, request_id: str) -> None:
        arrived = time.perf_counter()
        settings = self._runtime.settings
        caller = admitted(settings.config.auth, client.headers, "api")
        path, prefix, target = _split(scope)
        if prefix is not None and prefix not in (offered := menu(settings.profiles, caller.profiles)):
            valid = ", ".join(offered)
            raise BadSelection(f"no calibration {prefix[:80]!r} in the path; valid names: {valid}")
        if settings.config.forward == "v1" and not _is_documented(path):
            raise NotForwarded(
                f"{path[:200]} is not passed on; `forward: all` opens every path of the upstream"
            )
        raw = await client.body(settings.config.limits.body_bytes)
        request = Incoming(
            scope["method"], path, target, prefix, client.headers, raw, request_id, arrived, caller
        )
        dialect = DIALECTS.get(path)
        if dialect is not None and request.method == "POST":
            _check_size(raw, settings.config.limits.json_values)
            body = parse_body(raw)
            if body is not None:
                await serve_calibrated(self._runtime, request, body, dialect, client)
                return
            if settings.config.selection.locked or caller.profiles is not None:
                raise BadRequest("the body is no JSON object that Seam can read, and so none to calibrate")
        await self._forward(request, client)

    async def _forward(self, request: Incoming, client: Client) -> None:
        """Pass a request on as it came, and its answer back chunk for chunk."""
        settings = self._runtime.settings
        upstream = settings.upstream_of(None)
        headers = request.headers_for(upstream, settings, readable=False)
        clock = Clock(upstream.settings.timeouts)
        response: Response | None = None
        try:
            with clock.scope, client.attended(clock.scope):
                response = await upstream.send(request.method, request.target, headers, request.body)
                await _pass_back(response, client, request.request_id)
        finally:
            if response is not None:
                response.close()
        if clock.scope.cancelled_caught and not client.gone:
            raise clock.timed_out()
        self._count(str(response.status) if response is not None else "499")

    def _count(self, status: str, route: str = FORWARD) -> None:
        self._runtime.metrics.requests.labels(route, OTHER, OFF, status).inc()


async def _pass_back(response: Response, client: Client, request_id: str) -> None:
    headers = h.end_to_end(response.headers)
    if h.get(headers, b"x-request-id") is None:
        headers.append((b"x-request-id", request_id.encode("latin-1")))
    await client.start(response.status, headers)
    while (piece := await response.piece()) is not None:
        await client.write(piece)
    await client.end()


def _check_size(raw: bytes, most: int) -> None:
    """Refuse a body whose reading would keep every other client waiting for seconds.

    Raises:
        BadRequest
    """
    if len(raw) > most and sum(map(raw.count, (b",", b"[", b"{"))) > most:
        raise BadRequest(f"the body may hold more than {most} JSON values (limits.json_values)")


def _is_documented(path: str) -> bool:
    """Whether `forward: v1` lets a path through; one that climbs (`/v1/../x`) never is."""
    segments = path.split("/")
    plain = "/" + "/".join(part for part in segments if part not in ("", "."))  # as balancers may read it
    named = path in DOCUMENTED or (path.startswith("/v1/") and plain not in ADMIN)
    return named and ".." not in segments


def _route(scope: Scope) -> str:
    """The route's name in metrics, also of a request that was refused before it got there."""
    dialect = DIALECTS.get(_split(scope)[0]) if scope["method"] == "POST" else None
    return FORWARD if dialect is None else dialect.route


def _split(scope: Scope) -> tuple[str, str | None, str]:
    """Path, calibration prefix and target of a request: `/p/NAME/v1/models?limit=2`.

    The target keeps the client's own spelling of path and query.
    """
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    target = raw.decode("latin-1")
    prefix = None
    if target.startswith("/p/"):
        name, slash, rest = target[3:].partition("/")
        if slash:
            prefix, target = unquote(name), "/" + rest
    path = unquote(target)
    query: bytes = scope.get("query_string", b"")
    return path, prefix, target + ("?" + query.decode("latin-1") if query else "")


def _request_id(client: Client) -> str:
    """The client's own where it is a plain word, or a new one: vLLM's reply id follows it (vllm-facts 7)."""
    told = h.get(client.headers, b"x-request-id")
    return told if told and h.is_word(told) else secrets.token_hex(16)
