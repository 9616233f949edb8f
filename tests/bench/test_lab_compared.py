"""What `make lab` compares, and how vLLM is told to serve it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.errors import InputError
from bench.lab.compared import (
    Arm,
    calibrated_arms,
    check_weights,
    decisions,
    modules,
    trained,
    unseen,
    weights,
)
from bench.lab.compared_publish import publish
from bench.runs import Plan, RunFolder
from proxy.profiles import read_profile


def checkpoint(folder: Path, name: str, rank: int = 4, *, finished: bool = True) -> None:
    plan = Plan(command="train", arguments={"rank": rank, "steps": 60, "batch": 4}, seed=0)
    with RunFolder.open(folder / name, plan) as run:
        (run.path / "adapter").mkdir()
        (run.path / "adapter" / "adapter_config.json").write_text(json.dumps({"r": rank}))
        (run.path / "adapter" / "adapter_model.safetensors").write_text(name)
        if finished:
            run.finish({"seconds": 480.4})


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


def test_whole_replies_are_made_where_no_bias_was_chosen(tmp_path: Path) -> None:
    lines = [json.dumps({"id": id}) for id in ("a", "b")]
    rows = [{"id": "a", "split": "validation"}, {"id": "b", "split": "test"}]
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(unseen(lines, tmp_path)) == lines[1:]


@pytest.mark.parametrize("fitted", [None, {"b0": -1.0, "weights": {"fit": 0.5}, "low": -3.0, "high": 1.0}])
def test_a_student_is_compared_under_its_biases_and_the_probes(
    tmp_path: Path, fitted: dict[str, Any] | None
) -> None:
    folder = tmp_path / "vanilla-0"
    with RunFolder.open(folder, Plan(command="calibrate", arguments={}, seed=0)) as run:
        run.finish({"contextual": {"fitted": fitted, "offered": False}})
    arms = calibrated_arms(tmp_path / "profiles", folder)
    names = ["vanilla-0-b", *(["vanilla-0-bx"] if fitted else []), "vanilla-0-sri", "vanilla-0-cri"]
    assert [arm.name for arm in arms] == names
    assert str(arms[0]) == f"vanilla-0-b=model=vanilla-0,profile={arms[0].profile}"
    assert str(Arm("lab", "lab")) == "lab=model=lab"
    # The proxy takes what was written for the others; the first one is bench calibrate's own.
    for arm in arms[1:]:
        assert arm.profile is not None
        assert read_profile(arm.profile).name == arm.name


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("restore-first-0", "--how restore-first --seed 0 --base .cache/lab/lab --tool-teacher"),
        ("union-1", "--how union --seed 1"),
        ("response-teacher", "--how sft --only response --base .cache/lab/base"),
    ],
)
def test_make_names_a_student_by_its_intervention_and_seed(tmp_path: Path, name: str, told: str) -> None:
    command = ["make", "-n", f"LAB_COMPARED={tmp_path}", f"{tmp_path}/{name}/result.json"]
    said = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    ).stdout
    assert told in " ".join(said.split())
    assert f"--out {tmp_path}/{name} " in said


def estimate(value: float) -> dict[str, object]:
    return {"estimate": value, "low": value - 0.05, "high": value + 0.05}


def compared(folder: Path, *labels: str) -> None:
    own = {"over_calling": estimate(0.2), "call_recall": estimate(0.9)}
    result = {
        "pairing": {"cases": 120, "due": 58},
        "systems": [
            {"name": f"{label}, {arm}", "run": label, "arm": arm}
            for label in labels
            for arm in ("b = -1", "b(x)")
        ],
        "first_token": {f"{label}, {arm}": own for label in labels for arm in ("b = -1", "b(x)")},
        "runs": {
            label: {"auc": estimate(0.93), "contextual": {"b(x)": {"auc": estimate(0.95)}}}
            for label in labels
        },
    }
    walls = [("bench audit --out a", 90.0), ("bench audit --out b", 60.0), ("bench audit --out a", 2.0)]
    lines = [json.dumps({"command": command, "seconds": took}) for command, took in walls]
    (folder / "walls.jsonl").write_text("".join(line + "\n" for line in lines))
    (folder / "first-beside-mixed-sft").mkdir()
    (folder / "first-beside-mixed-sft" / "result.json").write_text(json.dumps(result))


def test_adapters_are_published_with_the_figures_of_their_comparison(tmp_path: Path) -> None:
    for name in ("mixed-sft", "vanilla-0", "tool-teacher", "response-teacher"):
        checkpoint(tmp_path, name)
    compared(tmp_path, "lab", "mixed-sft", "vanilla-0")
    publish(tmp_path, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| vanilla-0, b = −1 | 20.0 % (15.0–25.0) | 90.0 % (85.0–95.0) | 0.930 |" in card
    assert "| vanilla-0, b(x) | 20.0 % (15.0–25.0) | 90.0 % (85.0–95.0) | 0.950 |" in card
    assert "| vanilla-0 | 480 |" in card
    assert "| `bench audit`, 2 times | 150 |" in card
    assert "120 held-out decisions that no b was chosen on, 58 of them with a call due" in card
    assert (tmp_path / "out" / "tool-teacher" / "adapter_config.json").exists()


def test_figures_of_other_weights_are_not_taken_for_those_of_a_checkpoint(tmp_path: Path) -> None:
    for name in ("mixed-sft", "tool-teacher", "response-teacher"):
        checkpoint(tmp_path, name)
    compared(tmp_path, "lab", "mixed-sft")
    check_weights(tmp_path, {"mixed-sft": weights(tmp_path, "mixed-sft")})
    check_weights(tmp_path, {"mixed-sft": weights(tmp_path, "mixed-sft")})
    weights(tmp_path, "mixed-sft").write_text("trained again")
    with pytest.raises(InputError, match="other weights than those that were compared; remove"):
        publish(tmp_path, tmp_path / "out")


def test_a_checkpoint_that_was_not_compared_is_not_published(tmp_path: Path) -> None:
    for name in ("mixed-sft", "vanilla-0"):
        checkpoint(tmp_path, name)
    compared(tmp_path, "lab", "mixed-sft")
    with pytest.raises(InputError, match="other checkpoints were compared"):
        publish(tmp_path, tmp_path / "out")
