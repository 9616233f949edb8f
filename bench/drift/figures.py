"""The figures of `bench drift`: for each model and profile what moved, by how much, why and when."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.drift.log import Logged, Parts
from bench.intervals import Floats, cluster_bootstraps
from calibrators.actions import Action
from calibrators.drift import BINS, NONE, Drift, Table, Window, comparable, compare

Json = dict[str, Any]
CLASSES: Final = (*map(str, Action), NONE)
SPLIT: Final = ("change", "by_mix", "same_mix")
"""A change, what of it the mix of traffic alone would have made, and what is left at the same mix."""
_DRAWS: Final = 2000
_STEPS: Final = 12
"""Into how many steps the current window is parted, to see when it moved."""
_SPARE: Final = 1.2
"""So much longer are steps than the share of margins read asks for, which is not the same in all."""
_APPLIED: Final = 8
"""How many of Seam's doings are told apart."""


def figures(parts: Parts, minimum: int, seed: int) -> list[Json]:
    """The figures of every model and profile that either window has, those with most replies first."""
    groups = Counter((reply.model, reply.profile) for part in parts for reply in part)
    return [
        _group(model, profile, Parts(*(_of(part, model, profile) for part in parts)), minimum, seed)
        for (model, profile), _ in groups.most_common()
    ]


def _of(replies: Iterable[Logged], model: str, profile: str) -> list[Logged]:
    return [reply for reply in replies if (reply.model, reply.profile) == (model, profile)]


def _group(model: str, profile: str, parts: Parts, minimum: int, seed: int) -> Json:
    reference, current = (Window.of(reply.seen for reply in part) for part in parts)
    classes = compare(reference.classes, current.classes, minimum)
    margins = compare(reference.margins, current.margins, minimum)
    return {
        "model": model,
        "profile": profile,
        "reference": _extent(parts.reference, reference),
        "current": _extent(parts.current, current),
        "classes": told(classes)
        | {"changes": None if classes.psi is None else _class_changes(parts, reference, current, seed)},
        "margins": told(margins)
        | {"shift": None if margins.psi is None else _shift(parts, reference, current, seed)},
        "histogram": {name: [w.margins.totals[b] for b in BINS] for name, w in _named(reference, current)},
        "kinds": _beside(*(_sizes(window.classes) for window in (reference, current))),
        "seam": _seam(*(Counter(reply.applied or "nothing" for reply in part) for part in parts)),
        "steps": _steps(parts.current, reference, minimum),
    }


def told(drift: Drift) -> Json:
    """A comparison as JSON."""
    return {"verdict": drift.verdict, **drift._asdict()}


def _named(reference: Window, current: Window) -> tuple[tuple[str, Window], ...]:
    return ("reference", reference), ("current", current)


def _extent(replies: Sequence[Logged], window: Window) -> Json:
    return {
        "replies": len(replies),
        "conversations": len({reply.seen.case for reply in replies}),
        "margins": window.margins.n,
        "design": {"classes": window.classes.design, "margins": window.margins.design},
        "from": replies[0].time.isoformat() if replies else None,
        "to": replies[-1].time.isoformat() if replies else None,
    }


def _sizes(table: Table) -> Counter[str]:
    return Counter({kind: sum(row.values()) for kind, row in table.counts.items()})


def _beside(reference: Counter[str], current: Counter[str]) -> Json:
    """Counts of both windows by name, the commonest first."""
    return {
        name: {"reference": reference[name], "current": current[name]}
        for name, _ in (reference + current).most_common()
    }


def _seam(reference: Counter[str], current: Counter[str]) -> Json:
    """What Seam did to replies, in the words of X-Calibration-Applied, and how far that moved.

    moved: the share of replies that it did something else to (total variation), None where a window is empty.
    applied: the rarest ways together.
    """
    of = reference.total(), current.total()
    moved = None
    if min(of):
        moved = sum(abs(reference[w] / of[0] - current[w] / of[1]) for w in reference | current) / 2
    common = {name for name, _ in (reference + current).most_common(_APPLIED)}
    for counts in (reference, current):
        for name in counts.keys() - common:
            counts["other"] += counts.pop(name)
    return {"moved": moved, "applied": _beside(reference, current)}


