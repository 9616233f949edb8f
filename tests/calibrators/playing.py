"""Plays a flow against replies in hand, as proxy/driver.py does against a server."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from calibrators.body import Body
from calibrators.flow import Calibrator, Query, Report, calibrated
from calibrators.reply import Reply

TOOLS = [{"type": "function", "function": {"name": "ship"}}]


class Played(NamedTuple):
    """What a flow did."""

    served: Reply
    queries: list[Query]
    report: Report

    def sent(self, number: int = 0) -> dict[str, Any]:
        """The body of a query."""
        body: dict[str, Any] = json.loads(self.queries[number].body.render())
        return body


def said(text: str = "It is noon.", **message: Any) -> Reply:
    """A whole reply."""
    reply = Reply(200)
    reply.add({"choices": [{"index": 0, "message": {"content": text, **message}, "finish_reason": "stop"}]})
    reply.ended = True
    return reply


def refused(message: str = "out of vocabulary", status: int = 400) -> Reply:
    """An error of the server's, as a status or (200) as the first event of a stream."""
    reply = Reply(status)
    reply.add({"error": {"message": message}})
    reply.ended = True
    return reply


def request(**fields: Any) -> Body:
    """A chat request with tools."""
    return Body.parse(json.dumps({"model": "m", "messages": [], "tools": TOOLS, **fields}))


def play(asked: Body, calibrators: Sequence[Calibrator], *replies: Reply) -> Played:
    """Run calibrators around a request; each query takes the next reply, and none may be left."""
    report = Report()
    flow = calibrated(Query(asked, asked.fields), calibrators, report)
    queries = [next(flow)]
    for reply in replies:
        try:
            queries.append(flow.send(reply))
        except StopIteration as stop:
            assert reply is replies[-1], "the flow ended before its replies"
            report.conclude()
            return Played(stop.value, queries, report)
    raise AssertionError(f"the flow asked for more than {len(replies)} replies")
