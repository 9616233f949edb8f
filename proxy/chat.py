"""The calibrated routes, stream or not: chat completions, and responses and messages as far as they go."""

import asyncio
import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import anyio

from calibrators.body import Body, NotAnObject
from calibrators.case import History, key_of
from calibrators.contextual import NO_FEATURES, Features, features_of
from calibrators.cri import Cri
from calibrators.dialects import CHAT, Dialect
from calibrators.flow import Query, Report, Role, calibrated, plain
from calibrators.margin import UNREAD, asked_logprobs
from calibrators.probes import Seat
from calibrators.request import Fields, tools_of
from calibrators.shadow import can_shadow, shadow_margin
from calibrators.skip import Skip
from calibrators.sri import Sri
from proxy import headers as h
from proxy.answer import Answer, Clock
from proxy.auth import Caller
from proxy.client import Client
from proxy.driver import Exchange
from proxy.edits import Edits, HideLogprobs
from proxy.errors import BadRequest, CalibrationFailed, HttpError, Unreachable
from proxy.held import PENDING, Held
from proxy.plan import late_roles_of, plan, shadow_of
from proxy.records import Memo, Sitting, record
from proxy.runtime import Runtime, Settings
from proxy.selection import Pick, marks_of, names_of, pick
from proxy.upstream import Upstream

logger = logging.getLogger("seam")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as it reached the proxy, without what was meant for the proxy alone.

    Attributes:
        target: path and query, without a `/p/NAME` prefix.
        prefix: that NAME.
    """

    method: str
    path: str
    target: str
    prefix: str | None
    headers: h.Headers
    body: bytes
    request_id: str
    arrived: float
    caller: Caller

    def headers_for(self, upstream: Upstream, settings: Settings, *, readable: bool) -> h.Headers:
        """What an upstream gets of its headers (`headers.upstream_headers`)."""
        return h.upstream_headers(
            self.headers,
            self.request_id,
            upstream.api_key,
            own_keys=settings.config.auth is not None,
            readable=readable,
        )


async def serve_calibrated(
    runtime: Runtime, request: Incoming, body: Body, dialect: Dialect, client: Client
) -> None:
    """Answer a request: pick its calibration, run it, serve the reply, write down what happened.

    Raises:
        BadSelection: the request picks a calibration that it can't have.
    """
    sitting, asked = await _sit_down(runtime, request, body, dialect)
    upstream = sitting.settings.upstream_of(sitting.model.served)
    headers = request.headers_for(upstream, sitting.settings, readable=True)
    held = _held(sitting, client)
    exchange = Exchange(upstream, dialect, request.target, headers, sitting.clock, asked, held, sitting.trace)
    served: Answer | None = None
    try:
        with sitting.clock.scope:
            with client.attended(sitting.clock.scope):
                async with held.kept_alive() if held else nullcontext():
                    served = await _run(exchange, sitting, asked)
                    await _remember(runtime, sitting, upstream, served)
                await _serve(served, client, sitting, exchange)
            if sitting.report.later:  # the client has its whole answer, and may go
                await _remember(runtime, sitting, upstream, served)
        if sitting.clock.scope.cancelled_caught:
            if not client.gone:
                raise sitting.clock.timed_out()
            sitting.outcome = "client_gone"
    except HttpError as error:
        sitting.outcome = "error" if isinstance(error, CalibrationFailed) else "upstream_error"
        sitting.status = sitting.status or error.status
        logger.warning("%s: %s", request.path, error.message)
        await client.fail(error, _own_headers(sitting))
    except asyncio.CancelledError:
        sitting.outcome = "error"  # the proxy stops, and the reply is broken off
        raise
    finally:
        exchange.close()
        if sitting.outcome == "ok":
            await _read_beside(sitting, upstream)
        record(runtime, sitting, exchange.answers, served)


async def _sit_down(
    runtime: Runtime, request: Incoming, body: Body, dialect: Dialect
) -> tuple[Sitting, Body]:
    """Pick the calibration, and take out of the body what was meant for the proxy."""
    settings = runtime.settings
    config = settings.config

    async def lists(name: str) -> bool:
        return await settings.upstream_of(name).lists(name)

    model, suffix = await names_of(body.fields.get("model"), config, lists)
    chosen = pick(
        body,
        h.get(request.headers, b"x-calibration"),
        request.prefix,
        suffix,
        model.served,
        config,
        settings.profiles,
        request.caller.profiles,
    )
    if "calibration" in body.fields:
        body = body.with_raw(calibration=None)
    if model.served != model.sent and model.served is not None:
        body = body.with_json(model=model.served)
    upstream = settings.upstream_of(model.served)
    case_id = h.get(request.headers, b"x-case-id")
    if case_id and not h.is_word(case_id):
        raise BadRequest(f"X-Case-Id: at most {h.WORD_LIMIT} printable ASCII characters")
    fields = dialect.request(body.fields)
    if len(tools_of(fields)) > config.limits.tools:
        raise BadRequest(f"more than {config.limits.tools} tools (limits.tools)", param="tools")
    facts = upstream.facts if chosen.profile is None else await upstream.facts_for(model.served, fields)
    memo = await _recall(runtime, chosen, case_id, fields) if dialect is CHAT else None
    marks = marks_of(h.get(request.headers, b"x-case-marks"))
    seat = memo and Seat(memo.history, memo.case, late_roles_of(upstream, model.served), marks)
    features = _features(chosen, body, fields)
    tracing = None if chosen.explicit_off else runtime.tracing
    planned = plan(chosen.profile, model.served, facts, config, dialect, seat, features or NO_FEATURES)
    sitting = Sitting(
        settings=settings,
        request_id=request.request_id,
        client=request.caller.name,
        case_id=case_id,
        dialect=dialect,
        fields=fields,
        model=model,
        pick=chosen,
        calibrators=tuple(planned),
        features=features,
        memo=memo,
        trace=None if tracing is None else tracing.of(request.headers, upstream, dialect, model.served),
        report=Report(most=config.limits.max_queries),
        clock=Clock(upstream.settings.timeouts),
        arrived=request.arrived,
        body_came=time.perf_counter(),
    )
    return sitting, body


def _features(chosen: Pick, body: Body, fields: Fields) -> Features | None:
    """What a contextual bias is computed from; None where the profile has none."""
    bias = chosen.profile and chosen.profile.bias
    if not bias or not bias.contextual:
        return None
    try:
        return features_of(fields, body.raw("tools"))
    except RecursionError:  # nested beyond what can be read again
        return NO_FEATURES


async def _recall(runtime: Runtime, chosen: Pick, case_id: str | None, fields: Fields) -> Memo | None:
    """What is remembered of the request's case; None where no probe may act."""
    if chosen.profile is None or not (chosen.profile.sri or chosen.profile.cri):
        return None
    history = History(fields)
    key = key_of(history, case_id)
    return Memo(key, history, await runtime.memory.load(key))


