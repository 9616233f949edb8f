"""Where cases are remembered: in the process, and in a real Redis that may go away."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from calibrators.case import NOTHING, Case, History
from proxy.config import State
from proxy.errors import ConfigError
from proxy.memory import LocalMemory, memory
from tests.proxy.commands import run_seam
from tests.proxy.test_probes import ASKED, GOES_ON, HALT, PROFILES, TOOLS, ask, called, halt, looks
from tests.redis_server import Server, needs_redis
from tests.seam import eventually, seam, written
from tests.upstream import DONE, Reply, Upstream, Wait, chunk


def acted(text: str) -> Case:
    """A case in which SRI acted."""
    return NOTHING.marked(["sri"], History({"messages": [{"role": "user", "content": text}]}))


def ignore() -> None:
    """Count nothing."""


# In the process --------------------------------------------------------------------------------


async def test_a_case_is_remembered_and_others_are_empty() -> None:
    local = LocalMemory(State())
    await local.save("a", acted("a"))
    assert await local.load("a") == acted("a")
    assert await local.load("b") == Case()


async def test_a_case_is_forgotten_after_its_time() -> None:
    now = 0.0
    local = LocalMemory(State(ttl_seconds=10), lambda: now)
    await local.save("a", acted("a"))
    now = 10.0
    assert await local.load("a") == acted("a")
    now = 10.1
    assert await local.load("a") == Case()
    await local.save("a", acted("again"))
    now = 20.0
    assert await local.load("a") == acted("again")


async def test_the_cases_unused_for_longest_are_forgotten_first() -> None:
    local = LocalMemory(State(cases=3))
    for key in "abc":
        await local.save(key, acted(key))
    await local.load("a")
    await local.save("b", acted("b"))
    await local.save("d", acted("d"))
    assert [await local.load(key) != Case() for key in "abcd"] == [True, True, False, True]


# In Redis --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def session_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis(session_server: Server) -> Server:
    """A Redis that runs and is empty."""
    session_server.start()
    session_server.say("FLUSHALL")
    return session_server


@needs_redis
async def test_several_processes_agree_by_redis(redis: Server) -> None:
    one, two = (memory(State(store=redis.url), ignore) for _ in range(2))
    await one.save("a", acted("a"))
    assert await two.load("a") == acted("a")
    assert await two.load("b") == Case()
    for each in (one, two):
        await each.aclose()


@needs_redis
async def test_redis_forgets_a_case_after_its_time(redis: Server) -> None:
    kept = memory(State(store=redis.url, ttl_seconds=77.7), ignore)
    await kept.save("a", acted("a"))
    assert redis.say("TTL seam:case:a") in (b":78\r\n", b":77\r\n")
    await kept.aclose()


@needs_redis
async def test_what_another_program_keeps_there_does_no_harm(redis: Server) -> None:
    kept = memory(State(store=redis.url), ignore)
    redis.say('SET seam:case:a "[9,null]"')
    assert await kept.load("a") == Case()
    redis.say("DEL seam:case:a")
    redis.say("LPUSH seam:case:a x")  # no text at all
    assert await kept.load("a") == Case()
    await kept.aclose()


@needs_redis
async def test_while_redis_is_down_the_process_remembers_by_itself(
    redis: Server, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[None] = []
    kept = memory(State(store=redis.url), lambda: failures.append(None))
    await kept.save("a", acted("a"))
    redis.stop()
    with caplog.at_level(logging.WARNING, logger="seam"):
        assert await kept.load("a") == Case()
    assert len(failures) == 1
    assert "Redis failed" in caplog.text
    await kept.save("b", acted("b"))
    assert await kept.load("b") == acted("b")
    assert len(failures) == 1  # one that failed is left alone for a while
    await kept.aclose()


@needs_redis
async def test_what_was_marked_while_redis_did_not_answer_is_known_when_it_does(
    redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.redis._PATIENCE", 0.05)
    monkeypatch.setattr("proxy.redis.PAUSE_SECONDS", 0.0)
    kept = memory(State(store=redis.url), ignore)
    began = NOTHING.seen(History({"messages": [{"role": "user", "content": "a"}]}))
    await kept.save("a", began)
    with redis.paused():
        await kept.save("a", began.joined(acted("a")))
    assert await kept.load("a") == began.joined(acted("a"))
    await kept.aclose()


@needs_redis
async def test_two_proxies_act_once_a_turn_between_them(tmp_path: Path, redis: Server) -> None:
    state = {"state": redis.url}
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    async with (
        Upstream([halt(), called(), halt()]) as upstream,
        seam(folders[0], upstream.url, state, PROFILES) as one,
        seam(folders[1], upstream.url, state, PROFILES) as two,
    ):
        await ask(one, "sri")
        await ask(two, "sri", messages=GOES_ON)
        assert await looks(one) == [("sri", "retried")]
        assert await looks(two) == [("sri", "gated")]


@needs_redis
async def test_a_redis_that_goes_away_costs_no_reply_and_is_counted(tmp_path: Path, redis: Server) -> None:
    state = {"state": redis.url}
    async with (
        Upstream([halt(), called(), halt(), called(), halt()]) as upstream,
        seam(tmp_path, upstream.url, state, PROFILES) as proxy,
    ):
        await ask(proxy, "sri")
        redis.stop()
        other = [{"role": "user", "content": "Cancel A-17."}]
        answer = await ask(proxy, "sri", messages=other)
        assert answer.header("x-calibration-applied") == "sri=retried"
        assert proxy.sample("seam_memory_errors_total") == 1
        await ask(proxy, "sri", messages=[*other, *GOES_ON[1:]])
        assert await looks(proxy, 3) == [("sri", "gated")]


@needs_redis
async def test_a_redis_that_went_away_within_a_reply_costs_nothing_either(
    tmp_path: Path, redis: Server
) -> None:
    async with (
        Upstream([halt(), called()]) as upstream,
        seam(tmp_path, upstream.url, {"state": redis.url}, PROFILES) as proxy,
    ):
        waiting = asyncio.create_task(ask(proxy, "sri", messages=ASKED))
        await upstream.until(lambda server: bool(server.requests))
        redis.stop()
        assert (await waiting).header("x-calibration-applied") == "sri=retried"


@needs_redis
async def test_a_client_that_leaves_with_its_whole_answer_is_none_that_left_early(
    tmp_path: Path, redis: Server
) -> None:
    calibration = {"sri": {"log_only": True}}
    slow = Reply(writes=(chunk(content=HALT), Wait(0.2), chunk("stop"), DONE))
    async with (
        Upstream([slow]) as upstream,
        seam(tmp_path, upstream.url, {"state": redis.url}, PROFILES) as proxy,
    ):
        with ExitStack() as meanwhile:
            fields: dict[str, Any] = {
                "messages": ASKED,
                "tools": TOOLS,
                "stream": True,
                "calibration": calibration,
            }
            async with proxy.open_chat(**fields) as chat:
                await chat.head()
                meanwhile.enter_context(redis.paused())  # the look is being saved when the client leaves
                await chat.rest()
            await eventually(lambda: not proxy.server.server_state.connections)
        (record,) = await proxy.records(1)
        assert (record["outcome"], record["action"] is None) == ("ok", False)
        assert await looks(proxy) == [("sri", "log_only")]
        assert proxy.sample("seam_requests_in_flight") == 0


@pytest.mark.parametrize("url", ["redis://127.0.0.1:port/0", "redis://h:1?no_such_option=1"])
async def test_an_address_that_is_none_is_refused_at_the_start(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError) as error:
        memory(State(store=url), ignore)
    assert str(error.value).startswith("state.store: ")
    path = written(tmp_path, "http://127.0.0.1:9", {"state": url.replace("://", "://:secret@")})
    code, _, said = await run_seam("serve", "--config", str(path), "--port", "0")
    assert code == 2
    assert "state.store" in said
    assert "secret" not in said
    assert "Traceback" not in said


async def test_no_redis_is_asked_where_no_probe_may_act(tmp_path: Path) -> None:
    nowhere: dict[str, Any] = {"state": "redis://127.0.0.1:9/0"}
    async with (
        Upstream([halt(), halt()]) as upstream,
        seam(tmp_path, upstream.url, nowhere, PROFILES) as proxy,
    ):
        await ask(proxy, None)
        await ask(proxy, {"bias": 0})
        assert proxy.sample("seam_memory_errors_total") == 0
