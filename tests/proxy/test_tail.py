"""`seam tail`: follows a decision log live, through its rotation and past what is broken, and filters it."""

import asyncio
import json
import os
import pty
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.cli import cli
from proxy.config import Decisions
from proxy.decisions import DecisionLog
from proxy.tail import Tail, Wanted, acted, moment, parsed, shown
from tests.proxy.commands import run_seam
from tests.seam import TOOLS, seam
from tests.upstream import Upstream, said, streamed

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
STRICT = {"name": "strict", "entry": {"tokens": [7]}, "bias": {"value": -1.5, "apply": "logit_bias"}}


def record(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "time": (NOW + timedelta(seconds=number)).isoformat(timespec="milliseconds"),
        "request_id": f"r{number}",
        "case_id": "c1",
        "turn": 1,
        "model": "lab",
        "profile": "off",
        "status": 200,
        "outcome": "ok",
        "applied": "none",
        "action": "ask",
        "calls": [],
        "queries": [{}],
        "ms": {"upstream": 12.0, "own": 0.4},
        **fields,
    }


def write(path: Path, *records: Any) -> None:
    lines = (line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in records)
    with path.open("ab") as file:
        file.writelines(lines)


def told(*arguments: str | Path) -> list[str]:
    """The ids of the records that the command prints of a log that it does not follow."""
    ended = CliRunner().invoke(cli, ["tail", *map(str, arguments), "--json", "--no-follow"])
    assert ended.exit_code == 0, ended.output
    return [json.loads(line)["request_id"] for line in ended.stdout.splitlines()]


def ids(records: Iterable[Any]) -> list[str]:
    return [item["request_id"] for item in records]


