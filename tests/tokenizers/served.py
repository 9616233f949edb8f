"""A stand-in for vLLM's /tokenize and /detokenize: a chat template and a tokenizer, without a model.

It renders as transformers does (the same sandbox, globals and filters) and hands messages to the template as
vLLM 0.32 does: arguments as a dict, no null content, reasoning under both of its names.
"""

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any, Protocol

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from calibrators.openers import Ask

_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "


class Vocabulary(Protocol):
    """A tokenizer, special tokens written as text."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...


class Served:
    """Answers what a generator asks, as the server would; errors as error bodies."""

    def __init__(self, template: str, vocabulary: Vocabulary, **special: str) -> None:
        self.vocabulary = vocabulary
        self._template = _environment().from_string(template)
        self._special = special
        self.asked = 0
        self.asked_model = False

    def __call__(self, ask: Ask) -> Mapping[str, Any]:
        self.asked += 1
        self.asked_model |= ask.path == "/v1/chat/completions"
        try:
            if ask.path == "/detokenize":
                return {"prompt": self.vocabulary.decode(ask.body["tokens"])}
            if ask.path == "/tokenize":
                text = ask.body["prompt"] if "prompt" in ask.body else self.rendered(**ask.body)
                return {"tokens": self.vocabulary.encode(text)}
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            return {"error": {"message": str(error), "code": 400}}
        return {"detail": "Not Found"}

    def rendered(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Any = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] = {},
        **_: Any,
    ) -> str:
        given = [_as_vllm_hands(message) for message in messages]
        if continue_final_message:
            given[-1]["content"] += _CONTINUED
        text = self._template.render(
            messages=given,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **self._special,
            **chat_template_kwargs,
        )
        if continue_final_message:
            if _CONTINUED.strip() not in text:
                raise ValueError("continue_final_message is set but the final message is not in the chat")
            text = text[: text.rindex(_CONTINUED.strip())]
        return text


def _as_vllm_hands(message: Mapping[str, Any]) -> dict[str, Any]:
    handed = deepcopy(dict(message))
    handed["content"] = handed.get("content") or ""
    if "reasoning" in handed:
        handed["reasoning_content"] = handed["reasoning"]
    for call in handed.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return handed


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


class _Generation(jinja2.ext.Extension):
    """The `{% generation %}` block of transformers, which marks the assistant's tokens: here its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja's own form)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)
