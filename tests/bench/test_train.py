"""`bench train` up to where torch begins; what it trains is in tests/train."""

import json
import sys
from pathlib import Path

import pytest

from bench.train.lab import trajectories
from bench.train.process import lines
from bench.train.trajectories import Trajectory, read, write
from tests.bench.scoring import Bench, Json, Shown

CALL = {"type": "function", "function": {"name": "find", "arguments": "{}"}}


def conversation(*, call: bool) -> Json:
    reply = (
        {"role": "assistant", "content": None, "tool_calls": [CALL]}
        if call
        else {"role": "assistant", "content": "No."}
    )
    return {"messages": [{"role": "user", "content": "Ask?"}, reply], "tools": []}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(conversation(call=call)) + "\n" for call in (True, False, False)))
    return file


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_reply_with_a_call_makes_a_tool_prompt(data: Path, tmp_path: Path) -> None:
    assert [one.should_call for one in read(data)] == [True, False, False]
    assert [len(read(data, only)) for only in ("tool", "response")] == [1, 2]
    write(tmp_path / "again.jsonl", read(data))
    assert read(tmp_path / "again.jsonl") == read(data)


def test_the_labs_trees_become_their_first_replies(tmp_path: Path) -> None:
    user, call, result, reply = (
        {"role": "user", "content": "Ask?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "Done."},
    )
    branches = [
        {"whole": True, "messages": [user, call, result, reply]},
        {"whole": False, "messages": [user, call]},
        {"whole": True, "messages": [user, reply]},
    ]
    (tmp_path / "train.jsonl").write_text(json.dumps({"tools": [], "branches": branches}) + "\n")
    assert list(trajectories(tmp_path / "train.jsonl")) == [
        Trajectory(messages=[user, call]),
        Trajectory(messages=[user, reply]),
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--how", "union"], "--how union takes --tool-teacher and --response-teacher"),
        (["--how", "sft", "--tool-teacher", "{base}"], "--how sft has no teacher"),
        (["--how", "magic"], "'magic' is not one of 'sft', 'vanilla'"),
        (["--how", "sft", "--start", "{data}.no"], "has neither config.json nor adapter_config.json"),
        (["--how", "sft", "--python", "/no/python"], "/no/python: no such Python"),
        (["--how", "sft", "--python", sys.executable], "bench.train.work: "),
    ],
    ids=["no-teachers", "sft-teacher", "unknown", "start", "python", "no-torch"],
)
def test_a_mistake_is_one_line(bench: Bench, data: Path, base: Path, options: list[str], told: str) -> None:
    filled = [option.format(base=base, data=data) for option in options]
    with pytest.raises(Shown) as shown:
        bench.text("train", "--base", base, "--data", data, *filled)
    assert shown.value.code == 2
    assert told in shown.value.line
    assert shown.value.line.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
            "not the assistant's",
        ),
        ({"messages": []}, "messages"),
    ],
    ids=["no-reply", "empty"],
)
def test_a_line_that_is_no_conversation_is_named(
    bench: Bench, data: Path, base: Path, line: Json, told: str
) -> None:
    data.write_text(json.dumps(conversation(call=True)) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(Shown) as shown:
        bench.text("train", "--how", "sft", "--base", base, "--data", data, "--python", sys.executable)
    assert shown.value.code == 2
    assert "data.jsonl line 2: " in shown.value.line
    assert told in shown.value.line


def test_a_run_goes_on_with_the_weights_that_it_began_with_only(
    bench: Bench, data: Path, base: Path, tmp_path: Path
) -> None:
    arguments = ("train", "--how", "sft", "--base", base, "--data", data, "--python", sys.executable)
    for _ in range(2):
        with pytest.raises(Shown, match=r"bench\.train\.work: "):  # no torch here
            bench.text(*arguments, "--out", tmp_path / "run")
    (base / "model.safetensors").write_bytes(b"others")
    with pytest.raises(Shown, match=r"--base/model\.safetensors"):
        bench.text(*arguments, "--out", tmp_path / "run")


def test_distillation_wants_both_sides(bench: Bench, data: Path, base: Path) -> None:
    data.write_text(json.dumps(conversation(call=True)) + "\n")
    teachers = ("--tool-teacher", base, "--response-teacher", base)
    with pytest.raises(Shown, match="has prompts of one side only"):
        bench.text(
            "train", "--how", "vanilla", "--base", base, "--data", data, "--python", sys.executable, *teachers
        )


def test_a_workers_lines_come_one_by_one_and_what_is_no_object_is_left_out(tmp_path: Path) -> None:
    # `json.tool` is a module that prints the job that it is given.
    assert list(lines(Path(sys.executable), "json.tool", {"a": 1})) == []
    assert list(lines(Path(sys.executable), "tests.bench.test_train", {"a": 1})) == [{"a": 1}]


if __name__ == "__main__":
    print("no object")
    print(json.dumps(json.loads(Path(sys.argv[1]).read_text())))
