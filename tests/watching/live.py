"""A real Prometheus with `deploy/prometheus`, scraping a real proxy under mixed traffic.

Everything that dashboards and rules show is made to happen: calls, asks, refusals, cut replies, delayed and
repeated calls, probes that mend and that fail, bias flips both ways, drawing again, errors of the upstream
and of Redis, passthrough, reloads that are taken and refused, records that can't be written, and a mix of
classes that moves away from its reference.
"""

import asyncio
import json
import math
import re
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import yaml

from tests.proxy.commands import Serving, serving
from tests.seam import TOOLS, chat, written
from tests.upstream import CHAT, DONE, Reply, Upstream, chunk, compact, said
from tests.watching.names import PROMETHEUS, Query, panel_queries, rule_queries
from tests.wire import ask

T = TypeVar("T")
PATIENCE = 120.0
"""Seconds until which something has to have happened, on the slowest machine."""
NOBODY = "http://127.0.0.1:9"
"""Where nothing listens."""

STRICT = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -0.7, "apply": "processor"}}
PROFILES = (
    STRICT,
    {"name": "eager", "entry": {"tokens": [7]}, "bias": {"value": 1.4, "apply": "processor"}},
    {"name": "again", "entry": {"tokens": [7]}, "bias": {"value": -20, "apply": "resample"}},
    {"name": "blind", "entry": {"tokens": [7]}, "bias": {"value": -1, "apply": "resample"}},
    {"name": "checked", "sri": True, "cri": True},
)
CONFIG = {
    "upstreams": {"gone": {"url": NOBODY, "kind": "openai"}},
    "models": {"m": {"profile": "strict", "sampling": {"temperature": 1.0}}, "g": {"upstream": "gone"}},
    "reading": "top_logprobs",
    "drift": {"window": 40, "minimum": 20},
    "state": {"store": "redis://127.0.0.1:9/0"},
}
PICKED = {"model": ".*", "profile": ".*", "__rate_interval": "5m"}
"""What the dashboard's variables stand for."""


class Scene(NamedTuple):
    """One request and what the upstream answers to the queries made for it."""

    fields: Mapping[str, Any]
    replies: Sequence[Reply]
    calibration: str | None = None


def drawn(p: float, text: str | None, *, finish: str = "stop") -> Reply:
    """A reply whose first token opens a call with probability p: a call where there is no text."""
    token = 1 if text else 7
    listed = [{"token": f"token_id:{t}", "logprob": math.log(q)} for t, q in ((7, p), (1, 1 - p))]
    own = next(item for item in listed if item["token"] == f"token_id:{token}")
    document = json.loads((said(text) if text else called("finish")).body)
    choice = {**document["choices"][0], "logprobs": {"content": [{**own, "top_logprobs": listed}]}}
    choice["finish_reason"] = finish if text else "tool_calls"
    return Reply(body=compact({**document, "choices": [choice]}))


def called(name: str) -> Reply:
    """A whole reply with one call."""
    return said(None, tool_calls=[_call(name)])


def _call(name: str) -> dict[str, Any]:
    return {"id": "a", "index": 0, "type": "function", "function": {"name": name, "arguments": "{}"}}


def user(number: int) -> list[dict[str, Any]]:
    """A conversation of its own."""
    return [{"role": "user", "content": f"Request {number}."}]


def usual(calls: int, of: int) -> Iterator[Scene]:
    """So many requests under the default profile, of which the first ones are answered by calls."""
    for number in range(of):
        call = number % of < calls
        reply = drawn(0.8, None) if call else drawn(0.2, "I can't do that.")
        yield Scene({"messages": user(number), "tools": TOOLS}, [reply])


