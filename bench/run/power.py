"""What a run of some size can show, said before it costs anything (rigor.md, "Power before the run")."""

from collections.abc import Mapping
from typing import Any

from bench.significance import smallest_detectable

_DISCORDANCES = (0.05, 0.1, 0.2)
_WANTED = 0.8


def shown(n: int) -> Mapping[str, Any]:
    """The smallest paired difference that n independent pairs show, by the share of pairs that differ at all.

    With 80 % power at 5 % by McNemar's exact test; null where no difference would show. n counts clusters:
    BFCL's scenarios, tau2's tasks.
    """
    found = {
        f"{share:g}": smallest_detectable(share, n, wanted=_WANTED) if n else None for share in _DISCORDANCES
    }
    return {"n": n, "power": _WANTED, "smallest_difference_by_discordance": found}


def words(told: Mapping[str, Any], unit: str) -> str:
    """`shown` in one line."""
    found = told["smallest_difference_by_discordance"]
    parts = [
        f"{100 * least:.1f} points where {100 * float(share):g} % of them differ"
        for share, least in found.items()
        if least is not None
    ]
    subject = f"{told['n']} {unit if told['n'] != 1 else unit.removesuffix('s')}"
    if not parts:
        most = 100 * max(map(float, found))
        return (
            f"{subject} cannot show any difference between two arms that differ in {most:g} % of them or less"
        )
    return f"{subject} can show a difference between two arms from {', '.join(parts)} (80 % power)"
