"""Client keys: who may ask, what each may pick, and where keys never show up."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.auth import hashed
from proxy.cli import main
from proxy.config import load
from proxy.errors import ConfigError
from proxy.settings import build
from tests.seam import Seam, seam, written
from tests.upstream import CHAT, Reply, Upstream, said

NOWHERE = "http://127.0.0.1:9"
ALICE, BOB, PROMETHEUS = "seam-alice-4c1f", "seam-bob-77e0", "seam-prom-9b2d"
KEYS = {
    "alice": {"sha256": hashed(ALICE)},
    "bob": {"sha256": hashed(BOB), "profiles": ["strict"]},
    "prometheus": {"sha256": hashed(PROMETHEUS), "opens": ["pages"]},
}
CONFIG: dict[str, Any] = {"auth": {"keys": KEYS}}
PROFILES = [
    {"name": name, "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}
    for name in ("strict", "loose")
]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def basic(key: str, user: str = "") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("seam-wrong"),
        {"Authorization": "Bearer"},
        bearer(hashed(ALICE)),
        basic(ALICE),
        {"Authorization": ALICE},
    ],
    ids=["none", "wrong", "empty", "its hash", "a password", "no scheme"],
)
async def test_without_a_key_nothing_is_asked_of_the_server(tmp_path: Path, headers: dict[str, str]) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, CONFIG, PROFILES) as proxy:
        for target, method in (
            (CHAT, "POST"),
            ("/v1/models", "GET"),
            ("/admin", "GET"),
            ("/p/x/v1/y", "GET"),
        ):
            refused = await proxy.ask(target, method=method, headers=headers, body=b"{")
            assert refused.status == 401
            assert refused.error["code"] == "invalid_api_key"
            assert refused.header("www-authenticate") == 'Bearer realm="seam"'
            assert not [name for name in ("strict", "alice") if name in refused.body.decode()]


@pytest.mark.parametrize("headers", [bearer(ALICE), {"X-Api-Key": ALICE}], ids=["bearer", "x-api-key"])
async def test_a_known_key_is_served_and_stays_at_the_proxy(tmp_path: Path, headers: dict[str, str]) -> None:
    async with (
        Upstream([said("Hello."), Reply(body=b"{}")]) as upstream,
        seam(tmp_path, upstream.url, CONFIG, PROFILES) as proxy,
    ):
        assert (await proxy.chat(headers=headers)).text == "Hello."
        assert (await proxy.ask("/v1/models", headers=headers)).status == 200
        for request in upstream.requests:
            assert request.header("authorization") is None
            assert request.header("x-api-key") is None
        assert (await proxy.records(1))[0]["client"] == "alice"


async def test_a_stranger_is_refused_before_the_body_has_come(tmp_path: Path) -> None:
    async with seam(tmp_path, NOWHERE, CONFIG, PROFILES) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".encode())
        async with asyncio.timeout(60):
            assert (await reader.readline()).split()[1] == b"401"
        writer.close()


async def test_no_credential_of_several_reaches_the_server(tmp_path: Path) -> None:
    shown = [("Authorization", f"Bearer {ALICE}"), ("authorization", f"Bearer {BOB}"), ("X-Api-Key", ALICE)]
    lines = "".join(f"{name}: {value}\r\n" for name, value in shown)
    head = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n"
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, CONFIG, PROFILES) as proxy,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(head.encode())
        async with asyncio.timeout(60):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        (request,) = upstream.requests
        assert not [value for _, value in request.headers if ALICE in value or BOB in value]


async def test_the_servers_own_key_is_sent_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-operator")
    config = {**CONFIG, "upstreams": {"default": {"api_key_env": "UPSTREAM_KEY"}}}
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, config, PROFILES) as proxy,
    ):
        await proxy.chat(headers=bearer(ALICE))
        assert upstream.requests[0].header("authorization") == "Bearer sk-operator"


async def test_without_auth_the_clients_key_is_for_the_server(tmp_path: Path) -> None:
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url) as proxy:
        await proxy.chat(headers=bearer("sk-client"))
        assert upstream.requests[0].header("authorization") == "Bearer sk-client"
        assert (await proxy.records(1))[0]["client"] is None


@pytest.mark.parametrize("value", [None, "", "sk\nX-Admin: 1", "schlüssel"])
def test_a_server_key_that_can_not_be_sent_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("UPSTREAM_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("UPSTREAM_KEY", value)
    config = {"upstreams": {"default": {"api_key_env": "UPSTREAM_KEY"}}}
    with pytest.raises(ConfigError, match=r"^upstreams: api_key_env: UPSTREAM_KEY [^\n]*; export [^\n]*$"):
        build(written(tmp_path, NOWHERE, config), {})


# Own routes ------------------------------------------------------------------------------------------

PAGES = ["/metrics", "/seam", "/seam/", "/seam/api/status", "/seam/api/openapi.json", "/seam/api/nothing"]


async def test_probes_of_health_need_no_key_and_are_told_no_more_than_yes_or_no(tmp_path: Path) -> None:
    async with seam(tmp_path, NOWHERE, CONFIG, PROFILES) as proxy:
        assert (await proxy.ask("/healthz")).json == {"status": "ok"}
        assert (await proxy.ask("/readyz")).json == {"ready": True, "draining": False, "upstreams": None}


async def test_pages_open_to_a_key_for_them_by_either_way(tmp_path: Path) -> None:
    async with seam(tmp_path, NOWHERE, CONFIG, PROFILES) as proxy:
        for page in PAGES:
            nobody = await proxy.ask(page)
            assert nobody.status == 401
            assert nobody.header("www-authenticate") == 'Basic realm="seam"'
            other = await proxy.ask(page, headers=bearer(ALICE))
            assert (other.status, other.error["code"]) == (403, "key_not_allowed")
            for headers in (bearer(PROMETHEUS), basic(PROMETHEUS), basic(PROMETHEUS, "anyone")):
                assert (await proxy.ask(page, headers=headers)).status == (404 if "nothing" in page else 200)


async def test_a_key_for_pages_asks_no_model(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, CONFIG, PROFILES) as proxy:
        assert (await proxy.chat(headers=bearer(PROMETHEUS))).status == 403


@pytest.mark.parametrize("value", ["Basic", "Basic !", "Basic AAAAA", "Basic 4pyT", "x y z"])
async def test_damaged_credentials_are_no_credentials(tmp_path: Path, value: str) -> None:
    async with seam(tmp_path, NOWHERE, CONFIG, PROFILES) as proxy:
        for target in ("/metrics", "/v1/models"):
            assert (await proxy.ask(target, headers={"Authorization": value})).status == 401


# Profiles per key ------------------------------------------------------------------------------------


async def picked(proxy: Seam, key: str, **way: Any) -> tuple[int, str | None]:
    headers = {**bearer(key), **way.pop("headers", {})}
    answer = await proxy.chat(headers=headers, **way)
    return answer.status, answer.header("x-calibration")


async def test_a_key_may_be_limited_to_some_profiles(tmp_path: Path) -> None:
    config = {**CONFIG, "models": {"m": {"profile": "loose"}}}
    ways: list[dict[str, Any]] = [
        {"calibration": "loose"},
        {"headers": {"X-Calibration": "loose"}},
        {"to": f"/p/loose{CHAT}"},
        {"model": "m@loose"},
        {"calibration": "off"},
        {"to": f"/p/off{CHAT}"},
        {"calibration": {"profile": "loose"}},
        {"calibration": {"profile": "strict", "bias": 3}},
        {"calibration": {"bias": 3}},
    ]
    async with (
        Upstream([said("Hello.")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, config, PROFILES) as proxy,
    ):
        for way in ways:
            assert (await picked(proxy, ALICE, **way))[0] == 200, way
        asked = len(upstream.requests)
        for way in ways:
            assert (await picked(proxy, BOB, **way))[0] == 400, way
        assert len(upstream.requests) == asked
        assert await picked(proxy, BOB, calibration="strict") == (200, "strict")
        # What the operator set for the model is nobody's pick.
        assert await picked(proxy, BOB) == (200, "loose")


async def test_names_that_a_key_may_not_pick_are_not_told(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, CONFIG, PROFILES) as proxy:
        told = await proxy.chat(headers=bearer(BOB), calibration="loos")
        assert told.error["message"] == "no calibration 'loos'; valid names: strict"


# The configuration -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "auth.keys: "),
        ({"a": {"sha256": "seam-plain"}}, "auth.keys.a.sha256: "),
        ({"a": {"sha256": hashed("x")}, "b": {"sha256": hashed("x")}}, "a and b have the same key"),
        ({"a": {"sha256": hashed("x"), "profiles": ["strickt"]}}, "there is: strict, off, inline"),
        ({"a": {"sha256": hashed("x"), "opens": ["page"]}}, "auth.keys.a.opens.0"),
    ],
    ids=["no keys", "no hash", "one key twice", "unknown profile", "unknown place"],
)
def test_a_mistake_in_the_keys_is_one_line_without_a_key(
    tmp_path: Path, keys: dict[str, Any], words: str
) -> None:
    path = written(tmp_path, NOWHERE, {"auth": {"keys": keys}}, [{"name": "strict"}])
    with pytest.raises(ConfigError) as told:
        build(path, {})
    assert words in str(told.value)
    assert "\n" not in str(told.value)
    assert "seam-plain" not in str(told.value)


def test_a_key_is_made_with_the_lines_that_make_it_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["seam", "key", "on: call", "--opens", "pages", "--profile", "off"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    first, _, *lines = capsys.readouterr().out.splitlines()
    key = first.removeprefix("key:  ")
    assert len(key) > 40
    path = written(tmp_path, NOWHERE, yaml.safe_load("\n".join(lines)))
    auth = load(path).auth
    assert auth is not None
    assert json.loads(auth.model_dump_json()) == {
        "keys": {"on: call": {"sha256": hashed(key), "opens": ["pages"], "profiles": ["off"]}}
    }
