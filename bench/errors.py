"""What can end a bench command, and its exit code.

    BenchError
    ├── CheckFailed         1   the command worked, and what it checked does not hold
    ├── InputError          2   usage or bad input, also a run folder that cannot be written
    └── ServerUnreachable   3   the server to measure does not answer

Each carries what was wrong, where, and the mend. `bench.cli.main` prints that as one line.
"""

from typing import ClassVar


class BenchError(Exception):
    """A failure that the person at the terminal can mend; shown without a traceback.

    what: the fact ("unknown target 'nginx'"); where: the file, line or option it was met at;
    mend: what to do about it, as an instruction.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, what: str, *, where: str | None = None, mend: str) -> None:
        self.what, self.where, self.mend = what, where, mend
        line = f"{where}: {what}; {mend}" if where else f"{what}; {mend}"
        # A message may quote a server's reply or a file's line: still one line in all.
        super().__init__(" ".join(line.split()))


class CheckFailed(BenchError):
    """The command worked, and what it checked does not hold."""

    exit_code = 1


class InputError(BenchError):
    """Usage or bad input, also a run folder that does not fit or cannot be written."""

    exit_code = 2


class ServerUnreachable(BenchError):
    """A server that the command needs does not answer."""

    exit_code = 3
