"""The comparison of the checkpoints that `make lab` trains, by the commands that users have.

    python -m bench.lab.compared [--limit N]

Both teachers are audited; one vLLM serves the lab model and every adapter as LoRA modules; each is
calibrated on the lab model's held-out decisions; all write whole replies to the half of them that no bias
was chosen on, and some play BFCL's conversations, the vanilla student also under its biases and the probes;
`bench compare` sets everything side by side. What is done already is not done again.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.errors import InputError
from bench.lab.script import script
from bench.lab.server import NAME, Settings, checkpoint, lab_server
from bench.runs import result_of

Json = dict[str, Any]

ROOT = Path(".cache/lab")
COMPARED = ROOT / "compared"
TEACHERS = ("response-teacher", "tool-teacher")
MIXED, VANILLA, JOINED = "mixed-sft", "vanilla-0", "union-0"
PROBES: Mapping[str, Json] = {"sri": {"sri": {"variant": "v1"}}, "cri": {"cri": {"variant": "retry"}}}
"""Calibrations of the vanilla student beside its biases."""
AUDITED, DECISIONS, REPLIES, CONVERSATIONS = 80, 400, 120, 12
"""How many prompts, decisions, whole replies and conversations are taken of each: on two cores a decision
takes a second, a reply two to three and a conversation a minute."""
WALLS = "walls.jsonl"
"""What each command took, in seconds; one that was repeated has a line each time."""
_REPLY_TOKENS = 128
_START_SECONDS = 900.0
_KV_CACHE_GB = 4
"""Holds the prompts of all decisions, which whole replies are generated from after their margins are read."""
_SEEDED = re.compile(r"-[1-9]\d*$")
"""Ends the name of a student of another seed than the first."""
_PORT = 8777
"""Always the same: a run goes on only with the server that it began with."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A checkpoint under a calibration.

    Attributes:
        name: of letters, digits and hyphens.
        model: as the server names it.
        profile: the calibration's file; None for none.
    """

    name: str
    model: str
    profile: Path | None = None

    def __str__(self) -> str:
        """As `bench run --arm` takes it."""
        return f"{self.name}=model={self.model}" + (f",profile={self.profile}" if self.profile else "")


def decisions(data: Path) -> Iterator[str]:
    """The lab model's natural held-out decisions, as lines for `--requests`."""
    for split in ("validation", "test"):
        for line in (data / f"{split}.jsonl").read_text("utf-8").splitlines():
            if "decisions" in json.loads(line)["sets"]:
                yield line


def unseen(lines: Sequence[str], calibrated: Path) -> Iterator[str]:
    """Those of the decisions on which a calibration did not choose its bias."""
    rows = map(json.loads, (calibrated / "examples.jsonl").read_text("utf-8").splitlines())
    test = {row["id"] for row in rows if row["split"] == "test"}
    return (line for line in lines if json.loads(line)["id"] in test)


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


def calibrated_arms(folder: Path, student: str) -> list[Arm]:
    """A student at its own b, under its own b(x), offered or not, and under the probes.

    folder: of the comparison; its profiles are written there.
    """
    run = folder / "calibrated" / student
    arms = [Arm(f"{student}-b", student, run / "profile" / f"{student}.yaml")]
    profiles: dict[str, Json] = {}
    if fitted := result_of(run)["contextual"]["fitted"]:
        profiles["bx"] = {"bias": {"contextual": {n: fitted[n] for n in ("b0", "weights", "low", "high")}}}
    profiles |= PROBES
    place = folder / "profiles"
    place.mkdir(exist_ok=True)
    for short, content in profiles.items():
        name = f"{student}-{short}"
        path = place / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, **content}, sort_keys=False), "utf-8")
        arms.append(Arm(name, student, path))
    return arms


def bench(*arguments: object) -> None:
    """Run a bench command, its progress shown. Raises InputError where it fails."""
    command = [str(Path(sys.executable).with_name("bench")), *map(str, arguments)]
    told = " ".join(["bench", *command[1:]])
    print(f"· {told}", flush=True)
    began = time.monotonic()
    code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    if code:
        raise InputError(
            f"ended with code {code}", where=f"bench {arguments[0]}", mend="see its message above"
        )
    with (COMPARED / WALLS).open("a", encoding="utf-8") as walls:
        walls.write(json.dumps({"command": told, "seconds": round(time.monotonic() - began, 1)}) + "\n")


