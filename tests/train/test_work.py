"""Training and auditing a tiny real checkpoint, as the worker processes do it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch lives in vLLM's environment", exc_type=ImportError)
pytest.importorskip("peft", reason="peft lives in vLLM's environment", exc_type=ImportError)

import torch

from bench.audit import reading
from bench.lab import lora
from bench.train.losses import INTERVENTIONS, distillation
from bench.train.models import CheckpointError, Prompts, base_of, load, named_base
from bench.train.trajectories import read
from bench.train.work import Job, Trainer, lessons, work
from calibrators.openers import Hint
from tests.train.conftest import TOOL

Json = dict[str, Any]
ENTRY = 3


def job(checkpoint: Path, data: Path, out: Path, **changed: Any) -> Job:
    out.mkdir(exist_ok=True)
    given = {
        "how": "sft",
        "base": str(checkpoint),
        "data": str(data),
        "only": "all",
        "out": str(out),
        "start": None,
        "tool_teacher": None,
        "response_teacher": None,
        "steps": 4,
        "batch": 2,
        "rate": 0.01,
        "rank": 2,
        "on_policy": 0.8,
        "anchor": 0.1,
        "max_tokens": 12,
        "max_prompt": 1000,
        "seed": 0,
        "every": 2,
        "settings": {},
        **changed,
    }
    return Job(**given)


def distilling(checkpoint: Path, data: Path, out: Path, **changed: Any) -> Job:
    teachers = {"tool_teacher": str(checkpoint), "response_teacher": str(checkpoint)}
    return job(checkpoint, data, out, **{"how": "vanilla", **teachers, **changed})


def lines(capsys: pytest.CaptureFixture[str]) -> list[Json]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "adapter" / "adapter_model.safetensors"))


def test_entry_tokens_are_found_from_the_checkpoint_as_on_a_server(checkpoint: Path) -> None:
    entry = Prompts(checkpoint).entry(Hint())
    assert (entry.tokens, entry.text) == ((ENTRY,), "<tool_call>")


def test_a_lesson_is_the_prompt_that_a_server_sees_and_the_reply_up_to_its_end(
    checkpoint: Path, data: Path
) -> None:
    prompts = Prompts(checkpoint)
    answer, call = lessons(prompts, read(data)[:2], max_tokens=100, max_prompt=1000)
    decode = prompts.tokenizer.decode
    assert decode(answer.prompt).endswith("<|im_start|>assistant\n")
    assert decode(answer.reply) == "No 0.<|im_end|>"
    assert decode(call.reply).startswith('<tool_call>\n{"name": "find"')
    assert decode(call.reply).endswith("</tool_call><|im_end|>")
    assert (call.reply[0], answer.should_call, call.should_call) == (ENTRY, False, True)
    assert [len(one.reply) for one in lessons(prompts, read(data)[:2], 5, 1000)] == [5, 5]


def test_supervised_training_lowers_its_loss_and_leaves_a_peft_adapter(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work(job(checkpoint, data, tmp_path / "run", steps=12))
    start, *steps = lines(capsys)
    assert (start["start"], start["prompts"], start["tool_prompts"]) == (0, 12, 6)
    assert [line["step"] for line in steps] == list(range(1, 13))
    assert steps[-1]["loss"] < steps[0]["loss"]
    trained = load(tmp_path / "run" / "adapter", None, "cpu")  # its config names the base
    plain = load(checkpoint, None, "cpu")
    ids = torch.tensor([[5, 6, 7]])
    assert not torch.allclose(trained(ids).logits, plain(ids).logits)


def test_a_killed_run_takes_the_same_steps_as_one_that_was_not(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = (distilling(checkpoint, data, tmp_path / name) for name in ("whole", "cut"))
    work(whole)
    _, *expected = lines(capsys)
    trainer = Trainer(cut)
    trainer.step()
    trainer.step()
    trainer.save()
    trainer.step()  # lost with the kill
    work(cut)
    start, *rest = lines(capsys)
    assert start["start"] == 2
    for line in (*expected, *rest):
        line.pop("seconds")
    assert rest == expected[2:]
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(value, weights(tmp_path / "cut")[name])


@pytest.mark.parametrize("how", ["soft-clamp", "union", "placebo"])
def test_each_way_trains(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    work(distilling(checkpoint, data, tmp_path / "run", how=how, steps=2))
    _, *steps = lines(capsys)
    assert len(steps) == 2
    assert all(line["norm"] > 0 and line["tokens"] > 0 for line in steps)
    assert (tmp_path / "run" / "adapter" / "adapter_config.json").is_file()


def test_each_prompt_is_taught_by_the_teacher_of_its_side(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work(job(checkpoint, data, tmp_path / "tool", only="tool", steps=3))
    adapter = tmp_path / "tool" / "adapter"
    trainer = Trainer(distilling(checkpoint, data, tmp_path / "run", tool_teacher=str(adapter), batch=4))
    for module in trainer.adapted.values():
        module.fold()
    taught = trainer._taught(trainer._chosen(0), 0)
    found = trainer.positions(
        taught, [trainer._logits(trainer.student, one.lesson.prompt, one.reply)[0] for one in taught]
    )
    # Before its first step the student is the base, which is the response teacher too.
    torch.testing.assert_close(found.teacher[found.response], found.student[found.response].detach())
    assert {one.lesson.should_call for one in taught} == {True, False}
    assert not torch.allclose(found.teacher[~found.response], found.student[~found.response].detach())
    loss = distillation(found, INTERVENTIONS["vanilla"], trainer.settings)
    assert loss.divergences[found.response].abs().max() < 1e-6


def test_lambda_is_the_share_of_replies_that_the_student_writes(
    checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    for share, rolled in ((0.0, 0), (1.0, 6)):
        trainer = Trainer(distilling(checkpoint, data, tmp_path / "run", on_policy=share, batch=6))
        taught = trainer._taught(trainer._chosen(0), 0)
        assert sum(one.rolled for one in taught) == rolled
        assert all(one.rolled or one.reply == one.lesson.reply for one in taught)
        assert all(0 < len(one.reply) <= 12 for one in taught)


def test_replies_to_one_prompt_are_scored_as_each_would_be_alone(
    checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    trainer = Trainer(job(checkpoint, data, tmp_path / "run"))
    prompt, replies = [5, 6, 7, 8], ((9, 10, 11), (12,), (13, 9))
    together = trainer._logits(trainer.student, prompt, *replies)
    for reply, scores in zip(replies, together, strict=True):
        alone = trainer.student(torch.tensor([[*prompt, *reply]])).logits[0]
        torch.testing.assert_close(scores, alone[len(prompt) - 1 : -1], atol=1e-5, rtol=1e-4)


def test_bf16_weights_have_an_adapter_that_steps_in_fp32(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work(distilling(checkpoint, data, tmp_path / "run", precision="bf16", steps=3))
    _, *steps = lines(capsys)
    assert all(line["norm"] > 0 for line in steps)
    trainer = Trainer(distilling(checkpoint, data, tmp_path / "run", precision="bf16"))
    assert {p.dtype for p in trainer.parameters} == {torch.float32}
    assert trainer.teachers[True].dtype == trainer.student.dtype == torch.bfloat16


def test_linear_maps_with_a_bias_keep_it(tmp_path: Path) -> None:
    """Qwen2's attention has them."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(3)
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=1)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    ids = torch.tensor([[5, 6, 7]])
    before = model(ids).logits.detach()
    lora.attach(model, range(2), rank=2, alpha=4.0)
    torch.testing.assert_close(model(ids).logits, before)


