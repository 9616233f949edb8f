"""Spans: what a real OTLP receiver gets from a real proxy, and that no reply waits for it or fails by it."""

import asyncio
import json
import math
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from proxy.errors import ConfigError
from proxy.settings import build
from proxy.upstream import Facts, ModelFacts
from tests.proxy.commands import Serving, serving
from tests.seam import TOOLS, Seam, chat, seam, written
from tests.upstream import CHAT, Reply, Upstream, Wait, chunk, compact, said, streamed
from tests.wire import ask

STRICT = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}
SRI = {"name": "sri", "sri": True}
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
CALL = {"id": "a", "type": "function", "function": {"name": "finish", "arguments": '{"value":"secret-9"}'}}


def _value(told: AnyValue) -> Any:
    kind = told.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in told.array_value.values]
    return getattr(told, kind or "string_value")


class Collector:
    """An OTLP receiver over HTTP: what it was sent, decoded."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}
        self.headers = ""
        self.port = 0

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.headers = head.decode().lower()
                length = int(self.headers.split("content-length:")[1].split("\r\n")[0])
                sent = ExportTraceServiceRequest.FromString(await reader.readexactly(length))
                for group in sent.resource_spans:
                    self.resource = {item.key: _value(item.value) for item in group.resource.attributes}
                    self.spans += [span for scope in group.scope_spans for span in scope.spans]
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Collector"]:
        server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        yield self
        server.close()

    def told(self) -> list[dict[str, Any]]:
        """The attributes of each span, in the order in which they began."""
        spans = sorted(self.spans, key=lambda span: span.start_time_unix_nano)
        return [{item.key: _value(item.value) for item in span.attributes} for span in spans]


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    async with Collector().listening() as listening:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listening.port}")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        yield listening


@asynccontextmanager
async def process_of(folder: Path, upstream: Upstream) -> AsyncIterator[Serving]:
    """`seam serve` that traces; left, it has ended and sent its spans."""
    async with serving(written(folder, upstream.url, {"tracing": "otlp"}, [STRICT])) as process:
        yield process
        process.signal(signal.SIGTERM)
        assert await process.exit_code(60) == 0


def traced(folder: Path, upstream: Upstream, **config: Any) -> AbstractAsyncContextManager[Seam]:
    """A proxy in this process that traces; left, it has sent its spans."""
    return seam(folder, upstream.url, {"tracing": "otlp", **config}, [STRICT, SRI])


async def asked(process: Seam | Serving, headers: Mapping[str, str] = TRACEPARENT, **fields: Any) -> Any:
    answer = await ask(process.port, "POST", CHAT, headers, compact(chat(**fields)))
    assert answer.status == 200
    return answer


async def test_a_query_is_a_span_under_the_clients_and_over_the_servers(
    tmp_path: Path, collector: Collector
) -> None:
    async with Upstream([said(None, tool_calls=[CALL])]) as upstream:
        async with process_of(tmp_path, upstream) as process:
            await asked(process, calibration="strict", tools=TOOLS, temperature=0.5, seed=3)
        sent = upstream.requests[0]
    (span,) = collector.spans
    assert span.name == "chat m"
    assert span.kind == Span.SPAN_KIND_CLIENT
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert sent.header("traceparent") == f"00-{TRACE}-{span.span_id.hex()}-01"
    assert sent.header("tracestate") == "vendor=1"
    assert 0 < span.start_time_unix_nano < span.end_time_unix_nano
    assert collector.resource["service.name"] == "seam"
    assert collector.resource["deployment.environment.name"] == "test"
    record = json.loads((tmp_path / "decisions.jsonl").read_text())
    told = collector.told()[0]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 3,
        "gen_ai.response.id": "c1",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.conversation.id": record["case_id"],
        "server.address": "127.0.0.1",
        "server.port": upstream.port,
        "http.response.status_code": 200,
        "seam.route": "chat",
        "seam.role": "first",
        "seam.request_id": record["request_id"],
        "seam.profile": "strict",
        "seam.bias": -1.5,
        "seam.applied": record["applied"],
        "seam.action": "tool_call",
        "seam.calls": ["finish"],
        "seam.turn": 1,
        "seam.served": True,
    }
    assert told == expected
    assert "secret-9" not in str(collector.spans)


async def test_a_probes_query_is_a_second_span_after_the_first(tmp_path: Path, collector: Collector) -> None:
    replies = [streamed("All ", "done."), streamed("Which ", "street?")]
    async with Upstream(replies) as upstream:
        async with traced(tmp_path, upstream) as process:
            await asked(process, {}, calibration="sri", tools=TOOLS, stream=True)
        sent = [request.header("traceparent") for request in upstream.requests]
    first, second = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)
    assert [told["seam.role"] for told in collector.told()] == ["first", "sri"]
    assert [told["seam.served"] for told in collector.told()].count(True) == 1
    # Nobody named a trace, so that the reply's first query begins one.
    assert first.parent_span_id == b""
    assert second.parent_span_id == first.span_id
    assert second.trace_id == first.trace_id
    assert first.end_time_unix_nano <= second.start_time_unix_nano
    named = [(told or "").split("-")[1:3] for told in sent]
    assert named == [[span.trace_id.hex(), span.span_id.hex()] for span in (first, second)]


async def test_a_reading_beside_the_reply_is_a_span_too(tmp_path: Path, collector: Collector) -> None:
    tokens = Reply(body=compact({"count": 3, "tokens": [11, 12, 13]}))
    score = Reply(body=compact({"data": [{"index": 0, "score": 0.25}]}))
    async with (
        Upstream([said("Hello."), tokens, score]) as upstream,
        traced(tmp_path, upstream, reading="scoring") as proxy,
    ):
        proxy.runtime.settings.upstream_of("m").facts = Facts("vllm", "0.32.0", {"m": ModelFacts()})
        await asked(proxy, calibration="strict", tools=TOOLS)
        await proxy.records(1)
    first, shadow = collector.told()
    assert (shadow["seam.role"], shadow["gen_ai.provider.name"]) == ("shadow", "vllm")
    assert first["seam.margin"] == shadow["seam.margin"] == pytest.approx(math.log(1 / 3))
    assert shadow["seam.entry_probability"] == pytest.approx(0.25)
    assert "error.type" not in shadow
    spans = {span.span_id.hex() for span in collector.spans}
    sent = [(request.header("traceparent") or "").split("-")[1:3] for request in upstream.requests]
    assert [trace for trace, _ in sent] == [TRACE] * 3
    assert {span for _, span in sent} == spans
    assert sent[1] == sent[2]


def test_every_attribute_is_documented() -> None:
    docs = (Path(__file__).parents[2] / "docs/tracing.md").read_text("utf-8")
    code = (Path(__file__).parents[2] / "proxy/tracing.py").read_text("utf-8")
    names = re.findall(r'"((?:gen_ai|seam|server|error|http)\.[a-z_.]+)"', code)
    assert len(names) > 25
    assert [name for name in names if f"`{name}`" not in docs] == []


async def test_what_failed_says_so(tmp_path: Path, collector: Collector) -> None:
    replies = [Reply(429, body=b'{"error":{"message":"later"}}'), *[Reply(close_on_request=True)] * 2]
    async with Upstream(replies) as upstream, traced(tmp_path, upstream) as process:
        for _ in range(2):
            await ask(process.port, "POST", CHAT, {}, compact(chat()))
    assert [told["error.type"] for told in collector.told()] == ["429", "upstream_unreachable"]
    assert {span.status.code for span in collector.spans} == {2}


async def test_a_client_that_leaves_ends_the_span(tmp_path: Path, collector: Collector) -> None:
    endless = Reply(writes=(chunk(content="Hel"), Wait(600)))
    async with Upstream([endless]) as upstream, traced(tmp_path, upstream) as proxy:
        async with proxy.open_chat(stream=True) as opened:
            await opened.head()
        await proxy.records(1)
    assert [told["error.type"] for told in collector.told()] == ["client_gone"]


async def test_a_query_that_takes_too_long_ends_its_span(tmp_path: Path, collector: Collector) -> None:
    config = {"upstreams": {"default": {"timeouts": {"total": 0.3}}}}
    async with Upstream([Reply(delay=600)]) as upstream, traced(tmp_path, upstream, **config) as proxy:
        assert (await proxy.chat()).status == 504
    assert [told["error.type"] for told in collector.told()] == ["upstream_error"]


@pytest.mark.parametrize(
    ("variable", "value", "sampled"),
    [("OTEL_TRACES_SAMPLER", "always_off", "00"), ("OTEL_SDK_DISABLED", "true", "01")],
)
async def test_the_standard_variables_switch_spans_off(
    tmp_path: Path,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    sampled: str,
) -> None:
    monkeypatch.setenv(variable, value)
    async with Upstream([said("Hello.")]) as upstream, traced(tmp_path, upstream) as proxy:
        await asked(proxy)
    assert collector.spans == []
    version, trace, _, flags = (upstream.requests[0].header("traceparent") or "").split("-")
    assert (version, trace, flags) == ("00", TRACE, sampled)


async def test_texts_come_only_where_the_decision_log_may_have_them(
    tmp_path: Path, collector: Collector
) -> None:
    async with (
        Upstream([said("It is sunny.", tool_calls=[CALL])]) as upstream,
        traced(tmp_path, upstream, decisions={"text": True}) as process,
    ):
        await asked(process, tools=TOOLS)
    told = collector.told()[0]
    assert json.loads(told["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Go on."}]}
    ]
    assert json.loads(told["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "text", "content": "It is sunny."},
                {"type": "tool_call", "id": "a", "name": "finish", "arguments": '{"value":"secret-9"}'},
            ],
            "finish_reason": "tool_calls",
        }
    ]
    assert json.loads(told["gen_ai.tool.definitions"]) == TOOLS


async def test_values_that_otlp_cant_carry_cost_no_span(tmp_path: Path, collector: Collector) -> None:
    async with Upstream([said("Hello.")] * 2) as upstream, traced(tmp_path, upstream) as process:
        raw = rb'{"model":"\ud800","messages":[{"role":"user","content":"Go."}],"seed":99999999999999999999}'
        assert (await ask(process.port, "POST", CHAT, {}, raw)).status == 200
        await asked(process)
    assert [told["gen_ai.request.model"] for told in collector.told()] == ["?", "m"]


async def test_requests_that_want_no_record_have_no_span_and_keep_their_trace(
    tmp_path: Path, collector: Collector
) -> None:
    async with Upstream([said("Hello.")]) as upstream:
        async with traced(tmp_path, upstream) as process:
            await asked(process, {**TRACEPARENT, "X-Calibration": "off"})
        assert upstream.requests[0].header("traceparent") == TRACEPARENT["traceparent"]
    assert collector.spans == []


@pytest.mark.whole
async def test_a_collector_that_is_down_costs_no_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    async with (
        Upstream([said("Hello.")], repeat_last=True) as upstream,
        process_of(tmp_path, upstream) as process,
    ):
        for _ in range(10):
            await asked(process)
    assert len((tmp_path / "decisions.jsonl").read_text().splitlines()) == 10
    assert "Traceback" not in process.log


async def test_without_tracing_the_clients_trace_passes(tmp_path: Path) -> None:
    async with Upstream([said("Hello.")]) as upstream:
        async with seam(tmp_path, upstream.url) as proxy:
            await asked(proxy)
        assert upstream.requests[0].header("traceparent") == TRACEPARENT["traceparent"]


async def test_without_tracing_no_sdk_is_imported() -> None:
    code = "import sys, proxy.server; print('opentelemetry.sdk' in sys.modules)"
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert (await ended.communicate())[0].strip() == b"False"


def test_tracing_without_its_packages_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.tracing.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^tracing: needs OpenTelemetry; pip install 'seam\[otel\]', or"):
        build(written(tmp_path, "http://127.0.0.1:9", {"tracing": "otlp"}), {})
