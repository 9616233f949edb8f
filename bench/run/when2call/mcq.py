"""Four given answers by their log-likelihood, as the server's own chat template writes them.

The prompt is rendered by `/tokenize`, each answer as the assistant's message after it, and `/v1/completions`
gives the log-probabilities of the answer's tokens as part of a prompt. These are the model's own: no bias and
no probe acts on them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.calibrate.asking import Answer, Asking
from bench.decisions.example import Example
from bench.decisions.source import safe_name
from bench.errors import CheckFailed

Json = dict[str, Any]
Ids = list[int]

_PROBES = ("a", "b")


class Refused(Exception):
    """The server refuses a question, or can't show what it takes; its words."""


class Likelihood(NamedTuple):
    """One answer's."""

    logprob: float
    """Sum over its tokens, in nats, without what closes a message."""
    tokens: int
    characters: int
    """Of the answer as the model would write it: what upstream divides by."""


class Choices:
    """A served model that is asked for the likelihood of answers.

    Args:
        fields: of all requests; only those that shape the prompt are taken.
    """

    def __init__(self, server: Asking, model: str, fields: Mapping[str, Any]) -> None:
        self._server = server
        self._model = model
        self._shaping = {name: fields[name] for name in ("chat_template_kwargs",) if name in fields}
        self._closing: Ids = []
        self._offset = 0

    async def prepare(self, example: Example) -> None:
        """See where the template begins and ends a message's text, by two of one letter.

        Raises CheckFailed where the server can't show a prompt's tokens.
        """
        try:
            prompt = await self._rendered(example, None)
            one, two = [await self._rendered(example, {"content": text}) for text in _PROBES]
        except Refused as refused:
            raise CheckFailed(
                f"cannot show a prompt's tokens: {refused}",
                where=str(self._server.client.base_url),
                mend="multiple choice needs vLLM; take --part replies",
            ) from None
        # Not 0 where a template opens a reply with something, an empty thinking block, and leaves it out of
        # earlier messages, or the other way round.
        self._offset = _common(one, two) - len(prompt)
        self._closing = one[len(one) - _common(reversed(one), reversed(two)) :]

    async def likelihoods(self, example: Example, answers: Mapping[str, str]) -> dict[str, Likelihood]:
        """By label each answer's likelihood. Raises Refused."""
        prompt = await self._rendered(example, None)
        rendered = {
            kind: await self._rendered(example, _message(kind, text)) for kind, text in answers.items()
        }
        spans = {kind: self._span(prompt, whole) for kind, whole in rendered.items()}
        for kind, (start, end) in spans.items():
            if start >= end:
                raise Refused(f"the chat template writes nothing for the answer {kind}")
        prompts = [rendered[kind][:end] for kind, (_, end) in spans.items()]
        document = await self._post(
            "/v1/completions", {"prompt": prompts, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        )
        found = {}
        by_index = {choice["index"]: choice for choice in document["choices"]}
        for place, (kind, (start, end)) in enumerate(spans.items()):
            ids = rendered[kind][start:end]
            shown = by_index[place].get("prompt_logprobs")
            if shown is None:
                raise Refused("the server shows no prompt_logprobs")
            # Each position lists the token that stands there, and may list likelier ones beside it.
            logprob = sum(shown[start + n][str(token)]["logprob"] for n, token in enumerate(ids))
            text = await self._text(ids) if kind == "tool_call" else answers[kind]
            found[kind] = Likelihood(logprob, len(ids), len(text))
        return found

    def _span(self, prompt: Ids, whole: Ids) -> tuple[int, int]:
        """Where the answer begins and ends in the rendered conversation. Raises Refused."""
        start = len(prompt) + self._offset
        before = min(start, len(prompt))
        if whole[:before] != prompt[:before]:
            raise Refused("the chat template writes the question otherwise once it is answered")
        return start, len(whole) - _common(reversed(whole), reversed(self._closing))

    async def _rendered(self, example: Example, answer: Json | None) -> Ids:
        """The tokens of the conversation: with an answer, or up to where a reply begins."""
        said = [] if answer is None else [{"role": "assistant", **answer}]
        body = {
            "messages": [*example.request["messages"], *said],
            "add_generation_prompt": answer is None,
            **self._shaping,
        }
        if tools := example.request.get("tools"):
            body["tools"] = tools
        tokens: Ids = (await self._post("/tokenize", body))["tokens"]
        return tokens

    async def _text(self, ids: Ids) -> str:
        return str((await self._post("/detokenize", {"tokens": ids}))["prompt"])

    async def _post(self, path: str, body: Json) -> Json:
        answer: Answer = await self._server.post(
            path, json.dumps({"model": self._model, **body}, ensure_ascii=False)
        )
        if answer.fault is not None:
            raise Refused(answer.fault)
        return answer.document


def _message(kind: str, text: str) -> Json:
    """An answer as an assistant's message: a call is structured, so that the template writes it."""
    if kind != "tool_call":
        return {"content": text}
    call = json.loads(text)
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    function = {"name": safe_name(call["name"]), "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": "call_0", "type": "function", "function": function}]}


def _common(one: Iterable[int], two: Iterable[int]) -> int:
    """How many tokens two sequences begin with alike."""
    count = 0
    for a, b in zip(one, two, strict=False):
        if a != b:
            break
        count += 1
    return count


def chosen(found: Mapping[str, Likelihood], *, normalised: bool) -> str:
    """The likeliest answer: by its log-likelihood, or by that over its characters; the first of equal ones.

    These are the two readings of upstream's harness, `acc` and `acc_norm`.
    """
    return max(
        found, key=lambda kind: found[kind].logprob / (max(1, found[kind].characters) if normalised else 1)
    )


def readable(answers: Mapping[str, str], labels: Sequence[str]) -> str | None:
    """Why a question can't be asked as multiple choice; None where it can."""
    if absent := [label for label in labels if label not in answers]:
        return f"has no answer {absent[0]}"
    try:
        call = json.loads(answers["tool_call"])
        call["name"], call["arguments"]
    except (ValueError, TypeError, KeyError):
        return "its tool_call is no {name, arguments}"
    return None
