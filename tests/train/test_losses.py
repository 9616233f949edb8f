"""Losses and interventions against their definitions, written out plainly."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch lives in vLLM's environment", exc_type=ImportError)

import torch

from bench.train.losses import (
    INTERVENTIONS,
    Positions,
    distillation,
    divergences,
    first_restored,
    global_reweight,
    hard_clip,
    logit_penalty,
    margins,
    placebo,
    soft_clamp,
    teacher_support,
    union,
)
from bench.train.settings import INTERVENED, Settings

VOCABULARY, ENTRY = 50, 7
SETTINGS = Settings(entry=(ENTRY,), top=8)


def positions(
    n: int = 6, seed: int = 0, entry_logit: float = -6.0, vocabulary: int = VOCABULARY
) -> Positions:
    """Every second position is a decision, every third one of a tool prompt; the teacher shuns the entry."""
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (
        torch.randn(n, vocabulary, dtype=torch.float64, generator=generator) * 2 for _ in range(2)
    )
    teacher[:, ENTRY] = entry_logit
    first, response = torch.arange(n) % 2 == 0, torch.arange(n) % 3 != 0
    return Positions(student.requires_grad_(), teacher, first, response)


def gradient(value: Any, of: Any) -> Any:
    (found,) = torch.autograd.grad(value, of)
    return found


def reference(p_logits: Any, q_logits: Any, ids: list[int], settings: Settings) -> float:
    """JSD of two softmaxes over some tokens, one term at a time."""

    def shares(logits: Any) -> list[float]:
        weights = [float((logits[i] / settings.temperature).exp()) for i in ids]
        return [weight / sum(weights) for weight in weights]

    total, beta = 0.0, settings.beta
    for p, q in zip(shares(p_logits), shares(q_logits), strict=True):
        m = beta * p + (1 - beta) * q
        total += beta * p * float(torch.tensor(p / m).log()) + (1 - beta) * q * float(
            torch.tensor(q / m).log()
        )
    return total


def test_every_way_has_its_name() -> None:
    assert tuple(INTERVENTIONS) == INTERVENED


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_the_divergence_is_jsd_on_the_renormalised_support(beta: float) -> None:
    settings = dataclasses.replace(SETTINGS, beta=beta)
    given = positions()
    support = union(given, settings)
    found = divergences(given, support, settings).tolist()
    for row, value in enumerate(found):
        ids = support.ids[row][support.kept[row]].tolist()
        assert len(ids) == len(set(ids))
        expected = reference(given.teacher[row], given.student[row].detach(), ids, settings)
        assert value == pytest.approx(expected, abs=1e-6)
    assert divergences(given._replace(student=given.teacher), support, settings).abs().max() < 1e-12


def test_vanilla_gives_tokens_outside_the_support_no_gradient_at_all() -> None:
    given = positions()
    loss = distillation(given, INTERVENTIONS["vanilla"], SETTINGS)
    found = gradient(loss.total, given.student)
    inside = torch.zeros_like(found, dtype=torch.bool).scatter(1, loss.support.ids, True)
    assert not inside[:, ENTRY].any()
    assert found[~inside].eq(0).all()
    assert found[inside].ne(0).all()


def test_a_restored_entry_is_pushed_the_way_the_whole_vocabulary_pushes_it() -> None:
    given = positions()
    with torch.no_grad():
        given.student[:, ENTRY] = 4.0  # a student that over-calls
    whole = dataclasses.replace(SETTINGS, top=VOCABULARY)
    expected = gradient(distillation(given, INTERVENTIONS["vanilla"], whole).total, given.student)
    restored = gradient(distillation(given, INTERVENTIONS["restore-all"], SETTINGS).total, given.student)
    assert (expected[:, ENTRY] > 0).all(), "descent lowers the entry's logit, since the teacher shuns it"
    assert (restored[:, ENTRY] > 0).all()


def test_where_only_the_entry_was_missing_its_restored_gradient_is_that_of_the_whole_vocabulary() -> None:
    given = positions(vocabulary=9)
    whole = dataclasses.replace(SETTINGS, top=9)
    expected = gradient(distillation(given, INTERVENTIONS["vanilla"], whole).total, given.student)
    restored = gradient(distillation(given, INTERVENTIONS["restore-all"], SETTINGS).total, given.student)
    torch.testing.assert_close(restored, expected)


def test_the_restored_gradient_is_that_of_the_written_out_jsd() -> None:
    """dJSD/dz_e = (1 - beta) q_e (ln(q_e / m_e) - KL(q || m)) / tau, over the extended support."""
    given = positions()
    support = first_restored(given, SETTINGS)
    found = gradient(divergences(given, support, SETTINGS).sum(), given.student)
    for row in (i for i in range(6) if given.first[i]):
        ids = support.ids[row][support.kept[row]].tolist()
        p, q = (
            torch.softmax(logits[row][ids].detach() / SETTINGS.temperature, 0)
            for logits in (given.teacher, given.student)
        )
        m, e = SETTINGS.beta * p + (1 - SETTINGS.beta) * q, ids.index(ENTRY)
        kl = (q * (q / m).log()).sum()
        expected = (1 - SETTINGS.beta) * q[e] * ((q[e] / m[e]).log() - kl) / SETTINGS.temperature
        assert float(found[row, ENTRY]) == pytest.approx(float(expected), rel=1e-6)


def test_first_restoration_adds_the_entry_at_decisions_only_and_never_twice() -> None:
    given = positions()
    support = first_restored(given, SETTINGS)
    held = ((support.ids == ENTRY) & support.kept).sum(-1)
    assert held.tolist() == given.first.int().tolist()
    known = first_restored(positions(entry_logit=20.0), SETTINGS)
    assert ((known.ids == ENTRY) & known.kept).sum(-1).tolist() == [1] * 6
    assert known.kept.sum(-1).tolist() == [8] * 6


def test_the_placebo_restores_another_token_of_the_nearest_probability() -> None:
    given = positions(entry_logit=-1.0)
    plain, support = teacher_support(given, SETTINGS), placebo(given, SETTINGS)
    assert support.kept.sum(-1).tolist() == [8 + int(first) for first in given.first]
    for row in (i for i in range(6) if given.first[i]):
        (added,) = set(support.ids[row][support.kept[row]].tolist()) - set(plain.ids[row].tolist())
        outside = [v for v in range(VOCABULARY) if v != ENTRY and v not in plain.ids[row].tolist()]
        nearest = min(outside, key=lambda v: abs(float(given.teacher[row, v] - given.teacher[row, ENTRY])))
        assert added == nearest


@pytest.mark.parametrize("seed", range(5))
def test_a_union_has_between_k_and_2k_tokens_each_once(seed: int) -> None:
    given = positions(seed=seed)
    support = union(given, SETTINGS)
    for row in range(6):
        ids = support.ids[row][support.kept[row]].tolist()
        assert 8 <= len(ids) == len(set(ids)) <= 16
        assert set(ids) == set(given.teacher[row].topk(8).indices.tolist()) | set(
            given.student[row].topk(8).indices.tolist()
        )
    same = given._replace(student=given.teacher)
    assert union(same, SETTINGS).kept.sum(-1).tolist() == [8] * 6


def test_soft_clamp_scales_the_gradient_by_c_over_d_beyond_c() -> None:
    d = torch.tensor([0.01, 0.02, 0.01, 0.01, 0.02, 0.5], dtype=torch.float64, requires_grad=True)
    limit = 3 * float(d.detach().mean())
    shaped = soft_clamp(d, SETTINGS)
    expected = [1.0 if value <= limit else limit / value for value in d.tolist()]
    assert expected[-1] < 1
    assert gradient(shaped.sum(), d).tolist() == pytest.approx(expected)
    *below, beyond = shaped.tolist()
    assert below == d.tolist()[:-1], "below C nothing changes"
    assert limit < beyond < 0.5


def test_hard_clip_takes_all_gradient_beyond_c() -> None:
    d = torch.tensor([0.2, 0.49, 0.51, 0.69], requires_grad=True)
    assert gradient(hard_clip(d, SETTINGS).sum(), d).tolist() == [1, 1, 0, 0]


def test_global_reweight_lowers_what_stands_out_within_its_bounds() -> None:
    d = torch.tensor([0.0] * 50 + [0.6], dtype=torch.float64, requires_grad=True)
    weights = gradient(global_reweight(d, SETTINGS).sum(), d)
    assert float(weights[-1]) == pytest.approx(0.25), "1 - 0.3 * 3 is below the lightest"
    mean, deviation = float(d.detach().mean()), float(d.detach().std(correction=0))
    assert float(weights[0]) == pytest.approx(1 + 0.3 * mean / deviation)


def test_the_logit_penalty_falls_on_the_entry_at_response_decisions_alone() -> None:
    given = positions()
    found = gradient(logit_penalty(given, SETTINGS), given.student)
    chosen = given.first & given.response
    probability = torch.softmax(given.student.detach(), -1)[:, ENTRY]
    expected = 0.15 * probability * chosen / chosen.sum()
    torch.testing.assert_close(found[:, ENTRY], expected)
    assert found[~chosen].eq(0).all()
    nowhere = given._replace(response=torch.zeros(6, dtype=torch.bool))
    assert float(logit_penalty(nowhere, SETTINGS)) == 0


def test_a_margin_is_the_logit_of_the_entrys_probability() -> None:
    logits = positions().student.detach()
    for entry in ((ENTRY,), (ENTRY, 3)):
        p = torch.softmax(logits, -1)[:, list(entry)].sum(-1)
        torch.testing.assert_close(margins(logits, entry), torch.logit(p))


@pytest.mark.parametrize("how", INTERVENED)
def test_every_way_has_a_finite_loss_and_gradient(how: str) -> None:
    given = positions(entry_logit=-200.0)
    loss = distillation(given, INTERVENTIONS[how], SETTINGS)
    assert torch.isfinite(loss.total)
    assert torch.isfinite(gradient(loss.total, given.student)).all()
