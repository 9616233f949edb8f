"""Virtual environments of their own, for packages that must not meet ours.

Each lies beside the environment we run in (`.venv-NAME`), is made on first use, and holds a `.made`
file with what it was made from; it is made again when that changes or a making was cut short.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.errors import InputError

_MARK = ".made"


def place(name: str) -> Path:
    """Where the environment `name` lies: beside our own, else under the working directory."""
    beside = Path(sys.prefix).parent if sys.prefix != sys.base_prefix else Path.cwd()
    return beside / f".venv-{name}"


def made(name: str, requirements: Sequence[str]) -> bool:
    """Whether the environment is there, whole, and made from these requirements."""
    mark = place(name) / _MARK
    return mark.is_file() and mark.read_text() == _content(requirements)


def discard(name: str) -> None:
    """Let the environment count as not made, so that `make` makes it anew."""
    (place(name) / _MARK).unlink(missing_ok=True)


def make(name: str, requirements: Sequence[str], python: str = sys.executable) -> Path:
    """Make the environment, unless it is `made`; the path of its `bin` folder.

    Takes minutes the first time. requirements: as pip takes them, options among them; python: what makes it.
    Raises InputError with the last line of what pip said.
    """
    folder = place(name)
    if made(name, requirements):
        return folder / "bin"
    try:
        discard(name)
        _run([python, "-m", "venv", "--clear", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "--quiet", *requirements])
        (folder / _MARK).write_text(_content(requirements))
    except (OSError, _Failed) as error:
        raise InputError(
            f"could not be made: {error}", where=str(folder), mend="see to that, and repeat"
        ) from error
    return folder / "bin"


class _Failed(Exception):
    """A command that failed, with the last line of what it said."""


def _content(requirements: Sequence[str]) -> str:
    return "\n".join([*requirements, ""])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise _Failed(said[-1].strip() if said else f"exit {done.returncode}")
