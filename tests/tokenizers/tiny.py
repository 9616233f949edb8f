"""A tokenizer in ten lines: the longest known piece first, characters where none is known."""

import re
import string
from collections.abc import Iterable

from tests.tokenizers.served import Served

PROMPT = "<|im_start|>user\n{{ messages[0].content }}<|im_end|><|im_start|>assistant\n"
END = "<|im_end|>"
MARKERS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")


class Pieces:
    """A vocabulary of the given pieces, of ASCII, and of every other character met."""

    def __init__(self, pieces: Iterable[str] = MARKERS) -> None:
        self.pieces = list(dict.fromkeys([*pieces, *string.printable]))
        longest = sorted(pieces, key=len, reverse=True)
        self._pattern = re.compile("|".join([*map(re.escape, longest), "."]), re.DOTALL)

    def encode(self, text: str) -> list[int]:
        return [self.id(piece) for piece in self._pattern.findall(text)]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.pieces[token] for token in ids)

    def id(self, piece: str) -> int:
        if piece not in self.pieces:
            self.pieces.append(piece)
        return self.pieces.index(piece)


def serving(
    call: str = "<tool_call>{{ name }}</tool_call>",
    answer: str = "{{ m.content }}",
    *,
    prompt: str = PROMPT,
    generation: str = "",
    end: str = END,
    pieces: Iterable[str] = MARKERS,
) -> Served:
    """A server whose template writes a call, an answer, and after the prompt the generation prompt."""
    reply = (
        "{% if messages | length > 1 %}{% set m = messages[1] %}"
        "{% if m.tool_calls %}{% set name = m.tool_calls[0].function.name %}"
        "{% set id = m.tool_calls[0].id %}"
        + call
        + "{% else %}"
        + answer
        + "{% endif %}"
        + end
        + "{% endif %}"
    )
    return Served(
        prompt + "{% if add_generation_prompt %}" + generation + "{% endif %}" + reply, Pieces(pieces)
    )
