"""The proxy's own routes beside the gateway, as one ASGI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from proxy.auth import admitted
from proxy.client import Client, Receive, Scope, Send
from proxy.errors import HttpError
from proxy.gateway import Gateway
from proxy.metrics import exposition
from proxy.runtime import Runtime
from proxy.settings import Reloader, config_schema, stale_on

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
        await self._own(scope, receive, send)


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

    @app.get("/seam/api/status")
    async def status() -> dict[str, Any]:
        return status_of(runtime)

    @app.get("/seam/api/config-schema")
    async def schema() -> dict[str, Any]:
        return config_schema()

    @app.get("/seam")
    @app.get("/seam/")
    async def page() -> HTMLResponse:
        return HTMLResponse(resources.files("proxy").joinpath("page.html").read_text("utf-8"))

    return app


def status_of(runtime: Runtime) -> dict[str, Any]:
    """What the status page shows: upstreams, models, profiles, and how many requests are in flight."""
    settings = runtime.settings
    return {
        "version": version("seam"),
        "draining": runtime.draining,
        "in_flight": runtime.in_flight,
        "worker": {"slot": worker.slot, "of": worker.count} if (worker := runtime.worker) else None,
        "upstreams": [
            {
                "name": name,
                "url": upstream.settings.url,
                "kind": upstream.facts.kind,
                "version": upstream.facts.version,
                "processor": upstream.facts.processor,
                "problem": upstream.facts.problem,
                "models": [
                    {
                        "name": model,
                        "entry_tokens": facts.entry.tokens if facts.entry else None,
                        "entry_text": facts.entry.text if facts.entry else None,
                        "fingerprint": facts.entry.fingerprint if facts.entry else None,
                        "no_entry": facts.no_entry,
                    }
                    for model, facts in upstream.facts.models.items()
                ],
            }
            for name, upstream in settings.upstreams.items()
        ],
        "profiles": [
            {
                "name": profile.name,
                "model": profile.model,
                "bias": profile.bias.told if profile.bias else None,
                "stale": stale_on(profile, settings),
            }
            for profile in settings.profiles.values()
        ],
    }
