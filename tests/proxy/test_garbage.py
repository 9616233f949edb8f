"""What is left of a request once it is over, while nothing is collected."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrators.body import Body
from proxy.chat import Incoming
from proxy.driver import Exchange
from tests.seam import TOOLS, eventually, seam
from tests.upstream import CHAT, Reply, Upstream, chunk

STRICT = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nContent-Type: "
BROKEN_STREAM = Reply(raw_then_reset=HEAD + b"text/event-stream\r\n\r\n" + chunk(content="Hel"))
BROKEN_DOCUMENT = Reply(raw_then_reset=HEAD + b"application/json\r\n\r\n{")
UNANSWERED = Reply(close_on_request=True)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Only what nothing refers to is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held() -> int:
    """How many objects there are that hold a request."""
    return sum(isinstance(each, Body | Incoming | Exchange) for each in gc.get_objects())


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    ("reply", "path", "fields"),
    [
        (BROKEN_STREAM, CHAT, {"stream": True}),
        (BROKEN_DOCUMENT, CHAT, {}),
        (BROKEN_DOCUMENT, "/v1/completions", {}),
        (UNANSWERED, CHAT, {}),
        (UNANSWERED, CHAT, {"stream": True}),
        (UNANSWERED, CHAT, {"calibration": "strict", "tools": TOOLS}),
        (UNANSWERED, "/v1/completions", {}),
    ],
)
async def test_an_answer_that_breaks_leaves_nothing_of_its_request(
    tmp_path: Path, reply: Reply, path: str, fields: dict[str, Any]
) -> None:
    before = held()
    async with Upstream([reply]) as upstream, seam(tmp_path, upstream.url, {}, [STRICT]) as proxy:
        await proxy.chat(to=path, **fields)
        await eventually(lambda: not proxy.server.server_state.tasks)
        assert len(upstream.requests) == 1
        assert held() == before
