"""Faults, each brought about for real, and what client, decision log and metrics show of it.

A fault is a coroutine that gets a world (a `seam serve` of its own in front of a scripted server), does
its harm and says what the client saw. What the log and the metrics show is read from outside afterwards.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from proxy.redis import PAUSE_SECONDS
from tests.proxy.commands import Serving, serving
from tests.redis_server import Server
from tests.seam import TOOLS, chat, eventually, written
from tests.upstream import CHAT, DONE, Reply, Upstream, Wait, chunk, compact, said
from tests.wire import Answer, ask, exchange

FAKETIME = next((str(p) for p in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), "")
"""Debian's libfaketime for programs with threads, which moves the clock that one process sees."""

COUNTED = (
    "seam_requests_total",
    "seam_upstream_errors_total",
    "seam_passthrough_total",
    "seam_decisions_dropped_total",
    "seam_memory_errors_total",
    "seam_config_reloads_total",
)
PROFILE = {"name": "p", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}
SRI = {"name": "s", "sri": True}
TIMEOUTS = {"connect": 5, "first_token": 1.5, "total": 4}


@dataclass(frozen=True)
class Seen:
    """What one fault looked like from the three sides, each in a few words."""

    client: str
    log: str
    metrics: str


@dataclass
class World:
    """One proxy and its surroundings; `config` is merged over the usual one before it starts."""

    folder: Path
    upstream: Upstream
    stack: AsyncExitStack
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    process: Serving | None = None
    before: Mapping[str, float] = field(default_factory=dict)

    @property
    def seam(self) -> Serving:
        """The running proxy."""
        assert self.process is not None
        return self.process

    @property
    def log(self) -> Path:
        """Its decision log."""
        return self.folder / "decisions.jsonl"

    async def start(self) -> None:
        """Start the proxy and note what its metrics say."""
        path = written(self.folder, self.upstream.url, self.config, [PROFILE, SRI])
        self.process = await self.stack.enter_async_context(serving(path, environment=self.environment))
        self.before = await self.counts()

    async def chat(self, **fields: Any) -> Answer:
        """One chat request."""
        return await ask(self.seam.port, "POST", CHAT, {}, compact(chat(**fields)))

    def records(self) -> list[dict[str, Any]]:
        """The whole lines of the decision log."""
        text = self.log.read_text("utf-8") if self.log.is_file() else ""
        return [json.loads(line) for line in text.splitlines()]

    async def counts(self) -> Mapping[str, float]:
        """The counters of COUNTED, summed over models and profiles; gone with the process."""
        if self.seam.process.returncode is not None:
            return {}
        text = (await ask(self.seam.port, "GET", "/metrics")).body.decode()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in COUNTED:
                    kept = [v for k, v in sample.labels.items() if k in ("status", "reason", "outcome")]
                    name = sample.name.removeprefix("seam_").removesuffix("_total")
                    key = " ".join([name, *kept])
                    found[key] = found.get(key, 0) + sample.value
        return found


Fault = Callable[[World], Awaitable[str]]
FAULTS: dict[str, tuple[Fault, tuple[Reply, ...]]] = {}


def fault(name: str, *replies: Reply) -> Callable[[Fault], Fault]:
    """Register a fault under the words that the table names it by, with the server's replies."""

    def register(function: Fault) -> Fault:
        FAULTS[name] = function, replies
        return function

    return register


async def look(name: str, folder: Path) -> Seen:
    """Bring a fault about in a world of its own and say what was seen."""
    function, replies = FAULTS[name]
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(Upstream(replies, lists=["m"]))
        world = World(folder, upstream, stack, {"upstreams": {"default": {"timeouts": TIMEOUTS}}})
        client = await function(world)
        if world.seam.process.returncode is None:
            after = await world.counts()
            world.seam.signal(signal.SIGTERM)
            assert await world.seam.exit_code() == 0
        else:
            after = {}
        assert "Traceback" not in world.seam.log, world.seam.log
        moved = {key: after[key] - world.before.get(key, 0) for key in after}
        shown = ", ".join(f"{key}: {value:g}" for key, value in sorted(moved.items()) if value)
        return Seen(client, _log(world.records()), shown or "-")


def _log(records: list[dict[str, Any]]) -> str:
    """The records, those that are alike together."""
    alike: dict[str, int] = {}
    for record in records:
        words = f"{record['outcome']} {record['status']} {record['action'] or 'no class'}"
        alike[words] = alike.get(words, 0) + 1
    return ", ".join(f"{count} x {words}" for words, count in sorted(alike.items())) or "nothing"