async def _remember(runtime: Runtime, sitting: Sitting, upstream: Upstream, served: Answer) -> None:
    """Note which probes acted, before the client can go on from the reply."""
    report, memo, model = sitting.report, sitting.memo, sitting.model.served
    if served.reply.ended:
        report.conclude()
    if report.late_role is not None and model is not None:
        upstream.learned[model] = report.late_role
    if memo is None:
        return
    fired = [probed.probe for probed in report.probes if probed.fired]
    if memo.case.seen(memo.history).marked(fired, memo.history) is memo.case:
        return
    # Over what others have written meanwhile: a reply takes seconds, and first words are shared.
    known = await runtime.memory.load(memo.key)
    await runtime.memory.save(memo.key, known.seen(memo.history).marked(fired, memo.history))


async def _read_beside(sitting: Sitting, upstream: Upstream) -> None:
    """Read the margin by a query of its own, after the reply, where the operator wants that."""
    config, model = sitting.settings.config, sitting.model.served
    shadow = shadow_of(sitting.pick.profile, model, upstream.facts, config)
    if shadow is None or model is None or not sitting.dialect.reads:
        return
    if not can_shadow(sitting.fields, shadow.entry):
        return
    sitting.shadowed = UNREAD
    trace = sitting.trace
    traced = trace and trace.begin(Role.SHADOW)
    headers = trace.carried([], traced) if trace and traced else ()
    failed = None
    try:
        with anyio.fail_after(upstream.settings.timeouts.total):
            asking = shadow_margin(shadow.by, model, sitting.fields, shadow.entry)
            sitting.shadowed = await upstream.answered(asking, headers)
    except (HttpError, TimeoutError) as error:
        failed = getattr(error, "code", "timeout")
        logger.warning("reading by %s: %s", shadow.by, str(error) or "no answer in time")
    if traced:
        traced.over(failed)


async def _run(exchange: Exchange, sitting: Sitting, body: Body) -> Answer:
    """Run the calibration; where it fails, serve the reply without it unless the operator says otherwise."""
    asked = Query(body, sitting.fields)
    try:
        return await exchange.run(calibrated(asked, sitting.calibrators, sitting.report))
    except CalibrationFailed as error:
        if sitting.settings.config.on_error == "fail":
            raise
        logger.error("%s", error.message, exc_info=error.__cause__)
        sitting.report.void = Skip("failed", error.message)
        return await exchange.run(plain(asked))


