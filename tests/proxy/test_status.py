"""What the status page asks for, and what keeps it read-only and harmless."""

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from proxy.recent import KEPT, MOST_NAMES, TEXT_CHARS, Interventions, Recent
from proxy.tail import Wanted
from tests.seam import TOOLS, Seam, seam
from tests.upstream import Upstream, said

STRICT = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}
PAGES = ("/seam", "/seam/", "/seam/style.css", "/seam/script.js")
DATA = tuple(
    f"/seam/api/{name}" for name in ("status", "summary", "decisions", "config-schema", "openapi.json")
)
HOSTILE = "</script><img src=x onerror=alert(1)>"
HALF = "\ud800"  # of a pair: JSON can say it, UTF-8 can't
CALL = {"id": "a", "type": "function", "function": {"name": HOSTILE, "arguments": '{"value":"secret-9"}'}}
ALL = Wanted()


def decision(**fields: Any) -> dict[str, Any]:
    """A record, as far as a summary reads it."""
    base = {"time": "2026-01-01T00:00:00+00:00", "model": "m", "profile": "off", "action": "ask"}
    return {**base, "choice": 0, "margin": None, "applied": "none", "probes": [], **fields}


async def decisions(proxy: Seam, query: str = "") -> Any:
    return (await proxy.ask(f"/seam/api/decisions?{query}")).json


# The routes -------------------------------------------------------------------------------------------


