"""Reloads: all of a change is taken, or none."""

import asyncio
import logging
import signal
from pathlib import Path

import pytest

from tests.proxy.commands import serving
from tests.seam import TOOLS, Seam, eventually, seam, written
from tests.upstream import Reply, Upstream, Wait, chunk, compact, said
from tests.wire import ask

STRICT = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}
MODELS = {"models": {"m": {"profile": "strict"}}}


def write_profile(proxy: Seam, text: str, name: str = "strict") -> None:
    (proxy.folder / "profiles" / f"{name}.yaml").write_text(text)


def reloads(proxy: Seam, outcome: str) -> float:
    return proxy.sample("seam_config_reloads_total", outcome=outcome)


async def test_a_changed_profile_acts_from_the_next_request_on(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")] * 2) as upstream,
        seam(tmp_path, upstream.url, MODELS, [STRICT]) as proxy,
    ):
        await proxy.chat(tools=TOOLS)
        write_profile(proxy, "name: strict\nentry: {tokens: [7]}\nbias: {value: 3, apply: logit_bias}")
        await eventually(lambda: reloads(proxy, "done") >= 1)
        await proxy.chat(tools=TOOLS)
        assert [r.json["logit_bias"] for r in upstream.requests] == [{"7": -1.5}, {"7": 3.0}]
        assert 'bias="3"' in await proxy.exposition()
        assert 'bias="-1.5"' not in await proxy.exposition()


async def test_a_new_file_is_a_new_profile_and_a_file_that_goes_takes_it_along(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, MODELS, [STRICT]) as proxy,
    ):
        write_profile(proxy, "name: new", "new")
        await eventually(lambda: "new" in proxy.runtime.settings.profiles)
        assert (await proxy.chat(calibration="new")).header("x-calibration") == "new"
        (tmp_path / "profiles" / "new.yaml").unlink()
        await eventually(lambda: "new" not in proxy.runtime.settings.profiles)
        assert (await proxy.chat(calibration="new")).status == 400


async def test_a_changed_configuration_is_taken_too(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, MODELS, [STRICT]) as proxy,
    ):
        written(tmp_path, upstream.url, {**MODELS, "selection": {"locked": True}})
        await eventually(lambda: reloads(proxy, "done") >= 1)
        assert (await proxy.chat(calibration="off")).status == 400
        assert (await proxy.chat()).status == 200


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("profiles/strict.yaml", "name: strict\nbais: 1", "bais: no such key; nearest: bias"),
        ("profiles/strict.yaml", "name: [", "not YAML"),
        ("profiles/other.yaml", "name: strict", "stands in another file already"),
        ("seam.yaml", "lisen: {}", "lisen: no such key"),
        ("seam.yaml", "", "upstreams: field required"),
    ],
)
async def test_a_broken_file_keeps_all_that_was_running_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, text: str, words: str
) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, MODELS, [STRICT]) as proxy,
    ):
        before = proxy.runtime.settings
        (tmp_path / file).write_text(text)
        await eventually(lambda: reloads(proxy, "refused") >= 1)
        assert proxy.runtime.settings is before
        assert words in caplog.text
        assert "stay" in caplog.text
        await proxy.chat(tools=TOOLS)
        assert upstream.requests[0].json["logit_bias"] == {"7": -1.5}


async def test_a_broken_file_does_not_let_half_of_a_change_in(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, MODELS, [STRICT]) as proxy:
        write_profile(proxy, "name: broken\nbias: lots", "broken")
        write_profile(proxy, "name: good", "good")
        await eventually(lambda: reloads(proxy, "refused") >= 1)
        answer = await proxy.chat(calibration="good")
        assert answer.status == 400
        assert "valid names: strict, off" in answer.error["message"]
        write_profile(proxy, "name: broken\nbias: 1", "broken")
        await eventually(lambda: set(proxy.runtime.settings.profiles) == {"strict", "broken", "good"})


async def test_a_request_in_flight_ends_with_what_it_began_with(tmp_path: Path) -> None:
    slow = Reply(writes=(chunk(content="Hel"), Wait(0.3), chunk(content="lo."), chunk("stop")))
    async with (
        Upstream([slow]) as upstream,
        Upstream([said("Moved.")]) as moved,
        seam(tmp_path, upstream.url, MODELS, [STRICT]) as proxy,
    ):
        async with proxy.open_chat(stream=True, tools=TOOLS) as open_chat:
            await open_chat.head()
            await open_chat.until(b"Hel")
            written(tmp_path, moved.url, {})
            (tmp_path / "profiles" / "strict.yaml").unlink()
            await eventually(lambda: not proxy.runtime.settings.profiles)
            answer = await open_chat.rest()
        assert (answer.cut, answer.text) == (False, "Hello.")
        assert (await proxy.records(1))[0]["profile"] == "strict"
        assert (await proxy.chat()).text == "Moved."


async def test_an_upstream_that_stays_keeps_its_connections(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")] * 2) as upstream,
        seam(tmp_path, upstream.url, MODELS, [STRICT]) as proxy,
    ):
        await proxy.chat()
        write_profile(proxy, "name: strict")
        await eventually(lambda: reloads(proxy, "done") >= 1)
        await proxy.chat()
        assert upstream.connections == 1


async def test_what_needs_a_restart_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="seam")
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        written(tmp_path, upstream.url, {"listen": {"port": 1}})
        await eventually(lambda: reloads(proxy, "done") >= 1)
        restarting = "listen, decisions, drift, logging, state, tracing"
        assert f"{restarting} take effect at the next start" in caplog.text


async def test_sighup_reloads(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        proxy_reloads = reloads(proxy, "done")
        signal.raise_signal(signal.SIGHUP)
        await eventually(lambda: reloads(proxy, "done") > proxy_reloads)


async def test_sighup_reaches_a_process_and_a_fault_leaves_it_serving(tmp_path: Path) -> None:
    async with Upstream([said("Hello.")] * 2) as upstream:
        path = written(tmp_path, upstream.url, MODELS, [STRICT])
        async with serving(path) as process:
            (tmp_path / "profiles" / "strict.yaml").write_text("name: strict\nbais: 1")
            process.signal(signal.SIGHUP)
            await process.logged("bais: no such key")
            body = compact({"model": "m", "messages": [], "tools": TOOLS})
            answer = await ask(process.port, "POST", "/v1/chat/completions", {}, body)
            assert answer.header("x-calibration-applied") == "bias=-1.5/logit_bias"
            assert "Traceback" not in process.log


async def test_many_changes_at_once_end_in_the_last_state(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        for number in range(20):
            write_profile(proxy, f"name: p{number}", "p")
            await asyncio.sleep(0.01)
        await eventually(lambda: set(proxy.runtime.settings.profiles) == {"p19"})
