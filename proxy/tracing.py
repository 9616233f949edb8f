"""OpenTelemetry: a span for each upstream query, by the conventions for generative AI.

A span begins when its query is sent and is described when the reply has ended, from what the decision record
is made of. The SDK's own thread sends it: no reply waits for that or fails by it. Only here and only with
`tracing: otlp` is OpenTelemetry imported.
"""

import json
import threading
import time
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from calibrators.dialects import Dialect
from calibrators.flow import Role
from calibrators.margin import UNREAD, Margin
from calibrators.reply import Choice
from proxy.errors import ConfigError
from proxy.headers import Headers

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

    from proxy.answer import Answer
    from proxy.records import Sitting
    from proxy.upstream import Upstream

CLOSING_SECONDS = 5.0
"""How long the end of the process waits for a collector to take the last spans."""

_REQUEST = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "stream": "gen_ai.request.stream",
}


_OF_RECORD = ("client", "turn", "request_id", "profile", "bias", "applied")


def require_opentelemetry() -> None:
    """Check that the extra is installed.

    Raises:
        ConfigError
    """
    try:
        installed = find_spec("opentelemetry.exporter.otlp.proto.http") and find_spec("opentelemetry.sdk")
    except ModuleNotFoundError:
        installed = None
    if not installed:
        raise ConfigError("tracing: needs OpenTelemetry; pip install 'seam[otel]', or write tracing: off")


class Tracing:
    """Makes and sends spans; where they go and which are kept say the standard OTEL_ variables."""

    def __init__(self, text: bool) -> None:
        from opentelemetry import propagate
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        own = Resource.create({"service.name": "seam", "service.version": version("seam")})
        provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self.text = text
        self.propagator = propagate.get_global_textmap()
        self.tracer = provider.get_tracer("seam", version("seam"))
        self._provider = provider
        self._exporter: SpanExporter = OTLPSpanExporter()
        provider.add_span_processor(BatchSpanProcessor(self._exporter))

    def of(self, headers: Headers, upstream: "Upstream", dialect: Dialect, model: str | None) -> "Trace":
        """The trace that a client's request belongs to, by its headers."""
        return Trace(self, headers, upstream, dialect, model)

    def close(self) -> None:
        """Send what waits, and give up where nobody takes it in time."""
        giving_up = threading.Timer(CLOSING_SECONDS, self._exporter.shutdown)
        giving_up.start()
        self._provider.shutdown()
        giving_up.cancel()


class Traced:
    """One upstream query and its span.

    Attributes:
        answer: what it was answered; None where nothing came, and for a reading beside the reply.
    """

    def __init__(self, span: "Span", role: Role) -> None:
        self.span = span
        self.role = role
        self.answer: Answer | None = None
        self.failed: str | None = None
        self._began = time.time_ns()
        self._ended: int | None = None

    def over(self, failed: str | None = None) -> None:
        """Note that the query has ended, and in which error."""
        self._ended, self.failed = time.time_ns(), failed

    def end(self, failed: str | None) -> None:
        """End the span."""
        from opentelemetry.trace import StatusCode

        if failed is not None:
            self.span.set_attribute("error.type", failed)
            self.span.set_status(StatusCode.ERROR)
        if self.answer is not None:
            self._ended = self._began + int(self.answer.seconds * 1e9)
        self.span.end(self._ended)


class Trace:
    """The spans of one reply: children of the client's span, or else of the reply's first query."""

    def __init__(
        self, tracing: Tracing, headers: Headers, upstream: "Upstream", dialect: Dialect, model: str | None
    ) -> None:
        carrier = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in headers}
        self._tracing = tracing
        self._parent: Context = tracing.propagator.extract(carrier)
        self._upstream = upstream
        self._dialect = dialect
        self._model = model
        self._open: list[Traced] = []

    def begin(self, role: Role) -> Traced:
        """Begin the span of a query that is about to be sent."""
        from opentelemetry.trace import SpanKind, get_current_span, set_span_in_context

        facts, address = self._upstream.facts, urlsplit(self._upstream.settings.url)
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": facts.kind or "openai",
            "gen_ai.request.model": self._model,
            "server.address": address.hostname or "",
            "server.port": address.port or (443 if address.scheme == "https" else 80),
            "seam.route": self._dialect.route,
            "seam.role": role.value,
        }
        span = self._tracing.tracer.start_span(
            _fit(f"chat {self._model or ''}".strip()), self._parent, SpanKind.CLIENT, _fitting(attributes)
        )
        if not get_current_span(self._parent).get_span_context().is_valid:
            self._parent = set_span_in_context(span, self._parent)
        traced = Traced(span, role)
        self._open.append(traced)
        return traced

    def carried(self, headers: Headers, traced: Traced) -> Headers:
        """The headers of a query, which name its span as the parent of what the server does."""
        from opentelemetry.trace import set_span_in_context

        made: dict[str, str] = {}
        self._tracing.propagator.inject(made, set_span_in_context(traced.span, self._parent))
        kept = [(key, value) for key, value in headers if key.decode("latin-1").lower() not in made]
        return kept + [(key.encode("latin-1"), value.encode("latin-1")) for key, value in made.items()]

    def finish(self, sitting: "Sitting", base: Mapping[str, Any], served: "Answer | None") -> None:
        """Describe and end all spans of a reply that has ended, whose decision record begins with `base`."""
        shared = _fitting(_of_reply(sitting, base))
        for traced in self._open:
            answer, span = traced.answer, traced.span
            span.set_attributes(shared)
            if answer is None:
                shadow = sitting.shadowed if traced.role is Role.SHADOW else None
                span.set_attributes(_fitting(_of_margin(shadow or UNREAD)))
                traced.end(traced.failed or (None if shadow else sitting.outcome))
                continue
            meant = served is not None and served.response is answer.response
            span.set_attributes(_fitting(_of_answer(sitting, answer, meant)))
            if self._tracing.text:
                span.set_attributes(_fitting(_texts(self._dialect, answer)))
            traced.end(_fault(sitting, answer, meant))


