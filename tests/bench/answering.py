"""A scripted vLLM of one token a character: it renders chats, says given replies, has given likelihoods.

Run it by `tests.bench.deciding.running`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

Json = dict[str, Any]

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]},
    },
}
CLOSE = "<|end|>\n"


def call(name: str = "find", arguments: str = '{"of": "x"}') -> Json:
    """A reply's message that calls."""
    return {
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


@dataclass
class Answering:
    """The stand-in.

    Attributes:
        says: by the user's question the reply's message, or a text.
        likes: by the rendered answer the log-probability of each of its characters.
        too_long: questions whose prompts it refuses.
        opens: what a reply's prompt opens with that earlier replies are without.
        gone: from which chat request on nobody is there: 503; None: never.
    """

    says: Mapping[str, Json | str] = field(default_factory=dict)
    likes: Mapping[str, float] = field(default_factory=dict)
    too_long: frozenset[str] = frozenset()
    opens: str = ""
    gone: int | None = None
    asked: list[Json] = field(default_factory=list)
    """Bodies of the chat requests that were answered."""
    completed: int = 0
    """How many questions' answers were scored."""
    _lock: Lock = field(default_factory=Lock)

    def answer(self, path: str, body: Json) -> tuple[int, Any]:
        """Status and document of one request."""
        if path == "/v1/models":
            return 200, {"data": [{"id": "m", "owned_by": "script", "max_model_len": 8192}]}
        if path == "/version":
            return 200, {"version": "0.32.0"}
        if path == "/tokenize":
            return 200, {"tokens": [ord(letter) for letter in self._rendered(body)]}
        if path == "/detokenize":
            return 200, {"prompt": "".join(map(chr, body["tokens"]))}
        if path == "/v1/completions":
            return self._completion(body)
        return self._chat(body)

    def _rendered(self, body: Json) -> str:
        said = "".join(f"<|{message['role']}|>\n{_content(message)}{CLOSE}" for message in body["messages"])
        if tools := body.get("tools"):
            said = f"<|tools|>{json.dumps(tools)}{CLOSE}{said}"
        return said + (f"<|assistant|>\n{self.opens}" if body["add_generation_prompt"] else "")

    def _completion(self, body: Json) -> tuple[int, Any]:
        prompts = ["".join(map(chr, ids)) for ids in body["prompt"]]
        if any(question in prompts[0] for question in self.too_long):
            return 400, {"error": {"message": "the prompt is too long", "code": 400}}
        with self._lock:
            self.completed += 1
        choices = []
        # Out of order, as nothing says that they come in it.
        for index, prompt in reversed(list(enumerate(prompts))):
            answer = prompt.rpartition("<|assistant|>\n")[2]
            each = self.likes[answer]
            start = len(prompt) - len(answer)
            shown: list[Any] = [
                {str(ord(letter)): {"logprob": each if place >= start else -50.0}, "0": {"logprob": -0.1}}
                for place, letter in enumerate(prompt)
            ]
            choices.append({"index": index, "text": "x", "prompt_logprobs": [None, *shown[1:]]})
        return 200, {"choices": choices}

    def _chat(self, body: Json) -> tuple[int, Any]:
        question = body["messages"][-1]["content"]
        if question not in {*self.says, *self.too_long}:
            return _completed({"content": "Hello."})  # somebody who wants to know what server this is
        with self._lock:
            if self.gone is not None and len(self.asked) >= self.gone:
                return 503, {"error": {"message": "nobody is here"}}
            self.asked.append(body)
        if question in self.too_long:
            return 400, {"error": {"message": "the prompt is too long", "code": 400}}
        said = self.says[question]
        return _completed({"content": said} if isinstance(said, str) else said)


def _completed(message: Json) -> tuple[int, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return 200, {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


def _content(message: Json) -> str:
    calls = [
        f'<call>{{"name": "{each["function"]["name"]}", "arguments": {each["function"]["arguments"]}}}</call>'
        for each in message.get("tool_calls") or ()
    ]
    return "".join([message.get("content") or "", *calls])
