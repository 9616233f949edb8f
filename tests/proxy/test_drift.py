"""Drift in the running proxy: windows, pins, and what a scrape shows."""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.seam import TOOLS, Seam, eventually, seam
from tests.upstream import Reply, Upstream, said

FUNCTION = {"name": "finish", "arguments": "{}"}
CALL = said(None, tool_calls=[{"id": "a", "type": "function", "function": FUNCTION}])
REFUSAL, ANSWER = said("I can't do that."), said("It is noon.")
SMALL: dict[str, Any] = {"drift": {"window": 40, "minimum": 20}, "models": {"m": {}}}
LABELS = {"model": "m", "profile": "off"}


def mixed(calls: int, refusals: int) -> Iterator[Reply]:
    return iter([CALL] * calls + [REFUSAL] * refusals)


async def play(proxy: Seam, count: int, **fields: Any) -> None:
    """So many conversations of one reply each."""
    for number in range(count):
        await proxy.chat(messages=[{"role": "user", "content": f"Request {number}."}], tools=TOOLS, **fields)


async def scraped(proxy: Seam, statistic: str, metric: str = "seam_action_drift") -> float | None:
    await proxy.exposition()
    registry = proxy.runtime.metrics.registry
    return registry.get_sample_value(metric, {**LABELS, "statistic": statistic})


def pinned(folder: Path) -> Mapping[str, Any]:
    content = json.loads((folder / "drift.json").read_text())
    assert [each["profile"] for each in content["pins"]] == ["off"]
    counts: Mapping[str, Any] = content["pins"][0]["reference"]["classes"]["counts"]
    return counts


async def test_a_mix_of_classes_that_moves_is_seen_at_the_next_scrape(tmp_path: Path) -> None:
    script = [*mixed(30, 10), *mixed(30, 10), *mixed(4, 36)]
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, SMALL) as proxy:
        await play(proxy, 40)
        assert await scraped(proxy, "psi") is None, "a window that was just pinned is compared with nothing"
        await play(proxy, 40)
        assert (await scraped(proxy, "psi") or 0) < 0.02
        assert (await scraped(proxy, "p_value") or 0) > 0.5
        await play(proxy, 40)
        assert (await scraped(proxy, "psi") or 0) > 1
        assert await scraped(proxy, "p_value") == pytest.approx(0, abs=1e-6)
        assert await scraped(proxy, "mix_share") == pytest.approx(0, abs=1e-9)
        assert proxy.sample("seam_action_reference", action="tool_call", **LABELS) == 30


async def test_a_scrape_after_the_pin_needs_no_new_reply(tmp_path: Path) -> None:
    async with Upstream([*mixed(40, 0)]) as upstream, seam(tmp_path, upstream.url, SMALL) as proxy:
        await play(proxy, 40)
        for _ in range(3):
            assert await scraped(proxy, "psi") is None
        assert proxy.sample("seam_action_reference", action="tool_call", **LABELS) == 40


async def test_other_traffic_is_told_from_another_model(tmp_path: Path) -> None:
    script = [*mixed(40, 0), *[ANSWER] * 40, *mixed(8, 0), *[ANSWER] * 72]
    config = {**SMALL, "drift": {"window": 80, "minimum": 20}}
    async with Upstream(script) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        for with_tools in (40, 8):
            await play(proxy, with_tools)
            for number in range(80 - with_tools):
                await proxy.chat(messages=[{"role": "user", "content": f"Question {number}?"}])
            await proxy.exposition()
        assert (await scraped(proxy, "psi") or 0) > 0.5
        assert await scraped(proxy, "psi_same_mix") == pytest.approx(0)
        assert await scraped(proxy, "mix_share") == pytest.approx(1)


async def test_there_is_no_number_below_the_minimum(tmp_path: Path) -> None:
    async with Upstream([*mixed(59, 0)]) as upstream, seam(tmp_path, upstream.url, SMALL) as proxy:
        await play(proxy, 40)
        await proxy.exposition()
        await play(proxy, 19)
        assert await scraped(proxy, "psi") is None


async def test_margins_that_were_not_read_have_no_drift(tmp_path: Path) -> None:
    async with Upstream([*mixed(80, 0)]) as upstream, seam(tmp_path, upstream.url, SMALL) as proxy:
        await play(proxy, 40)
        await proxy.exposition()
        await play(proxy, 40)
        assert await scraped(proxy, "psi") is not None
        assert await scraped(proxy, "psi", "seam_margin_drift") is None


