"""How scripts of the lab that start servers and commands end."""

import signal
import sys
from collections.abc import Callable

from bench.errors import BenchError


def script(work: Callable[[], None]) -> None:
    """Do a script's work: a failure is one line and an exit code, and what it started ends with it.

    SIGTERM and SIGINT unwind, also in a shell's background job, which ignores SIGINT.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        work()
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
