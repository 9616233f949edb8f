"""What `make lab` compares, and how vLLM is told to serve it."""

import json
from pathlib import Path

import pytest

from bench.errors import InputError
from bench.lab.compared import decisions, modules, trained


def checkpoint(folder: Path, name: str, rank: int = 4, *, finished: bool = True) -> None:
    run = folder / name
    (run / "adapter").mkdir(parents=True)
    (run / "adapter" / "adapter_config.json").write_text(json.dumps({"r": rank}))
    if finished:
        (run / "result.json").write_text("{}")


def test_finished_checkpoints_are_compared_and_teachers_are_not_among_them(tmp_path: Path) -> None:
    for name in ("vanilla-0", "mixed-sft", "tool-teacher", "response-teacher"):
        checkpoint(tmp_path, name)
    checkpoint(tmp_path, "union-0", finished=False)
    assert trained(tmp_path) == ["mixed-sft", "vanilla-0"]


def test_without_mixed_sft_there_is_nothing_to_hold_students_against(tmp_path: Path) -> None:
    checkpoint(tmp_path, "vanilla-0")
    with pytest.raises(InputError, match="no mixed-sft is finished"):
        trained(tmp_path)


def test_one_server_serves_all_at_the_least_rank_that_holds_them(tmp_path: Path) -> None:
    checkpoint(tmp_path, "a", 4)
    checkpoint(tmp_path, "b", 16)
    *options, one, two = modules(tmp_path, ["a", "b"])
    assert options[options.index("--max-lora-rank") + 1] == "16"
    assert [module.partition("=") for module in (one, two)] == [
        (name, "=", str(tmp_path / name / "adapter")) for name in ("a", "b")
    ]


def test_only_natural_decisions_are_asked(tmp_path: Path) -> None:
    for split, sets in (("validation", ["decisions"]), ("test", ["swapped"])):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"id": split, "sets": sets}) + "\n")
    assert [json.loads(line)["id"] for line in decisions(tmp_path)] == ["validation"]
