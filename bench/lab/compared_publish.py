"""Put the adapters of `make lab` and their card where they are committed.

    python -m bench.lab.compared_publish

The card's figures come from the comparison's own result, so that the two can't differ.
"""

import argparse
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import InputError
from bench.lab.compared import COMPARED, MIXED, TEACHERS, WALLS, adapter, check_weights, trained, weights
from bench.lab.script import script
from bench.lab.server import NAME
from bench.report.words import arm_name, estimate_text, plain
from bench.runs import read_manifest, result_of

OUT = Path(__file__).with_name("adapters")
TEMPLATE = Path(__file__).with_name("compared_card.md")


def publish(folder: Path, out: Path = OUT) -> None:
    """Copy the finished adapters to `out`, with their card.

    Raises InputError where what is trained and what was compared differ.
    """
    names = trained(folder)
    result = result_of(folder / f"first-beside-{MIXED}")
    if set(result["runs"]) != {NAME, *names}:
        raise InputError("other checkpoints were compared", where=str(folder), mend="run `make lab-compare`")
    check_weights(folder, {name: weights(folder, name) for name in (*TEACHERS, *names)})
    for name in (*TEACHERS, *names):
        shutil.copytree(adapter(folder, name), out / name, dirs_exist_ok=True)
    plan = read_manifest(folder / MIXED).plan.arguments
    seconds = {name: result_of(folder / name)["seconds"] for name in (*TEACHERS, *names)}
    (out / "README.md").write_text(card(result, plan, {**seconds, **_stages(folder)}), "utf-8")


def card(result: Mapping[str, Any], plan: Mapping[str, Any], seconds: Mapping[str, float]) -> str:
    """The card of a comparison beside mixed SFT.

    plan: the arguments that mixed SFT was trained with; seconds: what each part took.
    """
    pairing = result["pairing"]
    numbers = {name: plan[name] for name in ("rank", "steps", "batch")}
    costs = ["| part | seconds |", "| --- | ---: |", *(f"| {n} | {s:,.0f} |" for n, s in seconds.items())]
    return TEMPLATE.read_text("utf-8").format(
        **numbers, cases=pairing["cases"], due=pairing["due"], table=_table(result), costs="\n".join(costs)
    )


def _stages(folder: Path) -> dict[str, float]:
    """Seconds of the comparison's commands by kind, and how many were run.

    Of one that was repeated the longest counts, since then it worked.
    """
    longest: dict[str, float] = {}
    for line in (folder / WALLS).read_text("utf-8").splitlines():
        told = json.loads(line)
        longest[told["command"]] = max(told["seconds"], longest.get(told["command"], 0.0))
    kinds: dict[str, list[float]] = {}
    for command, took in longest.items():
        kind = re.match(r"bench (?:run )?\w+", command)
        assert kind is not None, command
        kinds.setdefault(kind[0], []).append(took)
    return {f"`{kind}`, {len(each)} times": sum(each) for kind, each in kinds.items()}


def _table(result: Mapping[str, Any]) -> str:
    rows = ["| checkpoint, bias | over-calling | call recall | AUC |", "| --- | --- | --- | --- |"]
    for system in result["systems"]:
        own = result["first_token"].get(system["name"])
        if own is not None:
            rates = [estimate_text(own[figure]) for figure in ("over_calling", "call_recall")]
            run = result["runs"][system["run"]]
            area = plain(run["contextual"].get(system["arm"], run)["auc"])
            rows.append("| " + " | ".join((arm_name(system["name"]), *rates, area)) + " |")
    return "\n".join(rows)


def main() -> None:
    """Publish; a failure is one line and an exit code."""
    argparse.ArgumentParser(prog="python -m bench.lab.compared_publish", description=__doc__).parse_args()
    script(lambda: publish(COMPARED))


if __name__ == "__main__":
    main()