@asynccontextmanager
async def tailing(*arguments: str | Path) -> AsyncIterator[asyncio.StreamReader]:
    """A running `seam tail` and what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli", "tail", *map(str, arguments), stdin=DEVNULL, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            yield process.stdout
    finally:
        process.kill()
        await process.wait()


async def test_decisions_of_a_running_proxy_show_as_they_are_made(tmp_path: Path) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "finish", "arguments": "{}"}}
    async with (
        Upstream([said("Which city?"), said(None, tool_calls=[call]), streamed("Done.")]) as upstream,
        seam(tmp_path, upstream.url, profiles=[STRICT]) as proxy,
    ):
        await proxy.chat(tools=TOOLS)
        await proxy.records(1)
        async with tailing(proxy.log) as lines:
            assert "  ask        m@off  turn 1  " in (await lines.readline()).decode()
            await proxy.chat(tools=TOOLS, calibration="strict", headers={"X-Request-Id": "req-7"})
            line = (await lines.readline()).decode()
            for part in ("  tool_call  m@strict  turn 1  bias=-1.5/logit_bias  finish  ", " ms  req-7\n"):
                assert part in line
            assert "\x1b" not in line  # no terminal, no colours


async def test_a_log_is_followed_through_its_rotation(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    write(path, record(0))
    log = DecisionLog(Decisions(path=path, max_bytes=1500, keep=50), lambda: None)
    async with tailing(path, "--json") as lines:
        assert json.loads(await lines.readline())["request_id"] == "r0"
        log.start()
        for number in range(1, 200, 5):  # about twenty rotations, several between two looks
            for one in range(number, number + 5):
                log.put(record(one))
            await asyncio.sleep(0.01)
        seen = [json.loads(await lines.readline())["request_id"] for _ in range(200)]
    log.close()
    assert seen == [f"r{number}" for number in range(1, 201)]


def test_several_rotations_between_two_looks_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    write(path, record(0))
    tail = Tail(path, Wanted())
    assert ids(tail.past(10)) == ["r0"]
    write(path, record(1))
    path.rename(tmp_path / "decisions.jsonl.2")
    write(tmp_path / "decisions.jsonl.1", record(2))
    write(path, record(3))
    assert ids(tail.fresh()) == ["r1", "r2", "r3"]
    assert ids(tail.fresh()) == []
    tail.close()


def test_half_a_line_is_shown_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.touch()
    tail = Tail(path, Wanted())
    line = json.dumps(record(0)).encode() + b"\n"
    seen = []
    for at in range(0, len(line), 7):
        write(path, line[at : at + 7])
        seen += ids(tail.fresh())
    assert (seen, tail.broken) == (["r0"], 0)
    tail.close()


def test_an_emptied_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    write(path, record(0), record(1))
    tail = Tail(path, Wanted())
    assert ids(tail.past(10)) == ["r0", "r1"]
    path.write_bytes(b"")
    write(path, record(2))
    assert ids(tail.fresh()) == ["r2"]
    tail.close()


def test_a_folder_is_all_its_logs_also_those_that_come_later(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", record(0), record(2))
    write(tmp_path / "b.jsonl", record(1))
    tail = Tail(tmp_path, Wanted())
    assert ids(tail.past(10)) == ["r0", "r1", "r2"]
    write(tmp_path / "c.jsonl", record(3))
    assert ids(tail.fresh()) == ["r3"]
    tail.close()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--action", "refuse"], ["r1"]),
        (["--action", "refuse", "--action", "none"], ["r1", "r2"]),
        (["--model", "other"], ["r1"]),
        (["--profile", "strict"], ["r2", "r3"]),
        (["--applied", "bias"], ["r2"]),
        (["--applied", "sri", "--applied", "bias"], ["r2", "r3"]),
        (["--applied", "none"], ["r0", "r1"]),
        (["--case", "c9"], ["r3"]),
        (["--since", "2026-08-01T12:00:02"], ["r2", "r3"]),
        (["--since", "2026-08-01T14:00:03+02:00"], ["r3"]),
        (["--profile", "strict", "--action", "none"], ["r2"]),
        (["-n", "2"], ["r2", "r3"]),
        (["-n", "0"], []),
    ],
    ids=lambda value: "_".join(value).replace("-", "") if isinstance(value, list) else None,
)
def test_filters(tmp_path: Path, arguments: list[str], expected: list[str]) -> None:
    path = tmp_path / "decisions.jsonl"
    write(
        path,
        record(0),
        record(1, action="refuse", model="other"),
        record(2, action=None, profile="strict", applied="bias=-1.5/processor; sri=none (it passed)"),
        record(3, profile="strict", applied="sri=retried", case_id="c9"),
    )
    assert told(path, *arguments) == expected


def test_since_reaches_into_rotated_files(tmp_path: Path) -> None:
    write(tmp_path / "decisions.jsonl.10", record(0), record(1))
    write(tmp_path / "decisions.jsonl.2", record(2))
    write(tmp_path / "decisions.jsonl", record(3))
    (tmp_path / "decisions.jsonl.old").write_text("not ours")
    assert told(tmp_path / "decisions.jsonl", "--since", "2026-08-01T12:00:01") == ["r1", "r2", "r3"]


def test_times_that_people_write() -> None:
    assert moment("90s", NOW) == NOW - timedelta(seconds=90)
    assert moment("1d", NOW) == NOW - timedelta(days=1)
    assert moment("2026-08-01T12:00", NOW) == NOW
    assert moment("2026-08-01", NOW) == NOW - timedelta(hours=12)


@pytest.mark.parametrize("since", ["yesterday", "10", "-3m", "99999999d"])
def test_a_time_that_is_none_says_how_to_write_one(tmp_path: Path, since: str) -> None:
    ended = CliRunner().invoke(cli, ["tail", str(tmp_path), "--since", since])
    assert ended.exit_code == 2
    assert f"{since!r} is no time; write 10m, 2h or 2026-08-01T12:00" in ended.output


async def test_a_log_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    code, out, err = await run_seam("tail", str(tmp_path / "none.jsonl"))
    words = "no such file or folder; decisions.path in seam.yaml names it"
    assert (code, out, err) == (2, "", f"seam: {tmp_path}/none.jsonl: {words}\n")


# Whatever stands in the file ---------------------------------------------------------------------


def test_broken_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    garbage = [
        b"{\n",
        b"\x00\xff\n",
        b"\n",
        b"[1]\n",
        b'{"time":1}\n',
        b"[" * 100_000 + b"\n",
        b'{"schema":1e999}\n',
    ]
    write(path, garbage[0], record(0), *garbage[1:], record(1))
    ended = CliRunner().invoke(cli, ["tail", str(path), "--json", "--no-follow"])
    assert [json.loads(line)["request_id"] for line in ended.stdout.splitlines()] == ["r0", "r1"]
    assert ended.stderr == "seam: 6 lines are no decision records\n"


# No deadline: how long an example takes is the machine's business.
LOOKING = settings(
    deadline=None, database=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
TEXT = st.text("a 9=;\n\x1b\x9b\u2028\ud800é", max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@LOOKING
@given(st.dictionaries(st.sampled_from([*record(), "entry_probability", "entry_probability_at_most"]), JSON))
def test_a_record_of_any_shape_is_one_line_that_steers_no_terminal(fields: dict[str, Any]) -> None:
    odd = {**record(), **fields}
    assert shown(odd, colored=False).isprintable()
    acted(odd)
    Wanted(("ask",), ("lab",), ("off",), ("none",), "c1", NOW).takes(odd)


@LOOKING
@given(st.binary())
def test_any_bytes_are_a_record_or_none(line: bytes) -> None:
    assert parsed(line) is None


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\x9b31m", "\ud800"])
def test_names_that_models_made_up_steer_no_terminal(name: str) -> None:
    line = shown(record(calls=[name], model=name, request_id=name), colored=True)
    assert all(
        part.isprintable() for part in line.replace("\x1b[2m", "").replace("\x1b[33m", "").split("\x1b[0m")
    )
    line.encode()


def test_colours_are_for_terminals() -> None:
    assert "\x1b[31mrefuse   \x1b[0m" in shown(record(action="refuse"), colored=True)
    assert "\x1b[31mupstream_error 502\x1b[0m" in shown(
        record(outcome="upstream_error", status=502), colored=True
    )


@pytest.mark.parametrize(
    "environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["plain", "no_color", "dumb"]
)
async def test_a_terminal_shows_colours_unless_it_is_told_not_to(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    write(tmp_path / "decisions.jsonl", record(0, action="refuse"))
    kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    shown_by, terminal = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy.cli", "tail", "--no-follow", str(tmp_path / "decisions.jsonl"),
            stdin=DEVNULL, stdout=terminal, env={**kept, "TERM": "xterm", **environment},
        )  # fmt: skip
        async with asyncio.timeout(60):
            assert await process.wait() == 0
        line = os.read(shown_by, 4096)
    finally:
        os.close(shown_by)
        os.close(terminal)
    assert (b"\x1b[31mrefuse" in line) == (not environment)
    assert b"refuse" in line
