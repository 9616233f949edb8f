"""`bench entry` in front of a server that tokenizes and answers as vLLM does, with a tiny vocabulary."""

import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bench.cli import main
from calibrators.openers import Ask
from proxy.profiles import Profile
from tests.tokenizers.tiny import serving

Replies = dict[str, Any]


class Model:
    """A server of one model, whose forced reply is the given one."""

    def __init__(self, call: str, forced: Mapping[str, Any]) -> None:
        self.tokenizer = serving(call)
        self.forced = forced

    def reply(self, path: str, body: Mapping[str, Any]) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "tiny", "owned_by": "vllm"}]}
        if path == "/version":
            return {"version": "0.32.0"}
        if path == "/v1/chat/completions":
            return {"choices": [self.forced]} if "structured_outputs" in body else {"choices": []}
        return self.tokenizer(Ask(path, body))


CALL = {"function": {"name": "get_weather", "arguments": '{"place": "Oslo"}'}}
TOOL_CALL_ID = serving().vocabulary.encode("<tool_call>")[0]
PASSES: Replies = {
    "finish_reason": "tool_calls",
    "message": {"tool_calls": [CALL]},
    "token_ids": [TOOL_CALL_ID, 40],
}


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server of the model that the test's parameter is."""
    model: Model = request.param

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({})

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def answer(self, body: Mapping[str, Any]) -> None:
            sent = json.dumps(model.reply(self.path, body)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["entry", *arguments])
    code = ended.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("url", [Model("<tool_call>{{ name }}", PASSES)], indirect=True)
def test_a_verified_entry_is_printed_with_a_block_that_a_profile_takes(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--upstream", url, "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "verified   yes" in shown
    pasted = yaml.safe_load(shown[shown.index("model: tiny") :])
    profile = Profile.model_validate({"name": "pasted", "bias": -1, **pasted})
    assert profile.entry.tokens == (TOOL_CALL_ID,)


@pytest.mark.parametrize("url", [Model("<tool_call>{{ name }}", PASSES)], indirect=True)
def test_json_is_one_document_and_a_second_call_resumes(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = []
    for _ in range(2):
        assert run("--upstream", url, "--out", str(tmp_path), "--json") == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0] == documents[1]
    assert documents[0]["models"][0]["entry"]["opener"] == "<tool_call>"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (Model("(a call)", PASSES), "drops calls"),
        (Model("{{ '{' }}{{ name }}", {**PASSES, "token_ids": [0]}), "began with token 0"),
        (Model("<tool_call>{{ name }}", {**PASSES, "finish_reason": "stop"}), "does not take it for a call"),
    ],
    indirect=["url"],
)
def test_an_entry_that_is_missing_or_wrong_exits_1_with_its_reason(
    url: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--upstream", url, "--out", str(tmp_path), "--json") == 1
    model = json.loads(capsys.readouterr().out)["models"][0]
    assert reason in model["reason"]


@pytest.mark.parametrize("url", [Model("<tool_call>{{ name }}", PASSES)], indirect=True)
def test_a_model_that_the_server_lacks_is_bad_input(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--upstream", url, "--model", "other", "--out", str(tmp_path)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_server_that_does_not_answer_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--upstream", "http://127.0.0.1:9", "--out", str(tmp_path / "run")) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_help_gives_examples() -> None:
    from bench.entry import entry

    assert "Examples" in CliRunner().invoke(entry, ["--help"]).output
