"""Likelihoods of given answers on a real vLLM server."""

import asyncio

import httpx
import pytest

from bench.calibrate.asking import asking
from bench.decisions.example import Example
from bench.run.when2call.mcq import Choices, Likelihood

pytestmark = pytest.mark.server

QUESTION = {"messages": [{"role": "user", "content": "Say hello."}]}
CALL = '{"name": "get_weather", "arguments": {"place": "Oslo"}}'


def test_what_the_model_said_has_the_likelihood_that_it_had_while_it_was_said(vllm_url: str) -> None:
    model = httpx.get(vllm_url + "/v1/models").json()["data"][0]["id"]
    body = {"model": model, **QUESTION, "max_tokens": 24, "temperature": 0, "logprobs": True}
    choice = httpx.post(vllm_url + "/v1/chat/completions", json=body, timeout=300).json()["choices"][0]
    said = [token for token in choice["logprobs"]["content"] if token["token"] != "<|im_end|>"]

    async def found() -> dict[str, Likelihood]:
        async with asking(vllm_url, None, 1) as server:
            choices = Choices(server, model, {})
            example = Example("a", "s", "a", should_call=False, request=QUESTION)
            await choices.prepare(example)
            return await choices.likelihoods(
                example, {"direct": choice["message"]["content"], "tool_call": CALL}
            )

    told = asyncio.run(found())
    assert told["direct"].logprob == pytest.approx(sum(token["logprob"] for token in said), abs=0.05)
    assert told["direct"].tokens == len(said)
    # The call is scored as the template writes it.
    assert told["tool_call"].characters == len(f"<tool_call>\n{CALL}\n</tool_call>")