def mixed() -> Iterator[Scene]:
    """One of each kind."""
    offered: dict[str, Any] = {"tools": TOOLS}
    greedy = {**offered, "temperature": 0}
    before = [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "tool_calls": [_call("finish")]},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]
    words, call = chunk(content="I see."), chunk(tool_calls=[_call("finish")])
    broken = Reply(500, body=b"{}")
    yield Scene(offered, [drawn(0.3, "Which file do you mean?")])
    yield Scene(offered, [drawn(0.4, "Done. I have moved the file.")])
    yield Scene({}, [said("It is noon.")])
    yield Scene({**offered, "max_tokens": 2}, [drawn(0.2, "It is", finish="length")])
    yield Scene({**offered, "messages": before}, [drawn(0.7, None)])
    yield Scene({**offered, "stream": True}, [Reply(writes=(words, call, chunk("tool_calls"), DONE))])
    yield Scene(greedy, [drawn(0.6, "It is noon.")])  # to text: the gap is log 1.5
    yield Scene(greedy, [drawn(0.3, None)], "eager")  # to a call: minus log 2.3
    yield Scene(offered, [drawn(0.9, None), drawn(0.1, "It is noon.")], "again")
    yield Scene(offered, [said("It is noon.")], "blind")  # the upstream shows no log-probabilities
    yield Scene(offered, [said("All done."), called("finish")], "checked")
    yield Scene(offered, [said("All done."), broken], "checked")
    yield Scene(offered, [called("nobody"), said("Which tool do you mean?")], "checked")
    yield Scene(offered, [broken])
    yield Scene(offered, [Reply(503, body=b"{}")])
    yield Scene({**offered, "model": "g"}, [])


FIRST = (*usual(48, 60), *mixed())
"""Before the reference is pinned: mostly calls."""
SECOND = (*usual(48, 240), *mixed())
"""After it: mostly refusals."""


class Answered(NamedTuple):
    """A query and what Prometheus returned for it.

    Attributes:
        values: the newest number of each series, by its labels.
    """

    query: Query
    values: Mapping[str, float]


@dataclass(slots=True)
class Watched:
    """A proxy, the Prometheus that scrapes it, and how many requests the proxy has been sent."""

    proxy: Serving
    folder: Path
    http: httpx.AsyncClient
    began: float
    sent: int = 0

    async def play(self, scenes: Sequence[Scene]) -> None:
        """Send each scene's request, one after the other, and wait until all are counted in Prometheus."""
        for fields, _, calibration in scenes:
            headers = {"X-Calibration": calibration} if calibration else {}
            await ask(self.proxy.port, "POST", CHAT, headers, compact(chat(**fields)))
        await ask(self.proxy.port, "GET", "/v1/models")
        self.sent += len(scenes) + 1
        await self.reaches("sum(seam_requests_total)", self.sent)

    async def reload(self, profile: Mapping[str, Any] | str, outcome: str) -> None:
        """Change a profile's file, and wait until Prometheus has seen what came of it."""
        counted = f'sum(seam_config_reloads_total{{outcome="{outcome}"}})'
        before = sum((await self.newest(counted)).values())
        text = profile if isinstance(profile, str) else yaml.safe_dump(dict(profile))
        (self.folder / "profiles" / "strict.yaml").write_text(text)
        self.proxy.signal(signal.SIGHUP)
        await self.reaches(counted, before + 1)

    async def reaches(self, expr: str, least: float) -> None:
        """Wait until a query's sum is so much."""
        await _until(lambda: self.newest(expr), lambda values: sum(values.values()) >= least)

    async def newest(self, expr: str) -> dict[str, float]:
        """The last number that each series of a query has had since the start."""
        now = time.time()
        asked = {"query": expr, "start": self.began, "end": now, "step": max(1.0, (now - self.began) / 1000)}
        reply = await self.http.post("/api/v1/query_range", data=asked)
        assert reply.status_code == 200, f"{expr}: {reply.text}"
        found = {}
        for series in reply.json()["data"]["result"]:
            numbers = [float(value) for _, value in series["values"]]
            if known := [number for number in numbers if not math.isnan(number)]:
                found[_labels(series["metric"])] = known[-1]
        return found

    async def answered(self, queries: Sequence[Query]) -> Sequence[Answered]:
        """What Prometheus has for each query: as soon as it has something for all, or when patience ends."""
        values: dict[str, Mapping[str, float]] = {}

        async def missing() -> Sequence[str]:
            for expr in {filled(query.expr) for query in queries} - values.keys():
                if found := await self.newest(expr):
                    values[expr] = found
            return [query.where for query in queries if filled(query.expr) not in values]

        with suppress(TimeoutError):
            await _until(missing, lambda names: not names)
        return [Answered(query, values.get(filled(query.expr), {})) for query in queries]

    async def rules(self) -> list[dict[str, Any]]:
        """Every rule as Prometheus runs it: its name, type, health, and of an alert the state."""
        reply = await self.http.get("/api/v1/rules")
        assert reply.status_code == 200, reply.text
        return [rule for group in reply.json()["data"]["groups"] for rule in group["rules"]]

    async def label_values(self, metric: str, label: str) -> list[str]:
        """The values that a label of a metric has had."""
        reply = await self.http.get(f"/api/v1/label/{label}/values", params={"match[]": metric})
        assert reply.status_code == 200, reply.text
        return [str(value) for value in reply.json()["data"]]


