"""What a distillation minimises, and the interventions on it, as functions of logits.

calibration.md section 7. A *position* is one token of a reply that the student is taught; its *support* is
the set of tokens over which teacher and student are renormalised and compared. An intervention changes the
support, or what becomes of the divergences, or adds a term; each is one row of `INTERVENTIONS`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.functional import softplus

from bench.train.settings import Settings

Tensor = Any
"""torch.Tensor; torch is absent where types are checked."""

_OUT = -1e9
"""A logit that takes no share and, unlike minus infinity, leaves no NaN behind."""


class Positions(NamedTuple):
    """The positions of a batch, in one order."""

    student: Tensor
    """Logits, (n, vocabulary), with gradient."""
    teacher: Tensor
    """Logits of each position's own teacher, (n, vocabulary)."""
    first: Tensor
    """Whether it is the decision position, (n,)."""
    response: Tensor
    """Whether its prompt is one where no call is due, (n,)."""


class Support(NamedTuple):
    """A set of tokens for each position."""

    ids: Tensor
    """Token ids, (n, width); a token may stand twice."""
    kept: Tensor
    """Which of them count, (n, width): each token once."""


def top_support(logits: Tensor, top: int) -> Support:
    """The `top` likeliest tokens."""
    ids = logits.topk(min(top, logits.shape[-1]), dim=-1).indices
    return Support(ids, torch.ones_like(ids, dtype=torch.bool))


def joined(support: Support, ids: Tensor, where: Tensor) -> Support:
    """The support with more tokens (n, m) at the positions that `where` (n,) or (n, m) names."""
    wanted = where[:, None].expand_as(ids) if where.dim() == 1 else where
    known = (ids[:, :, None] == support.ids[:, None, :]) & support.kept[:, None, :]
    before = (ids[:, :, None] == ids[:, None, :]) & wanted[:, None, :]
    repeated = before.tril(diagonal=-1).any(dim=-1)
    fresh = wanted & ~known.any(dim=-1) & ~repeated
    return Support(torch.cat((support.ids, ids), 1), torch.cat((support.kept, fresh), 1))


def divergences(positions: Positions, support: Support, settings: Settings) -> Tensor:
    """JSD of teacher and student, both renormalised over the support, at each position, in nats.

    JSD_beta = beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q, p the teacher's and q
    the student's softmax at temperature tau over the support. No other token's logit has any gradient.
    """
    p, q = (
        torch.log_softmax(
            logits.gather(1, support.ids).div(settings.temperature).masked_fill(~support.kept, _OUT), dim=-1
        )
        for logits in (positions.teacher, positions.student)
    )
    beta = settings.beta
    mixed = torch.logaddexp(p + math.log(beta), q + math.log1p(-beta))
    return beta * (p.exp() * (p - mixed)).sum(-1) + (1 - beta) * (q.exp() * (q - mixed)).sum(-1)


# The support ------------------------------------------------------------------------------------


def teacher_support(positions: Positions, settings: Settings) -> Support:
    """Vanilla: the teacher's top-K."""
    return top_support(positions.teacher, settings.top)


def first_restored(positions: Positions, settings: Settings) -> Support:
    """The teacher's top-K and, at decision positions, E."""
    return joined(
        teacher_support(positions, settings), _entries(positions.teacher, settings), positions.first
    )


def all_restored(positions: Positions, settings: Settings) -> Support:
    """The teacher's top-K and E, everywhere."""
    everywhere = torch.ones_like(positions.first)
    return joined(teacher_support(positions, settings), _entries(positions.teacher, settings), everywhere)


def placebo(positions: Positions, settings: Settings) -> Support:
    """At decision positions, for each entry token that is missed, another token that is missed too.

    It is the one whose probability under the teacher is nearest (in logs), so that all but its meaning is
    as in `first_restored`.
    """
    support = teacher_support(positions, settings)
    logits = positions.teacher
    free = torch.ones_like(logits, dtype=torch.bool).scatter(1, support.ids, False)
    free[:, list(settings.entry)] = False
    for token in settings.entry:
        missed = positions.first & ~(support.ids == token).any(dim=-1)
        distance = (logits - logits[:, token, None]).abs().masked_fill(~free, float("inf"))
        nearest = distance.argmin(dim=-1, keepdim=True)
        support = joined(support, nearest, missed)
        free = free.scatter(1, nearest, False)
    return support


