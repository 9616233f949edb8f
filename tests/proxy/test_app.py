"""The proxy's own routes."""

from pathlib import Path

import pytest

from tests.seam import seam
from tests.upstream import Reply, Upstream, compact

STRICT = {"name": "strict", "bias": -1.5}


async def test_health_is_the_processes_and_readiness_the_upstreams(tmp_path: Path) -> None:
    config = {"upstreams": {"default": {"kind": "auto"}}}
    async with seam(tmp_path, "http://127.0.0.1:9", config) as proxy:
        assert (await proxy.ask("/healthz")).status == 200
        ready = await proxy.ask("/readyz")
        assert (ready.status, ready.json["ready"]) == (503, False)
        assert list(ready.json["upstreams"]) == ["default"]


async def test_a_server_that_is_never_probed_is_ready(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        ready = await proxy.ask("/readyz")
        assert (ready.status, ready.json["ready"]) == (200, True)


async def test_the_status_page_shows_profiles_and_upstreams(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, {}, [STRICT]) as proxy:
        for path in ("/seam", "/seam/"):
            page = await proxy.ask(path)
            assert page.status == 200
            assert (page.header("content-type") or "").startswith("text/html")
        status = (await proxy.ask("/seam/api/status")).json
        assert status["profiles"] == [{"name": "strict", "model": None, "bias": -1.5, "stale": False}]
        assert status["upstreams"][0]["url"] == upstream.url


async def test_the_schema_is_published(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        assert (await proxy.ask("/seam/api/config-schema")).json["title"] == "seam.yaml"


async def test_own_routes_are_counted_by_no_limit_and_need_no_server(tmp_path: Path) -> None:
    async with seam(tmp_path, "http://127.0.0.1:9", {"limits": {"concurrency": 1}}) as proxy:
        for path in ("/healthz", "/readyz", "/metrics", "/seam/api/status"):
            assert (await proxy.ask(path)).status == 200


async def test_errors_of_every_route_have_one_shape(tmp_path: Path) -> None:
    config = {"limits": {"body_bytes": 10}}
    async with seam(tmp_path, "http://127.0.0.1:9", config, [STRICT]) as proxy:
        answers = [
            await proxy.ask("/admin"),
            await proxy.ask("/p/none/v1/models"),
            await proxy.ask("/v1/models"),
            await proxy.ask("/v1/files", method="POST", body=b"x" * 11),
            await proxy.chat(),
        ]
        assert [answer.status for answer in answers] == [404, 400, 502, 413, 413]
        for answer in answers:
            assert answer.error["message"]
            assert answer.header("content-type") == "application/json"
            assert answer.header("x-request-id")
        own = [
            await proxy.ask("/seam/nothing"),
            await proxy.ask("/seam/api/decisions/x-1"),
            await proxy.ask("/seam/api/decisions?limit=0"),
            await proxy.ask("/healthz", method="POST"),
        ]
        assert [answer.status for answer in own] == [404, 404, 400, 405]
        assert [answer.error["code"] for answer in own] == [
            "not_found",
            "not_found",
            "bad_request",
            "method_not_allowed",
        ]


async def test_a_fault_of_an_own_route_is_an_error_of_the_one_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with seam(tmp_path, "http://127.0.0.1:9") as proxy:
        monkeypatch.delattr(proxy.runtime, "recent")
        answer = await proxy.ask("/seam/api/summary")
        assert (answer.status, answer.error["type"]) == (500, "internal_error")
        assert (await proxy.ask("/healthz")).status == 200


async def test_a_models_listing_is_the_servers(tmp_path: Path) -> None:
    listing = Reply(body=compact({"object": "list", "data": [{"id": "m"}]}))
    async with Upstream([listing]) as upstream, seam(tmp_path, upstream.url) as proxy:
        assert (await proxy.ask("/v1/models")).body == listing.body
