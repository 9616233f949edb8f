"""What schemathesis asks of our routes, and the answers that their descriptions allow.

It makes up requests that fit the description and requests that don't, and holds each answer's status,
type, headers and body against it. Of /v1 ours are what picks a calibration, and our errors.
"""

import json
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from proxy.errors import ErrorDocument
from proxy.profiles import Inline
from tests.seam import seam
from tests.upstream import CHAT, Upstream, said

pytestmark = pytest.mark.whole

STRICT = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}
NAMES = {"enum": ["strict", "off"]}


async def asked(location: str, folder: Path, *options: str) -> None:
    """Run schemathesis on a description; the same requests each time."""
    process = await create_subprocess_exec(
        *(str(Path(sys.executable).with_name("schemathesis")), "run", location),
        *("--max-examples", "15", "--seed", "1", "--generation-database", "none", *options),
        cwd=folder, stdout=PIPE, stderr=STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()


async def test_own_routes_answer_as_they_are_described(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")], repeat_last=True, lists=["m"]) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
    ):
        await proxy.chat(calibration="strict")  # so that there is something to tell
        await asked(f"http://127.0.0.1:{proxy.port}/seam/api/openapi.json", tmp_path)


async def test_a_server_that_is_away_leaves_own_routes_as_they_are_described(tmp_path: Path) -> None:
    config = {"upstreams": {"default": {"kind": "auto"}}}
    async with seam(tmp_path, "http://127.0.0.1:9", config) as proxy:
        location = f"http://127.0.0.1:{proxy.port}/seam/api/openapi.json"
        # The one 5xx that is meant: not ready.
        await asked(location, tmp_path, "--include-path", "/readyz", "--exclude-checks", "not_a_server_error")


async def test_whatever_picks_a_calibration_it_is_answered_or_a_400_of_ours(tmp_path: Path) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(description()))
    async with (
        Upstream([said("Hello.")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT]) as proxy,
    ):
        # Methods and the rest of a body are the server's to judge, which here takes anything.
        servers = "negative_data_rejection,unsupported_method"
        url = f"http://127.0.0.1:{proxy.port}"
        await asked("openapi.json", tmp_path, "--url", url, "--exclude-checks", servers)


def description() -> dict[str, Any]:
    """The calibrated route: ways to pick a calibration, and answers."""
    inline = Inline.model_json_schema(ref_template="#/components/schemas/{model}")
    inline["properties"]["profile"] = NAMES
    error = TypeAdapter(ErrorDocument).json_schema(ref_template="#/components/schemas/{model}")
    parts = {**inline.pop("$defs", {}), **error.pop("$defs"), "Inline": inline, "Error": error}
    body = {
        "type": "object",
        "required": ["model"],
        "properties": {
            "model": {"type": "string"},
            "stream": {"type": "boolean"},
            "calibration": {"anyOf": [NAMES, {"$ref": "#/components/schemas/Inline"}]},
        },
    }
    header = {"in": "header", "schema": {"type": "string", "pattern": "^[!-~]{1,40}$"}}
    asked = {
        "parameters": [
            {"name": "X-Calibration", "in": "header", "schema": NAMES},
            {"name": "X-Case-Id", **header},
            {"name": "X-Request-Id", **header},
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {
                "description": "the reply",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "400": {
                "description": "a calibration that does not exist or may not be picked",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    named = {"name": "profile", "in": "path", "required": True, "schema": NAMES}
    prefixed = {"parameters": [named], "responses": asked["responses"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "The calibrated route", "version": "1"},
        "paths": {CHAT: {"post": asked}, f"/p/{{profile}}{CHAT}": {"post": prefixed}},
        "components": {"schemas": parts},
    }
