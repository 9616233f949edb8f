from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric

from proxy.metrics import Metrics
from tests.seam import TOOLS, seam
from tests.upstream import Reply, Upstream, chunk, compact, said, streamed

DOCS = Path(__file__).parents[2] / "docs"
BOUNDED = {"route", "model", "profile", "status", "action", "tools", "direction", "calibrator", "outcome"}
BOUNDED |= {"reason", "version", "bias", "statistic", "role", "kind", "le"}
STRICT = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}
MODELS = {"models": {"m": {"profile": "strict"}}}


@pytest.fixture
def families() -> list[Metric]:
    return list(Metrics(CollectorRegistry()).registry.collect())


def exposed(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def test_every_metric_is_documented_and_nothing_else_is(families: list[Metric]) -> None:
    page = (DOCS / "metrics.md").read_text("utf-8")
    documented = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `seam_")}
    assert documented == {exposed(family) for family in families}


def test_names_are_prometheus_names(families: list[Metric]) -> None:
    for family in families:
        assert family.name.startswith("seam_")
        assert family.documentation.endswith(".")
        if family.type == "histogram" and "seconds" not in family.name:
            assert not family.name.endswith(("_ms", "_milliseconds"))


def labels_of(metrics: Metrics) -> Iterator[tuple[str, tuple[str, ...]]]:
    for attribute in vars(metrics).values():
        if hasattr(attribute, "_labelnames"):
            yield attribute._name, attribute._labelnames


def test_labels_are_of_bounded_sets_and_documented() -> None:
    page = (DOCS / "metrics.md").read_text("utf-8")
    for name, labels in labels_of(Metrics(CollectorRegistry())):
        assert set(labels) <= BOUNDED, name
        row = next(
            line for line in page.splitlines() if line.startswith((f"| `{name}`", f"| `{name}_total`"))
        )
        assert row.split("|")[2].strip() == ", ".join(labels)


async def test_a_reply_is_counted_once_under_its_model_profile_and_class(tmp_path: Path) -> None:
    async with (
        Upstream([said("I can't do that.")]) as upstream,
        seam(tmp_path, upstream.url, MODELS, [STRICT]) as proxy,
    ):
        await proxy.chat(tools=TOOLS)
        await proxy.records(1)
        labels = {"model": "m", "profile": "strict"}
        assert proxy.sample("seam_requests_total", route="chat", status="200", **labels) == 1
        assert proxy.sample("seam_actions_total", action="refuse", tools="yes", **labels) == 1
        assert proxy.sample("seam_interventions_total", calibrator="bias", outcome="applied") == 1
        for histogram in ("upstream_seconds", "overhead_seconds", "first_token_seconds", "queries_per_reply"):
            assert proxy.sample(f"seam_{histogram}_count", **labels) == 1
        assert proxy.sample("seam_requests_in_flight") == 0


async def test_tokens_are_counted_by_what_the_query_was_for(tmp_path: Path) -> None:
    odd = compact({"choices": [], "usage": {"prompt_tokens": "12", "completion_tokens": -5}})
    async with (
        Upstream([said("It is noon."), said("It is one."), Reply(body=odd)]) as upstream,
        seam(tmp_path, upstream.url, MODELS, [{"name": "strict", "sri": True}]) as proxy,
    ):
        await proxy.chat(tools=TOOLS)
        await proxy.chat()
        labels = {"model": "m", "profile": "strict"}
        for role in ("first", "sri"):
            assert proxy.sample("seam_tokens_total", role=role, kind="prompt", **labels) == 12
            assert proxy.sample("seam_tokens_total", role=role, kind="completion", **labels) == 5
        assert len(await proxy.records(2)) == 2


async def test_rare_events_show_a_zero_before_the_first(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        exposition = await proxy.exposition()
        assert 'seam_config_reloads_total{outcome="refused"} 0.0' in exposition
        assert 'seam_entry_flips_total{direction="to_text"} 0.0' in exposition


async def test_a_request_that_is_refused_is_counted_under_the_route_that_it_asked_for(tmp_path: Path) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url) as proxy:
        assert (await proxy.chat(calibration="nobody")).status == 400
        assert (await proxy.ask("/pause")).status == 404
        labels = {"model": "other", "profile": "off"}
        assert proxy.sample("seam_requests_total", route="chat", status="400", **labels) == 1
        assert proxy.sample("seam_requests_total", route="forward", status="404", **labels) == 1


async def test_calls_after_text_and_repeated_calls_are_counted(tmp_path: Path) -> None:
    function = {"name": "finish", "arguments": "{}"}
    delta = {"index": 0, "id": "a", "type": "function", "function": function}
    late = Reply(writes=(chunk(content="Let me see."), chunk(tool_calls=[delta]), chunk("tool_calls")))
    before = [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "tool_calls": [{"id": "b", "function": function}]},
        {"role": "tool", "tool_call_id": "b", "content": "ok"},
    ]
    async with Upstream([late]) as upstream, seam(tmp_path, upstream.url, MODELS, [STRICT]) as proxy:
        await proxy.chat(messages=before, stream=True, tools=TOOLS)
        record = (await proxy.records(1))[0]
        assert (record["delayed_call"], record["repeated_calls"], record["calls"]) == (True, 1, ["finish"])
        labels = {"model": "m", "profile": "strict"}
        assert proxy.sample("seam_delayed_calls_total", **labels) == 1
        assert proxy.sample("seam_repeated_calls_total", **labels) == 1


async def test_a_cut_reply_is_counted_without_a_class_and_an_error_not_at_all(tmp_path: Path) -> None:
    cut = compact({"choices": [{"message": {"content": "I can't"}, "finish_reason": "length"}]})
    async with (
        Upstream([Reply(body=cut), Reply(500, body=b"{}")]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        await proxy.chat()
        await proxy.chat()
        await proxy.records(2)
        labels = {"model": "other", "profile": "off"}
        assert proxy.sample("seam_actions_total", action="none", tools="no", **labels) == 1
        exposition = await proxy.exposition()
        assert exposition.count("seam_actions_total{") == 1
        assert proxy.sample("seam_upstream_errors_total", **labels) == 1


async def test_what_clients_send_reaches_no_label(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")], repeat_last=True, lists=[]) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        await proxy.chat(model='a"b\n{x="<|im_start|>"}')
        series = (await proxy.exposition()).count("\n")
        for number in range(30):
            await proxy.chat(
                model=f"ghost-{number}", user=f"u-{number}", headers={"X-Case-Id": f"case-{number}"}
            )
            await proxy.ask(f"/v1/ghosts/{number}", method="PROPFIND")
            await proxy.chat(calibration=f"ghost-{number}")
            await proxy.ask(f"/p/ghost-{number}/v1/models")
        exposition = await proxy.exposition()
        assert "ghost" not in exposition
        assert "im_start" not in exposition
        assert "case-" not in exposition
        assert exposition.count("\n") - series < 20


async def test_profiles_and_version_are_shown(tmp_path: Path) -> None:
    async with (
        Upstream([]) as upstream,
        seam(tmp_path, upstream.url, {}, [STRICT, {"name": "reads"}]) as proxy,
    ):
        exposition = await proxy.exposition()
        assert 'seam_profile_info{bias="-1.5",model="",profile="strict"} 1.0' in exposition
        assert 'seam_profile_stale{profile="reads"} 0.0' in exposition
        assert "seam_build_info{version=" in exposition


async def test_streams_are_timed_to_their_first_event(tmp_path: Path) -> None:
    async with Upstream([streamed("Hello.")]) as upstream, seam(tmp_path, upstream.url) as proxy:
        await proxy.chat(stream=True)
        await proxy.records(1)
        assert proxy.sample("seam_first_token_seconds_count", model="other", profile="off") == 1
