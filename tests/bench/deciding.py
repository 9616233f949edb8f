"""A scripted vLLM whose margins are written in the questions: `[m -1.2 g 0.3]`.

It knows our processor, lets its entry tokens be found as a real server does, shows raw log-probabilities, and
decides by them: greedily by the gap, at temperature 1 by the entry probability, under the bias it is sent.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Lock, Thread
from typing import Any, Protocol

from calibrators.openers import Ask
from tests.tokenizers.tiny import serving

Json = dict[str, Any]

ENTRY = serving().vocabulary.encode("<tool_call>")[0]
OTHER = 40
_FORCED = {"function": {"name": "get_weather", "arguments": '{"place": "Oslo"}'}}
_WRITTEN = re.compile(r"\[m (-?[\d.]+) g (-?[\d.]+)\]")


def asked(margin: float, gap: float, words: str = "Go on.") -> str:
    """A question that carries its margin and gap."""
    return f"{words} [m {margin:.6f} g {gap:.6f}]"


class Answers(Protocol):
    """What a scripted server is made of."""

    def answer(self, path: str, body: Json) -> tuple[int, Any]:
        """Status and document of one request."""


class Deciding:
    """The server's answers.

    Attributes:
        processor: whether our logits processor is loaded.
        deaf: it is loaded, and does nothing.
        busy: how many requests are refused with 429 before all goes on.
        asked: bodies of the chat requests that carried a margin.
    """

    def __init__(self, *, processor: bool = True, deaf: bool = False, busy: int = 0) -> None:
        self.processor = processor
        self.deaf = deaf
        self.busy = busy
        self.asked: list[Json] = []
        self._lock = Lock()
        self._random = Random(0)
        self._tokenizer = serving()

    def answer(self, path: str, body: Json) -> tuple[int, Any]:
        """Status and document of one request."""
        if path == "/v1/models":
            return 200, {"data": [{"id": "m", "owned_by": "vllm"}]}
        if path == "/version":
            return 200, {"version": "0.32.0"}
        if path != "/v1/chat/completions":
            return 200, self._tokenizer(Ask(path, body))
        arguments = body.get("vllm_xargs") or {}
        if "seam_hello" in arguments and self.processor:
            told = json.dumps({"name": "seam", "version": "1", "runner": "v1"})
            return 400, {"error": {"message": f"seam-processor {told}"}}
        if "structured_outputs" in body:
            forced = {
                "finish_reason": "tool_calls",
                "message": {"tool_calls": [_FORCED]},
                "token_ids": [ENTRY],
            }
            return 200, {"choices": [forced]}
        found = _WRITTEN.search(json.dumps(body["messages"]))
        if not found:
            return 200, _document({"content": "Hello."})
        if "too long" in json.dumps(body["messages"]) and body.get("max_tokens") != 1:
            return 400, {"error": {"message": "the prompt is too long"}}
        with self._lock:
            if self.busy:
                self.busy -= 1
                return 429, {"error": {"message": "too many requests"}}
            self.asked.append(body)
            bias = 0.0 if self.deaf else arguments.get("seam_bias", 0.0)
            return 200, self._decided(body, float(found[1]), float(found[2]), bias)

    def _decided(self, body: Json, margin: float, gap: float, bias: float) -> Json:
        inside = -math.log1p(math.exp(-margin))
        shown = {ENTRY: inside, OTHER: inside - gap}
        banned = str(ENTRY) in (body.get("logit_bias") or {})
        if body.get("temperature") == 0:
            enters = gap + bias > 0
        else:
            enters = self._random.random() < 1 / (1 + math.exp(-margin - bias))
        enters = enters and not banned
        first = ENTRY if enters else OTHER
        others = [{"token": f"token_id:{token}", "logprob": shown[token]} for token in (first, *shown)]
        logprobs = {"content": [{**others[0], "top_logprobs": others}]} if body.get("logprobs") else None
        if body.get("max_tokens") == 1 or not enters:
            return _document({"content": "I can't do that."}, logprobs)
        function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"of": "x"}'}
        call = {"id": "c", "type": "function", "function": function}
        return _document({"content": None, "tool_calls": [call]}, logprobs, "tool_calls")


def _document(message: Json, logprobs: Any = None, finish: str = "stop") -> Json:
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "logprobs": logprobs,
        "finish_reason": finish,
    }
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    return {"id": "c1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


@contextmanager
def running(model: Answers) -> Iterator[str]:
    """Serve it; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def reply(self, body: Json) -> None:
            status, document = model.answer(self.path, body)
            sent = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"of": {"type": "string"}},
            "required": ["of"],
        },
    },
}


def rows(count: int, seed: int = 0, apart: float = 2.0) -> Sequence[Mapping[str, Any]]:
    """Labelled requests, one a conversation, whose margins are `apart` nats apart on average."""
    random = Random(seed)
    made = []
    for number in range(count):
        due = number % 2 == 0
        margin = random.gauss(apart / 2 if due else -apart / 2, 1.0) + 1
        gap = margin + random.random()
        content = asked(margin, gap, f"Question {number}.")
        made.append(
            {
                "id": f"q{number}",
                "source": "odd" if number % 4 < 2 else "even",
                "messages": [{"role": "user", "content": content}],
                "tools": [TOOL],
                "should_call": due,
                "gold": [{"name": "find", "arguments": {"of": "x"}}] if due else [],
            }
        )
    return made
