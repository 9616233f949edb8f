"""The public cases of tests/cases, run through a real proxy in front of a scripted upstream."""

import asyncio
import copy
import dataclasses
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from calibrators.reply import Choice, Reply
from calibrators.sse import Splitter
from tests import wire
from tests.proxy.commands import run_seam
from tests.seam import Seam, seam, written
from tests.upstream import Reply as Scripted
from tests.upstream import Request, Upstream, compact

KINDS = ("sse", "tool_deltas", "requests", "http", "observe", "seam", "bench")
FOLDER = Path(__file__).parents[1] / "cases"

# Where case and contract disagree the contract wins.
AMENDED: Mapping[tuple[str, str], Mapping[str, Any]] = {
    # The upstream sends text/plain, and contract.md ("upstream errors keep status, body and Retry-After") as
    # well as the case's own `expect` say that the content type is passed on.
    ("http-429-503-passed-on", "date"): {
        "headers": {"retry-after": "Sun, 29 Nov 2026 12:00:00 GMT", "content-type": "text/plain"}
    },
}


@dataclass(slots=True)
class Run:
    """One run of a case."""

    case: str
    name: str
    told: Mapping[str, Any]

    @property
    def config(self) -> Mapping[str, Any]:
        return dict(self.told.get("config", {}))

    @property
    def target(self) -> str:
        return str(self.told["request"]["path"])

    @property
    def check(self) -> Mapping[str, Any]:
        return {**self.told["check"], **AMENDED.get((self.case, self.name), {})}

    @property
    def times(self) -> int:
        return int(self.told.get("sequence") or self.told.get("repeat") or 1)

    def requests(self) -> list[tuple[Mapping[str, str], bytes]]:
        """Headers and body of each request."""
        request = self.told["request"]
        assert request.get("http_version", "1.1") == "1.1"
        body = compact(request["body"]) if "body" in request else b""
        headers = {"Content-Type": "application/json", **request.get("headers", {})} if body else {}
        return [(headers, body.replace(b"{i}", b"%d" % i)) for i in range(self.times)]


@dataclass(slots=True)
class Seen:
    """What a run showed, for its checks."""

    run: Run
    upstream: Upstream
    proxy: Seam
    caplog: pytest.LogCaptureFixture
    answers: list[wire.Answer | None] = field(default_factory=list)
    left_at: float | None = None
    series_after_first: int = 0

    @property
    def answer(self) -> wire.Answer:
        last = self.answers[-1]
        assert last is not None, "the client left before an answer"
        return last

    @property
    def text(self) -> str:
        """The client's body, JSON without spaces."""
        return _tight(self.answer.decoded.decode())

    @property
    def sent(self) -> list[Request]:
        """What reached the upstream."""
        return self.upstream.requests

    async def record(self) -> Mapping[str, Any]:
        """The record of the last request's choice 0."""
        return (await self.proxy.records(len(self.answers)))[-1]

    def read(self) -> Reply:
        """The client's body as our reader reads it."""
        body = self.answer.decoded
        reply = Reply(self.answer.status)
        if not (self.answer.header("content-type") or "").startswith("text/event-stream"):
            reply.add(json.loads(body))
            return reply
        splitter = Splitter()
        for event in [*splitter.feed(body), splitter.flush()]:
            if event is not None and event.data not in (None, b"[DONE]"):
                reply.add(json.loads(event.data or b""))
        return reply

    @property
    def choice(self) -> Choice:
        return self.read().first


def _tight(text: str) -> str:
    return text.replace('": ', '":').replace(', "', ',"')


def load_runs() -> list[Any]:
    """Every run of every case of these kinds that is a request; commands are run by tests/bench."""
    found = []
    for kind in KINDS:
        for case in json.loads((FOLDER / f"{kind}.json").read_text("utf-8")):
            for told in case["runs"]:
                if "request" in told:
                    run = Run(case["id"], told["run"], told)
                    found.append(pytest.param(run, id=f"{case['id']}/{told['run']}"))
    return found


@pytest.mark.parametrize("run", load_runs())
async def test_case(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="seam")
    unknown = set(run.check) - set(CHECKS)
    assert not unknown, f"the runner does not know the checks {unknown}"
    script = [Scripted.of(reply) for reply in run.told["upstream"]]
    async with (
        Upstream(script, repeat_last="repeat" in run.told) as server,
        seam(tmp_path, *_set_up(run, server)) as proxy,
    ):
        seen = Seen(run, server, proxy, caplog)
        await _play(seen)
        for key, value in run.check.items():
            await CHECKS[key](seen, value)


