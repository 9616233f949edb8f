"""`bench audit`: whether a teacher's top-K holds the entry token at all."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.audit import checkpoint, server, stored
from bench.audit.figures import SIDES, TOPS, figures, side_of
from bench.decisions.example import Example
from bench.decisions.sources import Sources, source_options
from bench.decisions.split import grouped, sampled
from bench.errors import CheckFailed
from bench.options import Shared, shared_options
from bench.progress import progress
from bench.report.audit import rank_text, replay_text, write_report
from bench.report.words import estimate_text
from bench.runs import DataFile, Plan, RecordFile, RunFolder
from bench.served import Served, connected, served
from bench.train import process
from calibrators.openers import Hint

Json = dict[str, Any]
_File = click.Path(dir_okay=False, path_type=Path)
_Folder = click.Path(file_okay=False, path_type=Path)


@click.command(
    "audit",
    epilog="Examples: bench audit --teacher checkpoints/response-teacher --student checkpoints/student; "
    "bench audit --upstream http://127.0.0.1:8000; bench audit --stored distillation.parquet --entry 15",
)
@click.option("--teacher", type=_Folder, metavar="DIR",
              help="A teacher in transformers: a checkpoint's folder, or an adapter's.")  # fmt: skip
@click.option("--upstream", "url", metavar="URL", help="A teacher behind a vLLM server, with or without /v1.")
@click.option("--stored", type=_File, metavar="FILE",
              help="A stored distillation set, JSONL or Parquet (docs/auditing.md).")  # fmt: skip
@click.option("--student", type=_Folder, metavar="DIR",
              help="Replay this student on response prompts, entry forced and entry masked; with "
                   "--teacher.")  # fmt: skip
@click.option("--base", type=_Folder, metavar="DIR",
              help="What adapters are put on.  [default: what their adapter_config.json names]")  # fmt: skip
@click.option("--entry", "entry_ids", type=click.IntRange(0), multiple=True, metavar="ID",
              help="An entry token of --stored; may be repeated (bench entry finds them).")  # fmt: skip
@click.option("--top", "tops", type=click.IntRange(1), multiple=True, default=TOPS, show_default=True,
              metavar="K", help="Sizes of the support; the verdict is of the first.")  # fmt: skip
@click.option("--tokens", "steps", type=click.IntRange(1), default=32, show_default=True, metavar="N",
              help="Tokens of a replay.")  # fmt: skip
@click.option("--python", type=_File, metavar="PATH",
              help="The Python with torch for --teacher.  [default: that of .venv-vllm]")  # fmt: skip
@click.option("--model", help="The server's model.  [default: the one that it lists]")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's key.")
@click.option("--parser", metavar="NAME", help="Tool parser to know the entry tokens by, as in bench entry.")
@click.option("--opener", "openers", multiple=True, metavar="TEXT", help="Opener as text, as in bench entry.")
@click.option("--concurrency", type=click.IntRange(1), default=16, show_default=True, metavar="N",
              help="Prompts asked of the server at once.")  # fmt: skip
@source_options
@shared_options(limit="At most N prompts, half of them with a call due; of --stored the first N rows.")
def command(
    *,
    shared: Shared,
    sources: Sources,
    teacher: Path | None,
    url: str | None,
    stored: Path | None,
    student: Path | None,
    base: Path | None,
    entry_ids: tuple[int, ...],
    tops: tuple[int, ...],
    steps: int,
    python: Path | None,
    model: str | None,
    api_key_env: str | None,
    parser: str | None,
    openers: tuple[str, ...],
    concurrency: int,
) -> None:
    """Audit a teacher's supports: does its top-K hold the entry token on prompts where no call is due?

    Where it does not, a student that is distilled on the top-K gets no gradient against opening a call there.
    Gives coverage@K, retained mass and the entry's rank for response and for tool prompts, one record a
    prompt, report.html, and a one-line verdict. Nothing is trained.
    """
    given = {"--teacher": teacher, "--upstream": url, "--stored": stored}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise click.UsageError(
            f"give one of {', '.join(given)}" + (f", not {' and '.join(named)}" * bool(named))
        )
    if student and not teacher:
        raise click.UsageError("--student replays against a --teacher in transformers")
    if bool(stored) != bool(entry_ids):
        raise click.UsageError("--stored takes the entry tokens from --entry, and only --stored does")
    tops = tuple(sorted(set(tops)))
    common: Json = {"tops": list(tops), "parser": parser, "openers": list(openers)}
    if stored is not None:
        plan = _plan(shared, {**common, "stored": str(stored), "entry": list(entry_ids)}, [stored])
        with RunFolder.open(shared.folder("audit"), plan) as run:
            records = run.records()
            _read_stored(stored, entry_ids, tops, shared.limit, records)
            result = _finished(shared, run, list(records), tops, {"stored": str(stored)}, list(entry_ids))
        shared.show(result, lambda: summary(result, run.path))
        return
    examples_of = _Examples(shared, sources.or_bfcl())
    if teacher is not None:
        wanted = checkpoint.Checkpoints(
            python=process.torch_python(python),
            teacher=process.checkpoint(teacher, "--teacher"),
            student=process.checkpoint(student, "--student") if student else None,
            base=process.checkpoint(base, "--base") if base else None,
            steps=steps,
            parser=parser,
            openers=openers,
        )
        told: Json = {
            name: str(path) if path else None
            for name, path in (("teacher", teacher), ("student", student), ("base", base))
        }
        checkpoints = process.weights({"--teacher": teacher, "--student": student, "--base": base})
        arguments = {**common, **told, "tokens": steps, **examples_of.told}
        plan = _plan(shared, arguments, examples_of.files, checkpoints=checkpoints)
        with RunFolder.open(shared.folder("audit"), plan) as run:
            examples, records = examples_of.read(), run.records()
            entry = _read_checkpoint(wanted, examples, tops, records, run)
            result = _finished(shared, run, _sided(records, examples), tops, told, entry)
    else:
        assert url is not None
        known = asyncio.run(_served(url, model, api_key_env, Hint(parser, openers)))
        upstream = {"url": url, "version": known.facts.version, "model": known.model}
        plan = _plan(shared, {**common, **examples_of.told}, examples_of.files, upstream)
        with RunFolder.open(shared.folder("audit"), plan) as run:
            examples, records = examples_of.read(), run.records()
            _read_server(url, api_key_env, known, examples, tops, concurrency, records)
            entry = list(known.entry.tokens)
            result = _finished(shared, run, _sided(records, examples), tops, {"teacher": known.model}, entry)
    shared.show(result, lambda: summary(result, run.path))


class _Examples:
    """The prompts that are asked for, read once the run folder is found to fit."""

    def __init__(self, shared: Shared, sources: Sources) -> None:
        self._shared, self._sources = shared, sources
        self.files = sources.files
        self.told: Json = {"bfcl": sources.bfcl}

    def read(self) -> list[Example]:
        return sampled(grouped(self._sources.read()), self._shared.limit, self._shared.seed)


def _plan(
    shared: Shared,
    arguments: Json,
    files: Sequence[Path],
    upstream: Json | None = None,
    checkpoints: Mapping[str, DataFile] | None = None,
) -> Plan:
    return Plan(
        command="audit",
        arguments=arguments,
        seed=shared.seed,
        limit=shared.limit,
        data={**{str(path): DataFile.of(path) for path in files}, **(checkpoints or {})},
        upstream=upstream,
    )


async def _served(url: str, model: str | None, api_key_env: str | None, hint: Hint) -> Served:
    upstream = connected(url, api_key_env)
    try:
        return await served(upstream, model, hint)
    finally:
        await upstream.aclose()


def _read_stored(
    path: Path, entry: tuple[int, ...], tops: tuple[int, ...], limit: int | None, records: RecordFile
) -> None:
    for count, row in enumerate(stored.read(path), 1):
        if limit is not None and count > limit:
            return
        assert row.id is not None
        if row.id not in records:
            own = {"side": side_of(row.should_call), "group": row.group or row.id, "source": row.source}
            records.append(row.id, own | stored.record(row, entry, tops))


def _read_checkpoint(
    wanted: checkpoint.Checkpoints,
    examples: Sequence[Example],
    tops: Sequence[int],
    records: RecordFile,
    run: RunFolder,
) -> list[int]:
    """The missing records; the entry tokens, kept beside them."""
    facts = run.records("teacher")
    missing = [example for example in examples if example.id not in records]
    if missing:
        settings = {"top": min(tops)}
        with progress("prompts", len(examples), len(examples) - len(missing)) as advance:
            for line in checkpoint.read(wanted, missing, tops, settings):
                if "entry" in line:
                    if "entry" not in facts:
                        facts.append("entry", line)
                else:
                    records.append(line.pop("key"), line)
                    advance()
    (told,) = [fact for fact in facts if fact["key"] == "entry"]
    return list(told["entry"]["tokens"])


def _read_server(
    url: str,
    api_key_env: str | None,
    known: Served,
    examples: Sequence[Example],
    tops: Sequence[int],
    concurrency: int,
    records: RecordFile,
) -> None:
    missing = [example for example in examples if example.id not in records]
    with progress("prompts", len(examples), len(examples) - len(missing)) as advance:

        def take(key: str, record: Mapping[str, Any]) -> None:
            records.append(key, record)
            advance()

        asyncio.run(server.read(url, api_key_env, known, missing, tops, concurrency, take))


def _sided(records: RecordFile, examples: Sequence[Example]) -> list[Json]:
    """The records of the examples, each with its side, conversation and source."""
    by_key = {record["key"]: record for record in records}
    return [
        {"side": side_of(e.should_call), "group": e.group, "source": e.source, **by_key[e.id]}
        for e in examples
        if e.id in by_key
    ]


def _finished(
    shared: Shared,
    run: RunFolder,
    records: Sequence[Json],
    tops: Sequence[int],
    told: Mapping[str, Any],
    entry: Sequence[int],
) -> Json:
    result: Json = {**told, "entry": list(entry), **figures(records, tops, shared.seed)}
    if not any(side and side["counts"]["scored"] for side in result["sides"].values()):
        reasons = [r.get("errored") or r.get("unmeasurable") for r in records]
        raise CheckFailed(
            f"no prompt could be read: {reasons[0] if reasons else 'none'}", mend="see records.jsonl"
        )
    write_report(run, result, run.path)
    run.finish(result)
    return result


def summary(result: Mapping[str, Any], folder: Path) -> str:
    """The result for a person at the terminal."""
    lines = [result["verdict"]]
    for name, words in SIDES.items():
        side = result["sides"][name]
        if side is None:
            continue
        counts, rank = side["counts"], side["rank"]
        others = ", ".join(f"{counts[part]} {part}" for part in ("errored", "unmeasurable") if counts[part])
        lines += ["", f"{words}: {counts['scored']:,} read{', ' + others if others else ''}"]
        lines.append(f"  {'K':>6} {'coverage':>22} {'retained mass':>22}")
        for top in result["tops"]:
            cells = (estimate_text(side[part][str(top)]) for part in ("coverage", "mass"))
            lines.append(f"  {top:>6} " + " ".join(f"{cell:>22}" for cell in cells))
        lines.append(f"  entry rank: {rank_text(rank)}")
        if side["probability"]["n"]:
            p = side["probability"]
            lines.append(f"  P(entry): median {p['median']:.3g}, {p['low']:.3g} to {p['high']:.3g}")
        for token, estimate in side.get("absent", {}).items():
            lines.append(f"  token {token} is in no support of {estimate_text(estimate)} of the prompts")
        if side["replay"]:
            lines.append(f"  {replay_text(side['replay'])}")
    return "\n".join([*lines, "", f"report   {folder / 'report.html'}"])
