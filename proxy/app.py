"""The proxy's own routes beside the gateway, as one ASGI application."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from proxy.auth import admitted
from proxy.client import Client, Receive, Scope, Send
from proxy.errors import BadRequest, ErrorDocument, HttpError, NotFound, ReadOnly
from proxy.gateway import Gateway
from proxy.metrics import exposition
from proxy.runtime import Runtime
from proxy.settings import Reloader
from proxy.status import routes, shielded

OPEN_PATHS = frozenset(("/healthz", "/readyz"))
"""What load balancers ask, who have no key."""
OWN_PATHS = frozenset(("/metrics", "/seam")) | OPEN_PATHS


@dataclass(frozen=True)
class Readiness:
    """Whether requests would be answered; `upstreams` with their problems, null where clients need keys."""

    ready: bool
    draining: bool
    upstreams: Mapping[str, str] | None


class App:
    """Own routes go to FastAPI, everything else straight to the gateway.

    The gateway is no FastAPI route, since a stream must pass through nothing that buffers or rebuilds it.
    """

    def __init__(self, runtime: Runtime, reloader: Reloader) -> None:
        self._runtime = runtime
        self._own = own_routes(runtime, reloader)
        self._gateway = Gateway(runtime)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch by path alone."""
        path = scope.get("path", "")
        if scope["type"] == "http" and path not in OWN_PATHS and not path.startswith("/seam/"):
            await self._gateway(scope, receive, send)
            return
        if scope["type"] == "http" and path not in OPEN_PATHS:
            try:
                admitted(self._runtime.settings.config.auth, scope["headers"], "pages")
            except HttpError as error:
                await Client(scope, receive, send).fail(error, [])
                return
        await self._own(scope, receive, shielded(send) if path.startswith("/seam") else send)


def own_routes(runtime: Runtime, reloader: Reloader) -> FastAPI:
    """Health, metrics and the status page; never the upstream's /health, /version, /docs or /v1."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if runtime.log:
            runtime.log.start()
        reloader.start()
        yield
        await reloader.stop()
        if runtime.log:
            runtime.log.close()
        if runtime.tracing:
            await asyncio.to_thread(runtime.tracing.close)

    app = FastAPI(
        title="Seam",
        version=version("seam"),
        lifespan=lifespan,
        openapi_url="/seam/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses={"4XX": {"model": ErrorDocument}},
        exception_handlers=dict.fromkeys((HttpError, HTTPException, RequestValidationError, 500), _failed),
    )

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
    async def readyz() -> JSONResponse:
        problems = {
            name: upstream.facts.problem or "not probed yet"
            for name, upstream in runtime.settings.upstreams.items()
            if upstream.facts.problem or upstream.facts.kind is None
        }
        ready = not problems and not runtime.draining
        # Where clients need keys the page tells the problems, to those who may see it.
        told = problems if runtime.settings.config.auth is None else None
        state = Readiness(ready, runtime.draining, told)
        return JSONResponse(asdict(state), 200 if ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        runtime.drift.show(runtime.metrics, runtime.settings.profiles)
        return Response(exposition(runtime.metrics, runtime.worker), media_type=CONTENT_TYPE_LATEST)

    app.include_router(routes(runtime))
    return app


async def _failed(_: Request, error: Exception) -> Response:
    """Answer in the one shape of errors, also where FastAPI has words of its own."""
    match error:
        case HttpError():
            ours = error
        case RequestValidationError():
            fault = error.errors()[0]
            ours = BadRequest(f"{fault['loc'][-1]}: {fault['msg']}", param=str(fault["loc"][-1]))
        case HTTPException(status_code=405):
            ours = ReadOnly("this page answers GET alone")
        case HTTPException():
            ours = NotFound("Seam has no such page")
        case _:
            ours = HttpError("the proxy failed; its log says why")
    return Response(ours.body(), ours.status, {k.decode(): v.decode() for k, v in ours.headers()})