def _of_reply(sitting: "Sitting", base: Mapping[str, Any]) -> dict[str, Any]:
    """What all queries of a reply have in common."""
    fields = {name: sitting.fields.get(key) for key, name in _REQUEST.items()}
    return {
        **{name: value for name, value in fields.items() if isinstance(value, int | float)},
        "gen_ai.conversation.id": base["case_id"],
        **{f"seam.{key}": base[key] for key in _OF_RECORD},
    }


def _of_answer(sitting: "Sitting", answer: "Answer", served: bool) -> dict[str, Any]:
    reply = answer.reply
    usage = reply.usage or {}
    return {
        "http.response.status_code": reply.status,
        "gen_ai.response.id": reply.id,
        "gen_ai.response.model": reply.model,
        "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": usage.get("completion_tokens"),
        "seam.served": served,
        "seam.action": sitting.action(reply) if reply.good and reply.ended else None,
        **_of_margin(sitting.margin(reply.first)),
        "seam.calls": [call.name for call in reply.first.calls],
        "gen_ai.response.finish_reasons": [
            choice.finish_reason for _, choice in sorted(reply.choices.items()) if choice.finish_reason
        ],
    }


def _of_margin(read: Margin) -> dict[str, Any]:
    return {"seam.entry_probability": read.probability, "seam.margin": read.margin}


def _fitting(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that have a value, as OTLP can carry it; another would cost all spans beside it."""
    return {name: _fit(value) for name, value in attributes.items() if value is not None and value != []}


def _fit(value: Any) -> Any:
    if isinstance(value, list):
        return [_fit(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # JSON may hold half a surrogate pair
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value


def _fault(sitting: "Sitting", answer: "Answer", served: bool) -> str | None:
    """The kind of error that a query ended in; None where it ended well."""
    if answer.reply.status >= 400:
        return str(answer.reply.status)
    if not answer.reply.good or answer.broken:
        return "upstream_error"
    return sitting.outcome if served and sitting.outcome != "ok" else None


def _texts(dialect: Dialect, answer: "Answer") -> dict[str, str]:
    """What `decisions.text` allows: what was sent and what came, in the conventions' form."""
    asked = dialect.request(answer.query.body.fields)
    messages = asked.get("messages")
    sent = [m for m in messages if isinstance(m, Mapping)] if isinstance(messages, list) else []
    came = [
        {"role": "assistant", "parts": _said(choice), "finish_reason": choice.finish_reason or "error"}
        for _, choice in sorted(answer.reply.choices.items())
    ]
    told = {
        "gen_ai.input.messages": [{"role": str(m.get("role")), "parts": _parts(m)} for m in sent],
        "gen_ai.output.messages": came,
        "gen_ai.tool.definitions": asked.get("tools"),
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in told.items() if value}


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    if message.get("role") == "tool":
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    calls = message.get("tool_calls")
    parts: list[Any] = content if isinstance(content, list) else []
    if isinstance(content, str) and content:
        parts = [{"type": "text", "content": content}]
    functions = [c for c in calls if isinstance(c, Mapping)] if isinstance(calls, list) else []
    return [*parts, *({"type": "tool_call", "id": c.get("id"), **_function(c)} for c in functions)]


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    told = function if isinstance(function, Mapping) else {}
    return {"name": told.get("name"), "arguments": told.get("arguments")}


def _said(choice: Choice) -> list[Any]:
    text = [{"type": "text", "content": choice.content}] if choice.content else []
    calls = [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in choice.calls
    ]
    return [*text, *calls]
