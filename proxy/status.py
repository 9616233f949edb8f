"""The status page at /seam/ and what it asks for: read-only, and nothing of it from elsewhere."""

import json
from collections.abc import MutableMapping
from importlib import resources
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response

from proxy.client import Send
from proxy.recent import KEPT
from proxy.runtime import Runtime
from proxy.settings import config_schema, stale_on
from proxy.tail import Wanted

_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
_FILES = {
    "/seam": ("index.html", "text/html"),
    "/seam/": ("index.html", "text/html"),
    "/seam/style.css": ("style.css", "text/css"),
    "/seam/script.js": ("script.js", "text/javascript"),
}


def shielded(send: Send) -> Send:
    """Put on an answer what keeps a browser from running, framing or storing anything of it."""

    async def send_shielded(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_HEADERS]
        await send(message)

    return send_shielded


def routes(runtime: Runtime) -> APIRouter:
    """All below /seam but the description of the routes themselves; each answers GET alone."""
    router = APIRouter()
    for path, (name, media_type) in _FILES.items():
        content = resources.files("proxy").joinpath("page", name).read_bytes()
        router.add_api_route(path, _file(content, media_type), include_in_schema=False)

    # Plain functions: they run in a thread, so that no reply waits while 10,000 records are counted.

    @router.get("/seam/api/status")
    def status() -> Response:
        return _json(status_of(runtime))

    @router.get("/seam/api/summary")
    def summary() -> Response:
        return _json(runtime.recent.summary())

    @router.get("/seam/api/decisions")
    def decisions(
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=KEPT)] = 200,
        action: Annotated[tuple[str, ...], Query()] = (),
        model: Annotated[tuple[str, ...], Query()] = (),
        profile: Annotated[tuple[str, ...], Query()] = (),
    ) -> Response:
        return _json(runtime.recent.newer(after, Wanted(action, model, profile), limit)._asdict())

    @router.get("/seam/api/decisions/{id_}")
    def decision(id_: str) -> Response:
        record = runtime.recent.one(id_)
        if record is None:
            raise HTTPException(404, f"this process knows no such decision among its last {KEPT}")
        return _json(record)

    @router.get("/seam/api/config-schema")
    def schema() -> Response:
        return _json(config_schema())

    return router


def _json(value: Any) -> Response:
    # In ASCII: half a surrogate pair, which a reply may hold, has no UTF-8.
    return Response(json.dumps(value), media_type="application/json")


def _file(content: bytes, media_type: str) -> Any:
    def answer() -> Response:
        return Response(content, media_type=media_type)

    return answer


def status_of(runtime: Runtime) -> dict[str, Any]:
    """What the process is and has: upstreams, models, profiles, and how many requests are in flight."""
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
