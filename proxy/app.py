"""The proxy's own routes beside the gateway, as one ASGI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from proxy.auth import admitted
from proxy.client import Client, Receive, Scope, Send
from proxy.errors import HttpError
from proxy.gateway import Gateway
from proxy.metrics import exposition
from proxy.runtime import Runtime
from proxy.settings import Reloader
from proxy.status import routes, shielded

OPEN_PATHS = frozenset(("/healthz", "/readyz"))
"""What load balancers ask, who have no key."""
OWN_PATHS = frozenset(("/metrics", "/seam")) | OPEN_PATHS


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
    )

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        problems = {
            name: upstream.facts.problem or "not probed yet"
            for name, upstream in runtime.settings.upstreams.items()
            if upstream.facts.problem or upstream.facts.kind is None
        }
        ready = not problems and not runtime.draining
        state: dict[str, Any] = {"ready": ready, "draining": runtime.draining}
        if runtime.settings.config.auth is None:  # else the page tells it, to those who may see it
            state["upstreams"] = problems
        return JSONResponse(state, 200 if ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        runtime.drift.show(runtime.metrics, runtime.settings.profiles)
        return Response(exposition(runtime.metrics, runtime.worker), media_type=CONTENT_TYPE_LATEST)

    app.include_router(routes(runtime))
    return app
