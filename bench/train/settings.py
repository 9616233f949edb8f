"""The ways to train by name, and the numbers of their losses; needs no torch."""

from dataclasses import dataclass
from typing import Final

SFT: Final = "sft"
INTERVENED: Final = (
    "vanilla",
    "hard-clip",
    "global-reweight",
    "soft-clamp",
    "logit-penalty",
    "restore-first",
    "restore-all",
    "placebo",
    "union",
)
"""Distillation as it is, and with each intervention of calibration.md section 7."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers of the losses, the published ones by default.

    Attributes:
        entry: the entry set E.
        top: K, how many tokens a teacher's support has, and a student's where theirs are joined.
        temperature: tau, of both distributions.
        beta: the teacher's share in the mixture that JSD compares with.
        clip: Hard Clip's c, in nats.
        alpha, z_max, lightest, heaviest: Global Reweight's slope, its reach in deviations, and bounds.
        clamp: Soft Clamp's k, in means of the batch.
        penalty: the weight of the response-side logit penalty.
    """

    entry: tuple[int, ...]
    top: int = 32
    temperature: float = 0.9
    beta: float = 0.5
    clip: float = 0.5
    alpha: float = 0.3
    z_max: float = 3.0
    lightest: float = 0.25
    heaviest: float = 2.0
    clamp: float = 3.0
    penalty: float = 0.15
