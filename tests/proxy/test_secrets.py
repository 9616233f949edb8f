"""No key, cookie or prompt shows up where it must not, whatever is thrown at the proxy."""

import base64
import re
import signal
from pathlib import Path

import pytest

from proxy.auth import hashed
from tests.proxy.commands import serving
from tests.proxy.test_guard import raw
from tests.seam import chat, written
from tests.upstream import CHAT, Reply, Upstream, compact, said
from tests.wire import Headers, ask

CLIENT, PAGES, WRONG, SERVER = "seam-c1ient-4c1f", "seam-pages-9b2d", "seam-wr0ng-77e0", "sk-server-51ab"
COOKIE, PROMPT, REDIS = "s=c2VjcmV0", "my street is Elm", "redis-pass-31"
SECRETS = (CLIENT, PAGES, WRONG, SERVER, COOKIE, PROMPT, "Elm", REDIS)
CONFIG = {
    "auth": {
        "keys": {
            "client": {"sha256": hashed(CLIENT)},
            "pages": {"sha256": hashed(PAGES), "opens": ["pages"]},
        }
    },
    "state": f"redis://:{REDIS}@127.0.0.1:9/0",
    "upstreams": {"default": {"api_key_env": "SERVER_KEY", "kind": "auto"}},
}
SHOWN = (
    "/metrics",
    "/seam/api/decisions?limit=1000",
    *(f"/seam/api/{name}" for name in ("status", "summary", "config-schema", "openapi.json")),
    "/seam/",
    "/readyz",
)
ANSI = "\x1b[31m\r\nFAKE LINE"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "Cookie": COOKIE}


def attempts() -> list[tuple[str, Headers, bytes]]:
    """Requests that fail in every way that names something of theirs in an error."""
    prompt = compact(chat(messages=[{"role": "user", "content": PROMPT}]))
    password = base64.b64encode(f"{WRONG}:{WRONG}".encode()).decode()
    body: list[bytes] = [
        prompt,
        prompt[:-1],
        compact(chat(calibration={"bias": "one"})),
        compact(chat(calibration={ANSI * 10_000: 1})),
        compact(chat(model=ANSI, calibration="strict")),
        compact(chat(messages=[{"role": "user", "content": PROMPT}], tools=[{}] * 2000)),
    ]
    return [
        *((CHAT, bearer(CLIENT), each) for each in body),
        *((CHAT, bearer(WRONG), each) for each in body[:2]),
        (CHAT, {"Authorization": f"Basic {password}"}, prompt),
        (CHAT, {"Authorization": WRONG, "X-Api-Key": WRONG}, prompt),
        ("/metrics", bearer(CLIENT), b""),
        ("/seam/api/status", {"Authorization": f"Basic {password}"}, b""),
        ("/nowhere%1b%5b31m%0d%0aFAKE%20LINE", bearer(CLIENT), b""),
        ("/p/%1b%5b31m%0aFAKE%20LINE/v1/models", bearer(CLIENT), b""),
        (CHAT, {**bearer(CLIENT), "X-Case-Marks": "a\tb", "X-Calibration": "c\td"}, prompt),
        (CHAT, {**bearer(CLIENT), "X-Request-Id": "i\td", "X-Case-Id": "e\tf"}, prompt),
    ]


@pytest.mark.parametrize("form", ["text", "json"])
async def test_nothing_shows_a_secret_or_a_line_of_the_attackers(tmp_path: Path, form: str) -> None:
    hostile = compact({"error": {"message": f"bad key {ANSI}"}})
    script = [said("I can't."), Reply(500, body=hostile), Reply(close_on_request=True), Reply(body=b"\x1b{")]
    config = {**CONFIG, "logging": {"format": form, "level": "debug"}}
    async with Upstream([*script * 20, said("Hello.")], repeat_last=True) as upstream:
        path = written(tmp_path, upstream.url, config)
        async with serving(path, environment={"SERVER_KEY": SERVER}) as process:
            answers = [
                await ask(process.port, "POST" if target == CHAT else "GET", target, headers, body)
                for target, headers, body in attempts() * 2
            ]
            broken = f"GET /v1/\x1b[31m HTTP/1.1\r\nAuthorization: Bearer {WRONG}\r\n\x1b: x\r\n\r\n"
            torn = await raw(process.port, broken.encode())
            pages = [await ask(process.port, "GET", page, bearer(PAGES)) for page in SHOWN]
            assert [page.status for page in pages[:-1]] == [200] * (len(SHOWN) - 1)
            assert pages[1].json["decisions"]
            process.signal(signal.SIGTERM)
            await process.exit_code(60)
    errors = [answer for answer in answers if answer.status in (400, 401, 403, 404)]
    assert len(errors) > 20
    assert b"HTTP/1.1 400" in torn
    for answer in errors:
        assert len(answer.body) < 10_000
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", answer.error["message"]), answer.body
    shown = {
        "the program log": process.log,
        "the decision log": (tmp_path / "decisions.jsonl").read_text("utf-8"),
        "the pages": "".join(page.body.decode() for page in pages),
        "the errors": "".join(answer.body.decode() for answer in errors) + torn.decode(),
        "the headers": "".join(f"{k}: {v}\n" for answer in (*answers, *pages) for k, v in answer.headers),
    }
    for where, text in shown.items():
        for secret in SECRETS:
            assert secret not in text, f"{where} shows {secret}"
        assert "\x1b" not in text, where
        assert "\nFAKE LINE" not in text, where
    assert upstream.requests[-1].header("authorization") == f"Bearer {SERVER}"
    assert "Traceback" not in process.log
