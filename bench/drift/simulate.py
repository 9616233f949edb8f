"""How often drift errs and how soon it tells, on made traffic: `python -m bench.drift.simulate`.

Conversations come and go, forty open at a time. Replies of one conversation are alike: their margins share a
part, and what else they do is drawn from a mix of the conversation's own. A reply calls with probability
sigmoid(margin), as at temperature 1. The window slides as the proxy's does, the pinned reference has as many
replies, and a look is taken every hundred replies, as by a scrape. Shifts are sudden.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import exp
from random import Random
from statistics import mean, median
from typing import Any, Final, NamedTuple

import click

from bench.intervals import wilson
from bench.progress import progress
from bench.report.words import per_cent
from calibrators.drift import Drift, Seen, Window, compare, kind_of

Json = dict[str, Any]
EVERY: Final = 100
"""Replies from one look to the next."""
_OPEN: Final = 40
_OTHERS: Final = ("ask", "refuse", "confirm", "other", "none")


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked, and how the model answers.

    Attributes:
        tools: share of conversations that offer tools.
        turns: mean length of a conversation; each turn has two replies in the mean.
        margin: mean margin in the first turn, in nats; each later turn has 0.4 less, down to the fifth.
        others: shares of the classes of replies that do not call: ask, refuse, confirm, other, none.
    """

    tools: float = 0.8
    turns: float = 2.5
    margin: float = 0.8
    others: tuple[float, ...] = (0.25, 0.10, 0.20, 0.40, 0.05)

    def replies(self, random: Random, first: int = 0) -> Iterator[Seen]:
        """Replies without end, conversations mingled and numbered from `first` + 1."""
        case = first
        running: list[Iterator[Seen]] = []
        while True:
            while len(running) < _OPEN:
                case += 1
                running.append(self._conversation(random, case))
            at = random.randrange(_OPEN)
            reply = next(running[at], None)
            if reply is None:
                running.pop(at)
            else:
                yield reply

    def _conversation(self, random: Random, case: int) -> Iterator[Seen]:
        tools, own = random.random() < self.tools, random.gauss(0, 1.5)
        # A Dirichlet draw around the mix: conversations differ in what else is asked for.
        mix = [random.gammavariate(6 * share, 1) for share in self.others]
        turn = 1
        while True:
            margin = self.margin - 0.4 * min(turn - 1, 4) + own + random.gauss(0, 1.5)
            calls = tools and random.random() < 1 / (1 + exp(-margin))
            action = "tool_call" if calls else random.choices(_OTHERS, mix)[0]
            yield Seen(case, kind_of(tools, turn), action, margin if tools else None)
            if random.random() < 0.5:
                if random.random() < 1 / self.turns:
                    return
                turn += 1


USUAL: Final = Traffic()
STEADY: Final = "nothing moves"
SCENARIOS: Final[Mapping[str, Traffic]] = {
    STEADY: USUAL,
    "classes: half of the asks become other answers": replace(USUAL, others=(0.125, 0.10, 0.20, 0.525, 0.05)),
    "classes: half of the others become refusals": replace(USUAL, others=(0.25, 0.30, 0.20, 0.20, 0.05)),
    "margins: 0.5 nats lower": replace(USUAL, margin=USUAL.margin - 0.5),
    "margins: 1 nat lower": replace(USUAL, margin=USUAL.margin - 1),
    "margins: 2 nats lower": replace(USUAL, margin=USUAL.margin - 2),
    "mix only: tools in half of the conversations": replace(USUAL, tools=0.5),
    "mix only: conversations twice as long": replace(USUAL, turns=5.0),
}


class Look(NamedTuple):
    """What one scrape saw."""

    classes: Drift
    margins: Drift


def looks(traffic: Traffic, window: int, windows: int, random: Random) -> Iterator[Look]:
    """Pin usual traffic, fill a window with more of it, then slide over this traffic for so many windows."""
    reference = Window.of(islice(USUAL.replies(random), window))
    recent = deque(islice(USUAL.replies(random, 10**6), window), maxlen=window)
    coming = traffic.replies(random, 2 * 10**6)
    for _ in range(windows * window // EVERY):
        recent.extend(islice(coming, EVERY))
        current = Window.of(recent)
        yield Look(compare(reference.classes, current.classes), compare(reference.margins, current.margins))


def told(runs: Sequence[Sequence[Look]], table: str, verdicts: Sequence[str]) -> Json:
    """In how many runs a table ever had one of these verdicts, and the median of replies until then."""
    delays = []
    for run in runs:
        first = next((i for i, look in enumerate(run, 1) if getattr(look, table).verdict in verdicts), None)
        if first is not None:
            delays.append(first * EVERY)
    share = wilson(len(delays), len(runs))
    return {"runs": share._asdict(), "median_delay": median(delays) if delays else None}


def scenario(runs: Sequence[Sequence[Look]]) -> Json:
    """The figures of one kind of traffic."""
    shares = [s for run in runs if (s := run[-1].classes.mix_share) is not None]
    return {
        "classes": told(runs, "classes", ("traffic", "model")),
        "margins": told(runs, "margins", ("traffic", "model")),
        "classes_same_mix": told(runs, "classes", ("model",)),
        "margins_same_mix": told(runs, "margins", ("model",)),
        "mix_share": mean(shares) if shares else None,
    }


def shown(found: Mapping[str, Json]) -> str:
    """The table."""
    columns = ("classes", "classes_same_mix", "margins", "margins_same_mix")
    heads = ("classes", "at the same mix", "margins", "at the same mix", "mix explains")
    lines = [f"{'':48}" + "".join(f"{head:>20}" for head in heads)]
    for name, figures in found.items():
        cells = [_cell(figures[column]) for column in columns]
        share = figures["mix_share"]
        cells.append("–" if share is None else f"{100 * share:.0f} %")
        lines.append(f"{name:48}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


def _cell(figure: Json) -> str:
    share = per_cent(figure["runs"]["estimate"])
    return share if figure["median_delay"] is None else f"{share}, {figure['median_delay']:,.0f}"


@click.command()
@click.option("--window", type=click.IntRange(200), default=1000, show_default=True, metavar="N",
              help="Replies of a window.")  # fmt: skip
@click.option("--runs", type=click.IntRange(1), default=200, show_default=True, metavar="N",
              help="Runs of each scenario.")  # fmt: skip
@click.option("--steady-windows", type=click.IntRange(1), default=10, show_default=True, metavar="N",
              help="How long steady traffic is watched, in windows.")  # fmt: skip
@click.option("--shifted-windows", type=click.IntRange(1), default=3, show_default=True, metavar="N",
              help="How long shifted traffic is watched, in windows.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def main(
    *, window: int, runs: int, steady_windows: int, shifted_windows: int, seed: int, as_json: bool
) -> None:
    """Simulate shifts of traffic and model: the share of runs that tell, and after how many replies."""
    found: dict[str, Json] = {}
    with progress("runs", runs * len(SCENARIOS)) as advance:
        for name, traffic in SCENARIOS.items():
            watched = steady_windows if name == STEADY else shifted_windows
            played = []
            for run in range(runs):
                played.append(list(looks(traffic, window, watched, Random(f"{seed}/{run}"))))
                advance()
            found[name] = scenario(played)
    click.echo(json.dumps(found, indent=2) if as_json else shown(found))


if __name__ == "__main__":
    main()
