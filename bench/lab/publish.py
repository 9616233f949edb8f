"""Put a trained adapter, its record and its card where they are committed.

    python -m bench.lab.publish [--adapter DIR] [--data DIR]

The card's figures come from the record, so that the two can't differ. Needs the standard library
only.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from bench.lab.merge import ADAPTER, digest

TEMPLATE = Path(__file__).with_name("card.md")
_FILES = ("adapter_model.safetensors", "adapter_config.json", "recipe.json")


def publish(adapter: Path, data: Path, out: Path = ADAPTER) -> None:
    """Copy the adapter's files and its held-out ids to `out` and write the card.

    Raises SystemExit where the record speaks of another adapter, or the data isn't the adapter's.
    """
    record = json.loads((adapter / "record.json").read_text())
    recipe = json.loads((adapter / "recipe.json").read_text())
    own = digest(adapter)
    named = {recipe["adapter"], *(record[split]["adapter"] for split in splits(record))}
    if named != {own}:
        raise SystemExit(f"lab publish: the record in {adapter} is of another adapter; evaluate again")
    out.mkdir(parents=True, exist_ok=True)
    record["looks"] = _looks(out / "record.json", record["looks"])
    for name in _FILES:
        shutil.copyfile(adapter / name, out / name)
    (out / "record.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    ids = json.loads((data / "splits.jsonl").read_text())
    held_out = {split: ids[split] for split in ("validation", "test")}
    (out / "splits.json").write_text(json.dumps(held_out, indent=0) + "\n", encoding="utf-8")
    manifest = json.loads((data / "manifest.json").read_text())
    if manifest["sha256"]["train"] != recipe["data"]:
        raise SystemExit(f"lab publish: {adapter} was not trained on {data}; build that data again")
    shutil.copyfile(data / "manifest.json", out / "data.json")
    (out / "README.md").write_text(card(record, recipe, manifest), encoding="utf-8")


def splits(record: dict[str, Any]) -> list[str]:
    """The splits that the record has figures of, the one to be quoted first."""
    return [split for split in ("test", "validation") if split in record]


def card(record: dict[str, Any], recipe: dict[str, Any], manifest: dict[str, Any]) -> str:
    """The model card, with the figures of the test split or, before it was touched, validation's."""
    split = splits(record)[0]
    shown = record[split]
    missed = [row["figure"] for row in shown["gates"] if not row["met"] and row["estimate"] is not None]
    unmeasured = [row["figure"] for row in shown["gates"] if row["estimate"] is None]
    status = f"Held-out {split} split, {shown['when'][:10]}. "
    if split != "test":
        status += "The test split has not been touched. "
    if missed:
        status += f"**Gates not met: {_listed(missed)}.** "
    if unmeasured:
        status += f"Not measured: {_listed(unmeasured)}. "
    if not missed and not unmeasured:
        status += "All gates are met."
    return TEMPLATE.read_text(encoding="utf-8").format(
        status=status.strip(),
        table=_table(shown["gates"]),
        curve=_curve(shown["figures"]["curve"]),
        when2call="used" if manifest["when2call"] else "not used for training",
        seed=recipe["seed"],
        steps=recipe["steps"],
    )


def _looks(published: Path, new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All looks at held-out splits, those for earlier adapters first: a second try must show."""
    old = json.loads(published.read_text())["looks"] if published.exists() else []
    return [look for look in old if look not in new] + new


def _table(gates: list[dict[str, Any]]) -> str:
    lines = ["| figure | gate | measured | interval | n | |", "| --- | --- | --- | --- | --- | --- |"]
    for row in gates:
        gate = f"{row['low']} to {row['high']}" if row["high"] < 1 else f"at least {row['low']}"
        value = "-" if row["estimate"] is None else f"{row['estimate']:.3f}"
        verdict = "met" if row["met"] else "not measured" if row["estimate"] is None else "**not met**"
        name = _listed([row["figure"]])
        lines.append(
            f"| {name} | {gate} | {value} | {_interval(row['interval'])} | {row['n'] or '-'} | {verdict} |"
        )
    return "\n".join(lines)


def _curve(curve: list[dict[str, Any]]) -> str:
    lines = ["| bias | call recall | over-calling |", "| --- | --- | --- |"]
    for point in curve:
        cells = [
            f"{found['estimate']:.3f} ({_interval([found.get('low'), found.get('high')])})"
            for found in (point["call_recall"], point["over_calling"])
        ]
        lines.append(f"| {point['bias']:g} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)


def _interval(limits: list[float | None]) -> str:
    low, high = limits
    return "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def main() -> None:
    """Publish a trained and evaluated adapter into the repository."""
    parser = argparse.ArgumentParser(prog="python -m bench.lab.publish", description=main.__doc__)
    parser.add_argument("--adapter", type=Path, default=Path(".cache/lab/train/adapter"))
    parser.add_argument("--data", type=Path, default=Path(".cache/lab/data"))
    options = parser.parse_args()
    if not (options.adapter / "record.json").exists():
        raise SystemExit(f"lab publish: {options.adapter} has no record; run bench.lab.evaluate --record")
    publish(options.adapter, options.data)
    print(ADAPTER)


if __name__ == "__main__":
    main()
