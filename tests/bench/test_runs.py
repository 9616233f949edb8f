"""The run folder as a person and a subcommand meet it: begin, be killed, resume, be refused."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.errors import InputError
from bench.runs import DataFile, Plan, RecordFile, RunFolder, git_state, read_manifest, read_records


def plan(**changed: Any) -> Plan:
    given: dict[str, Any] = {"command": "entry", "arguments": {"rounds": 5, "models": ("a", "b")}, "seed": 0}
    return Plan(**(given | changed))


def test_a_new_run_says_what_it_is(tmp_path: Path) -> None:
    data = tmp_path / "cases.jsonl"
    data.write_text("{}\n")
    with RunFolder.open(tmp_path / "run", plan(data={"cases": DataFile.of(data)})):
        pass
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert written["schema_version"] == 1
    assert written["state"] == "planned"
    assert written["plan"]["arguments"] == {"rounds": 5, "models": ["a", "b"]}
    assert written["plan"]["data"]["cases"]["size"] == 3
    assert len(written["plan"]["data"]["cases"]["sha256"]) == 64
    assert written["sessions"][0]["versions"].keys() >= {"python", "seam", "numpy", "httpx"}


def test_records_come_back_in_order_and_are_known_by_key(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, plan()) as run:
        records = run.records()
        records.append("case-1", {"margin": -0.5})
        records.append("case-2", {"margin": None})
        assert list(records) == [{"key": "case-1", "margin": -0.5}, {"key": "case-2", "margin": None}]
        assert "case-1" in records
        assert records.done == {"case-1", "case-2"}


def test_a_second_call_resumes(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, plan()) as run:
        run.records().append("case-1", {})
    with RunFolder.open(tmp_path, plan()) as run:
        assert not run.done
        records = run.records()
        assert records.done == {"case-1"}
        records.append("case-2", {})
    assert [r["key"] for r in read_records(tmp_path / "records.jsonl")] == ["case-1", "case-2"]
    assert len(read_manifest(tmp_path).sessions) == 2


def test_a_finished_run_keeps_its_result_and_is_not_written_to_again(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, plan()) as run:
        run.finish({"rate": 0.5})
    before = (tmp_path / "run.json").read_bytes()
    with RunFolder.open(tmp_path, plan()) as run:
        assert run.done
    assert json.loads((tmp_path / "result.json").read_text()) == {"rate": 0.5}
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"arguments": {"rounds": 6, "models": ("a", "b")}}, "arguments.rounds was 5 and is 6"),
        ({"arguments": {"rounds": 5}}, 'arguments.models was ["a", "b"] and is absent'),
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"limit": 10}, "limit was null and is 10"),
        ({"upstream": {"url": "http://127.0.0.1:9"}}, 'upstream.url was absent and is "http://127.0.0.1:9"'),
        ({"profile": {"name": "careful", "sha256": "0"}}, 'profile.name was absent and is "careful"'),
        ({"data": {"cases": DataFile(sha256="0", size=1)}}, 'data.cases.sha256 was absent and is "0"'),
    ],
)
def test_another_plan_is_refused_and_the_difference_named(
    tmp_path: Path, changed: dict[str, Any], difference: str
) -> None:
    with RunFolder.open(tmp_path, plan()):
        pass
    with pytest.raises(InputError) as refusal:
        RunFolder.open(tmp_path, plan(**changed))
    line = str(refusal.value)
    assert difference in line
    assert "run.json" in line
    assert "or give another --out" in line


def test_a_kill_in_the_middle_of_a_line_loses_that_line_only(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, plan()) as run:
        records = run.records()
        records.append("case-1", {"text": "one"})
        records.append("case-2", {"text": "two"})
    file = tmp_path / "records.jsonl"
    whole = file.read_bytes()
    for kept in range(whole.index(b"\n") + 1, len(whole)):
        file.write_bytes(whole[:kept])
        assert [r["key"] for r in read_records(file)] == ["case-1"]
        with RunFolder.open(tmp_path, plan()) as run:
            records = run.records()
            assert records.done == {"case-1"}
            records.append("case-2", {"text": "two"})
        assert file.read_bytes() == whole


def test_a_killed_process_leaves_a_folder_that_resumes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from bench.runs import *\n"
        "run = RunFolder.open(Path(sys.argv[1]), Plan(command='entry', arguments={}, seed=0))\n"
        "records = run.records()\n"
        "for i in range(10**9):\n"
        "    records.append(str(i), {'text': 'x' * 1000})\n"
        "    print(i, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(20)]
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    with RunFolder.open(tmp_path, plan(arguments={})) as run:
        assert run.records().done >= {str(i) for i in acknowledged}


def test_a_kill_while_the_first_manifest_is_written_is_healed(tmp_path: Path) -> None:
    (tmp_path / ".run.json.draft").write_text('{"schema_')
    with RunFolder.open(tmp_path, plan()):
        pass
    assert read_manifest(tmp_path).state == "planned"


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"key": "a"}\n{"key": "b"\n{"key": "c"}\n')
    with pytest.raises(InputError, match=r"records\.jsonl line 2: is not a record; take the line out"):
        RecordFile(tmp_path / "records.jsonl")


def test_a_failed_write_ends_the_run_and_leaves_whole_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunFolder.open(tmp_path, plan()) as run:
        records = run.records()
        records.append("case-1", {})

        class Full:
            """A file on a disk that takes ten more bytes."""

            def __init__(self, file: Any) -> None:
                self.file = file

            def write(self, line: bytes) -> int:
                return int(self.file.write(line[:10]))

            def __getattr__(self, name: str) -> Any:
                return getattr(self.file, name)

        monkeypatch.setattr(records, "_file", Full(records._file))
        with pytest.raises(InputError, match=os.strerror(errno.ENOSPC)):
            records.append("case-2", {})
    assert (tmp_path / "records.jsonl").read_text() == '{"key": "case-1"}\n'


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, plan()) as run:
        run.records()
        with pytest.raises(InputError, match="another bench is writing"):
            RecordFile(tmp_path / "records.jsonl")


def test_a_key_is_written_once(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, plan()) as run:
        records = run.records()
        records.append("case-1", {})
        with pytest.raises(ValueError, match="has a record 'case-1' already"):
            records.append("case-1", {})


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"holds files but no run\.json; give a new or empty folder"):
        RunFolder.open(tmp_path, plan())


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        RunFolder.open(tmp_path / "file" / "run", plan())


@pytest.mark.parametrize("content", ["", "[]", '{"schema_version": 2}', "not json"])
def test_a_manifest_that_cannot_be_read_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError) as refusal:
        RunFolder.open(tmp_path, plan())
    assert "run.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_input_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        DataFile.of(tmp_path / "absent.jsonl")


def test_the_checkout_is_recorded_and_only_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    module = tmp_path / "runs.py"
    module.write_text("")
    monkeypatch.setattr("bench.runs.__file__", str(module))
    assert git_state() is None
    git("init")
    assert git_state() is None  # in a checkout, but not tracked by it
    git("add", "runs.py")
    git("commit", "-m", "x")
    clean = git_state()
    assert clean is not None
    assert not clean.dirty
    assert len(clean.commit) == 40
    module.write_text("changed")
    changed = git_state()
    assert changed is not None
    assert changed.dirty