def told(answer: Answer) -> str:
    """An answer in a few words: status, error code, whether it broke off."""
    words = [str(answer.status)]
    if answer.status >= 400:
        error = answer.json["error"]
        words.append(str(error.get("code") or error["message"]))
    elif (answer.header("content-type") or "").startswith("text/event-stream"):
        last = answer.events[-1] if answer.events else {}
        words.append("stream")
        if "error" in last:
            words.append(f"ends in an error event ({last['error']['code']})")
        if answer.cut:
            words.append("and is cut")
    if after := answer.header("retry-after"):
        words.append(f"Retry-After {after}")
    return " ".join(words)


# The server ------------------------------------------------------------------------------------


@fault("server down")
async def _(world: World) -> str:
    world.config["upstreams"]["default"]["url"] = "http://127.0.0.1:9"
    await world.start()
    return told(await world.chat())


@fault("server slow to the first token", Reply(delay=30, body=said("Late.").body))
async def _(world: World) -> str:
    await world.start()
    return told(await world.chat(stream=True))


@fault("server hangs in the middle of a stream", Reply(writes=(chunk(content="Half a"),), end="hang"))
async def _(world: World) -> str:
    await world.start()
    return told(await world.chat(stream=True))


@fault("server resets in the middle of a stream", Reply(writes=(chunk(content="Half a"),), end="reset"))
async def _(world: World) -> str:
    await world.start()
    return told(await world.chat(stream=True))


@fault(
    "server answers 429 with Retry-After",
    Reply(429, {"Retry-After": "7"}, compact({"error": {"message": "slow down", "code": "rate_limit"}})),
)
async def _(world: World) -> str:
    await world.start()
    return told(await world.chat())


@fault("server answers 503", Reply(503, body=compact({"error": {"message": "full", "code": "overloaded"}})))
async def _(world: World) -> str:
    await world.start()
    return told(await world.chat())


@fault("server answers no HTTP", *[Reply(raw_then_reset=b"\x00\x01 garbage\r\n\r\n")] * 2)
async def _(world: World) -> str:
    await world.start()
    return told(await world.chat())


@fault("server answers 200 with a broken body", Reply(body=b'{"choices": [{"mess'))
async def _(world: World) -> str:
    await world.start()
    answer = await world.chat()
    assert answer.body == b'{"choices": [{"mess', "the server's bytes are the client's"
    return told(answer) + ", the server's bytes"


@fault("server sends events that are no JSON", Reply(writes=(b"data: {nonsense\n\n", chunk("stop"), DONE)))
async def _(world: World) -> str:
    await world.start()
    answer = await world.chat(stream=True)
    assert answer.body.startswith(b"data: {nonsense\n\n")
    assert not answer.cut
    return f"{answer.status} stream, the server's bytes"


@fault("server restarted in between", said("One."), said("Two."))
async def _(world: World) -> str:
    await world.start()
    first = await world.chat()
    port = world.upstream.port
    await world.upstream.__aexit__(None, None, None)
    down = await world.chat()
    world.upstream.port = port
    await world.upstream.__aenter__()
    return ", ".join(map(told, (first, down, await world.chat())))


@fault(
    "server restarted with another model",
    Reply(404, body=compact({"error": {"message": "The model `m` does not exist.", "code": 404}})),
)
async def _(world: World) -> str:
    await world.start()
    answer = await world.chat()
    return f"{answer.status} in the server's words: {answer.json['error']['message']}"


# Beside the server -----------------------------------------------------------------------------


def halt() -> Reply:
    """A reply at which SRI acts: tools were offered and the turn ends without a call."""
    return said("I have done what I could.")


@fault("Redis down in between", *[halt(), said("I did nothing.")] * 3)
async def _(world: World) -> str:
    redis = Server(world.folder)
    world.stack.callback(redis.stop)
    redis.start()
    world.config |= {"state": redis.url, "models": {"m": {"profile": "s"}}}
    await world.start()

    async def turn(words: str) -> str:
        answer = await world.chat(messages=[{"role": "user", "content": words}], tools=TOOLS)
        return f"{told(answer)} {answer.header('x-calibration-applied')}"

    seen = [await turn("One.")]
    redis.stop()
    seen.append(await turn("Two."))
    redis.start()
    await asyncio.sleep(PAUSE_SECONDS + 0.5)  # for so long the proxy leaves a Redis that failed alone
    seen.append(await turn("Three."))
    assert redis.say("DBSIZE") != b":0\r\n", "cases are kept in Redis again"
    return ", ".join(seen)


