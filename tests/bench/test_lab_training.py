"""Packing and adapting, against the plain way; they run where torch is, and elsewhere are skipped."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch lives in vLLM's environment", exc_type=ImportError)
pytest.importorskip("safetensors", reason="safetensors lives in vLLM's environment")

import torch

from bench.lab import lora
from bench.lab.train import PHASES, Recipe, fingerprint, ordered, phases_of, schedule
from bench.lab.trees import Branch, Rows, Tree, batches, logits, margins

ENTRY = 3


def small_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def trees() -> list[Tree]:
    """Two trees of different size, with replies given and not."""
    shared = [1, 5, 9, 12, 7]
    first = [
        Branch([*shared, 20, 21, ENTRY, 30, 2], [(7, 10)]),
        Branch([*shared, 22, 8, 2], [(6, 8)]),
        Branch([*shared, 20, 23, 24], [(8, 8)]),
    ]
    return [Tree(first, [True, False, False]), Tree([Branch([1, 6, 11, 4, 2], [(3, 5)])], [False])]


def test_a_packed_tree_scores_as_its_branches_do_alone() -> None:
    model = small_model()
    rows = Rows(trees(), pad=0)
    with torch.no_grad():
        packed = logits(rows.hidden(model.model), rows.decisions, model.lm_head.weight)
        branches = [branch for tree in trees() for branch in tree.branches]
        alone = [model(torch.tensor([b.ids[: b.replies[0][0]]])).logits[0, -1] for b in branches]
    torch.testing.assert_close(packed, torch.stack(alone), atol=1e-5, rtol=1e-4)


def test_every_reply_token_is_a_target_once_and_the_first_ones_are_marked() -> None:
    rows = Rows(trees(), pad=0)
    assert rows.targets == [ENTRY, 30, 2, 8, 2, 4, 2]
    assert rows.first == [True, False, False, True, False, True, False]


def test_the_prefix_is_counted_once_in_a_trees_length() -> None:
    assert [tree.length for tree in trees()] == [5 + 5 + 3 + 3, 5]


def test_batches_hold_every_tree_once_within_the_budget() -> None:
    grown = trees() * 5
    groups = list(batches(grown, budget=40))
    assert sorted(index for group in groups for index in group) == list(range(10))
    assert all(len(g) == 1 or len(g) * max(grown[i].length for i in g) <= 40 for g in groups)


def test_the_margin_is_the_logit_of_the_entry_probability() -> None:
    scores = torch.randn(4, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    entered = torch.softmax(scores, dim=-1)[:, ENTRY]
    torch.testing.assert_close(margins(scores, ENTRY), torch.logit(entered))


def test_the_adapted_maps_gradients_are_those_of_the_written_out_form() -> None:
    torch.manual_seed(2)
    base = torch.nn.Linear(6, 5, bias=False)
    adapted = lora.Adapted(base, rank=2, alpha=4.0)
    with torch.no_grad():
        adapted.b.normal_()
    adapted.fold()
    x = torch.randn(3, 7, 6, requires_grad=True)
    ours = torch.autograd.grad(adapted(x).square().sum(), [x, adapted.a, adapted.b])
    plain = x @ (base.weight.detach() + 2.0 * adapted.b @ adapted.a).T
    written_out = torch.autograd.grad(plain.square().sum(), [x, adapted.a, adapted.b])
    for one, other in zip(ours, written_out, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_saved_adapter_folds_into_what_was_trained_up_to_bf16(tmp_path: Path) -> None:
    model = small_model()
    adapted = lora.attach(model, range(1, 3), rank=2, alpha=4.0)
    assert len(adapted) == 2 * len(lora.MAPS)
    with torch.no_grad():
        for module in adapted.values():
            module.b.normal_(std=0.05)
            module.fold()
    lora.save(tmp_path, adapted, range(1, 3), rank=2, alpha=4.0)
    for name, add in lora.additions(tmp_path):
        module = adapted[name.removesuffix(".weight")]
        torch.testing.assert_close(add(module.base), module.folded, atol=1e-2, rtol=1e-2)


def test_a_phase_starts_from_the_adapter_that_the_one_before_saved(tmp_path: Path) -> None:
    first = lora.attach(small_model(), range(1, 3), rank=2, alpha=4.0)
    with torch.no_grad():
        for module in first.values():
            module.b.normal_()
    lora.save(tmp_path, first, range(1, 3), rank=2, alpha=4.0)
    torch.manual_seed(7)
    second = lora.attach(small_model(), range(1, 3), rank=2, alpha=4.0)
    lora.load(tmp_path, second)
    for path, module in first.items():
        torch.testing.assert_close(second[path].a, module.a.bfloat16().float(), check_dtype=False)
        torch.testing.assert_close(second[path].b, module.b.bfloat16().float(), check_dtype=False)


def test_a_run_goes_on_with_the_phases_that_an_adapter_lacks(tmp_path: Path) -> None:
    recipe = Recipe(data="d", seed=0)
    (tmp_path / "recipe.json").write_text(json.dumps({"phases": [asdict(PHASES[0])]}))
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    assert len(phases_of(tmp_path)) == 1
    alone, after = fingerprint(recipe, 1, None), fingerprint(recipe, 1, tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"other weights")
    assert len({alone, after, fingerprint(recipe, 1, tmp_path), fingerprint(recipe, 0, None)}) == 4


def test_only_the_adapter_is_trained_and_layers_below_it_stay_as_they_are() -> None:
    model = small_model()
    lora.attach(model, range(1, 3), rank=2, alpha=4.0)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(name.endswith((".a", ".b")) and ".layers.0." not in name for name in trained)


def test_the_rate_warms_up_stays_and_falls_to_a_tenth() -> None:
    rates = [schedule(step, steps=100, warmup=10) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[10:60] == [1.0] * 50
    assert rates[60:] == sorted(rates[60:], reverse=True)
    assert rates[100] == pytest.approx(0.1)


def test_passes_follow_each_other_and_their_order_depends_on_the_seed_alone() -> None:
    rows = [{"id": str(n), "pass": number} for number in (0, 1) for n in range(50)]
    assert [row["pass"] for row in ordered(rows, 0)] == [0] * 50 + [1] * 50
    assert ordered(rows, 0) == ordered(rows, 0) != ordered(rows, 1)
