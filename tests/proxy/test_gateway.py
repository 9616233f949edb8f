"""Everything beside the calibrated route is passed on as it came."""

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from tests.seam import seam
from tests.upstream import CHAT, Reply, Upstream, Wait, compact, said
from tests.wire import exchange

PLAIN = Reply(body=b"as it came", content_type="text/plain")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "PROPFIND"])
async def test_every_method_is_passed_on(tmp_path: Path, method: str) -> None:
    async with Upstream([PLAIN]) as upstream, seam(tmp_path, upstream.url) as proxy:
        if method == "HEAD":
            return  # httpx sends it; the raw client reads no answer without a body
        answer = await proxy.ask("/v1/things/7", method=method)
        assert (answer.status, answer.body) == (200, b"" if method == "HEAD" else b"as it came")
        assert answer.header("content-length") == "10"
        assert upstream.requests[0].method == method


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models",
        "/v1/models/org%2Fmodel%20x?limit=2&after=%C3%A9&after=b",
        "/v1/files?",
        "/v1/a//b/?q=a+b%20c",
        "/v1/models?x=1?y=2",
        "/v1/caf%C3%A9",
        "/health",
        "/version",
        "/tokenize",
        "/v1/audio/transcriptions",
    ],
)
async def test_path_and_query_keep_the_clients_spelling(tmp_path: Path, target: str) -> None:
    async with Upstream([PLAIN]) as upstream, seam(tmp_path, upstream.url) as proxy:
        await proxy.ask(target)
        assert upstream.requests[0].target == target.removesuffix("?")


async def test_a_body_of_any_bytes_is_passed_on_both_ways(tmp_path: Path) -> None:
    sent, back = os.urandom(300_000), os.urandom(300_000)
    reply = Reply(body=back, content_type="audio/wav")
    async with Upstream([reply]) as upstream, seam(tmp_path, upstream.url) as proxy:
        answer = await proxy.ask("/v1/audio/speech", method="POST", body=sent)
        assert upstream.requests[0].body == sent
        assert answer.body == back
        assert answer.header("content-type") == "audio/wav"


async def test_other_ways_of_generating_are_not_read_as_chats(tmp_path: Path) -> None:
    async with Upstream([PLAIN] * 3) as upstream, seam(tmp_path, upstream.url) as proxy:
        await proxy.ask("/v1/completions", method="POST", body=b'{"prompt" : 1.10}')
        await proxy.ask("/v1/embeddings", method="POST", body=b"{")
        await proxy.ask(CHAT, method="GET")
        assert [request.body for request in upstream.requests] == [b'{"prompt" : 1.10}', b"{", b""]


async def test_an_answer_is_passed_on_write_by_write(tmp_path: Path) -> None:
    slow = Reply(headers={"Content-Type": "audio/wav"}, writes=(b"first", Wait(30), b"second"))
    async with Upstream([slow]) as upstream, seam(tmp_path, upstream.url) as proxy:
        async with exchange(proxy.port, "GET", "/v1/audio") as open_request:
            await open_request.head()
            await open_request.until(b"first")
        await upstream.until(lambda server: bool(server.left))


async def test_compressed_answers_keep_their_bytes_and_their_encoding(tmp_path: Path) -> None:
    packed = gzip.compress(b"as it came")
    reply = Reply(headers={"Content-Encoding": "gzip"}, body=packed)
    async with Upstream([reply]) as upstream, seam(tmp_path, upstream.url) as proxy:
        answer = await proxy.ask("/v1/models", headers={"Accept-Encoding": "gzip, br, zstd"})
        assert upstream.requests[0].header("accept-encoding") == "gzip, br, zstd"
        assert (answer.body, answer.header("content-encoding")) == (packed, "gzip")
        assert answer.header("content-length") == str(len(packed))


@pytest.mark.parametrize("path", ["/v1/models", CHAT])
async def test_hop_by_hop_headers_stay_on_their_side(tmp_path: Path, path: str) -> None:
    hops = {"Connection": "X-Mine, close", "X-Mine": "1", "Keep-Alive": "timeout=5", "Proxy-Connection": "x"}
    asked = {**hops, "TE": "trailers", "Upgrade": "h2c", "Proxy-Authorization": "Basic eA=="}
    ends = {"X-Vendor": "kept", "Cookie": "a=b", "User-Agent": "curl/8", "Authorization": "Bearer k"}
    reply = Reply(headers={**hops, "X-Vendor": "kept", "Set-Cookie": "a=b"}, body=said("Hello.").body)
    async with Upstream([reply]) as upstream, seam(tmp_path, upstream.url) as proxy:
        method, body = ("POST", b'{"model":"m"}') if path == CHAT else ("GET", b"")
        answer = await proxy.ask(path, method=method, headers={**asked, **ends}, body=body)
        sent = upstream.requests[0]
        for name in ("x-mine", "keep-alive", "proxy-connection", "te", "upgrade", "proxy-authorization"):
            assert sent.header(name) is None, name
            assert answer.header(name) is None, name
        assert sent.header("connection") in (None, "keep-alive")
        assert sent.header("host") == f"127.0.0.1:{upstream.port}"
        assert {name: sent.header(name.lower()) for name in ends} == ends
        assert (answer.header("x-vendor"), answer.header("set-cookie")) == ("kept", "a=b")