async def test_a_pin_survives_a_restart_and_serves_other_processes(tmp_path: Path) -> None:
    async with Upstream([*mixed(40, 0), *mixed(0, 60)]) as upstream:
        async with seam(tmp_path, upstream.url, SMALL) as first, seam(tmp_path, upstream.url, SMALL) as other:
            await play(first, 40)
            await first.exposition()
            assert pinned(tmp_path) == {"tools, turn 1": {"tool_call": 40}}
            await play(other, 40)
            assert await scraped(other, "psi") is not None
        async with seam(tmp_path, upstream.url, SMALL) as again:
            await play(again, 20)
            assert (await scraped(again, "psi") or 0) > 1
        assert pinned(tmp_path) == {"tools, turn 1": {"tool_call": 40}}


async def test_removing_the_file_pins_what_happens_now(tmp_path: Path) -> None:
    async with (
        Upstream([*mixed(40, 0), *mixed(0, 60)]) as upstream,
        seam(tmp_path, upstream.url, SMALL) as proxy,
    ):
        await play(proxy, 40)
        await proxy.exposition()
        await play(proxy, 40)
        assert (await scraped(proxy, "psi") or 0) > 1
        (tmp_path / "drift.json").unlink()
        await proxy.exposition()
        assert pinned(tmp_path) == {"tools, turn 1": {"refuse": 40}}
        await play(proxy, 20)
        assert (await scraped(proxy, "psi") or 0) < 0.01


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "invalid JSON"),
        ('{"version": 2}', "version: input should be 1"),
        ('{"pin": []}', "pin: no such key; nearest: pins"),
        (
            '{"pins": [{"model": "m", "profile": "off", "reference": '
            '{"n": 2, "classes": {"counts": {"tools, turn 1": {"ask": 1}}}}}]}',
            "n is 2 and the classes add up to 1",
        ),
    ],
)
async def test_a_damaged_file_is_told_once_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str, words: str
) -> None:
    caplog.set_level(logging.ERROR, logger="seam")
    (tmp_path / "drift.json").write_text(content)
    async with Upstream([*mixed(60, 0)]) as upstream, seam(tmp_path, upstream.url, SMALL) as proxy:
        await play(proxy, 40)
        await proxy.exposition()
        await play(proxy, 20)
        assert await scraped(proxy, "psi") is not None, "it pins for itself"
    assert (tmp_path / "drift.json").read_text() == content
    faults = [record.getMessage() for record in caplog.records]
    assert len(faults) == 1
    assert words in faults[0]
    assert str(tmp_path / "drift.json") in faults[0]
    assert "\n" not in faults[0]


async def test_a_folder_that_is_not_there_costs_the_pin_at_the_end_and_no_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {**SMALL, "drift": {**SMALL["drift"], "path": str(tmp_path / "none" / "drift.json")}}
    async with Upstream([*mixed(60, 0)]) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        await play(proxy, 40)
        await proxy.exposition()
        await play(proxy, 20)
        assert await scraped(proxy, "psi") is not None
    assert "what is pinned now ends with this process" in caplog.text


async def test_a_profile_may_bring_its_reference(tmp_path: Path) -> None:
    reference = {"n": 40, "classes": {"counts": {"tools, turn 1": {"tool_call": 30, "refuse": 10}}}}
    config = {"drift": {**SMALL["drift"], "reference": "profile"}, "models": {"m": {"profile": "reads"}}}
    profile = {"name": "reads", "reference": reference}
    async with (
        Upstream([*mixed(15, 5)]) as upstream,
        seam(tmp_path, upstream.url, config, [profile]) as proxy,
    ):
        await play(proxy, 20)
        await proxy.exposition()
        assert proxy.sample("seam_action_reference", model="m", profile="reads", action="refuse") == 10
        labels = {"model": "m", "profile": "reads", "statistic": "psi"}
        assert proxy.runtime.metrics.registry.get_sample_value("seam_action_drift", labels) == pytest.approx(
            0, abs=0.01
        )
        assert not (tmp_path / "drift.json").exists()


async def test_off_compares_nothing_and_remembers_nothing(tmp_path: Path) -> None:
    async with (
        Upstream([*mixed(80, 0)]) as upstream,
        seam(tmp_path, upstream.url, {**SMALL, "drift": "off"}) as proxy,
    ):
        await play(proxy, 80)
        assert "seam_action_drift{" not in await proxy.exposition()
        assert not (tmp_path / "drift.json").exists()


async def test_windows_are_bounded(tmp_path: Path) -> None:
    async with (
        Upstream([ANSWER], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, SMALL) as proxy,
    ):
        await play(proxy, 100)
        await eventually(
            lambda: proxy.sample("seam_actions_total", action="other", tools="yes", **LABELS) == 100
        )
        windows = proxy.runtime.drift._recent
        assert [len(window) for window in windows.values()] == [40]
