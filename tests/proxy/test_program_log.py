"""The program log: text or JSON lines, each with the id of the request that it is about."""

import json
import logging
import signal
from pathlib import Path

import pytest

from proxy.program_log import JsonLines, TextLines, current_request
from tests.proxy.commands import serving
from tests.seam import chat, written
from tests.upstream import CHAT, Reply, Upstream, compact, said
from tests.wire import ask

ID = {"X-Request-Id": "req-7"}


def line(message: str) -> logging.LogRecord:
    return logging.LogRecord("seam", logging.WARNING, "", 0, message, (), None)


@pytest.fixture
def _asking() -> None:
    current_request.set("req-7")


async def test_json_lines_name_the_request_they_are_about_and_no_other(tmp_path: Path) -> None:
    config = {"logging": {"format": "json"}}
    async with (
        Upstream([Reply(close_on_request=True)] * 2) as upstream,
        serving(written(tmp_path, upstream.url, config)) as process,
    ):
        await ask(process.port, "POST", CHAT, ID, compact(chat()))
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
    records = [json.loads(entry) for entry in process.log.splitlines()]
    assert all(set(record) >= {"time", "level", "logger", "message"} for record in records)
    about = [record for record in records if "request_id" in record]
    assert [(record["level"], record["request_id"]) for record in about] == [("warning", "req-7")]
    assert about[0]["message"].startswith("/v1/chat/completions: the upstream broke")
    assert records[0]["message"].startswith("Seam on http://")


async def test_text_lines_name_it_too(tmp_path: Path) -> None:
    async with (
        Upstream([Reply(close_on_request=True)] * 2) as upstream,
        serving(written(tmp_path, upstream.url, {})) as process,
    ):
        await ask(process.port, "POST", CHAT, ID, compact(chat()))
        await process.logged("WARNING seam: [req-7] /v1/chat/completions: the upstream broke")


async def test_no_line_is_written_for_a_request_that_went_well(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        serving(written(tmp_path, upstream.url, {}), "--log-level", "debug") as process,
    ):
        await ask(process.port, "POST", CHAT, ID, compact(chat()))
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
    assert "req-7" not in process.log


@pytest.mark.usefixtures("_asking")
@pytest.mark.parametrize("text", ["a\nERROR seam: forged", "\x1b[2J", "\x9b2J", "\u2028x", "\r"])
def test_nothing_from_outside_begins_a_line_or_steers_a_terminal(text: str) -> None:
    for shown in (TextLines().format(line(text)), JsonLines().format(line(text))):
        assert shown.isprintable()
    assert "[req-7]" in TextLines().format(line(text))
    assert json.loads(JsonLines().format(line(text)))["message"] == text
