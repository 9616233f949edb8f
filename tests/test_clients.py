"""The clients that people use, against a real vLLM server through the proxy.

Each client's script (tests/clients) runs once, in its own environment, all of them at the same time, and
tells what it saw. `eager` is a bias of +20, `shy` one of -20: the client is to see a call, or text.
"""

import asyncio
import json
import os
import re
import shutil
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.proxy.commands import serving
from tests.seam import written
from tests.wire import Answer, ask

pytestmark = [pytest.mark.clients, pytest.mark.server]

FOLDER = Path(__file__).parent / "clients"
PYTHON = Path(__file__).parents[1] / ".venv-clients" / "bin" / "python"  # `make clients`

REQUEST = json.loads((FOLDER / "request.json").read_text())
PROFILES = (
    {"name": "eager", "bias": 20},
    # Everywhere, so that no call follows the text either.
    {"name": "shy", "bias": -20, "entry": {"scope": "everywhere"}},
)
CALL = {"text": None, "calls": [["get_weather", {"city": "Oslo"}]]}

SCRIPTS = {
    "openai-python": [str(PYTHON), "openai_python.py"],
    "openai-node": ["node", "openai_node.mjs"],
    "langchain": [str(PYTHON), "langchain_chat.py"],
    "litellm": [str(PYTHON), "litellm_chat.py"],
}
Seen = Mapping[str, Mapping[str, Any]]

