"""Runs a calibrator's generator against the upstream: the one place, for streams and non-streams."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial

from calibrators.body import Body, NotAnObject, set_members
from calibrators.dialects import CHAT, Dialect
from calibrators.flow import Flow, Query, QueryFailed
from calibrators.reply import Reply
from proxy.answer import Answer, Clock
from proxy.errors import CalibrationFailed, HttpError, Unreachable
from proxy.headers import Headers
from proxy.held import Held
from proxy.tracing import Trace
from proxy.upstream import Upstream


class Exchange:
    """All queries made for one reply.

    Attributes:
        answers: in the order in which they were asked for.
    """

    def __init__(
        self,
        upstream: Upstream,
        dialect: Dialect,
        target: str,
        headers: Headers,
        clock: Clock,
        asked: Body,
        held: Held | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.answers: list[Answer] = []
        self._asked = asked
        self._upstream = upstream
        self._dialect = dialect
        self._target = target
        self._headers = headers
        self._clock = clock
        self._held = held
        self._trace = trace

    async def run(self, flow: Flow) -> Answer:
        """Drive the flow to its end and return the answer to serve, read as far as the flow needed.

        Raises:
            HttpError: the upstream failed and the flow had nothing else to serve.
            CalibrationFailed: the flow itself failed.
        """
        step = _advance(flow.__next__)
        while isinstance(step, Query):
            try:
                answer = await self._answered(step)
            except HttpError as error:
                try:
                    step = _advance(partial(flow.throw, QueryFailed(error.message)))
                except QueryFailed:
                    raise error from None
            else:
                step = _advance(partial(flow.send, answer.reply))
        # A reply of ours stands for the upstream's answer that it replaces.
        meant = step.instead_of or step
        served = next(answer for answer in self.answers if answer.reply is meant)
        for answer in self.answers:
            if answer is not served:
                answer.close()
        return served if meant is step else served.saying(step)

    async def _answered(self, query: Query) -> Answer:
        """Send a query and read as much of its answer as the flow wants to see.

        Raises:
            HttpError: none came in time, or one that can't take the place of the first.
        """
        with self._clock.spare() if self.answers else nullcontext():
            answer = await self.ask(query)
            await answer.settle(query.settled, self._held)
        first = self.answers[0]
        if answer.streamed != first.streamed and answer.reply.good and first.reply.good:
            # The client may have seen the head of a stream already.
            raise Unreachable("the upstream answered once with a stream and once without")
        return answer

    async def ask(self, query: Query) -> Answer:
        """Send one query."""
        body, usage_added = self._with_usage(query.body)
        if body.fields.get("stream") is True:
            self._clock.first_due()
        headers = self._named(len(self.answers) + 1)
        if self._trace is None:
            return await self._sent(query, body, headers, usage_added)
        traced = self._trace.begin(query.role)
        try:
            headers = self._trace.carried(headers, traced)
            traced.answer = await self._sent(query, body, headers, usage_added)
        except BaseException as error:
            traced.over(getattr(error, "code", None))
            raise
        return traced.answer

    async def _sent(self, query: Query, body: Body, headers: Headers, usage_added: bool) -> Answer:
        started = time.perf_counter()
        try:
            response = await self._upstream.send("POST", self._target, headers, body.render().encode())
        finally:
            self._clock.upstream_seconds += time.perf_counter() - started
        answer = Answer.of(query, self._dialect, response, self._clock, started, usage_added)
        self.answers.append(answer)
        return answer

    def _named(self, number: int) -> Headers:
        """The headers of the query of this number: a server's log tells a second one from the first."""
        if number == 1:
            return self._headers
        mark = b"-%d" % number
        return [(k, v + mark if k == b"x-request-id" else v) for k, v in self._headers]

    def _with_usage(self, body: Body) -> tuple[Body, bool]:
        """Ask for a stream's token counts too, where the query is changed anyhow and lacks them."""
        options = body.fields.get("stream_options")
        asks = isinstance(options, Mapping) and bool(options.get("include_usage"))
        streams = body.fields.get("stream") is True and self._dialect is CHAT
        # A probe that holds a stream may ask again, and then the tokens of both are to be told.
        untouched = body is self._asked and self._held is None
        if untouched or asks or not streams:
            return body, False
        try:
            raw = set_members(body.raw("stream_options"), {"include_usage": "true"})
        except NotAnObject:
            return body, False  # the upstream's to refuse
        return body.with_raw(stream_options=raw), True

    def close(self) -> None:
        """Cancel whatever is still open."""
        for answer in self.answers:
            answer.close()


def _advance(generator_step: Callable[[], Query]) -> Query | Reply:
    """The flow's next query, or the reply that it ends with."""
    try:
        return generator_step()
    except StopIteration as stop:
        reply: Reply = stop.value
        return reply
    except QueryFailed:
        raise
    except Exception as error:
        raise CalibrationFailed(f"a calibrator failed: {type(error).__name__}") from error
    finally:
        del generator_step  # it may hold the error whose traceback will hold this frame