async def test_repeated_headers_stay_repeated(tmp_path: Path) -> None:
    raw = "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 500\r\n\r\nx"
    async with (
        Upstream([Reply(raw_then_reset=raw.encode())]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        answer = await proxy.ask("/v1/models")
        assert [value for name, value in answer.headers if name == "set-cookie"] == ["a=1", "b=2"]
        assert answer.cut


@pytest.mark.parametrize("path", ["/v1/models", CHAT])
async def test_the_request_id_is_kept_or_made_and_comes_back(tmp_path: Path, path: str) -> None:
    method, body = ("POST", b'{"model":"m"}') if path == CHAT else ("GET", b"")
    theirs = Reply(headers={"X-Request-Id": "theirs"}, body=said("Hello.").body)
    async with (
        Upstream([said("Hello."), said("Hello."), theirs]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        kept = await proxy.ask(path, method=method, body=body, headers={"X-Request-Id": "mine"})
        made = await proxy.ask(path, method=method, body=body)
        own = await proxy.ask(path, method=method, body=body)
        assert [r.header("x-request-id") for r in upstream.requests[:2]] == [
            "mine",
            made.header("x-request-id"),
        ]
        assert kept.header("x-request-id") == "mine"
        assert made.header("x-request-id")
        assert own.header("x-request-id") == "theirs"


@pytest.mark.parametrize(
    "target", ["/admin", "/v2/models", "/", "/v1", "/load_lora_adapter", "/metricsx", "/v10/models", "/docs"]
)
async def test_paths_that_nobody_documents_need_forward_all(tmp_path: Path, target: str) -> None:
    async with Upstream([PLAIN]) as upstream:
        async with seam(tmp_path, upstream.url) as proxy:
            refused = await proxy.ask(target)
            assert refused.status == 404
            assert "forward: all" in refused.error["message"]
        async with seam(tmp_path, upstream.url, {"forward": "all"}) as proxy:
            assert (await proxy.ask(target)).body == b"as it came"
            assert upstream.requests[0].target == target


@pytest.mark.parametrize(
    "target",
    ["/v1/../admin", "/v1/%2e%2e/admin", "/v1/..%2fadmin", "/v1/%2E./admin", "/v1/a/../../admin", "/v1/.."],
)
async def test_no_path_climbs_out_of_what_is_forwarded(tmp_path: Path, target: str) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        assert (await proxy.ask(target)).status == 404
        assert (await proxy.ask(f"/p/off{target}")).status == 404


async def test_the_servers_own_routes_are_never_shadowed(tmp_path: Path) -> None:
    paths = ["/health", "/version", "/docs", "/openapi.json", "/redoc", "/v1/models", "/load", "/ping"]
    async with (
        Upstream([PLAIN], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, {"forward": "all"}) as proxy,
    ):
        for path in paths:
            assert (await proxy.ask(path)).body == b"as it came", path
        assert [request.target for request in upstream.requests] == paths


async def test_a_prefix_is_taken_off_every_path(tmp_path: Path) -> None:
    async with Upstream([PLAIN]) as upstream, seam(tmp_path, upstream.url, {}, [{"name": "strict"}]) as proxy:
        await proxy.ask("/p/strict/v1/models?limit=1")
        assert upstream.requests[0].target == "/v1/models?limit=1"
        unknown = await proxy.ask("/p/stric/v1/models")
        assert unknown.status == 400
        assert "strict, off" in unknown.error["message"]


async def test_the_operators_key_takes_the_place_of_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-operator")
    config: dict[str, Any] = {"upstreams": {"default": {"api_key_env": "UPSTREAM_KEY"}}}
    async with Upstream([said("Hello."), PLAIN]) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        await proxy.chat(headers={"Authorization": "Bearer sk-client"})
        await proxy.ask("/v1/models", headers={"Authorization": "Bearer sk-client"})
        assert [r.header("authorization") for r in upstream.requests] == ["Bearer sk-operator"] * 2


async def test_a_model_is_served_by_its_own_upstream(tmp_path: Path) -> None:
    async with Upstream([said("Default.")]) as first, Upstream([said("Other.")]) as second:
        config = {
            "upstreams": {"other": {"url": second.url, "kind": "openai"}},
            "models": {"big": {"upstream": "other", "aliases": ["gpt-big"]}},
        }
        async with seam(tmp_path, first.url, config) as proxy:
            assert (await proxy.chat(model="m")).text == "Default."
            assert (await proxy.chat(model="gpt-big")).text == "Other."
            assert second.requests[0].json["model"] == "big"


async def test_a_cut_answer_is_seen_as_cut(tmp_path: Path) -> None:
    cut = Reply(headers={"Content-Length": "500"}, body=b"only this", end="reset")
    async with Upstream([cut]) as upstream, seam(tmp_path, upstream.url) as proxy:
        answer = await proxy.ask("/v1/files/7")
        assert answer.cut
        assert answer.body == b"only this"


async def test_an_answer_without_a_body_has_none(tmp_path: Path) -> None:
    raw = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with Upstream([Reply(raw_then_reset=raw)]) as upstream, seam(tmp_path, upstream.url) as proxy:
        answer = await proxy.ask("/v1/files/7", method="DELETE")
        assert (answer.status, answer.body, answer.cut) == (204, b"", False)


async def test_an_upstreams_error_keeps_status_body_and_headers(tmp_path: Path) -> None:
    busy = Reply(529, {"Retry-After": "3"}, compact({"odd": ["shape"]}))
    async with Upstream([busy]) as upstream, seam(tmp_path, upstream.url) as proxy:
        answer = await proxy.ask("/v1/models")
        assert (answer.status, answer.body, answer.header("retry-after")) == (529, busy.body, "3")
