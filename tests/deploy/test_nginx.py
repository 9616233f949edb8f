"""deploy/nginx.conf under a real nginx: it is valid, speaks TLS, and passes each event as it comes."""

import asyncio
import shutil
import socket
import ssl
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.deploy.files import DEPLOY, run
from tests.seam import Seam, chat, seam
from tests.upstream import CHAT, Reply, Upstream, Wait, chunk, said

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
pytestmark = pytest.mark.skipif(
    not (Path(NGINX).exists() and shutil.which("openssl")),
    reason="nginx or openssl is missing (apt install nginx-light openssl)",
)

ENDLESS = Reply(writes=(chunk(content="Hel"), Wait(600)))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def configured(folder: Path, upstream: int, gone: int, plain: int, tls: int) -> Path:
    """deploy/nginx.conf with a certificate, addresses and places of this test's own."""
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout", folder / "seam.key", "-out", folder / "seam.crt")  # fmt: skip
    text = (DEPLOY / "nginx.conf").read_text("utf-8")
    changes = {
        "listen 80;": f"listen 127.0.0.1:{plain};",
        "listen 443 ": f"listen 127.0.0.1:{tls} ",
        "  server 127.0.0.1:8080 ": f"  server 127.0.0.1:{upstream} ",
        "# server 10.0.0.2:8080": f"server 127.0.0.1:{gone}",
        "/etc/nginx/tls/": f"{folder}/",
        "/var/log/nginx/": f"{folder}/",
        "    server_tokens off;": "    server_tokens off;\n"
        + "".join(
            f"    {kind}_temp_path {folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        ),
    }
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "nginx.conf"
    path.write_text(f"pid {folder}/nginx.pid;\nerror_log {folder}/error.log;\n" + text)
    return path


@asynccontextmanager
async def nginx(folder: Path, proxy: Seam) -> AsyncIterator[httpx.AsyncClient]:
    """A real nginx in front of a proxy, and a client of it that trusts its certificate."""
    gone, plain, tls = free_ports(3)
    config = configured(folder, proxy.port, gone, plain, tls)
    run(NGINX, "-t", "-q", "-e", folder / "error.log", "-c", config)
    process = await asyncio.create_subprocess_exec(
        NGINX, "-e", str(folder / "error.log"), "-c", str(config), "-g", "daemon off;", stderr=DEVNULL
    )
    trust = ssl.create_default_context(cafile=str(folder / "seam.crt"))
    try:
        async with (
            asyncio.timeout(120),
            httpx.AsyncClient(
                base_url=f"https://localhost:{tls}", verify=trust, trust_env=False, timeout=100,
                headers={"x-plain": f"http://127.0.0.1:{plain}"},
            ) as client,
        ):  # fmt: skip
            while True:
                assert process.returncode is None, (folder / "error.log").read_text()
                try:
                    await client.get("/healthz")
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_an_event_is_shown_before_the_next_one_comes(tmp_path: Path) -> None:
    async with (
        Upstream([ENDLESS]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
        nginx(tmp_path, proxy) as client,
        client.stream("POST", CHAT, json=chat(stream=True)) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for piece in answer.aiter_bytes():
            assert b"Hel" in piece  # while the reply goes on for ten minutes more
            break


async def test_a_client_that_leaves_ends_the_query(tmp_path: Path) -> None:
    async with (
        Upstream([ENDLESS]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
        nginx(tmp_path, proxy) as client,
    ):
        async with client.stream("POST", CHAT, json=chat(stream=True)) as answer:
            async for _ in answer.aiter_bytes():
                break
        await upstream.until(lambda u: len(u.left) == 1, seconds=60)


async def test_a_proxy_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url) as proxy,
        nginx(tmp_path, proxy) as client,
    ):
        statuses = [(await client.post(CHAT, json=chat())).status_code for _ in range(6)]
        assert statuses == [200] * 6
        assert len(upstream.requests) == 6  # each once
    assert "Connection refused" in (tmp_path / "error.log").read_text()


async def test_replies_headers_and_errors_pass_and_the_pages_are_the_operators(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
        nginx(tmp_path, proxy) as client,
    ):
        answer = await client.post(CHAT, json=chat(), headers={"x-request-id": "req-7"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "req-7")
        assert answer.headers["strict-transport-security"]
        refused = await client.post(CHAT, json=chat(calibration="nobody"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_calibration")
        assert (await client.get("/seam/")).status_code == 200  # this machine may
        moved = await client.post(client.headers["x-plain"] + CHAT, json=chat())
        assert (moved.status_code, moved.headers["location"]) == (308, f"https://127.0.0.1{CHAT}")
    assert "req-7" in (tmp_path / "access.log").read_text()
