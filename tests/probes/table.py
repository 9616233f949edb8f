"""`python -m tests.probes.table`: what each variant of the probes does with twelve conversations, and why.

Prints the tables of docs/probes.md as Markdown. Each conversation of tests/data/conversations.json goes
through a real proxy in front of a scripted model, once a variant; what is shown is what `explain` tells.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from calibrators import cri, sri
from tests.seam import seam
from tests.upstream import Reply, Upstream, compact

DATA = Path(__file__).parents[1] / "data" / "conversations.json"
VARIANTS: Sequence[tuple[str, str]] = (
    *(("sri", variant) for variant in get_args(sri.Variant)),
    *(("cri", variant) for variant in get_args(cri.Variant)),
)
PARTS: Mapping[str, Sequence[str]] = {
    "header": (sri.HEADER, cri.HEADER, cri.DOUBT),
    "earlier requests": (sri.EARLIER,),
    "current request": (sri.CURRENT,),
    "state": (sri.STATE, sri.NO_STATE, cri.STATE, cri.NO_STATE),
    "latest results": (sri.LITE_STATE,),
    "rule": (sri.RULE, cri.RULE),
}
"""How each part of our messages begins."""


class Conversation(NamedTuple):
    """A recorded conversation and how the model answers it.

    Attributes:
        request: `messages` and the tools that are offered.
        replies: the first reply and, where the recording has one, the second.
        marks: what the caller says of it (X-Case-Marks).
        began: an earlier request of the same case, and its reply.
    """

    name: str
    request: Mapping[str, Any]
    replies: Sequence[Reply]
    marks: str
    began: tuple[Mapping[str, Any], Reply] | None


class Told(NamedTuple):
    """What came of one conversation under one variant."""

    probe: str
    variant: str
    outcome: str
    why: str
    served: str


def conversations() -> list[Conversation]:
    """The recorded conversations."""
    document = json.loads(DATA.read_text("utf-8"))
    return [_conversation(told, document["tools"]) for told in document["conversations"]]


def _conversation(told: Mapping[str, Any], tools: Mapping[str, Any]) -> Conversation:
    offered = tools[told["tools"]]
    request: dict[str, Any] = {"messages": told["messages"], "tools": offered}
    if told.get("legacy"):
        request = {"messages": told["messages"], "functions": [tool["function"] for tool in offered]}
    replies = [_reply(told["first"], told.get("finish"))]
    replies += [_reply(told["second"])] if told["second"] else []
    began = None
    if start := told.get("began"):
        fewer = [tool for tool in offered if tool["function"]["name"] in start["tools"]]
        messages = told["messages"][: start["messages"]]
        began = ({"messages": messages, "tools": fewer}, _reply(start["reply"]))
    return Conversation(told["name"], request, replies, ",".join(told.get("marks", ())), began)


def _reply(message: Mapping[str, Any], finish: str | None = None) -> Reply:
    finish = finish or ("tool_calls" if message.get("tool_calls") else "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return Reply(body=compact({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}))


class Played(NamedTuple):
    """One conversation under one variant: what the client got, and what the model was asked."""

    answer: Mapping[str, Any]
    asked: Sequence[Mapping[str, Any]]


async def play(conversation: Conversation, probe: str, variant: str) -> Played:
    """Play a conversation with a variant on."""
    headers = {"X-Case-Marks": conversation.marks} if conversation.marks else {}
    calibration = {probe: variant, "explain": True}
    start, *_ = conversation.began or (None,)
    script = [*([conversation.began[1]] if conversation.began else []), *conversation.replies]
    with tempfile.TemporaryDirectory() as folder:
        async with Upstream(script) as upstream, seam(Path(folder), upstream.url) as proxy:
            for request in (start, conversation.request):
                if request is not None:
                    answer = await proxy.chat(headers=headers, calibration=calibration, **request)
            return Played(answer.json, [request.json for request in upstream.requests])


def told(played: Played, first: Reply, probe: str, variant: str) -> Told:
    """What `explain` says."""
    document = played.answer["calibration"]
    message, before = played.answer["choices"][0]["message"], _message(first)
    served = "the first reply" if message == before else shown(message)
    if document["probes"]:
        (look,) = document["probes"]
        return Told(probe, variant, look["outcome"], look["why"], served)
    (why,) = document["skipped"].values()
    return Told(probe, variant, "not looked at", why, served)


def _message(reply: Reply) -> Mapping[str, Any]:
    message: Mapping[str, Any] = json.loads(reply.body)["choices"][0]["message"]
    return message


def shown(message: Mapping[str, Any]) -> str:
    """A reply in a cell: its calls, else its text."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    made = [
        f"{call['name']}({', '.join(map(str, json.loads(call['arguments']).values()))})" for call in calls
    ]
    if made:
        return f"`{'; '.join(made)}`"
    text = " ".join(str(message["content"]).split()).replace("|", "\\|").replace("<", "&lt;")
    return f"“{text}”"


