"""The status page at /seam/ and what it asks for: read-only, and nothing of it from elsewhere."""

import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from proxy.client import Send
from proxy.errors import NotFound
from proxy.recent import KEPT, Found, Summary
from proxy.runtime import Runtime
from proxy.settings import config_schema, stale_on
from proxy.tail import Wanted
from proxy.upstream import Upstream

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


@dataclass(frozen=True)
class ModelStatus:
    """A model that a server lists; its entry tokens are null where they are not known, and why."""

    name: str
    entry_tokens: Sequence[int] | None
    entry_text: str | None
    fingerprint: str | None
    no_entry: str | None


@dataclass(frozen=True)
class UpstreamStatus:
    """A server, as it looked at the last look; `processor` as the one it has loaded tells of itself."""

    name: str
    url: str
    kind: str | None
    version: str | None
    processor: Mapping[str, Any] | None
    problem: str | None
    models: Sequence[ModelStatus]


@dataclass(frozen=True)
class ProfileStatus:
    """A loaded profile; `bias` in nats, or in words."""

    name: str
    model: str | None
    bias: float | str | None
    stale: bool


@dataclass(frozen=True)
class WorkerStatus:
    """Which of the worker processes answers."""

    slot: int
    of: int


@dataclass(frozen=True)
class Status:
    """What the process is and has."""

    version: str
    draining: bool
    in_flight: int
    worker: WorkerStatus | None
    upstreams: Sequence[UpstreamStatus]
    profiles: Sequence[ProfileStatus]


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

    # They answer with bytes of their own, so the types are told for the description alone.

    @router.get("/seam/api/status", response_model=Status)
    def status() -> Response:
        return _json(status_of(runtime))

    @router.get("/seam/api/summary", response_model=Summary)
    def summary() -> Response:
        return _json(runtime.recent.summary())

    @router.get("/seam/api/decisions", response_model=Found)
    def decisions(
        after: str = "",
        limit: Annotated[int, Query(ge=1, le=KEPT)] = 200,
        action: Annotated[tuple[str, ...], Query()] = (),
        model: Annotated[tuple[str, ...], Query()] = (),
        profile: Annotated[tuple[str, ...], Query()] = (),
    ) -> Response:
        return _json(runtime.recent.newer(after, Wanted(action, model, profile), limit))

    @router.get("/seam/api/decisions/{id_}", response_model=dict[str, Any])
    def decision(id_: str) -> Response:
        record = runtime.recent.one(id_)
        if record is None:
            raise NotFound(f"this process knows no such decision among its last {KEPT}")
        return _json(record)

    @router.get("/seam/api/config-schema", response_model=dict[str, Any])
    def schema() -> Response:
        return _json(config_schema())

    return router


def _json(value: Any) -> Response:
    # In ASCII: half a surrogate pair, which a reply may hold, has no UTF-8. Dataclasses are their members.
    return Response(json.dumps(value, default=vars), media_type="application/json")


def _file(content: bytes, media_type: str) -> Any:
    def answer() -> Response:
        return Response(content, media_type=media_type)

    return answer


def status_of(runtime: Runtime) -> Status:
    """Read the process as it is now."""
    settings = runtime.settings
    return Status(
        version=version("seam"),
        draining=runtime.draining,
        in_flight=runtime.in_flight,
        worker=WorkerStatus(worker.slot, worker.count) if (worker := runtime.worker) else None,
        upstreams=[_upstream(name, upstream) for name, upstream in settings.upstreams.items()],
        profiles=[
            ProfileStatus(
                profile.name,
                profile.model,
                profile.bias.told if profile.bias else None,
                stale_on(profile, settings),
            )
            for profile in settings.profiles.values()
        ],
    )


def _upstream(name: str, upstream: Upstream) -> UpstreamStatus:
    facts = upstream.facts
    models = [
        ModelStatus(
            model,
            of.entry.tokens if of.entry else None,
            of.entry.text if of.entry else None,
            of.entry.fingerprint if of.entry else None,
            of.no_entry,
        )
        for model, of in facts.models.items()
    ]
    return UpstreamStatus(
        name, upstream.settings.url, facts.kind, facts.version, facts.processor, facts.problem, models
    )
