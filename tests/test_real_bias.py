"""The three ways of applying a bias, and the readings, on a real vLLM server.

Samples are small here, so the agreement with the formula is loose; `bench calibrate --rerun` measures it with
more.
"""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from calibrators.bias import biased
from calibrators.body import Body
from calibrators.margin import Margin, margin_query, read_margin
from tests.seam import Seam
from tests.test_real_server import (
    calibrating,
    chat,
    entry_of,
    post,
    read,
    url_of,
    without,
)
from tests.wire import Answer

pytestmark = pytest.mark.server

SAMPLES = 60


def sampled(**fields: Any) -> dict[str, Any]:
    """A request for one token drawn at temperature 1 from the whole vocabulary."""
    return chat(temperature=1, top_p=1, top_k=0, max_tokens=1, **fields)


async def margin_of(proxy: Seam) -> Margin:
    """What the server shows of this request without a bias."""
    query = margin_query(Body.parse(json.dumps(sampled())), entry_of(proxy)).render()
    margin = read_margin(read(await post(url_of(proxy), query.encode(), "off")).first, entry_of(proxy))
    assert margin.probability is not None
    return margin


async def entries(proxy: Seam, calibration: Any, n: int) -> int:
    """How many of SAMPLES replies open with an entry token."""
    shown = {"logprobs": True, "top_logprobs": 20, "return_tokens_as_token_ids": True}
    body = sampled(n=n, calibration=calibration, **shown)
    replies = await asyncio.gather(*(post(url_of(proxy), body) for _ in range(SAMPLES // n)))
    wanted = {f"token_id:{token}" for token in entry_of(proxy).tokens}
    choices = [choice for answer in replies for choice in read(answer).choices.values()]
    assert len(choices) == SAMPLES
    return sum(choice.logprobs[0]["token"] in wanted for choice in choices)


@pytest.mark.parametrize(("apply", "n"), [("processor", 20), ("resample", 1), ("logit_bias", 20)])
async def test_the_rate_of_calls_follows_the_formula(
    vllm_url: str, tmp_path: Path, apply: str, n: int
) -> None:
    async with calibrating(vllm_url, tmp_path) as proxy:
        margin = await margin_of(proxy)
        assert margin.margin is not None
        # Halfway: the bias that brings the entry probability to a half, or for want of that some restraint.
        b = -margin.margin if apply != "resample" else min(-0.5, -margin.margin)
        entered = await entries(proxy, {"bias": b, "apply": apply}, n)
    expected = biased(margin.probability or 0.0, b)
    spread = math.sqrt(expected * (1 - expected) / SAMPLES)
    assert abs(entered / SAMPLES - expected) <= 4 * spread + 1 / SAMPLES


async def told(proxy: Seam, calibration: Any, **fields: Any) -> Answer:
    return await post(url_of(proxy), chat(max_tokens=4, calibration=calibration, **fields))


@pytest.mark.parametrize("apply", ["processor", "resample", "logit_bias"])
async def test_a_greedy_reply_is_turned_by_each_way(vllm_url: str, tmp_path: Path, apply: str) -> None:
    async with calibrating(vllm_url, tmp_path) as proxy:
        gap = (await margin_of(proxy)).gap
        assert gap is not None
        for step in (-0.2, 0.2):
            b = -gap + step
            if apply == "resample" and b > 0:
                continue  # takes no bias above 0
            answer = await told(proxy, {"bias": b, "apply": apply, "explain": True})
            explained = answer.json["calibration"]
            assert explained["applied"].startswith(f"bias={b:g}/{apply}")
            first = {"logprobs": True, "return_tokens_as_token_ids": True}
            shown = read(await told(proxy, {"bias": b, "apply": apply}, **first)).first
            opened = shown.logprobs[0]["token"] == f"token_id:{entry_of(proxy).tokens[0]}"
            assert opened == (gap + b > 0)


@pytest.mark.parametrize("how", ["auto", "top_logprobs", "prompt"])
async def test_a_reading_shows_the_same_margin_and_nothing_to_the_client(
    vllm_url: str, tmp_path: Path, how: str
) -> None:
    async with calibrating(vllm_url, tmp_path, {"reading": how}) as proxy:
        margin = await margin_of(proxy)
        biased_reply = await told(proxy, {"bias": -0.25})
        (record,) = await proxy.records(1)
    assert record["margin"] == pytest.approx(margin.margin, abs=1e-3)
    assert record["gap"] == pytest.approx(margin.gap, abs=1e-3)
    assert biased_reply.json["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("how", ["top_logprobs", "prompt"])
async def test_a_reading_leaves_the_log_probabilities_of_its_neighbours_alone(
    vllm_url: str, tmp_path: Path, how: str
) -> None:
    """On this runner asking for ids would replace them by one token at -9999 (vllm-facts 4.4)."""
    # Without tools, whose grammar shows what it masks at -9999 too.
    plain = without(chat(), "tools", "parallel_tool_calls")
    neighbour = {**plain, "max_tokens": 24, "ignore_eos": True, "logprobs": True, "top_logprobs": 3}
    async with calibrating(vllm_url, tmp_path, {"reading": how}) as proxy:
        beside = [told(proxy, {"bias": -0.25, "explain": True}) for _ in range(3)]
        shown, *_ = await asyncio.gather(post(url_of(proxy), neighbour, "off"), *beside)
    entries = read(shown).first.logprobs
    assert entries
    for entry in shown.json["choices"][0]["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 3
        # The drawn token is the likeliest one of a greedy reply, and stands in the list as it does outside.
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
        assert all(other["logprob"] > -1000 for other in entry["top_logprobs"])