def parts_of(text: str) -> list[str]:
    """The parts that a message of ours has, in order."""
    found = []
    for section in text.split("\n\n"):
        (part,) = [name for name, begins in PARTS.items() if section.startswith(tuple(begins))]
        found += [part] if part not in found else []
    return found


async def outcomes() -> Iterable[str]:
    """The table of outcomes: variants of which the same is told share a line."""
    lines = [
        "| conversation | first reply | variants | outcome | why | the client gets |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for conversation in conversations():
        first = conversation.replies[0]
        did = [told(await play(conversation, *each), first, *each) for each in VARIANTS]
        marked = f" (marked `{conversation.marks}`)" if conversation.marks else ""
        head = f"{conversation.name}{marked} | {shown(_message(first))}"
        same: dict[tuple[str, ...], list[str]] = {}
        for row in did:
            same.setdefault((row.probe, row.outcome, row.why, row.served), []).append(row.variant)
        for (probe, *cells), variants in same.items():
            lines.append(f"| {head} | {_listed(probe, variants)} | {' | '.join(cells)} |")
            head = " | "
    return lines


def _listed(probe: str, variants: Sequence[str]) -> str:
    """`SRI, all` or `SRI v1, gate`."""
    every = [variant for owner, variant in VARIANTS if owner == probe]
    return f"{probe.upper()} " + ("all" if variants == every else ", ".join(f"`{v}`" for v in variants))


async def queries() -> Iterable[str]:
    """The table of second queries: what each variant asks with, shown by one conversation."""
    lines = [
        "| variant | conversation | sent again | reply kept | role of ours | its parts | characters |",
        "| --- | --- | ---: | --- | --- | --- | ---: |",
    ]
    halting, calling, *_ = (c for c in conversations() if c.name in _SHOWN)
    for probe, variant in VARIANTS:
        conversation = halting if probe == "sri" else calling
        asked = (await play(conversation, probe, variant)).asked
        if len(asked) == 1:
            lines.append(f"| {probe.upper()} `{variant}` | {conversation.name} | no second query | | | | |")
            continue
        *kept, ours = asked[1]["messages"]
        sent = conversation.request["messages"]
        again = [message for message in kept if message in sent]
        shown = f"{len(again)} of {len(sent)} | {'yes' if len(kept) > len(again) else 'no'} | {ours['role']}"
        parts = ", ".join(parts_of(ours["content"]))
        name = f"{probe.upper()} `{variant}`"
        lines.append(f"| {name} | {conversation.name} | {shown} | {parts} | {len(ours['content']):,} |")
    return lines


_SHOWN = ("files: one of two tasks done", "travel: an id that nobody gave")


async def tables() -> str:
    """Both tables."""
    return "\n".join([*await outcomes(), "", *await queries(), ""])


if __name__ == "__main__":
    print(asyncio.run(tables()), end="")