def union(positions: Positions, settings: Settings) -> Support:
    """The teacher's top-K and the student's own."""
    own = top_support(positions.student.detach(), settings.top)
    return joined(teacher_support(positions, settings), own.ids, torch.ones_like(positions.first))


def _entries(logits: Tensor, settings: Settings) -> Tensor:
    return torch.tensor(settings.entry, device=logits.device).expand(len(logits), -1)


# What becomes of the divergences ----------------------------------------------------------------


def plain(d: Tensor, _settings: Settings) -> Tensor:
    """Each as it is."""
    return d


def hard_clip(d: Tensor, settings: Settings) -> Tensor:
    """min(d, c): a position beyond c has no gradient."""
    return d.clamp(max=settings.clip)


def global_reweight(d: Tensor, settings: Settings) -> Tensor:
    """w d with w = 1 - alpha z, bounded: z is d's distance from the batch's mean in standard deviations.

    z is kept within z_max, and w is detached.
    """
    told = d.detach()
    z = (told - told.mean()) / told.std(correction=0).clamp(min=1e-8)
    weight = 1 - settings.alpha * z.clamp(-settings.z_max, settings.z_max)
    return weight.clamp(settings.lightest, settings.heaviest) * d


def soft_clamp(d: Tensor, settings: Settings) -> Tensor:
    """d up to C, and C (1 + ln(d / C)) beyond, whose gradient is C/d times d's; C = k mean(d), detached."""
    limit = (settings.clamp * d.detach().mean()).clamp(min=1e-12)
    return torch.where(d <= limit, d, limit * (1 + (d.clamp(min=1e-12) / limit).log()))


# Terms beside them ------------------------------------------------------------------------------


def nothing(positions: Positions, _settings: Settings) -> Tensor:
    """No other term."""
    return positions.student.new_zeros(())


def logit_penalty(positions: Positions, settings: Settings) -> Tensor:
    """0.15 times the mean of -ln(1 - P(E)) over the decision positions of response prompts.

    It is softplus of the margin, so its gradient on the entry's logit is P(E): it ends where calls do.
    """
    chosen = positions.first & positions.response
    if not bool(chosen.any()):
        return nothing(positions, settings)
    return settings.penalty * softplus(margins(positions.student[chosen], settings.entry)).mean()


def margins(logits: Tensor, entry: tuple[int, ...]) -> Tensor:
    """logit(P(E)) at temperature 1, (n,)."""
    inside = logits[:, list(entry)].logsumexp(-1)
    others = logits.clone()
    others[:, list(entry)] = _OUT
    return inside - others.logsumexp(-1)


class Intervention(NamedTuple):
    """One way to teach: its support, what it makes of divergences (n,), and its other term."""

    support: Callable[[Positions, Settings], Support] = teacher_support
    shaped: Callable[[Tensor, Settings], Tensor] = plain
    term: Callable[[Positions, Settings], Tensor] = nothing


INTERVENTIONS: Mapping[str, Intervention] = {
    "vanilla": Intervention(),
    "hard-clip": Intervention(shaped=hard_clip),
    "global-reweight": Intervention(shaped=global_reweight),
    "soft-clamp": Intervention(shaped=soft_clamp),
    "logit-penalty": Intervention(term=logit_penalty),
    "restore-first": Intervention(support=first_restored),
    "restore-all": Intervention(support=all_restored),
    "placebo": Intervention(support=placebo),
    "union": Intervention(support=union),
}


class Loss(NamedTuple):
    """The distillation loss of a batch and what it is made of."""

    total: Tensor
    divergences: Tensor
    """Before they are shaped, (n,), detached."""
    support: Support


def distillation(positions: Positions, intervention: Intervention, settings: Settings) -> Loss:
    """The mean over positions of the shaped divergences, and the intervention's own term."""
    support = intervention.support(positions, settings)
    d = divergences(positions, support, settings)
    total = intervention.shaped(d, settings).mean() + intervention.term(positions, settings)
    return Loss(total, d.detach(), support)
