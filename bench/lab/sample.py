"""What a bias does to two requests, asked through the proxy: the end of `make run`."""

import json
from textwrap import shorten
from typing import Any

import httpx

from bench.errors import CheckFailed
from bench.lab.server import NAME
from calibrators.bias import biased
from calibrators.body import Body
from calibrators.entry import Entry
from calibrators.margin import Margin, margin_query, read_margin
from calibrators.reply import Choice, Reply

# A question that the tool answers, and the same one without what the tool needs: here the model over-calls.
# Both are held-out items of the lab data (bfcl-eval, Apache License 2.0).
QUESTIONS = (
    "Can you check for bus itineraries from Portland, OR to Vancouver, BC for March 7th 2023, "
    "for two passengers?",
    "Can you check for bus itineraries from Portland for March 7th 2023, for two passengers?",
)

_TOOL = {
    "type": "function",
    "function": {
        "name": "Buses_3_FindBus",
        "description": "Searches for bus itineraries between two cities on a specified date and accommodates "
        "a certain number of passengers.",
        "parameters": {
            "type": "object",
            "required": ["from_city", "to_city", "departure_date"],
            "properties": {
                "from_city": {
                    "type": "string",
                    "description": "The city to depart from, in the format of 'City, State', such as "
                    "'Austin, TX'.",
                },
                "to_city": {
                    "type": "string",
                    "description": "The destination city of the trip, in the format of 'City, State', such "
                    "as 'Dallas, TX'.",
                },
                "departure_date": {
                    "type": "string",
                    "description": "The date of departure in the format 'YYYY-MM-DD', such as '2023-04-15'.",
                },
                "num_passengers": {
                    "type": "integer",
                    "description": "The number of passengers for whom tickets are to be booked. Must be a "
                    "positive integer.",
                    "default": 1,
                },
                "category": {
                    "type": "string",
                    "description": "The category of the bus trip based on the number of stops en route.",
                    "enum": ["direct", "one-stop"],
                    "default": "direct",
                },
            },
        },
    },
}
_CHAT = "/v1/chat/completions"
_REPLY_SECONDS = 120.0
_WIDTH = 130


def sample(vllm: str, proxy: str) -> str:
    """Ask each question without a bias and with one that flips exactly one of them; what came, as text."""
    entry = _entry(proxy)
    margins = [_margin(vllm, question, entry) for question in QUESTIONS]
    bias = flipping(*(margin.gap or 0.0 for margin in margins))
    lines: list[str] = []
    for question, margin in zip(QUESTIONS, margins, strict=True):
        lines += ["", question]
        for b in (0.0, bias):
            reply, action = _ask(proxy, question, b)
            p = biased(margin.probability or 0.0, b)
            lines.append(f"  bias {b:<6g} p(call) {p:.3f}  {action or 'no class':<9}  {_said(reply)}")
    return "\n".join(lines)


def flipping(tool_gap: float, other_gap: float) -> float:
    """The bias that changes one of two greedy decisions, in nats.

    Where both questions get the same decision, halfway between the gaps: the one nearer to a call has it, the
    other not. Where the model tells them apart already, half a nat more than the call needs to be held back.
    """
    if (tool_gap > 0) == (other_gap > 0):
        return -round((tool_gap + other_gap) / 2, 2)
    return -round(max(tool_gap, other_gap) + 0.5, 2)


def _request(question: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": NAME, "messages": messages, "tools": [_TOOL], "temperature": 0, "max_tokens": 96}


def _entry(proxy: str) -> Entry:
    """The entry tokens that the proxy found."""
    (upstream,) = _answer(httpx.get(f"{proxy}/seam/api/status", trust_env=False))["upstreams"]
    (model,) = (model for model in upstream["models"] if model["name"] == NAME)
    if model["entry_tokens"] is None:
        raise CheckFailed(f"no entry tokens: {model['no_entry']}", where=NAME, mend="serve another model")
    return Entry(tuple(model["entry_tokens"]), model["entry_text"])


def _margin(vllm: str, question: str, entry: Entry) -> Margin:
    """Read on vLLM itself, which serves nobody else yet, so the exact way can do no harm."""
    query = margin_query(Body.parse(json.dumps(_request(question))), entry).render()
    reply = Reply(200)
    reply.add(_answer(_post(vllm, query)))
    return read_margin(reply.first, entry)


def _ask(proxy: str, question: str, bias: float) -> tuple[Choice, str | None]:
    request = _request(question) | ({"calibration": {"bias": bias}} if bias else {})
    answer = _post(proxy, json.dumps(request))
    reply = Reply(200)
    reply.add(_answer(answer))
    return reply.first, answer.headers.get("x-calibration-action")


def _post(url: str, body: str) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return httpx.post(url + _CHAT, content=body, headers=headers, timeout=_REPLY_SECONDS, trust_env=False)


def _answer(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code != 200:
        raise CheckFailed(answer.text, where=f"{answer.url} ({answer.status_code})", mend="see the logs")
    document: dict[str, Any] = answer.json()
    return document


def _said(choice: Choice) -> str:
    """The reply on one line, its calls as `name(arguments)`."""
    calls = [f"{call.name}({call.arguments})" for call in choice.calls]
    text = " ".join([*calls, choice.content]).split()
    return shorten(" ".join(text), _WIDTH, placeholder="…") or "(nothing)"
