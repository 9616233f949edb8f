"""A stand-in for a model that plays given trajectories, and BFCL's own answers to make them from.

It is asked for the reply to a conversation, finds the case by the first thing the user says and the place in
it by counting, and so plays a case again from any point, in any order.
"""

import ast
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from calibrators import cri, sri

Json = dict[str, Any]
Emission = str | list[str]
"""A text, or calls as BFCL writes them: `cd(folder='document')`."""
Trajectory = Sequence[Sequence[Emission]]
"""Emissions by turn."""

DONE = "Done."
ASK = "Which file do you mean?"
REFUSE = "I can't do that with the tools I have here."
MISSING = "I don't have the tool for that here."
CUT = "The file that you asked"
TOO_LONG = "This model's maximum context length is 8192 tokens, and the request has 9001 input tokens."


@dataclass
class Model:
    """The stand-in."""

    plays: Mapping[str, Trajectory]
    """By the first thing the user says."""
    again: Mapping[str, Emission] = field(default_factory=dict)
    """What it says to SRI's message, by the reply that was dropped; without one the same again. To CRI's it
    says `MISSING`."""
    too_long: frozenset[str] = frozenset()
    """Cases whose prompts it refuses."""
    seconds: float = 0.0
    """How long a reply takes."""
    gone: bool = False
    """Whether nobody stands behind it: 503."""
    url: str = ""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """The first thing the user says, and the headers, of every request."""

    def answer(self, body: Json, headers: Mapping[str, str]) -> tuple[int, Json]:
        """Status and body for a request."""
        first = next(each["content"] for each in body["messages"] if each["role"] == "user")
        self.asked.append((first, {name.lower(): value for name, value in headers.items()}))
        time.sleep(self.seconds)
        if self.gone:
            return 503, {"error": {"message": "nobody is here"}}
        if first in self.too_long:
            return 400, {"error": {"message": TOO_LONG, "type": "BadRequestError", "code": 400}}
        messages = list(body["messages"])
        probe = _probe(messages[-1])
        if probe:
            del messages[-1]
            # `no_history` keeps the halted reply.
            if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
                del messages[-1]
        roles = [each["role"] for each in messages]
        turn = roles.count("user") - 1
        step = roles[len(roles) - roles[::-1].index("user") :].count("assistant")
        emission = self.plays[first][turn][step]
        if probe == "cri":
            emission = MISSING
        elif probe == "sri" and isinstance(emission, str):
            emission = self.again.get(emission, emission)
        return 200, _completion(emission, body["tools"])


Stand = TypeVar("Stand", bound=Model)


def _probe(last: Json) -> str | None:
    """The probe whose message comes last, if one does."""
    headers = {"sri": (sri.HEADER, sri.STATE, sri.NO_STATE), "cri": (cri.HEADER,)}
    said = str(last.get("content"))
    if last["role"] in ("tool", "assistant"):
        return None
    return next((probe for probe, begins in headers.items() if said.startswith(begins)), None)


def _completion(emission: Emission, tools: Sequence[Json]) -> Json:
    calls = [] if isinstance(emission, str) else [_call(n, text, tools) for n, text in enumerate(emission)]
    # An empty list beside a text is what some servers send, and what makes upstream's handler lose the text.
    message = {"role": "assistant", "content": emission if not calls else None, "tool_calls": calls}
    finish = "tool_calls" if calls else "length" if emission == CUT else "stop"
    return completion(message, finish)


def completion(message: Json, finish: str, prompt_tokens: int = 1200) -> Json:
    """A document with one choice."""
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 8,
            "total_tokens": prompt_tokens + 8,
        },
    }


def _call(number: int, text: str, tools: Sequence[Json]) -> Json:
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call)
    name = ast.unparse(node.func)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    names = list(schemas[name]["properties"]) if node.args else []
    arguments = {names[n]: ast.literal_eval(value) for n, value in enumerate(node.args)}
    arguments |= {each.arg: ast.literal_eval(each.value) for each in node.keywords if each.arg}
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


@contextmanager
def served(model: Stand) -> Iterator[Stand]:
    """Serve it on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            listed = [{"id": "m", "object": "model", "owned_by": "script", "max_model_len": 8192}]
            self._send(200, {"object": "list", "data": listed})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(*model.answer(body, dict(self.headers.items())))

        def _send(self, status: int, document: Json) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def killed(command: Sequence[str], enough: Callable[[], bool]) -> None:
    """Run `bench` in a process of its own, and kill it without notice once there is enough."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from bench.cli import main; main()", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not enough():
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1)  # the kernel ends upstream's process now that its starter is gone


class Bfcl:
    """BFCL's questions and answers, read from its environment."""

    def __init__(self, site: Path) -> None:
        self._data = site / "bfcl_eval" / "data"

    def first(self, id: str) -> str:
        """The first thing the user of a case says."""
        said = self._row("", id)["question"][0]
        return str(next(each["content"] for each in said if each["role"] == "user"))

    def gold(self, id: str, at_empty_turn: Emission = DONE) -> list[list[Emission]]:
        """The ground truth of a multi-turn case as a trajectory: all calls of a turn at once, then a word."""
        turns = self._row("possible_answer", id)["ground_truth"]
        return [[calls, DONE] if calls else [at_empty_turn] for calls in turns]

    def single(self, id: str) -> list[list[Emission]]:
        """The ground truth of a single-turn case: the first of the values that are right."""
        calls = self._row("possible_answer", id)["ground_truth"]
        texts = [
            f"{name}({', '.join(f'{key}={values[0]!r}' for key, values in arguments.items())})"
            for call in calls
            for name, arguments in call.items()
        ]
        return [[texts]]

    def _row(self, folder: str, id: str) -> Json:
        category = id.rpartition("_")[0]
        file = self._data / folder / f"BFCL_v4_{category}.json"
        lines = map(json.loads, file.read_text("utf-8").splitlines())
        return next(row for row in lines if row["id"] == id)
