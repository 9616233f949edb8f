"""The comparison of the checkpoints that `make lab` trains, by the commands that users have.

    python -m bench.lab.compared [--limit N]

Both teachers are audited; one vLLM serves the lab model and every adapter as LoRA modules; each is
calibrated on the lab model's held-out decisions; all write whole replies to the half of them that no bias
was chosen on, and some play BFCL's conversations, the vanilla student also under its biases and the probes;
`bench compare` sets everything side by side. What is done already is not done again.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.calibrate import profile
from bench.calibrate.contextual import fitted_of
from bench.errors import InputError
from bench.lab.script import script
from bench.lab.server import NAME, Settings, checkpoint, lab_server
from bench.runs import DataFile, result_of

Json = dict[str, Any]

ROOT = Path(".cache/lab")
COMPARED = ROOT / "compared"
TEACHERS = ("response-teacher", "tool-teacher")
MIXED, VANILLA, JOINED = "mixed-sft", "vanilla-0", "union-0"
PROBES: Mapping[str, Json] = {"sri": {"sri": {"variant": "v1"}}, "cri": {"cri": {"variant": "retry"}}}
"""Calibrations of the vanilla student beside its biases."""
AUDITED, DECISIONS, CONVERSATIONS = 80, 400, 12
"""How many prompts, decisions and conversations are taken of each: on two cores a decision takes a second, a
whole reply one or two, and a conversation a quarter of a minute."""
SERVED = "served.json"
"""The digests of the weights that were compared so far, by name."""
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
    rank = max(_rank(adapter(folder, name)) for name in names)
    served = [f"{name}={adapter(folder, name).resolve()}" for name in names]
    # A slot for each: where requests of two take turns in one, every turn loads an adapter for 20 seconds.
    fixed = ("--enable-lora", "--max-loras", str(len(names)), "--max-lora-rank", str(rank))
    return (*fixed, "--lora-modules", *served)


def _rank(adapter: Path) -> int:
    config = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    # vLLM takes these ranks and no others.
    return next(rank for rank in (8, 16, 32, 64, 128) if rank >= config["r"])


def check_weights(folder: Path, known: Mapping[str, Path]) -> None:
    """Keep the digests of files of weights by name.

    Raises InputError where one was compared with other weights: its figures are those of the old ones.
    """
    file = folder / SERVED
    before = json.loads(file.read_text("utf-8")) if file.exists() else {}
    now = {name: DataFile.of(path).sha256 for name, path in known.items()}
    for name, digest in now.items():
        if before.get(name, digest) != digest:
            raise InputError(
                "has other weights than those that were compared",
                where=str(known[name]),
                mend=f"remove {folder}/calibrated-*, replies-*, loops-* and {SERVED}",
            )
    file.write_text(json.dumps({**before, **now}, indent=2) + "\n", "utf-8")


def adapter(folder: Path, name: str) -> Path:
    """Where `bench train` leaves a checkpoint's adapter."""
    return folder / name / "adapter"


def weights(folder: Path, name: str) -> Path:
    """An adapter's weights."""
    return adapter(folder, name) / "adapter_model.safetensors"


def calibrated_arms(folder: Path, run: Path) -> list[Arm]:
    """A student at its own b, under its own b(x), offered or not, and under the probes.

    folder: where profiles are written; run: the student's calibration, of its name.
    """
    student = run.name
    arms = [Arm(f"{student}-b", student, run / "profile" / f"{student}.yaml")]
    profiles: dict[str, Json] = {}
    if bias := fitted_of(result_of(run)["contextual"]):
        profiles["bx"] = {"bias": {"contextual": asdict(bias)}}
    profiles |= PROBES
    for short, content in profiles.items():
        name = f"{student}-{short}"
        arms.append(Arm(name, student, profile.write(folder, {"name": name, **content})))
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
        bench("audit", "--teacher", adapter(COMPARED, teacher), "--student", ROOT / NAME,
              "--requests", requests, "--limit", AUDITED, "--out", COMPARED / "audit" / teacher)  # fmt: skip