async def _until(look: Callable[[], Awaitable[T]], enough: Callable[[T], bool]) -> T:
    """Look until it is enough, and return what was seen."""
    async with asyncio.timeout(PATIENCE):
        while not enough(seen := await look()):  # noqa: ASYNC110  # it happens in another process
            await asyncio.sleep(0.2)
        return seen


def _labels(metric: Mapping[str, str]) -> str:
    named = {key: value for key, value in metric.items() if key not in ("__name__", "job", "instance")}
    return ", ".join(f"{key}={value}" for key, value in sorted(named.items())) or "all"


def filled(expr: str) -> str:
    """A panel's query with its variables replaced, as Grafana does it.

    Raises:
        KeyError: a variable that the dashboard does not have.
    """
    return re.sub(r"\$(\w+)", lambda found: PICKED[found[1]], expr)


@asynccontextmanager
async def watched(folder: Path, workers: int = 1) -> AsyncIterator[Watched]:
    """Both processes under both rounds of traffic, with a reload that is taken and one that is refused."""
    replies = [reply for scene in (*FIRST, *SECOND) for reply in scene.replies]
    lost = {"decisions": {"path": str(folder / "none" / "decisions.jsonl")}, "listen": {"workers": workers}}
    async with Upstream(replies, lists=["m"]) as upstream:
        config = written(folder, upstream.url, {**CONFIG, **lost}, PROFILES)
        began = time.time()
        async with serving(config) as proxy, _prometheus(folder, proxy.port) as http:
            both = Watched(proxy, folder, http, began)
            await both.play(FIRST)
            await both.reload("bias: {", "refused")
            await both.reload({**STRICT, "bias": {"value": -0.8, "apply": "processor"}}, "done")
            await both.play(SECOND)
            yield both


@asynccontextmanager
async def _prometheus(folder: Path, target: int) -> AsyncIterator[httpx.AsyncClient]:
    document = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
    document["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    document["rule_files"] = [str(PROMETHEUS / name) for name in document["rule_files"]]
    (job,) = document["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(document))
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        "--web.listen-address=127.0.0.1:0",
        stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE,
    )  # fmt: skip
    running = Serving(process)
    reading = asyncio.create_task(running.read_log())
    try:
        await running.logged('msg="Listening on"', PATIENCE)
        found = re.search(r'msg="Listening on" address=127\.0\.0\.1:(\d+)', running.log)
        assert found is not None, running.log
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{found[1]}", timeout=PATIENCE) as http:
            await _until(lambda: http.get("/-/ready"), lambda reply: reply.status_code == 200)
            yield http
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def evaluated(folder: Path, workers: int) -> Sequence[Answered]:
    """Every query of every panel and rule, and what Prometheus returned."""
    async with watched(folder, workers) as both:
        return await both.answered([*panel_queries(), *rule_queries()])