def _set_up(run: Run, server: Upstream) -> tuple[str, Mapping[str, Any], list[Mapping[str, Any]]]:
    """Address, configuration and profile of a run."""
    told = dict(run.config)
    url = str(told.pop("base_url", "http://{upstream}")).replace("{upstream}", f"127.0.0.1:{server.port}")
    profile: dict[str, Any] = {"name": "case"}
    if bias := told.pop("bias", None):
        profile["entry"] = {"tokens": bias["ids"]}
        profile["bias"] = {"value": bias["value"], "apply": "logit_bias"}
    for probe, variant in (("sri", "v1"), ("cri", "retry")):
        if told.pop(probe, False):
            profile[probe] = variant
    config: dict[str, Any] = {}
    if top := told.pop("asks_top_logprobs", None):
        config["reading"] = {"how": "top_logprobs", "top": top}
        profile["entry"] = {"tokens": [151657], "text": "<tool_call>"}
    picked = "off" if told.pop("off", False) else "case"
    assert not told, f"the runner does not know the config {told}"
    return url, {"models": {"m": {"profile": picked}}, **config}, [profile]


async def _play(seen: Seen) -> None:
    """Send the run's requests, one after the other."""
    request = seen.run.told["request"]
    client = dict(seen.run.told.get("client", {}))
    for headers, body in seen.run.requests():
        made = (seen.proxy.port, request["method"], request["path"], headers, body)
        seen.answers.append(await _leave(seen, client, made) if client else await wire.ask(*made))
        if len(seen.answers) == 1:
            seen.series_after_first = _series(await seen.proxy.exposition())


async def _leave(seen: Seen, client: dict[str, Any], made: tuple[Any, ...]) -> wire.Answer | None:
    """Send a request and leave before its end."""
    async with wire.exchange(*made) as exchange:
        if "close_after_events" in client:
            await exchange.head()
            wanted = client.pop("close_after_events")
            while len(exchange.answer.data) < wanted:
                assert await exchange.more()
            answer = exchange.answer
        else:
            await asyncio.sleep(client.pop("close_after_ms") / 1000)
            answer = None
        assert not client, f"the runner does not know the client's {client}"
        seen.left_at = asyncio.get_running_loop().time()
    return answer


def _series(exposition: str) -> int:
    return sum(1 for line in exposition.splitlines() if line and not line.startswith("#"))


# The checks, by their key ---------------------------------------------------------------------

