"""The lab model itself: the base checkpoint with the committed adapter folded in, in seconds.

    python -m bench.lab.merge [--adapter DIR] [--out DIR]

Needs the extra `train`. The folder is made once under `.cache/lab/lab` and again whenever the base
or the adapter changes.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench.lab import checkpoint

ADAPTER = Path(__file__).with_name("adapter")
MERGED = checkpoint.ROOT / ".cache" / "lab" / "lab"
_WEIGHTS = "model.safetensors"


def ensure(out: Path = MERGED, adapter: Path = ADAPTER, base: Path = checkpoint.BASE) -> Path:
    """Return the folder of the merged model, making it (and the base) if absent or out of date.

    Safe to call from several processes at once: the first makes it, the others wait.

    Raises:
        checkpoint.CheckpointError: the base or the adapter can't be had, or the disk is full.
    """
    if not (adapter / "adapter_model.safetensors").exists():
        raise checkpoint.CheckpointError(
            f"{adapter} holds no adapter: check it out again, or train one with make lab-model"
        )
    base = checkpoint.ensure(base)
    out.parent.mkdir(parents=True, exist_ok=True)
    with (out.parent / f"{out.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        recipe = _recipe(base, adapter)
        if not _is_current(out, recipe):
            _build(base, adapter, out, recipe)
    return out


def digest(folder: Path) -> str:
    """SHA-256 over the adapter's two files; what records and markers name it by."""
    sha = hashlib.sha256()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        sha.update((folder / name).read_bytes())
    return sha.hexdigest()


def _recipe(base: Path, adapter: Path) -> str:
    """Hash all that determines the folder: the base's own recipe, the adapter, this module."""
    sha = hashlib.sha256((base / checkpoint.MARKER).read_bytes())
    for path in (*sorted(adapter.glob("adapter_*")), Path(__file__)):
        sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()


def _is_current(out: Path, recipe: str) -> bool:
    try:
        marker = json.loads((out / checkpoint.MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(marker.get("recipe") == recipe)


def _build(base: Path, adapter: Path, out: Path, recipe: str) -> None:
    """Make the folder beside `out` and move it there whole, so that no half-made one is seen."""
    from safetensors.torch import load_file, save_file

    from bench.lab import lora

    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        scratch.chmod(0o755)
        for path in base.iterdir():
            if path.name not in (_WEIGHTS, checkpoint.MARKER):
                shutil.copy(path, scratch / path.name)
        weights = load_file(base / _WEIGHTS)
        for name, add in lora.additions(adapter):
            weights[name] = add(weights[name]).contiguous()
        save_file(weights, scratch / _WEIGHTS, metadata={"format": "pt"})
        (scratch / _WEIGHTS).chmod(0o644)
        marker = {"recipe": recipe, "adapter": digest(adapter)}
        (scratch / checkpoint.MARKER).write_text(json.dumps(marker) + "\n")
        if out.exists():
            shutil.rmtree(out)
        scratch.rename(out)
    except OSError as error:
        raise checkpoint.CheckpointError(f"{out} can't be written ({error}): make room") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    """Make the merged model from the command line and print its path."""
    parser = argparse.ArgumentParser(prog="python -m bench.lab.merge", description=main.__doc__)
    parser.add_argument("--adapter", type=Path, default=ADAPTER)
    parser.add_argument("--base", type=Path, default=checkpoint.BASE)
    parser.add_argument("--out", type=Path, default=MERGED, help="default: .cache/lab/lab")
    options = parser.parse_args()
    try:
        print(ensure(options.out, options.adapter, options.base))
    except checkpoint.CheckpointError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