async def test_nothing_of_it_may_run_frame_or_store_what_is_not_ours(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        for path in (*PAGES, *DATA, "/seam/api/decisions/x-1", "/seam/nothing"):
            answer = await proxy.ask(path)
            assert answer.status == (404 if path.endswith(("x-1", "nothing")) else 200)
            policy = (answer.header("content-security-policy") or "").split("; ")
            assert policy[0] == "default-src 'none'"
            assert {"script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= {*policy}
            assert answer.header("x-content-type-options") == "nosniff"
            assert answer.header("cache-control") == "no-store"
        assert (await proxy.ask("/metrics")).header("content-security-policy") is None


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_it_is_read_only(tmp_path: Path, method: str) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        for path in (*PAGES, *DATA, "/seam/api/decisions/x-1"):
            refused = await proxy.ask(path, method=method, body=b"{}")
            assert (refused.status, refused.header("allow"), refused.error["code"]) == (
                405,
                "GET",
                "method_not_allowed",
            )


def test_the_page_holds_no_script_or_style_that_its_policy_forbids_and_asks_nobody_else() -> None:
    page = {file.name: file.read_text("utf-8") for file in (resources.files("proxy") / "page").iterdir()}
    assert sorted(page) == ["index.html", "script.js", "style.css"]
    for forbidden in (
        "<style",
        " style=",
        "<script>",
        " onclick",
        "innerHTML",
        "insertAdjacentHTML",
        "https://",
    ):
        assert not any(forbidden in text for text in page.values()), forbidden


# Decisions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [{"sink": "off"}, {"sample": 0.0}], ids=["no-log", "no-sample"])
async def test_decisions_are_remembered_whatever_is_logged(tmp_path: Path, log: dict[str, Any]) -> None:
    async with (
        Upstream([said("Which one?"), said("Hello."), said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, {"decisions": log}, [STRICT]) as proxy,
    ):
        await proxy.chat(tools=TOOLS, calibration="strict", headers={"X-Request-Id": "r-1"})
        await proxy.chat(model="other-model")
        await proxy.chat(calibration="off")  # as in the log
        found = await decisions(proxy)
        newest, oldest = found["decisions"]
        assert (oldest["request_id"], oldest["action"], oldest["profile"]) == ("r-1", "ask", "strict")
        assert newest["model"] == "other-model"
        assert (await proxy.ask(f"/seam/api/decisions/{oldest['id']}")).json == oldest
        for query in ("action=ask", "model=m", "profile=strict", "action=ask&action=refuse&model=m"):
            assert (await decisions(proxy, query))["decisions"] == [oldest]
        assert (await decisions(proxy, "action=ask&model=other-model"))["decisions"] == []
        assert (await decisions(proxy, "limit=1"))["decisions"] == [newest]
        refused = await proxy.ask("/seam/api/decisions?limit=0")
        assert (refused.status, refused.error["param"]) == (400, "limit")


async def test_a_cursor_brings_what_came_after_it(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        first = await decisions(proxy)
        assert (first["whole"], first["decisions"]) == (True, [])
        await proxy.chat(headers={"X-Request-Id": "r-1"})
        second = await decisions(proxy, f"after={first['cursor']}")
        assert (second["whole"], [one["request_id"] for one in second["decisions"]]) == (False, ["r-1"])
        assert (await decisions(proxy, f"after={second['cursor']}"))["decisions"] == []
        # That of another process, or of nobody.
        for cursor in ("00000000-1", "x", "-", "", "1", f"{second['cursor']}%C2%B2", "9" * 5000):
            whole = await decisions(proxy, f"after={cursor}")
            assert (whole["whole"], len(whole["decisions"])) == (True, 1)


async def test_texts_stay_out_unless_they_are_allowed(tmp_path: Path) -> None:
    for allowed in (False, True):
        folder = tmp_path / str(allowed)
        folder.mkdir()
        config = {"decisions": {"text": allowed}}
        reply = said("Long words. " * TEXT_CHARS, tool_calls=[CALL])
        async with Upstream([reply]) as upstream, seam(folder, upstream.url, config) as proxy:
            await proxy.chat(tools=TOOLS)
            (one,) = (await decisions(proxy))["decisions"]
            assert "request" not in one
            assert ("text" in one, "arguments" in one) == (allowed, allowed)
            assert ("secret-9" in str(one)) is allowed
            assert len(one.get("text", "")) == (TEXT_CHARS if allowed else 0)


async def test_hostile_names_are_data(tmp_path: Path) -> None:
    reply = said(None, tool_calls=[CALL])
    reply = replace(reply, body=reply.body.replace(b"<img", rb"\ud800<img"))
    async with Upstream([reply]) as upstream, seam(tmp_path, upstream.url) as proxy:
        await proxy.chat(model="<b>m</b>", tools=TOOLS)
        for path in ("decisions", "summary"):
            answer = await proxy.ask(f"/seam/api/{path}")
            assert answer.header("content-type") == "application/json"
            assert "<b>m</b>" in str(answer.json)
        assert (await decisions(proxy))["decisions"][0]["calls"] == [HOSTILE.replace("<img", f"{HALF}<img")]


# The ring and its summary -----------------------------------------------------------------------------


def test_the_ring_is_bounded_and_forgets_the_oldest() -> None:
    recent = Recent()
    for number in range(KEPT + 5):
        recent.put(decision(turn=number), {})
    found = recent.newer("", ALL, KEPT + 5).decisions
    assert [one["turn"] for one in found] == [*range(KEPT + 4, 4, -1)]
    assert recent.one(found[-1]["id"]) == found[-1]
    gone = found[-1]["id"].replace("-6", "-5")
    assert recent.one(gone) is None
    assert recent.summary().kept == KEPT


def test_arguments_are_cut_all_together() -> None:
    recent = Recent()
    recent.put(decision(), {"text": None, "arguments": ["a" * (TEXT_CHARS - 1), "bcd", "e"]})
    (one,) = recent.newer("", ALL, 1).decisions
    assert (one["text"], one["arguments"]) == (None, ["a" * (TEXT_CHARS - 1), "b"])


def test_a_summary_counts_classes_margins_and_what_acted() -> None:
    recent = Recent()
    assert recent.summary().since is None
    look = {"probe": "sri", "outcome": "retried", "action_before": "ask", "action_after": "tool_call"}
    recent.put(decision(margin=-13.0, applied="bias=-1.5/processor; sri=retried", probes=[look]), {})
    recent.put(decision(margin=-13.0, choice=1, applied="bias=-1.5/processor", probes=[look]), {})
    recent.put(decision(action=None, margin=99.0, model="n", applied="none; reason=no entry token"), {})
    recent.put(decision(action="refuse", applied="none"), {})
    told = recent.summary()
    assert told.actions == {"ask": 2, "none": 1, "refuse": 1}
    assert told.models == {"m": {"ask": 2, "refuse": 1}, "n": {"none": 1}}
    margins = told.margins.actions
    ends = (margins["ask"].counts[0], margins["none"].counts[-1], margins["refuse"].unread)
    assert ends == (2, 1, 1)
    assert len(margins["ask"].counts) == len(told.margins.edges) + 1
    assert told.interventions == Interventions(
        replies=3,
        acted={"bias": 1, "sri": 1, "none": 2},
        probes={"sri": {"retried": 1}},
        moved={"ask → tool_call": 1},
        reasons={"no entry token": 1},
    )


def test_a_summary_names_no_more_models_than_one_can_read() -> None:
    recent = Recent()
    for number in range(100):
        recent.put(decision(model=f"m{number}"), {})
    recent.put(decision(model="m99"), {})
    models = recent.summary().models
    assert (len(models), next(iter(models))) == (MOST_NAMES, "m99")