Check = Callable[[Seen, Any], Awaitable[None]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a check under its function's name."""
    CHECKS[function.__name__.removesuffix("_")] = function
    return function


@check
async def status(seen: Seen, want: int) -> None:
    assert seen.answer.status == want
    assert not seen.answer.cut


@check
async def statuses(seen: Seen, want: list[Any]) -> None:
    assert len(seen.answers) == len(want)
    for answer, allowed in zip(seen.answers, want, strict=True):
        assert answer is not None
        got = {answer.status} | ({"cut"} if answer.cut else set())
        options = allowed if isinstance(allowed, list) else [allowed]
        assert got <= {*options, *([answer.status] if "cut" in options and answer.cut else [])}, (
            got,
            allowed,
        )


@check
async def error_json(seen: Seen, want: bool) -> None:
    assert want
    assert seen.answer.error["message"]


@check
async def same_bytes(seen: Seen, want: bool) -> None:
    assert want
    assert seen.answer.body == seen.upstream.last_body


@check
async def decoded_same(seen: Seen, want: bool) -> None:
    assert want
    meant = dataclasses.replace(
        seen.answer, body=seen.upstream.last_body, headers=[("content-encoding", "gzip")]
    )
    assert seen.answer.decoded == meant.decoded


@check
async def encoding_consistent(seen: Seen, want: bool) -> None:
    assert want
    packed = seen.answer.body.startswith(b"\x1f\x8b")
    assert packed == (seen.answer.header("content-encoding") == "gzip")


@check
async def content_length_true(seen: Seen, want: bool) -> None:
    assert want
    assert seen.answer.header("content-length") == str(len(seen.answer.body))


@check
async def headers(seen: Seen, want: Mapping[str, str | None]) -> None:
    for name, value in want.items():
        assert seen.answer.header(name) == value, name


@check
async def content(seen: Seen, want: str) -> None:
    assert seen.answer.text == want


@check
async def events(seen: Seen, want: int) -> None:
    assert len(seen.answer.events) == want


@check
async def done(seen: Seen, want: int) -> None:
    assert seen.answer.data.count("[DONE]") == want


@check
async def has(seen: Seen, want: list[str]) -> None:
    assert [part for part in want if part not in seen.text] == []


@check
async def lacks(seen: Seen, want: list[str]) -> None:
    assert [part for part in want if part in seen.text or part in seen.answer.decoded.decode()] == []


@check
async def class_(seen: Seen, want: str | None) -> None:
    record = await seen.record()
    assert record["action"] == want
    if not record["stream"] and seen.answers[-1] is not None:
        assert seen.answer.header("x-calibration-action") == (want or None)


@check
async def class_in(seen: Seen, want: list[str]) -> None:
    assert (await seen.record())["action"] in want


@check
async def first_body_byte_before_ms(seen: Seen, want: int) -> None:
    # No heartbeat was due: the upstream's own comment has gone out before anything was decided.
    assert want < 1000 * seen.proxy.runtime.settings.config.listen.heartbeat_seconds
    assert seen.answer.body.startswith(b":")
    assert (seen.answer.header("x-calibration-applied") or "").startswith("pending")


@check
async def comment_lines_at_least(seen: Seen, want: int) -> None:
    assert sum(line.startswith(b":") for line in seen.answer.body.splitlines()) >= want


@check
async def class_before(seen: Seen, want: str) -> None:
    (probed,) = (await seen.record())["probes"]
    assert probed["action_before"] == want


@check
async def roles_sent(seen: Seen, want: int) -> None:
    assert seen.text.count('"role":"assistant"') == want


@check
async def finish_reasons(seen: Seen, want: list[str]) -> None:
    assert re.findall(r'"finish_reason":"(\w+)"', seen.text) == want


@check
async def reply_or_record_says_so(seen: Seen, want: bool) -> None:
    assert want
    (probed,) = (await seen.record())["probes"]
    assert probed["outcome"] == "failed"
    assert probed["why"] in (seen.answer.header("x-calibration-applied") or "")


@check
async def second_query_starts_with_client_messages(seen: Seen, want: bool) -> None:
    assert want
    first, second = (request.body.partition(b'"messages":')[2] for request in seen.sent)
    kept = first.partition(b'],"tools"')[0]
    assert second.startswith(kept)


@check
async def second_query_appended_messages(seen: Seen, want: int) -> None:
    assert len(_appended(seen)) == want


@check
async def second_query_lacks(seen: Seen, want: list[str]) -> None:
    assert [part for part in want if part.encode() in seen.sent[1].body] == []


@check
async def appended_message_has(seen: Seen, want: list[str]) -> None:
    (message,) = _appended(seen)
    assert [part for part in want if part not in message["content"]] == []


@check
async def appended_message_lacks(seen: Seen, want: list[str]) -> None:
    (message,) = _appended(seen)
    assert [part for part in want if part in message["content"]] == []


def _appended(seen: Seen) -> list[dict[str, Any]]:
    """The messages of the second query behind those of the first."""
    first, second = (request.json["messages"] for request in seen.sent)
    assert second[: len(first)] == first
    return list(second[len(first) :])


@check
async def outcome(seen: Seen, want: str) -> None:
    record = await seen.record()
    assert record["outcome"] == want
    labels = {"model": "m", "profile": "case"}
    failed = sum(r["outcome"] == "upstream_error" for r in await seen.proxy.records(len(seen.answers)))
    assert seen.proxy.sample("seam_upstream_errors_total", **labels) == failed


@check
async def record_is_final(seen: Seen, want: bool) -> None:
    assert want
    await seen.record()
    await seen.proxy.idle()
    labels = {"route": "chat", "model": "m", "profile": "case"}
    samples = [s for m in seen.proxy.runtime.metrics.registry.collect() for s in m.samples]
    counted = [s for s in samples if s.name == "seam_requests_total" and labels.items() <= s.labels.items()]
    assert sum(s.value for s in counted) == len(seen.answers)
    assert seen.proxy.sample("seam_requests_in_flight") == 0


@check
async def tool_names(seen: Seen, want: list[str]) -> None:
    assert [call.name for call in seen.choice.calls] == want
    assert (await seen.record())["calls"] == want


@check
async def tool_names_in(seen: Seen, want: list[list[str]]) -> None:
    assert [call.name for call in seen.choice.calls] in want
    assert (await seen.record())["calls"] in want


@check
async def tool_args(seen: Seen, want: list[Any]) -> None:
    assert [json.loads(call.arguments) for call in seen.choice.calls] == want


@check
async def tool_ids(seen: Seen, want: list[str]) -> None:
    assert [call.id for call in seen.choice.calls] == want


@check
async def usage(seen: Seen, want: Mapping[str, int]) -> None:
    assert want.items() <= dict(seen.read().usage or {}).items()
    queries = (await seen.record())["queries"]
    assert {key: sum(query[key] for query in queries) for key in want} == want


@check
async def applied_starts(seen: Seen, want: str) -> None:
    applied = seen.answer.header("x-calibration-applied") or ""
    assert applied.startswith(want)
    assert "reason=" in applied
    assert seen.proxy.sample("seam_passthrough_total", reason="refused") == 1


@check
async def upstream_requests(seen: Seen, want: int) -> None:
    assert len(seen.sent) == want


@check
async def upstream_requests_at_most(seen: Seen, want: int) -> None:
    assert 1 <= len(seen.sent) <= want


@check
async def upstream_connections(seen: Seen, want: int) -> None:
    assert seen.upstream.connections == want


@check
async def upstream_path(seen: Seen, want: str) -> None:
    assert [request.target for request in seen.sent] == [want]


@check
async def upstream_same_bytes(seen: Seen, want: bool) -> None:
    assert want
    assert [r.body for r in seen.sent] == [body for _, body in seen.run.requests()]


@check
async def upstream_json(seen: Seen, want: Mapping[str, Any]) -> None:
    for request in seen.sent:
        assert {key: request.json.get(key) for key in want} == want


@check
async def upstream_raw_has(seen: Seen, want: list[str]) -> None:
    assert [part for part in want if part.encode() not in seen.sent[0].body] == []


@check
async def upstream_lacks(seen: Seen, want: list[str]) -> None:
    assert [part for part in want for r in seen.sent if part.encode() in r.body] == []


@check
async def last_upstream_lacks(seen: Seen, want: list[str]) -> None:
    assert [part for part in want if part.encode() in seen.sent[-1].body] == []


@check
async def upstream_logit_bias(seen: Seen, want: Mapping[str, float]) -> None:
    # Keys are JSON strings: a key that is none would not have parsed.
    sent = seen.sent[0].json["logit_bias"]
    assert {key: sent.get(key) for key in want} == want


@check
async def upstream_headers(seen: Seen, want: Mapping[str, str | None]) -> None:
    own = {name.lower(): value for name, value in seen.run.requests()[0][0].items()}
    for name, value in want.items():
        got = seen.sent[0].header(name)
        if value == "{upstream host:port}":
            assert got == f"127.0.0.1:{seen.upstream.port}"
        elif value == "{not the client's}":
            assert got != own[name]
        else:
            assert value is None or not value.startswith("{"), f"the runner does not know {value}"
            assert got == value, name


@check
async def upstream_headers_lack(seen: Seen, want: list[str]) -> None:
    sent = [f"{key}: {value}".lower() for key, value in seen.sent[0].headers]
    assert [line for line in want if line in sent] == []


@check
async def upstream_content_length(seen: Seen, want: str) -> None:
    assert want == "equals the sent body"
    lengths = [value for key, value in seen.sent[0].headers if key.lower() == "content-length"]
    assert lengths == [str(len(seen.sent[0].body))]
    assert seen.sent[0].header("transfer-encoding") is None


@check
async def upstream_closed_within_ms(seen: Seen, want: int) -> None:
    await seen.upstream.until(lambda server: bool(server.left))
    assert seen.left_at is not None
    assert (seen.upstream.left[0] - seen.left_at) * 1000 <= want


@check
async def metrics_has(seen: Seen, want: list[str]) -> None:
    exposition = await seen.proxy.exposition()
    assert [part for part in want if part not in exposition] == []


@check
async def metrics_lack(seen: Seen, want: list[str]) -> None:
    exposition = await seen.proxy.exposition()
    assert [part for part in want if part in exposition] == []


@check
async def metrics_series_growth_at_most(seen: Seen, want: int) -> None:
    assert _series(await seen.proxy.exposition()) - seen.series_after_first <= want


@check
async def log_lacks(seen: Seen, want: list[str]) -> None:
    await seen.record()
    places = {"decisions": seen.proxy.log.read_text(), "program": seen.caplog.text}
    places["metrics"] = await seen.proxy.exposition()
    assert [(place, part) for place, text in places.items() for part in want if part in text] == []


@check
async def check_command_fails_naming(seen: Seen, want: str) -> None:
    script = [Scripted.of(seen.run.told["upstream"][0])]
    async with Upstream(script, repeat_last=True, lists=["m"]) as server:
        folder = seen.proxy.folder / "check"
        folder.mkdir()
        path = written(folder, *_set_up(seen.run, server))
        code, output, _ = await run_seam("check", "--config", str(path))
    assert code == 1
    assert want in output


def test_a_check_that_the_runner_does_not_know_fails_the_run() -> None:
    told = copy.deepcopy(json.loads((FOLDER / "sse.json").read_text("utf-8"))[0]["runs"][0])
    told["check"]["no_such_check"] = True
    assert set(Run("x", "y", told).check) - set(CHECKS) == {"no_such_check"}


def test_amended_runs_still_exist() -> None:
    cases = [case for kind in KINDS for case in json.loads((FOLDER / f"{kind}.json").read_text("utf-8"))]
    known = {(case["id"], run["run"]) for case in cases for run in case["runs"]}
    assert set(AMENDED) <= known
