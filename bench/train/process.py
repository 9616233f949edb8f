"""Work that needs torch, done by another Python, which is told a job by a file and answers line by line."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import environments
from bench.errors import InputError
from bench.runs import DataFile

Json = dict[str, Any]


def torch_python(given: Path | None) -> Path:
    """The Python that has torch. Raises InputError where there is none."""
    python = given or environments.place("vllm") / "bin" / "python"
    if not python.exists():
        raise InputError(
            "no such Python", where=str(python), mend="run `make environments`, or name one with --python"
        )
    return python


def checkpoint(path: Path, option: str) -> Path:
    """A checkpoint's folder, whole or adapter. Raises InputError where it is none."""
    if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise InputError(
            "has neither config.json nor adapter_config.json",
            where=f"{option} {path}",
            mend="give the folder of a checkpoint or an adapter",
        )
    return path


def weights(folders: Mapping[str, Path | None]) -> dict[str, DataFile]:
    """What a plan holds of checkpoints, by the name of each: their configurations and weights.

    So that a run goes on with those that it began with, and with no others of the same folder.
    """
    kinds = (".safetensors", ".bin", ".json")
    return {
        f"{name}/{file.name}": DataFile.of(file)
        for name, folder in folders.items()
        if folder is not None
        for file in sorted(folder.iterdir())
        if file.suffix in kinds and ("config" in file.name or "model" in file.name)
    }


def lines(python: Path, module: str, job: Mapping[str, Any]) -> Iterator[Json]:
    """The JSON objects that `python -m MODULE JOB.json` writes to stdout, as it writes them.

    It ends with the iteration, finished or not. Raises InputError with its last words where it fails.
    """
    with TemporaryDirectory(prefix="bench-job-") as scratch:
        file, log = Path(scratch) / "job.json", Path(scratch) / "log"
        file.write_text(json.dumps(job), "utf-8")
        with (
            log.open("w+b") as said,
            subprocess.Popen(
                [str(python), "-m", module, str(file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    with suppress(ValueError):  # libraries may print too
                        document = json.loads(line)
                        if isinstance(document, dict):
                            yield document
                failed = process.wait() != 0
            finally:
                process.kill()
        if failed:
            raise InputError(_last(log), where=module, mend="see to that, and repeat with the same --out")


def _last(log: Path) -> str:
    said = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return said[-1].strip() if said else "ended without a word"