def _steps(replies: Sequence[Logged], reference: Window, minimum: int) -> list[Json]:
    """The current window in steps of time, each against the reference: when it moved.

    A step holds as many replies as give a number, of margins too where enough of them were read.
    """
    size = max(minimum, -(-len(replies) // _STEPS))
    margins = sum(reply.seen.margin is not None for reply in replies)
    if margins >= 2 * minimum:
        size = max(size, round(_SPARE * minimum * len(replies) / margins))
    found = []
    for start in range(0, len(replies) - size + 1, size):
        step = replies[start : start + size]
        window = Window.of(reply.seen for reply in step)
        found.append(
            {
                "from": step[0].time.isoformat(),
                "to": step[-1].time.isoformat(),
                "replies": len(step),
                "classes": told(compare(reference.classes, window.classes, minimum)),
                "margins": told(compare(reference.margins, window.margins, minimum)),
            }
        )
    return found


# Changes with their intervals ------------------------------------------------------------------


class _Sums(NamedTuple):
    """Sums over replies, by conversation.

    Attributes:
        columns: (conversations, 2 x kinds x values): of each window, kind of traffic, and value, the last
            value being 1 for each reply.
        known: (kinds,) whether the reference says what the model does there.
        values: how many there are.
    """

    columns: Floats
    known: NDArray[np.bool_]
    values: int

    def means(self, sums: Floats) -> tuple[Floats, Floats, Floats]:
        """Means over replies (draws, values - 1): before, at the current mix, after."""
        table = sums.reshape(len(sums), 2, len(self.known), self.values)
        totals, counts = table[..., :-1], table[..., -1:]
        before, after = (totals[:, w].sum(axis=1) / counts[:, w].sum(axis=1) for w in (0, 1))
        kinds = totals / np.maximum(counts, 1)
        # What the reference never saw, or a draw lost, is no change of the model.
        as_it_was = np.where(self.known[:, None] & (counts[:, 0] > 0), kinds[:, 0], kinds[:, 1])
        return before, (as_it_was * counts[:, 1]).sum(axis=1) / counts[:, 1].sum(axis=1), after


def _sums(
    parts: Parts, tables: tuple[Table, Table], values: Callable[[Logged], Sequence[float] | None]
) -> _Sums:
    """values: of one reply; None leaves it out."""
    kinds = sorted({kind for table in tables for kind in table.counts})
    at = {kind: number for number, kind in enumerate(kinds)}
    by_case: dict[Hashable, Floats] = {}
    width = 0
    for window, part in enumerate(parts):
        for reply in part:
            own = values(reply)
            if own is not None:
                width = len(own) + 1
                empty = np.zeros((2, len(kinds), width))
                by_case.setdefault(reply.seen.case, empty)[window, at[reply.seen.kind]] += [*own, 1.0]
    known = comparable(*tables)
    columns = np.array([sums.ravel() for sums in by_case.values()])
    return _Sums(columns, np.array([kind in known for kind in kinds]), width)


def _split(sums: _Sums, names: Sequence[str], seed: int) -> dict[str, Json]:
    """Each mean before and after, and its change with what of it is the mix's; intervals by conversation."""

    def statistics(drawn: Floats) -> Mapping[str, Floats]:
        before, expected, after = sums.means(drawn)
        split = {"change": after - before, "by_mix": expected - before, "same_mix": after - expected}
        return {f"{n}/{part}": split[part][:, i] for i, n in enumerate(names) for part in SPLIT}

    clusters = range(len(sums.columns))
    found = cluster_bootstraps(sums.columns, clusters, statistics, seed, draws=_DRAWS)
    before, _, after = sums.means(sums.columns.sum(axis=0)[None, :])
    return {
        name: {
            "before": float(before[0, i]),
            "after": float(after[0, i]),
            **{part: found[f"{name}/{part}"]._asdict() for part in SPLIT},
        }
        for i, name in enumerate(names)
    }


def _class_changes(parts: Parts, reference: Window, current: Window, seed: int) -> Json:
    seen = reference.classes.totals + current.classes.totals
    names = [name for name in CLASSES if name in seen]

    def indicators(reply: Logged) -> list[float]:
        return [float(reply.seen.action == name) for name in names]

    return _split(_sums(parts, (reference.classes, current.classes), indicators), names, seed)


def _shift(parts: Parts, reference: Window, current: Window, seed: int) -> Json:
    """The mean margin, in nats."""

    def margin(reply: Logged) -> list[float] | None:
        return None if reply.seen.margin is None else [reply.seen.margin]

    return _split(_sums(parts, (reference.margins, current.margins), margin), ["mean"], seed)["mean"]