each_client = pytest.mark.parametrize("client", SCRIPTS)
each_openai_sdk = pytest.mark.parametrize("client", ["openai-python", "openai-node"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port(vllm_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    """A running `seam serve` in front of the vLLM server, which it has probed."""
    config = {"upstreams": {"default": {"kind": "vllm"}}, "models": {"lab": {}}}
    async with serving(written(tmp_path_factory.mktemp("seam"), vllm_url, config, PROFILES)) as proxy:
        async with asyncio.timeout(300):
            while (await ask(proxy.port, "GET", "/readyz")).status != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield proxy.port


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(port: int) -> Seen:
    """What each client saw in each of its scenarios."""
    told = await asyncio.gather(*(_run(command, port) for command in SCRIPTS.values()))
    return dict(zip(SCRIPTS, told, strict=True))


async def _run(command: list[str], port: int) -> dict[str, Any]:
    if shutil.which(command[0]) is None:
        return {"missing": Path(command[0]).name}
    if command[0] == "node" and not (FOLDER / "node_modules" / "openai").is_dir():
        return {"missing": "the openai npm SDK"}
    environment = {
        **os.environ,
        "SEAM_URL": f"http://127.0.0.1:{port}",
        # litellm and LangChain would else ask the network for prices and for traces.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
    }
    script = await asyncio.create_subprocess_exec(
        *command, cwd=FOLDER, env=environment, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(600):
            out, err = await script.communicate()
    finally:
        if script.returncode is None:
            script.kill()
    if script.returncode != 0:
        return {"broke": err.decode()[-2000:]}
    return dict(json.loads(out))


def scenario(seen: Seen, client: str, name: str) -> Any:
    """What a client saw in one scenario, a call's arguments parsed."""
    told = seen[client]
    if "missing" in told:
        pytest.skip(f"no {told['missing']} here: `make clients` makes it or says what it takes")
    assert "broke" not in told, told
    result = told[name]
    if isinstance(result, Mapping):
        assert "failed" not in result, result
        if "calls" in result:
            return {**result, "calls": [[name, json.loads(text)] for name, text in result["calls"]]}
    return result


def reply(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: result[key] for key in ("text", "calls")}


@each_client
@pytest.mark.parametrize("how", ["call", "call_streamed", "call_by_inline_object"])
def test_a_bias_of_plus_20_lets_the_client_see_a_tool_call(seen: Seen, client: str, how: str) -> None:
    result = scenario(seen, client, how)
    assert reply(result) == CALL
    assert result["finish"] == "tool_calls"


@each_client
@pytest.mark.parametrize("how", ["text", "text_streamed"])
def test_a_bias_of_minus_20_lets_the_client_see_text(seen: Seen, client: str, how: str) -> None:
    result = scenario(seen, client, how)
    assert result["text"]
    assert result["calls"] == []


@pytest.mark.parametrize("client", ["openai-python", "langchain", "litellm"])
@pytest.mark.parametrize("how", ["call_async", "call_streamed_async"])
def test_asynchronous_clients_see_the_same_call(seen: Seen, client: str, how: str) -> None:
    assert reply(scenario(seen, client, how)) == CALL


@each_openai_sdk
def test_the_sdks_stream_helper_assembles_the_call(seen: Seen, client: str) -> None:
    result = scenario(seen, client, "call_by_stream_helper")
    assert reply(result) == CALL
    assert result["finish"] == "tool_calls"


@each_openai_sdk
@pytest.mark.parametrize("way", ["call_by_url_prefix", "call_by_header", "call_by_model_suffix"])
def test_the_sdk_picks_a_calibration_without_a_body_field(seen: Seen, client: str, way: str) -> None:
    assert reply(scenario(seen, client, way)) == CALL


@each_openai_sdk
def test_the_reply_shows_the_model_by_the_name_that_the_client_sent(seen: Seen, client: str) -> None:
    assert scenario(seen, client, "call_by_model_suffix")["model"] == "lab@eager"
    assert scenario(seen, client, "call")["model"] == "lab"


@each_openai_sdk
def test_an_explained_reply_says_what_was_done(seen: Seen, client: str) -> None:
    result = scenario(seen, client, "explained")
    assert reply(result) == CALL
    calibration = result["calibration"]
    assert calibration["profile"] == "eager"
    assert calibration["applied"] == "bias=20/processor"
    assert calibration["action"] == "tool_call"
    assert calibration["bias"] == 20
    assert result["headers"]["x-calibration"] == "eager"
    assert result["headers"]["x-calibration-applied"] == "bias=20/processor"
    assert result["headers"]["x-calibration-action"] == "tool_call"
    assert result["headers"]["x-request-id"]


def test_an_explained_stream_ends_with_a_chunk_that_says_what_was_done(seen: Seen) -> None:
    result = scenario(seen, "openai-python", "explained_in_a_stream")
    assert result["choices"] == 1  # the chunk that finishes the reply
    assert result["calibration"]["applied"] == "bias=-20/processor"


def test_a_stream_has_token_counts_only_where_the_client_asks_for_them(seen: Seen) -> None:
    assert scenario(seen, "openai-python", "call_streamed")["usage"] is False
    assert scenario(seen, "openai-python", "call_streamed_with_usage")["usage"] is True


@each_client
def test_an_unknown_name_is_a_bad_request_that_lists_the_names_there_are(seen: Seen, client: str) -> None:
    result = scenario(seen, client, "unknown_name")
    assert result["status"] == 400
    assert "no calibration 'eagre'; valid names: eager, shy, off" in result["message"]
    if client != "litellm":  # which keeps the message only
        assert result["param"] == "calibration"


@each_openai_sdk
def test_the_models_are_the_servers_own(seen: Seen, client: str) -> None:
    assert scenario(seen, client, "models") == ["lab"]


# curl -----------------------------------------------------------------------------------------------------


async def curl(*arguments: str, stdin: bytes = b"") -> bytes:
    """What curl writes."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed here")
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "--max-time", "300", *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate(stdin)
    assert process.returncode == 0, err.decode()
    return out


async def post(port: int, *arguments: str, calibration: Any, **more: Any) -> bytes:
    """A chat completion by curl."""
    body = json.dumps({**REQUEST, **more, "calibration": calibration}).encode()
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    content = ("-H", "Content-Type: application/json", "--data-binary", "@-")
    return await curl(*arguments, *content, url, stdin=body)


def whole(body: bytes) -> dict[str, Any]:
    message = json.loads(body)["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {
        "text": message["content"],
        "calls": [[call["name"], json.loads(call["arguments"])] for call in calls],
    }


async def test_curl_sees_a_call_or_text(port: int) -> None:
    assert whole(await post(port, calibration="eager")) == CALL
    told = whole(await post(port, calibration="shy", max_tokens=8))
    assert told["text"]
    assert told["calls"] == []


async def test_curl_without_buffering_sees_a_whole_stream_of_events(port: int) -> None:
    body = await post(port, "-N", calibration="eager", stream=True)
    answer = Answer(200, [], body)
    assert answer.data[-1] == "[DONE]"
    pieces = [piece for e in answer.events for piece in e["choices"][0]["delta"].get("tool_calls") or ()]
    assert "".join(piece["function"].get("name") or "" for piece in pieces) == "get_weather"
    arguments = "".join(piece["function"].get("arguments") or "" for piece in pieces)
    assert json.loads(arguments) == {"city": "Oslo"}


async def test_curl_offers_compression_and_reads_the_reply(port: int) -> None:
    calibration = {"profile": "eager", "explain": True}
    assert whole(await post(port, "--compressed", calibration=calibration)) == CALL


async def test_curl_sends_a_long_body_after_being_told_to_go_on(port: int) -> None:
    padding = "x" * 1_500_000
    body = await post(port, "-H", "Expect: 100-continue", calibration="off", padding=padding, max_tokens=1)
    assert json.loads(body)["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/version"),
        ("GET", "/health"),
        ("HEAD", "/v1/models"),
        ("HEAD", "/health"),
        ("GET", "/v1/nothing"),
    ],
)
async def test_curl_gets_the_servers_own_answer_on_other_routes(
    port: int, vllm_url: str, method: str, path: str
) -> None:
    shape = ("-I",) if method == "HEAD" else ("-w", " %{http_code} %{content_type}")
    direct, through = [await curl(*shape, base + path) for base in (vllm_url, f"http://127.0.0.1:{port}")]
    assert _lasting(through) == _lasting(direct)


def _lasting(answer: bytes) -> list[bytes]:
    """An answer without what differs from one request to the next."""
    passing = (b"date:", b"x-request-id:")
    lines = [line for line in answer.split(b"\r\n") if not line.lower().startswith(passing)]
    return [re.sub(rb'"(created|id)":("modelperm-[0-9a-f]*"|\d+)', b"", line) for line in lines]


async def test_the_proxys_own_health_is_apart_from_the_servers(port: int) -> None:
    assert json.loads(await curl(f"http://127.0.0.1:{port}/healthz")) == {"status": "ok"}
    assert json.loads(await curl(f"http://127.0.0.1:{port}/readyz"))["ready"] is True
