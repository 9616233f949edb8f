"""The comparison of the checkpoints that `make lab` trains, by the commands that users have.

    python -m bench.lab.compared [--limit N]

Both teachers are audited; one vLLM serves the lab model and every adapter as LoRA modules; each is
calibrated on the lab model's held-out decisions; `bench compare` sets them side by side, once beside mixed
SFT and once beside the student whose supports were joined. What is done already is not done again.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.errors import BenchError, InputError
from bench.lab.server import NAME, Settings, checkpoint, lab_server

ROOT = Path(".cache/lab")
COMPARED = ROOT / "compared"
TEACHERS = ("response-teacher", "tool-teacher")
MIXED, JOINED = "mixed-sft", "union-0"
_REPLY_TOKENS = 128
_START_SECONDS = 900.0
_KV_CACHE_GB = 4
"""Holds the prompts of all decisions, which whole replies are generated from after their margins are read."""


def decisions(data: Path) -> Iterator[str]:
    """The lab model's natural held-out decisions, as lines for `--requests`."""
    for split in ("validation", "test"):
        for line in (data / f"{split}.jsonl").read_text("utf-8").splitlines():
            if "decisions" in json.loads(line)["sets"]:
                yield line


def trained(folder: Path) -> list[str]:
    """The finished checkpoints: mixed SFT first, then the students, by name.

    Raises InputError where none is there.
    """
    runs = [path.parent for path in folder.glob("*/adapter")]
    done = {run.name for run in runs if (run / "result.json").exists()} - {*TEACHERS}
    if MIXED not in done:
        raise InputError(
            f"no {MIXED} is finished", where=str(folder), mend="run `make lab` or `make lab-quick`"
        )
    return sorted(done, key=lambda name: (name != MIXED, name))


def modules(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """vLLM's options that serve adapters beside the model that they are for."""
    rank = max(_rank(folder / name) for name in names)
    served = [f"{name}={(folder / name / 'adapter').resolve()}" for name in names]
    fixed = ("--enable-lora", "--max-loras", "1", "--max-lora-rank", str(rank))
    return (*fixed, "--lora-modules", *served)


def _rank(run: Path) -> int:
    config = json.loads((run / "adapter" / "adapter_config.json").read_text("utf-8"))
    # vLLM takes these ranks and no others.
    return next(rank for rank in (8, 16, 32, 64, 128) if rank >= config["r"])


def bench(*arguments: object) -> None:
    """Run a bench command, its progress shown. Raises InputError where it fails."""
    command = [str(Path(sys.executable).with_name("bench")), *map(str, arguments)]
    print(f"· {' '.join(['bench', *command[1:]])}", flush=True)
    code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    if code:
        raise InputError(
            f"ended with code {code}", where=f"bench {arguments[0]}", mend="see its message above"
        )


def compare(limit: int | None) -> None:
    """Audit, calibrate and compare what is trained."""
    names = trained(COMPARED)
    requests = COMPARED / "decisions.jsonl"
    requests.write_text("".join(line + "\n" for line in decisions(ROOT / "data")), "utf-8")
    some = () if limit is None else ("--limit", limit)
    for teacher in TEACHERS:
        bench("audit", "--teacher", COMPARED / teacher / "adapter", "--student", ROOT / NAME,
              "--requests", requests, *some, "--out", COMPARED / "audit" / teacher)  # fmt: skip
    arguments = modules(COMPARED, names)
    settings = Settings(
        checkpoint(), kv_cache_gb=_KV_CACHE_GB, start_seconds=_START_SECONDS, arguments=arguments
    )
    with lab_server(settings) as server:
        for name in (NAME, *names):
            bench("calibrate", "--upstream", server.url, "--model", name, "--requests", requests,
                  "--max-tokens", _REPLY_TOKENS, *some, "--out", COMPARED / "calibrated" / name)  # fmt: skip
    runs = [f"{name}={COMPARED / 'calibrated' / name}" for name in (NAME, *names)]
    for baseline in (MIXED, JOINED):
        if baseline in names:
            out = COMPARED / f"beside-{baseline}"
            # It takes seconds, and one that was made before may be of fewer checkpoints.
            shutil.rmtree(out, ignore_errors=True)
            bench("compare", *runs, "--baseline", baseline, "--out", out)


def main() -> None:
    """Run from the command line; a failure is one line and an exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.lab.compared", description=__doc__)
    parser.add_argument("--limit", type=int, help="at most N decisions, half of them with a call due")
    options = parser.parse_args()
    try:
        compare(options.limit)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