def audit(requests: Path) -> None:
    """Which supports of the teachers hold the entry."""
    for teacher in TEACHERS:
        bench("audit", "--teacher", COMPARED / teacher / "adapter", "--student", ROOT / NAME,
              "--requests", requests, "--limit", AUDITED, "--out", COMPARED / "audit" / teacher)  # fmt: skip


def calibrate(url: str, requests: Path, names: Sequence[str], limit: int) -> None:
    """Each checkpoint's curve over the bias, from the first token; whole replies are `reply`'s."""
    for name in names:
        bench("calibrate", "--upstream", url, "--model", name, "--requests", requests, "--name", name,
              "--no-generate", "--max-tokens", _REPLY_TOKENS, "--limit", limit,
              "--out", COMPARED / "calibrated" / name)  # fmt: skip


def reply(url: str, requests: Path, names: Sequence[str]) -> None:
    """Whole replies of each checkpoint's first seed to decisions that no bias was chosen on."""
    arms = [Arm(name, name) for name in names if not _SEEDED.search(name)]
    if VANILLA in names:
        arms += [Arm(f"{VANILLA}-again", VANILLA), *calibrated_arms(COMPARED, VANILLA)]
    bench("run", "decisions", "--upstream", url, "--requests", requests, "--limit", REPLIES,
          "--max-tokens", _REPLY_TOKENS, *_options(arms), "--out", COMPARED / "replies")  # fmt: skip


def converse(url: str, names: Sequence[str]) -> None:
    """BFCL's conversations: mixed SFT, the union student, and vanilla as it is and calibrated."""
    arms = [Arm(name, name) for name in (MIXED, JOINED, VANILLA) if name in names]
    if VANILLA in names:
        calibrated = calibrated_arms(COMPARED, VANILLA)
        arms += [Arm(f"{VANILLA}-again", VANILLA), *calibrated]
    bench("run", "bfcl", "--upstream", url, "--categories", "multi_turn_base", "--limit", CONVERSATIONS,
          "--fields", json.dumps({"max_tokens": _REPLY_TOKENS}), *_options(arms),
          "--out", COMPARED / "loops")  # fmt: skip


def _options(arms: Sequence[Arm]) -> list[str]:
    return [part for arm in arms for part in ("--arm", str(arm))]


def beside(names: Sequence[str]) -> None:
    """The comparisons: first tokens beside mixed SFT and the joined student, the rest beside vanilla too."""
    calibrated = [f"{name}={COMPARED / 'calibrated' / name}" for name in names]
    for label, runs, baselines in (
        ("first", calibrated, (MIXED, JOINED)),
        ("replies", [COMPARED / "replies"], (VANILLA, JOINED)),
        ("loops", [COMPARED / "loops"], (VANILLA, JOINED)),
    ):
        for baseline in baselines:
            if baseline in names:
                out = COMPARED / f"{label}-beside-{baseline}"
                # It takes seconds, and one that was made before may be of fewer checkpoints.
                shutil.rmtree(out, ignore_errors=True)
                bench("compare", *runs, "--baseline", baseline, "--out", out)


def compare(limit: int) -> None:
    """Audit, calibrate, reply, converse and compare what is trained."""
    names = [NAME, *trained(COMPARED)]
    lines = list(decisions(ROOT / "data"))
    requests = _written("decisions", lines)
    audit(requests)
    arguments = modules(COMPARED, names[1:])
    settings = Settings(
        checkpoint(),
        port=_PORT,
        kv_cache_gb=_KV_CACHE_GB,
        start_seconds=_START_SECONDS,
        arguments=arguments,
    )
    with lab_server(settings) as server:
        calibrate(server.url, requests, names, limit)
        reply(server.url, _written("unseen", list(unseen(lines, COMPARED / "calibrated" / NAME))), names)
        converse(server.url, names)
    beside(names)


def _written(name: str, lines: Sequence[str]) -> Path:
    path = COMPARED / f"{name}.jsonl"
    path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return path


def main() -> None:
    """Run from the command line; a failure is one line and an exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.lab.compared", description=__doc__)
    parser.add_argument(
        "--limit", type=int, default=DECISIONS, help="at most N decisions, half of them with a call due"
    )
    options = parser.parse_args()
    script(lambda: compare(options.limit))


if __name__ == "__main__":
    main()