def _held(sitting: Sitting, client: Client) -> Held | None:
    """What the client of a stream sees while a probe holds it; None where no probe can."""
    probes = any(isinstance(c, Sri | Cri) and not c.log_only for c in sitting.calibrators)
    if not probes or sitting.fields.get("stream") is not True:
        return None
    return Held(
        client, partial(_own_headers, sitting, PENDING), sitting.settings.config.listen.heartbeat_seconds
    )


async def _serve(served: Answer, client: Client, sitting: Sitting, exchange: Exchange) -> None:
    sitting.status = served.reply.status
    if not served.reply.good:
        sitting.outcome = "upstream_error"
    # Where the head has left before the outcome was known, the last chunk tells it.
    telling = sitting.pick.explain or client.started
    explain = (lambda: sitting.explanation(served, len(exchange.answers))) if telling else None
    added = served.query.body.edits.keys() & {"logprobs", "top_logprobs", "logprob_token_ids"}
    spent = [a.reply.usage for a in exchange.answers if a.response is not served.response and a.reply.usage]
    edits = Edits(
        served.reply,
        sitting.model,
        hide_usage=served.usage_added,
        logprobs=HideLogprobs(asked_logprobs(sitting.fields)) if added else None,
        spent=spent,
        explain=explain,
    )
    if served.streamed:
        await _serve_stream(served, client, sitting, edits)
    else:
        await _serve_document(served, client, sitting, edits)


async def _serve_document(served: Answer, client: Client, sitting: Sitting, edits: Edits) -> None:
    sitting.first_shown_at = time.perf_counter()
    edited = (edits.any and served.reply.readable) or served.own
    content = edits.document(served.document) if edited else served.raw
    actions = [sitting.action(served.reply, choice) for _, choice in sorted(served.reply.choices.items())]
    headers = _reply_headers(served, sitting, edited)
    if any(actions):
        headers.append((b"x-calibration-action", ", ".join(a or "none" for a in actions).encode()))
    headers.append((b"content-length", str(len(content)).encode()))
    if client.started:  # as the stream that a heartbeat began
        await client.write(b"data: " + content + b"\n\n")
        await client.end()
        return
    await client.start(served.reply.status, headers)
    await client.end(content)


async def _serve_stream(served: Answer, client: Client, sitting: Sitting, edits: Edits) -> None:
    edits_needed = edits.any or served.own or client.started
    edited = edits_needed
    async for piece in served.pieces():
        written = time.perf_counter()
        if sitting.first_shown_at is None and (
            served.opaque or any(e.data is not None for e in piece.events)
        ):
            sitting.first_shown_at = written
        if not client.started:
            edited = edits_needed and not served.opaque
            # Not before something has come: until then a timeout or a break is still a status.
            await client.start(served.reply.status, _reply_headers(served, sitting, edited))
        if edited and served.opaque:
            served.broken = "the encoding of the upstream's answer broke"
            break
        chunk = b"".join(map(edits.event, piece.events)) if edited else piece.raw
        if chunk:
            await client.write(chunk)
        sitting.client_seconds += time.perf_counter() - written
    if edited and (rest := edits.flush()):
        await client.write(rest)
    if served.broken:
        raise Unreachable(served.broken)
    if not served.reply.good:
        sitting.outcome = "upstream_error"
    if not client.started:
        await client.start(served.reply.status, _reply_headers(served, sitting, edited))
    await client.end()


def _reply_headers(served: Answer, sitting: Sitting, edited: bool) -> h.Headers:
    """The upstream's end-to-end headers and our own; the length is that of what is really sent."""
    without = {b"content-length"} | ({b"content-encoding"} if edited else set())
    headers = h.end_to_end(served.response.headers, frozenset(without))
    own = _own_headers(sitting)
    told = h.get(headers, b"x-request-id")
    if told is None:
        return headers + own
    if told.startswith(sitting.request_id):  # an echo of ours, maybe with a later query's number
        return [(key, value) for key, value in headers if key != b"x-request-id"] + own
    return headers + [(key, value) for key, value in own if key != b"x-request-id"]


def _own_headers(sitting: Sitting, applied: str | None = None) -> h.Headers:
    return [
        (b"x-calibration", sitting.pick.label.encode()),
        (b"x-calibration-applied", h.safe(applied or sitting.report.header())),
        (b"x-request-id", sitting.request_id.encode("latin-1")),
    ]


def parse_body(raw: bytes) -> Body | None:
    """The request's JSON object; None for anything else, which is the upstream's to refuse."""
    try:
        return Body.parse(raw.decode())
    except (NotAnObject, UnicodeDecodeError):
        return None
