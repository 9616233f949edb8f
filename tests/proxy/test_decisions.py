"""The decision log: what it holds, and that no reply waits for it or fails by it."""

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Decisions
from proxy.decisions import DecisionLog
from tests.seam import TOOLS, USER, seam
from tests.upstream import Reply, Upstream, chunk, compact, said, streamed

DOCS = Path(__file__).parents[2] / "docs"
STRICT = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}
CALL = {"id": "a", "type": "function", "function": {"name": "finish", "arguments": '{"value":"secret-9"}'}}


class Drops:
    """Counts what could not be kept."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def log_of(folder: Path, dropped: Callable[[], None], **settings: Any) -> DecisionLog:
    return DecisionLog(Decisions(path=folder / "decisions.jsonl", **settings), dropped)


def written(path: Path) -> list[Any]:
    return [json.loads(line)["n"] for line in path.read_text("utf-8").splitlines()]


def test_every_record_is_a_line_in_order(tmp_path: Path) -> None:
    drops = Drops()
    log = log_of(tmp_path, drops)
    log.start()
    for number in range(2500):
        log.put({"n": number, "text": "☂\n\ud800"})
    log.close()
    assert written(tmp_path / "decisions.jsonl") == list(range(2500))
    assert drops.count == 0


def test_a_full_queue_drops_and_counts_and_never_waits(tmp_path: Path) -> None:
    drops = Drops()
    log = log_of(tmp_path, drops, queue=10)
    for number in range(25):  # the writer has not started
        log.put({"n": number})
    assert drops.count == 15
    log.start()
    log.close()
    assert written(tmp_path / "decisions.jsonl") == list(range(10))


def test_a_large_file_is_rotated_and_old_ones_go(tmp_path: Path) -> None:
    for number in range(7):
        log = log_of(tmp_path, Drops(), max_bytes=5, keep=2)
        log.start()
        log.put({"n": number})
        log.close()
    files = {path.name: written(path) for path in tmp_path.iterdir()}
    assert files == {"decisions.jsonl": [6], "decisions.jsonl.1": [5], "decisions.jsonl.2": [4]}


def test_a_disk_that_fails_is_told_once_and_its_records_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drops = Drops()
    log = DecisionLog(Decisions(path=tmp_path / "no" / "folder.jsonl"), drops)
    log.start()
    for number in range(5):
        log.put({"n": number})
    log.close()
    assert drops.count == 5
    assert caplog.text.count("records are dropped") == 1
    assert "No such file or directory" in caplog.text


def test_two_processes_may_write_one_file(tmp_path: Path) -> None:
    logs = [log_of(tmp_path, Drops()) for _ in range(2)]
    for log in logs:
        log.start()
    threads = [
        threading.Thread(target=lambda log=log: [log.put({"n": n}) for n in range(500)]) for log in logs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
    assert sorted(written(tmp_path / "decisions.jsonl")) == sorted([*range(500), *range(500)])


# Through the proxy -----------------------------------------------------------------------------


async def test_a_record_holds_the_documented_fields_and_no_others(tmp_path: Path) -> None:
    page = (DOCS / "decision-log.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = [name.strip().strip("`") for row in rows for name in row.split(",")]
    config = {"decisions": {"text": True}}
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, config, [STRICT]) as proxy,
    ):
        await proxy.chat(calibration="strict", tools=TOOLS)
        record = (await proxy.records(1))[0]
    assert sorted(record) == sorted(documented)
    parts = {*record["queries"][0], *record["ms"]}
    assert [part for part in parts if f"`{part}`" not in page] == []


async def test_a_record_says_what_was_asked_and_what_came(tmp_path: Path) -> None:
    async with (
        Upstream([said(None, tool_calls=[CALL])]) as upstream,
        seam(tmp_path, upstream.url, {"models": {"m": {}}}, [STRICT]) as proxy,
    ):
        headers = {"X-Request-Id": "r-1", "X-Case-Id": "arm-b/3"}
        await proxy.chat(headers=headers, calibration="strict", tools=TOOLS, tool_choice="auto")
        record = (await proxy.records(1))[0]
    expected = {
        "request_id": "r-1",
        "case_id": "arm-b/3",
        "turn": 1,
        "model": "m",
        "profile": "strict",
        "stream": False,
        "tools": 1,
        "tool_choice": "auto",
        "status": 200,
        "outcome": "ok",
        "bias": -1.5,
        "scope": "everywhere",  # logit_bias acts at every position
        "applied": "bias=-1.5/logit_bias",
        "entry_probability": None,
        "margin": None,
        "choice": 0,
        "action": "tool_call",
        "calls": ["finish"],
        "delayed_call": False,
        "repeated_calls": 0,
        "finish_reason": "tool_calls",
    }
    assert {key: record[key] for key in expected} == expected
    query = record["queries"][0]
    assert (query["role"], query["status"], query["upstream_id"]) == ("first", 200, "c1")
    assert (query["prompt_tokens"], query["completion_tokens"]) == (12, 5)
    assert record["time"].endswith("+00:00")


async def test_no_prompt_argument_or_reply_text_is_written_unless_asked_for(tmp_path: Path) -> None:
    script = [said("The safe opens with 4711.", tool_calls=[CALL]), streamed("The safe ", "opens with 4711.")]
    async with Upstream(script * 2) as upstream:
        async with seam(tmp_path, upstream.url) as proxy:
            for stream in (False, True):
                await proxy.chat(messages=[{"role": "user", "content": "my street is Elm"}], stream=stream)
            await proxy.records(2)
            kept = proxy.log.read_text()
            assert not any(secret in kept for secret in ("4711", "secret-9", "Elm", "street"))
            proxy.log.unlink()
        async with seam(tmp_path, upstream.url, {"decisions": {"text": True}}) as proxy:
            for stream in (False, True):
                await proxy.chat(messages=[{"role": "user", "content": "my street is Elm"}], stream=stream)
            records = await proxy.records(2)
            assert {record["text"] for record in records} == {"The safe opens with 4711."}
            assert records[0]["arguments"] == ['{"value":"secret-9"}']
            asked = [{"role": "user", "content": "my street is Elm"}]
            assert [record["request"] for record in records] == [{"messages": asked}] * 2


async def test_what_a_server_quotes_of_a_request_is_told_to_its_client_alone(tmp_path: Path) -> None:
    quoting = Reply(400, body=compact({"error": {"message": "bad\r\nX-Evil: 1; input: my street is Elm"}}))
    profile = {"name": "p", "entry": {"tokens": [7]}, "bias": {"value": -1, "apply": "logit_bias"}}
    async with (
        Upstream([quoting, said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, {}, [profile]) as proxy,
    ):
        answer = await proxy.chat(tools=TOOLS, calibration="p")
        told = "none; reason=the upstream refused what was added"
        assert answer.header("x-calibration-applied") == f"{told}: bad  X-Evil: 1; input: my street is Elm"
        assert answer.header("x-evil") is None
        assert (await proxy.records(1))[0]["applied"] == told
        page = (await proxy.ask("/seam/api/decisions")).body + (await proxy.ask("/seam/api/summary")).body
        assert "Elm" not in page.decode() + await proxy.exposition()


async def test_a_record_with_text_has_the_class_by_the_published_lists_too(tmp_path: Path) -> None:
    async with (
        Upstream([said("I can't find X; did you mean A or B?")]) as upstream,
        seam(tmp_path, upstream.url, {"decisions": {"text": True}}) as proxy,
    ):
        await proxy.chat()
        record = (await proxy.records(1))[0]
    assert (record["action"], record["action_published"]) == ("ask", "refuse")


async def test_a_conversation_keeps_its_case_from_request_to_request(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url) as proxy,
    ):
        await proxy.chat()
        await proxy.chat(messages=[*USER, {"role": "assistant", "content": "Hello."}, *USER])
        await proxy.chat(messages=[{"role": "user", "content": "Another."}])
        first, second, other = await proxy.records(3)
        assert first["case_id"] == second["case_id"] != other["case_id"]
        assert [record["turn"] for record in (first, second, other)] == [1, 2, 1]


@pytest.mark.parametrize("profile", [None, "off"])
async def test_a_request_without_calibration_is_observed(tmp_path: Path, profile: str | None) -> None:
    config = {"models": {"m": {"profile": profile} if profile else {}}}
    async with Upstream([said("Which one?")]) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        await proxy.chat()
        record = (await proxy.records(1))[0]
        assert (record["profile"], record["action"], record["entry_probability"]) == ("off", "ask", None)


async def test_only_a_share_is_written_where_that_is_asked_for(tmp_path: Path) -> None:
    for share, count in ((0.0, 0), (1.0, 5)):
        config = {"decisions": {"sample": share, "path": str(tmp_path / f"{share}.jsonl")}}
        async with (
            Upstream([said("Hello.")], repeat_last=True) as upstream,
            seam(tmp_path, upstream.url, config) as proxy,
        ):
            for _ in range(5):
                await proxy.chat()
            assert (
                proxy.sample("seam_actions_total", model="other", profile="off", action="other", tools="no")
                == 5
            )
        path = tmp_path / f"{share}.jsonl"
        assert (len(path.read_text().splitlines()) if path.exists() else 0) == count


async def test_no_log_is_written_where_it_is_off(tmp_path: Path) -> None:
    config = {"decisions": {"sink": "off"}}
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url, config) as proxy:
        assert (await proxy.chat()).status == 200
    assert not (tmp_path / "decisions.jsonl").exists()


async def test_a_disk_that_fails_fails_no_reply(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="seam")
    config = {"decisions": {"path": str(tmp_path / "no" / "folder.jsonl")}}
    async with Upstream([said("Hello."), streamed("Hel", "lo.")]) as upstream:
        async with seam(tmp_path, upstream.url, config) as proxy:
            assert (await proxy.chat()).text == "Hello."
            assert (await proxy.chat(stream=True)).text == "Hello."
        assert proxy.sample("seam_decisions_dropped_total") == 2
        assert caplog.text.count("records are dropped") == 1


async def test_a_full_queue_fails_no_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never_written(self: DecisionLog, batch: list[Any]) -> None:
        held.wait()

    held = threading.Event()
    monkeypatch.setattr(DecisionLog, "_write", never_written)
    config = {"decisions": {"queue": 1}}
    async with (
        Upstream([said("Hello.")], repeat_last=True) as upstream,
        seam(tmp_path, upstream.url, config) as proxy,
    ):
        for _ in range(5):
            assert (await proxy.chat()).status == 200
        assert proxy.sample("seam_decisions_dropped_total") >= 3
        held.set()


async def test_an_error_of_the_servers_is_recorded_without_a_class(tmp_path: Path) -> None:
    refused = compact({"error": {"message": "I can't.", "code": 400}})
    error = Reply(writes=(chunk(content="I can't"), b'data: {"error":{"message":"stopped"}}\n\n'))
    async with Upstream([Reply(400, body=refused), error]) as upstream, seam(tmp_path, upstream.url) as proxy:
        await proxy.chat()
        await proxy.chat(stream=True)
        first, second = await proxy.records(2)
        assert (first["status"], first["outcome"], first["action"]) == (400, "upstream_error", None)
        assert (second["status"], second["outcome"], second["action"]) == (200, "upstream_error", None)


def test_two_writers_lose_no_record_where_both_find_the_file_full(tmp_path: Path) -> None:
    settings = Decisions(path=tmp_path / "log.jsonl", max_bytes=2_000, keep=1_000)
    logs = [DecisionLog(settings, lambda: None) for _ in range(2)]
    for number in range(100):  # by turns, as two workers would
        for log in logs:
            log._write([{"number": number, "filler": "x" * 300}])
    files = [path for path in tmp_path.iterdir() if path.name.startswith("log.jsonl")]
    numbers = [json.loads(line)["number"] for path in files for line in path.read_text().splitlines()]
    assert sorted(numbers) == sorted([*range(100)] * 2)
    assert max(path.stat().st_size for path in files) < 3_000
