"""The committed adapter is the one that its record and its card speak of."""

import json
import re
from typing import Any

import pytest

from bench.lab.figures import GATES, verdicts
from bench.lab.merge import ADAPTER, digest
from bench.lab.publish import card, splits


def load(name: str) -> Any:
    return json.loads((ADAPTER / name).read_text(encoding="utf-8"))


def test_record_and_recipe_name_the_committed_adapter_by_its_hash() -> None:
    own = digest(ADAPTER)
    assert load("recipe.json")["adapter"] == own
    record = load("record.json")
    assert {record[split]["adapter"] for split in splits(record)} == {own}


def test_figures_and_training_rest_on_the_data_that_the_manifest_names() -> None:
    hashes, record = load("data.json")["sha256"], load("record.json")
    assert load("recipe.json")["data"] == hashes["train"]
    assert all(record[split]["data"] == hashes[split] for split in splits(record))


def test_the_adapter_is_small_enough_to_be_committed() -> None:
    assert (ADAPTER / "adapter_model.safetensors").stat().st_size <= 10_000_000


def test_the_test_split_was_looked_at_no_more_than_once_with_any_adapter() -> None:
    looks = [look["adapter"] for look in load("record.json")["looks"] if look["split"] == "test"]
    assert len(looks) == len(set(looks))


def test_recorded_verdicts_follow_from_the_recorded_figures() -> None:
    record = load("record.json")
    for split in splits(record):
        assert record[split]["gates"] == verdicts(record[split]["figures"])
        assert {row["figure"] for row in record[split]["gates"]} == {gate.figure for gate in GATES}


def test_the_card_is_the_one_that_record_and_recipe_make() -> None:
    made = card(load("record.json"), load("recipe.json"), load("data.json"))
    assert (ADAPTER / "README.md").read_text(encoding="utf-8") == made


@pytest.mark.parametrize("name", ["call_recall", "over_calling"])
def test_more_bias_never_means_fewer_calls_in_the_recorded_curve(name: str) -> None:
    record = load("record.json")
    curve = record[splits(record)[0]]["figures"]["curve"]
    rates = [point[name]["estimate"] for point in curve]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_the_card_names_every_source_with_its_licence() -> None:
    text = (ADAPTER / "README.md").read_text(encoding="utf-8")
    for source in ("SmolLM2-135M-Instruct", "bfcl-eval", "When2Call"):
        assert re.search(rf"{source}.*Apache License 2\.0", text)


def test_held_out_ids_are_in_one_split_only() -> None:
    ids = load("splits.json")
    assert ids["validation"]
    assert ids["test"]
    assert not set(ids["validation"]) & set(ids["test"])


def test_no_file_of_the_adapter_names_a_path_of_the_machine_that_made_it() -> None:
    for name in ("adapter_config.json", "recipe.json", "record.json", "data.json"):
        assert not re.search(r'"/\w', (ADAPTER / name).read_text(encoding="utf-8"))
