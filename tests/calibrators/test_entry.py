"""Discovery against small tokenizers written out here: one token per character, but for special ones."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from calibrators.entry import Entry, NoEntry, discover

SPECIALS = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]


class Server:
    """Answers /tokenize and /detokenize with a template and a tokenizer."""

    def __init__(
        self, *, call: str = "<tool_call>{name}</tool_call>", answer: str = "{text}", specials: Any = SPECIALS
    ):
        self.call = call
        self.answer = answer
        self.pieces = [*specials]
        self.pattern = re.compile("|".join([*map(re.escape, specials), "."]), re.DOTALL)

    def ids(self, text: str) -> list[int]:
        found = []
        for piece in self.pattern.findall(text):
            if piece not in self.pieces:
                self.pieces.append(piece)
            found.append(self.pieces.index(piece))
        return found

    def rendered(self, messages: list[dict[str, Any]]) -> str:
        asked, replied = messages
        calls = replied.get("tool_calls")
        if calls:
            text = self.call.replace("{name}", calls[0]["function"]["name"])
        else:
            text = self.answer.replace("{text}", replied["content"])
        return f"<|im_start|>user\n{asked['content']}<|im_end|><|im_start|>assistant\n{text}<|im_end|>"

    def reply(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if path == "/detokenize":
            return {"prompt": "".join(self.pieces[token] for token in body["tokens"])}
        return {"tokens": self.ids(self.rendered(body["messages"]) if "messages" in body else body["prompt"])}


def found(server: Server) -> Entry:
    discovery = discover("m")
    ask = next(discovery)
    while True:
        try:
            ask = discovery.send(server.reply(ask.path, ask.body))
        except StopIteration as stop:
            entry: Entry = stop.value
            return entry


def test_a_dedicated_opener_is_found_with_its_text() -> None:
    server = Server()
    entry = found(server)
    assert [server.pieces[token] for token in entry.tokens] == ["<tool_call>"]
    assert (entry.text, entry.scope) == ("<tool_call>", "everywhere")


def test_the_fingerprint_tells_templates_apart() -> None:
    one, same, other = found(Server()), found(Server()), found(Server(answer="Answer: {text}"))
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != other.fingerprint


def test_a_template_that_drops_calls_has_no_entry() -> None:
    with pytest.raises(NoEntry, match="does not render the probe 'get_weather'"):
        found(Server(call="(a call)"))


def test_a_template_that_the_server_refuses_to_render_says_what_the_server_said() -> None:
    discovery = discover("m")
    next(discovery)
    with pytest.raises(NoEntry, match="no such template"):
        discovery.send({"error": {"message": "no such template"}})
