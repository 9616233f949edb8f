"""`seam serve --workers`: several real processes that are one server to clients, Prometheus and operators."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.proxy.commands import Serving, run_seam, serving
from tests.proxy.test_probes import ASKED, GOES_ON, PROFILES, TOOLS, called, halt
from tests.redis_server import Server, needs_redis
from tests.seam import chat, eventually, seam, written
from tests.upstream import CHAT, DONE, Reply, Upstream, Wait, chunk, compact, said
from tests.wire import Exchange, ask, exchange

pytestmark = pytest.mark.whole

PATIENCE = 60.0
BODY = compact(chat(stream=True))
CALL = said(None, tool_calls=[{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}])


def slow(seconds: float) -> Reply:
    return Reply(writes=(chunk(content="Hel"), Wait(seconds), chunk(content="lo."), chunk("stop"), DONE))


@asynccontextmanager
async def crew(path: Path, count: int = 2) -> AsyncIterator[Serving]:
    """Several workers, all of which have begun to serve; told to stop at the end, and seen to."""
    async with serving(path, "--workers", str(count)) as process:
        for slot in range(count):
            await process.logged(f"worker {slot} is process", PATIENCE)
        yield process
        if process.process.returncode is None:
            process.signal(signal.SIGTERM)
        assert await process.exit_code(PATIENCE) == 0
        assert "Traceback" not in process.log


def pids(process: Serving) -> dict[int, int]:
    """The process of each place; of one that was replaced, the last."""
    return {int(slot): int(pid) for slot, pid in re.findall(r"worker (\d+) is process (\d+)", process.log)}


def running(pid: int) -> bool:
    """Whether a process that is no child of ours has not ended, as far as anybody reaps it."""
    try:
        return not re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False


async def samples(port: int) -> dict[tuple[str, str], float]:
    """The samples of one scrape, by name and outcome or status; each family stands once."""
    text = (await ask(port, "GET", "/metrics")).body.decode()
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family stands twice"
    found: dict[tuple[str, str], float] = {}
    for sample in (sample for family in families for sample in family.samples):
        key = (sample.name, sample.labels.get("status") or sample.labels.get("outcome") or "")
        found[key] = found.get(key, 0.0) + sample.value
    return found


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "decisions.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


async def test_all_workers_are_one_server_to_whoever_counts(tmp_path: Path) -> None:
    async with Upstream([said("Hello.")], repeat_last=True) as upstream:
        async with crew(written(tmp_path, upstream.url, {}), 3) as process:
            answers = await asyncio.gather(
                *(ask(process.port, "POST", CHAT, {}, compact(chat())) for _ in range(60))
            )
            assert [answer.status for answer in answers] == [200] * 60
            for _ in range(6):  # whichever of them answers
                seen = await samples(process.port)
                assert seen["seam_requests_total", "200"] == 60
                assert seen["seam_queries_per_reply_count", ""] == 60
                assert seen["seam_worker_starts_total", ""] == 3
                assert seen["seam_requests_in_flight", ""] == 0
                assert seen["seam_build_info", ""] == 1
            before = seen["seam_config_reloads_total", "done"]
            process.signal(signal.SIGHUP)

            async def reloaded() -> bool:
                now = await samples(process.port)
                return now["seam_config_reloads_total", "done"] == before + 3

            await eventually(reloaded)
        assert len(lines(tmp_path)) == 60


async def holder(process: Serving) -> tuple[int, int]:
    """A worker that has requests in flight, and how many: asked until one of those answers."""
    async with asyncio.timeout(PATIENCE):
        while True:
            status = (await ask(process.port, "GET", "/seam/api/status")).json
            if status["in_flight"]:
                return status["worker"]["slot"], status["in_flight"]
            await asyncio.sleep(0.01)


async def test_a_worker_that_is_killed_loses_its_own_requests_and_is_replaced(tmp_path: Path) -> None:
    async with Upstream([slow(3.0)] * 8 + [said("Hello.")], repeat_last=True) as upstream:
        async with crew(written(tmp_path, upstream.url, {}), 2) as process, AsyncExitStack() as stack:
            streams: list[Exchange] = []
            for _ in range(8):
                streams.append(
                    await stack.enter_async_context(exchange(process.port, "POST", CHAT, {}, BODY))
                )
                await streams[-1].head()
            slot, held = await holder(process)
            victim = pids(process)[slot]
            os.kill(victim, signal.SIGKILL)
            answers = [await stream.rest() for stream in streams]
            assert sum(answer.cut for answer in answers) == held
            assert {answer.text for answer in answers if not answer.cut} <= {"Hello."}
            await process.logged(f"worker {slot} (process {victim}) was ended by SIGKILL", PATIENCE)
            await eventually(lambda: pids(process)[slot] != victim)
            more = [await ask(process.port, "POST", CHAT, {}, compact(chat())) for _ in range(10)]
            assert [answer.status for answer in more] == [200] * 10

            async def settled() -> bool:
                seen = await samples(process.port)
                whole = seen["seam_requests_total", "200"] == 18 - held
                return whole and seen["seam_requests_in_flight", ""] == 0

            await eventually(settled)
            assert (await samples(process.port))["seam_worker_starts_total", ""] == 3
        assert len(lines(tmp_path)) == 18 - held


async def test_a_signal_drains_all_workers(tmp_path: Path) -> None:
    async with Upstream([slow(1.0)] * 6) as upstream:
        async with crew(written(tmp_path, upstream.url, {}), 3) as process, AsyncExitStack() as stack:
            streams = []
            for _ in range(6):
                streams.append(
                    await stack.enter_async_context(exchange(process.port, "POST", CHAT, {}, BODY))
                )
                await streams[-1].head()
            process.signal(signal.SIGTERM)
            for stream in streams:
                answer = await stream.rest()
                assert (answer.cut, answer.text) == (False, "Hello.")
            # Workers write their last records when the replies have ended.
            assert await process.exit_code(PATIENCE) == 0
        assert len(lines(tmp_path)) == 6


async def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    async with (
        Upstream([]) as upstream,
        serving(written(tmp_path, upstream.url, {}), "--workers", "2") as process,
    ):
        await process.logged("worker 0 is process", PATIENCE)
        await process.logged("worker 1 is process", PATIENCE)
        process.signal(signal.SIGKILL)
        await process.exit_code(PATIENCE)

        def gone() -> bool:
            return not [pid for pid in pids(process).values() if running(pid)]

        await eventually(gone)


async def test_drift_is_that_of_all_workers_together(tmp_path: Path) -> None:
    config = {"drift": {"window": 40, "minimum": 20}, "models": {"m": {}}}
    script = [CALL] * 40 + [said("I can't do that.")] * 40
    async with Upstream(script) as upstream, crew(written(tmp_path, upstream.url, config)) as process:

        async def play(first: int) -> None:
            for number in range(first, first + 40):
                body = compact(chat(messages=[{"role": "user", "content": f"{number}"}], tools=TOOLS))
                assert (await ask(process.port, "POST", CHAT, {}, body)).status == 200

        async def pinned() -> bool:
            await samples(process.port)
            return (tmp_path / "drift.json").exists()

        await play(0)
        await eventually(pinned)
        counts = json.loads((tmp_path / "drift.json").read_text())["pins"][0]["reference"]["classes"][
            "counts"
        ]
        assert counts == {"tools, turn 1": {"tool_call": 40}}
        await play(40)

        async def moved() -> bool:
            text = (await ask(process.port, "GET", "/metrics")).body.decode()
            found = re.search(r'^seam_action_drift{.*statistic="psi"} (\S+)$', text, re.MULTILINE)
            return found is not None and float(found[1]) > 1

        await eventually(moved)


async def test_a_worker_that_can_not_start_is_tried_later_and_later() -> None:
    script = (
        "import logging, sys; from pathlib import Path; from tempfile import mkdtemp;"
        "from proxy.workers import Crew; logging.basicConfig();"
        "Crew(1, Path(mkdtemp()), lambda worker: sys.exit(3), lambda: None, 1.0).run()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        told = [(await process.stderr.readline()).decode() for _ in range(3)]
    assert "ended with code 3; its open requests are lost, another starts in 0.5 s" in told[0]
    assert [line.rsplit("in ", 1)[1].strip() for line in told] == ["0.5 s", "1 s", "2 s"]
    process.terminate()
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == 0


# Probes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["serve", "check"])
async def test_probes_of_several_workers_need_a_store_that_they_share(tmp_path: Path, command: str) -> None:
    path = written(tmp_path, "http://127.0.0.1:9", {"listen": {"workers": 2, "port": 0}}, PROFILES)
    code, _, told = await run_seam(command, "--config", str(path))
    assert code == 2
    assert re.fullmatch(r"seam: profiles [^\n]*sri[^\n]* write state: redis://HOST:PORT/0, or [^\n]*\n", told)


async def test_a_request_may_not_bring_a_probe_either(tmp_path: Path) -> None:
    config = {"listen": {"workers": 2}}
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        refused = await proxy.ask(CHAT, method="POST", body=compact(chat(calibration={"sri": True})))
        assert (refused.status, refused.error["param"]) == (400, "calibration")
        assert (await proxy.chat(calibration={"sri": None, "bias": 0})).status == 200


@needs_redis
async def test_with_a_redis_a_case_is_asked_once_whichever_worker_has_it(tmp_path: Path) -> None:
    redis = Server(tmp_path)
    redis.start()
    try:
        async with Upstream([halt(), called(), *[halt()] * 9]) as upstream:
            config = {"state": redis.url}
            async with crew(written(tmp_path, upstream.url, config, PROFILES), 3) as process:
                for messages in (ASKED, *[GOES_ON] * 9):
                    body = compact(chat(messages=messages, tools=TOOLS, calibration="sri"))
                    assert (await ask(process.port, "POST", CHAT, {}, body)).status == 200
            assert sorted(len(record["queries"]) for record in lines(tmp_path)) == [1] * 9 + [2]
    finally:
        redis.stop()
