"""The `bench overhead` command."""

import os
from itertools import chain
from pathlib import Path
from typing import Any

import click

from bench.errors import CheckFailed
from bench.options import Shared, shared_options
from bench.overhead import figures, table
from bench.overhead.measure import Settings, given_up, loads, measure_round, read_round, warm_up
from bench.overhead.processes import allow_open_files, require_linux
from bench.overhead.targets import PROXIES, TARGETS, Target, all_serving
from bench.progress import progress
from bench.report.overhead import write_report
from bench.runs import Plan, RecordFile, RunFolder


def _targets(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(("direct", *(name.strip() for name in value.split(",")))))
    if unknown := [name for name in names if name not in TARGETS]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(TARGETS)}")
    return names


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(number) for number in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of whole numbers, such as 1,8") from None
    if min(numbers) < 1:
        raise click.BadParameter("a concurrency is at least 1")
    return numbers


@click.command(
    epilog="Examples: bench overhead; bench overhead --targets bare,seam --concurrency 15 --rounds 5 --check"
)
@click.option("--targets", callback=_targets, default=",".join(TARGETS), show_default=True,
              help="Which to measure; direct always is, as what the others add to.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True,
              help="How often everything is repeated, interleaved.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
              help="Length of a block: one target under one load.")  # fmt: skip
@click.option("--concurrency", callback=_numbers, default="1,15,100,1000", show_default=True,
              help="Connections of the closed loops.")  # fmt: skip
@click.option("--chunks", type=click.IntRange(min=0), default=30, show_default=True,
              help="Length of the streams in closed loops; 0 measures none.")  # fmt: skip
@click.option("--long-stream", type=click.IntRange(min=0), default=2000, show_default=True,
              help="Chunks of the one long stream; 0 measures none.")  # fmt: skip
@click.option("--open-streams", type=click.IntRange(min=0), default=1000, show_default=True,
              help="Slow streams that are opened at once, for memory; 0 measures none.")  # fmt: skip
@click.option("--interval-ms", type=click.FloatRange(min=0), default=1.0, show_default=True,
              help="Between chunks, so that each comes alone; 0: as fast as they are read.")  # fmt: skip
@click.option("--check", is_flag=True, help="Exit 1 unless Seam meets its bars.")
@shared_options(limit="At most so many requests a block.")
def overhead(
    *,
    shared: Shared,
    targets: tuple[str, ...],
    rounds: int,
    seconds: float,
    concurrency: tuple[int, ...],
    chunks: int,
    long_stream: int,
    open_streams: int,
    interval_ms: float,
    check: bool,
) -> None:
    """Measure the proxy's own cost on a canned upstream.

    Runs a recorded upstream and the targets, one worker each, on 127.0.0.1, and loads them in
    interleaved blocks: direct, nginx, a bare FastAPI and httpx forwarder, LiteLLM (in an environment of
    its own, made on first use) and Seam without a profile, with a bias, and with probes.
    Every ratio compares blocks of one round; the spread is that over rounds. CPU and memory are those
    of the target's processes alone. All of it takes a quarter of an hour; writes report.html too.
    """
    require_linux()
    settings = Settings(
        targets, rounds, seconds, concurrency, chunks, long_stream, open_streams, interval_ms,
        shared.limit, shared.seed,
    )  # fmt: skip
    # A proxy has two a request; the rest is for what it has open itself.
    allow_open_files(2 * max(*concurrency, open_streams) + 512)
    document, text = _run(settings, shared.folder("overhead"))
    shared.show(document, lambda: text)
    unmet = [bar["bar"] for bar in document["bars"] if bar["met"] is not True]
    if check and unmet:
        raise CheckFailed(
            f"{len(unmet)} bars not met or not measured, first: {unmet[0]}",
            where="bench overhead --check",
            mend="see the table",
        )


def _run(settings: Settings, folder: Path) -> tuple[dict[str, Any], str]:
    """Measure what is not measured yet, sum up, and write the page."""
    own = {name: value for name, value in settings._asdict().items() if name not in ("seed", "limit")}
    plan = Plan(command="overhead", arguments=own, seed=settings.seed, limit=settings.limit)
    with RunFolder.open(folder, plan) as run:
        records = run.records("rounds")
        missing = [n for n in range(settings.rounds) if _key(n) not in records]
        if missing:
            _measure(missing, settings, records, folder)
        kept = list(records)
        measured = [list(read_round(record)) for record in kept]
        rounds = figures.by_load(measured)
        loop, long = figures.loops(rounds, settings), figures.longs(rounds, settings)
        opened = figures.opens(rounds, settings)
        skipped = {name: why for record in kept for name, why in record["skipped"].items()}
        elsewhere = [record["cpus_elsewhere"] for record in kept]
        notes = figures.warnings(loop, long, chain.from_iterable(measured), elsewhere)
        notes += [f"{name} was left out: {why}" for name, why in skipped.items()]
        bars = figures.bars(loop, long, opened, chain.from_iterable(measured), settings)
        document: dict[str, Any] = figures.as_json(
            {
                "settings": own,
                "cpus": os.cpu_count(),
                "cpus_elsewhere": elsewhere,
                "loops": loop,
                "long_streams": long,
                "open_streams": opened,
                "probes": figures.looks(kept),
                "bars": bars,
                "skipped": skipped,
                "notes": notes,
            }
        )
        if not run.done:
            run.finish(document)
        page = write_report(run, document, folder)
    click.echo(f"report   {page}", err=True)
    return document, table.render(loop, long, opened, bars, notes)


def _measure(missing: list[int], settings: Settings, records: RecordFile, folder: Path) -> None:
    targets, skipped = _available(settings.targets)
    steps = [len(loads(settings, number)) * (len(targets) + 1) for number in range(settings.rounds)]
    done = sum(steps) - sum(steps[number] for number in missing)
    click.echo(f"starting {', '.join(('direct', *(t.name for t in targets)))}", err=True)
    with (
        all_serving(targets, folder / "servers", settings.interval_ms) as servers,
        progress("overhead", sum(steps), done) as advance,
    ):
        warm_up(settings, servers)
        for number in missing:
            slow = given_up(chain.from_iterable(read_round(record) for record in records))
            measured = measure_round(number, settings, servers, advance, slow)
            records.append(_key(number), measured | {"skipped": skipped})


def _available(names: tuple[str, ...]) -> tuple[list[Target], dict[str, str]]:
    """The proxies to run, and why others can't be."""
    targets, skipped = [], {}
    for target in (PROXIES[name] for name in names if name != "direct"):
        if why := target.missing():
            click.echo(f"{target.name} is left out: {why}", err=True)
            skipped[target.name] = why
        else:
            targets.append(target)
    return targets, skipped


def _key(number: int) -> str:
    return f"round-{number}"