def test_a_model_that_reasons_first_is_refused(
    checkpoint: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(Prompts(checkpoint).entry(Hint()), after=(9,))
    monkeypatch.setattr(Prompts, "entry", lambda self, hint: entry)
    with pytest.raises(CheckpointError, match="reasons before it decides"):
        Trainer(job(checkpoint, data, tmp_path / "run"))


def test_a_loss_that_is_no_longer_finite_ends_the_run_before_it_is_kept(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckpointError, match="no longer finite; lower --rate"):
        work(job(checkpoint, data, tmp_path / "run", rate=1e30, every=1))
    assert all(line["loss"] < 1e9 for line in lines(capsys)[1:])


@pytest.mark.parametrize(
    ("changed", "told"), [({"rank": 4}, "rank 2"), ({"base": "deeper"}, "other linear maps")]
)
def test_an_adapter_of_other_shape_is_no_beginning(
    checkpoint: Path, data: Path, tmp_path: Path, changed: Json, told: str
) -> None:
    work(job(checkpoint, data, tmp_path / "first", steps=1))
    if "base" in changed:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig.from_pretrained(checkpoint, num_hidden_layers=3)
        shutil.copytree(checkpoint, tmp_path / "deeper")
        LlamaForCausalLM(config).save_pretrained(tmp_path / "deeper")
        changed = {"base": str(tmp_path / "deeper")}
    start = str(tmp_path / "first" / "adapter")
    with pytest.raises(CheckpointError, match=told):
        Trainer(job(checkpoint, data, tmp_path / "run", start=start, **changed))


def test_an_adapter_is_put_on_the_base_that_is_named(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    work(job(checkpoint, data, tmp_path / "run", steps=1))
    adapter = tmp_path / "run" / "adapter"
    assert base_of(adapter, None) == named_base(adapter) == checkpoint
    assert base_of(adapter, tmp_path) == tmp_path
    assert base_of(checkpoint, tmp_path) == checkpoint


# The audit's reader ------------------------------------------------------------------------------


def audited(checkpoint: Path, folder: Path, capsys: pytest.CaptureFixture[str], **changed: Any) -> list[Json]:
    prompts = folder / "prompts.jsonl"
    request = {"messages": [{"role": "user", "content": "Ask?"}], "tools": [TOOL]}
    rows = [{"key": key, "response": key == "r", "request": request} for key in ("r", "t")]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"teacher": str(checkpoint), "student": None, "base": None, "prompts": str(prompts)}
    reading.read(reading.Job(**{**given, "tops": [4, 32], "steps": 5, "settings": {"top": 4}, **changed}))
    return lines(capsys)


def test_a_checkpoints_ranks_and_mass_are_those_of_its_softmax(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, response, tool = audited(checkpoint, tmp_path, capsys)
    assert told["entry"]["tokens"] == [ENTRY]
    ids = Prompts(checkpoint).ids({"messages": [{"role": "user", "content": "Ask?"}], "tools": [TOOL]})
    with torch.no_grad():
        shares = torch.softmax(load(checkpoint, None, "cpu")(torch.tensor([ids])).logits[0, -1].double(), -1)
    order = shares.argsort(descending=True).tolist()
    for record in (response, tool):
        assert record["rank"] == order.index(ENTRY) + 1
        assert record["log_p"] == pytest.approx(float(shares[ENTRY].log()), abs=1e-5)
        for top in (4, 32):
            assert record["mass"][str(top)] == pytest.approx(float(shares[order[:top]].sum()), abs=1e-6)


def test_a_student_is_replayed_on_response_prompts_and_one_that_is_the_teacher_diverges_nowhere(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, response, tool = audited(checkpoint, tmp_path, capsys, student=str(checkpoint))
    assert "replay" not in tool
    assert len(response["replay"]["forced"]) == 5
    assert max(response["replay"]["forced"]) < 1e-6
    assert max(response["replay"]["masked"]) < 1e-6