@fault("disk full for the decision log", *[said("Hello.")] * 3)
async def _(world: World) -> str:
    # Writing to this device fails as on a full disk.
    world.config["decisions"] = {"path": "/dev/full"}
    await world.start()
    answers = {told(await world.chat()) for _ in range(3)}
    await world.seam.logged("decision log /dev/full: No space left on device; records are dropped")
    while (await world.counts()).get("decisions_dropped", 0) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert world.seam.log.count("No space left") == 1, "once a fault, not once a record"
    return f"3 x {' '.join(answers)}"


@fault("profile file broken during a reload", said("Hello."))
async def _(world: World) -> str:
    world.config["models"] = {"m": {"profile": "p"}}
    await world.start()
    broken = world.folder / "p.yaml"
    broken.write_text("name: p\nbais: 1\n")
    broken.replace(world.folder / "profiles" / "p.yaml")  # in one step, which is one reload
    await world.seam.logged("no such key")
    answer = await world.chat(tools=TOOLS)
    assert world.upstream.requests[0].json["logit_bias"] == {"7": -1.5}, "the old profile still applies"
    return told(answer) + f", {answer.header('x-calibration-applied')}"


@fault("clock set back an hour", said("One."), said("Two."))
async def _(world: World) -> str:
    clock = world.folder / "clock"
    clock.write_text("+0")
    world.environment |= {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # as a clock that is set
        "FAKETIME_NO_CACHE": "1",
    }
    await world.start()
    first = told(await world.chat())
    await eventually(lambda: len(world.records()) == 1)
    clock.write_text("-1h")
    second = told(await world.chat())
    await eventually(lambda: len(world.records()) == 2)
    before, after = world.records()
    assert after["time"] < before["time"], (before["time"], after["time"])
    assert all(value >= 0 for record in (before, after) for value in record["ms"].values())
    return f"{first}, {second}"


# The process -----------------------------------------------------------------------------------

STREAMS = 20
SLOW = Reply(writes=(chunk(content="Hel"), Wait(2), chunk(content="lo."), chunk("stop"), DONE))
ENDLESS = Reply(writes=(chunk(content="Hel"), Wait(600)))


@asynccontextmanager
async def streams(world: World) -> AsyncIterator[list[Any]]:
    """STREAMS streams, all begun."""
    async with AsyncExitStack() as stack:
        body = compact(chat(stream=True))
        opened = [
            await stack.enter_async_context(exchange(world.seam.port, "POST", CHAT, {}, body))
            for _ in range(STREAMS)
        ]
        for stream in opened:
            await stream.head()
            await stream.until(b"Hel")
        yield opened


@fault("SIGTERM under load", *[SLOW] * STREAMS)
async def _(world: World) -> str:
    await world.start()
    async with streams(world) as opened:
        world.seam.signal(signal.SIGTERM)
        answers = [await stream.rest() for stream in opened]
        assert await world.seam.exit_code() == 0
    whole = sum(answer.text == "Hello." and not answer.cut for answer in answers)
    return f"{whole} of {STREAMS} streams whole"


@fault("SIGKILL under load, then started again", *[said("Before.")] * 5, *[ENDLESS] * STREAMS, said("After."))
async def _(world: World) -> str:
    await world.start()
    for _ in range(5):
        await world.chat()
    await eventually(lambda: len(world.records()) == 5)
    async with streams(world) as opened:
        world.seam.signal(signal.SIGKILL)
        answers = [await stream.rest() for stream in opened]
        await world.seam.exit_code()
    assert all(answer.cut for answer in answers)
    await world.start()
    after = await world.chat()
    await eventually(lambda: len(world.records()) >= 6)
    return f"{STREAMS} streams cut; after the start {told(after)}"


@fault("client leaves in the middle of a stream", Reply(writes=(chunk(content="x"), Wait(60))), said("Hi."))
async def _(world: World) -> str:
    await world.start()
    async with exchange(world.seam.port, "POST", CHAT, {}, compact(chat(stream=True))) as stream:
        await stream.head()
        await stream.until(b'"x"')
    await world.upstream.until(lambda server: bool(server.left))
    await eventually(lambda: len(world.records()) == 1)
    return "gone; the server's work ends at once; the next one: " + told(await world.chat())
