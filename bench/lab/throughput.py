"""What our logits processor costs a vLLM server: tokens/s with a bias in use over without, in paired blocks.

    python -m bench.lab.throughput --url http://127.0.0.1:8000 --pairs 12

Each pair is two blocks of the same requests at the same concurrency, one with a bias on every request and one
without, in an order that alternates; so whatever else the machine does hits both alike. The interval is
Student's t over the logarithms of the pairs' ratios.
"""

import argparse
import asyncio
import json
import math
import statistics
import sys
import time
from typing import Any

import httpx

TOKENS = 48
# Student's t, 97.5 %, by degrees of freedom; beyond the table the normal's 1.96 is near enough.
_T = {4: 2.776, 5: 2.571, 7: 2.365, 9: 2.262, 11: 2.201, 15: 2.131, 19: 2.093, 23: 2.069, 29: 2.045}


def main() -> None:
    """Run from the command line and print the ratio with its interval."""
    parser = argparse.ArgumentParser(prog="python -m bench.lab.throughput", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the vLLM server itself")
    parser.add_argument("--entry", type=int, default=15, help="the entry token's id")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=12)
    options = parser.parse_args()
    try:
        ratios = asyncio.run(measure(options.url, options.entry, options.concurrency, options.pairs))
    except httpx.HTTPError as error:
        print(f"error: {options.url}: {error}; is the server up?", file=sys.stderr)
        sys.exit(3)
    low, high = interval(ratios)
    middle = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"tokens/s with the bias over without, concurrency {options.concurrency}: {middle:.3f}")
    print(f"95 % interval over {len(ratios)} pairs: {low:.3f} to {high:.3f}")
    print("pairs: " + " ".join(f"{ratio:.3f}" for ratio in ratios))


def interval(ratios: list[float]) -> tuple[float, float]:
    """Student's 95 % interval of the geometric mean."""
    logs = [math.log(ratio) for ratio in ratios]
    reach = _T.get(len(logs) - 1, 1.96) * statistics.stdev(logs) / math.sqrt(len(logs))
    middle = statistics.fmean(logs)
    return math.exp(middle - reach), math.exp(middle + reach)


async def measure(url: str, entry: int, concurrency: int, pairs: int) -> list[float]:
    """The ratio of each pair."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        plain = _request(model, None)
        biased = _request(model, {"seam_bias": -1.0, "seam_entry": [entry], "seam_scope": "everywhere"})
        await _block(client, biased, concurrency)  # warm
        ratios = []
        for number in range(pairs):
            first, second = (biased, plain) if number % 2 else (plain, biased)
            one = await _block(client, first, concurrency)
            other = await _block(client, second, concurrency)
            ratios.append(one / other if first is biased else other / one)
    return ratios


def _request(model: str, arguments: dict[str, Any] | None) -> bytes:
    """A reply of fixed length; the bias acts at every position, which is the most that it can cost."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "Count as far as you can."}],
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
    }
    if arguments is not None:
        body["vllm_xargs"] = arguments
    return json.dumps(body).encode()


async def _block(client: httpx.AsyncClient, body: bytes, concurrency: int) -> float:
    """Tokens/s of `concurrency` clients that each ask twice."""

    async def asks() -> None:
        for _ in range(2):
            headers = {"content-type": "application/json"}
            reply = await client.post("/v1/chat/completions", content=body, headers=headers)
            reply.raise_for_status()

    started = time.perf_counter()
    await asyncio.gather(*(asks() for _ in range(concurrency)))
    return 2 * concurrency * TOKENS / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