def calibrate(url: str, requests: Path, names: Sequence[str], limit: int) -> None:
    """Each checkpoint's curve over the bias, from the first token; whole replies are `reply`'s."""
    for name in names:
        bench("calibrate", "--upstream", url, "--model", name, "--requests", requests, "--name", name,
              "--no-generate", "--max-tokens", _REPLY_TOKENS, "--limit", limit,
              "--out", _calibrated(limit) / name)  # fmt: skip


def _calibrated(limit: int) -> Path:
    return COMPARED / f"calibrated-{limit}"


def reply(url: str, requests: Path, names: Sequence[str], limit: int) -> Path:
    """Whole replies of each checkpoint's first seed to decisions that no bias was chosen on; their run."""
    first = [name for name in names if not _SEEDED.search(name)]
    return _run("replies", limit, [*map(_plain, first), *_vanilla(names, limit)],
                "decisions", "--upstream", url, "--requests", requests,
                "--max-tokens", _REPLY_TOKENS)  # fmt: skip


def converse(url: str, names: Sequence[str], limit: int) -> Path:
    """BFCL's conversations by mixed SFT, union, and vanilla as it is and calibrated; their run."""
    first = [name for name in (MIXED, JOINED, VANILLA) if name in names]
    fields = json.dumps({"max_tokens": _REPLY_TOKENS})
    return _run("loops", limit, [*map(_plain, first), *_vanilla(names, limit)],
                "bfcl", "--upstream", url, "--categories", "multi_turn_base", "--limit", CONVERSATIONS,
                "--threads", CONVERSATIONS, "--fields", fields)  # fmt: skip


def _plain(name: str) -> Arm:
    return Arm(name, name)


def _vanilla(names: Sequence[str], limit: int) -> list[Arm]:
    """The vanilla student once more, for the noise floor, and calibrated."""
    if VANILLA not in names:
        return []
    calibrated = calibrated_arms(COMPARED / "profiles", _calibrated(limit) / VANILLA)
    return [Arm(f"{VANILLA}-again", VANILLA), *calibrated]


def _run(label: str, limit: int, arms: Sequence[Arm], *arguments: object) -> Path:
    """A bench run, in a folder of its own for these arms: more of them later are another run.

    limit: of the decisions that their biases were chosen on.
    """
    options = [*arguments, *(part for arm in arms for part in ("--arm", arm))]
    digest = hashlib.sha256(json.dumps([limit, *map(str, options)]).encode()).hexdigest()
    out = COMPARED / f"{label}-{digest[:8]}"
    bench("run", *options, "--out", out)
    return out


def beside(label: str, runs: Sequence[object], baselines: Sequence[str]) -> None:
    """Compare runs beside each of the baselines."""
    for baseline in baselines:
        out = COMPARED / f"{label}-beside-{baseline}"
        # It takes seconds, and one that was made before may be of fewer checkpoints.
        shutil.rmtree(out, ignore_errors=True)
        bench("compare", *runs, "--baseline", baseline, "--out", out)


def compare(limit: int) -> None:
    """Audit, calibrate, reply, converse and compare what is trained."""
    students = trained(COMPARED)
    names = [NAME, *students]
    model = checkpoint()
    files = {name: weights(COMPARED, name) for name in (*TEACHERS, *students)}
    check_weights(COMPARED, {NAME: model / "model.safetensors", **files})
    lines = list(decisions(ROOT / "data"))
    requests = _written("decisions", lines)
    audit(requests)
    settings = Settings(
        model,
        port=_PORT,
        kv_cache_gb=_KV_CACHE_GB,
        start_seconds=_START_SECONDS,
        arguments=modules(COMPARED, students),
    )
    with lab_server(settings) as server:
        calibrate(server.url, requests, names, limit)
        left = _written("unseen", list(unseen(lines, _calibrated(limit) / NAME)))
        replies = reply(server.url, left, names, limit)
        loops = converse(server.url, names, limit)
    calibrated = [f"{name}={_calibrated(limit) / name}" for name in names]
    # Each seed's joined student, for the vanilla student of the same seed.
    beside("first", calibrated, [name for name in names if name == MIXED or name.startswith("union-")])
    for label, run in (("replies", replies), ("loops", loops)):
        beside(label, [run], [name for name in (VANILLA, JOINED) if name in names])


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
