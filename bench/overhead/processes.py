"""Server processes that the bench starts: their life, the CPU time and the memory that they use.

CPU time is read from the kernel's clock of each process (`clock_getcpuclockid`), which counts
nanoseconds and all threads, those that ended too; /proc/PID/stat counts ticks of 10 ms, a tenth of a
short block. /proc gives the process tree.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple, Self

from bench.errors import InputError, ServerUnreachable

_STOP_SECONDS = 10.0
# Runs a command that the kernel terminates when its starter is gone, however that ended: also
# when it was gone before the kernel knew.
_LEASH = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
starter, *command = sys.argv[1:]
if os.getppid() == int(starter):
    os.execvp(command[0], command)
"""


class Server(NamedTuple):
    """A server under measurement."""

    port: int
    """On 127.0.0.1."""
    pid: int
    """Root of its process tree."""


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, what it prints goes to `log`. It ends with the block, or with us.

    environment: added to ours, from which proxy settings are taken out, since all traffic is local.
    """
    ours = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _LEASH, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=ours | dict(environment or {}),
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            _end(process)


def await_ready(
    name: str, process: subprocess.Popen[bytes], port: int, body: bytes, log: Path, seconds: float
) -> None:
    """Wait until a chat completion on the port is answered with 200.

    Raises ServerUnreachable when the process ends, or `seconds` pass, before that.
    """
    deadline = time.monotonic() + seconds
    last = "no connection"
    while time.monotonic() < deadline:
        if (code := process.poll()) is not None:
            raise ServerUnreachable(
                f"ended at once (exit {code}): {last_line(log)}", where=name, mend=f"see {log}"
            )
        try:
            status, said = _exchange(port, seconds, "POST", "/v1/chat/completions", body)
        except (OSError, HTTPException):
            time.sleep(0.05)
            continue
        if status == 200:
            return
        last = f"HTTP {status} {said[:200].decode(errors='replace')}"
        time.sleep(0.2)
    raise ServerUnreachable(f"not ready within {seconds:.0f} s ({last})", where=name, mend=f"see {log}")


def asked(port: int, path: str) -> bytes:
    """What a server of 127.0.0.1 answers to a GET; OSError or HTTPException where it doesn't."""
    return _exchange(port, 60, "GET", path)[1]


def _exchange(
    port: int, seconds: float, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    # The load generator imports this module in every block: http.client, since httpx takes long to import.
    connection = HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tree(root: int) -> list[int]:
    """The ids of a process and all of its descendants, from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The command in parentheses may hold anything, parentheses too.
                stat = (entry / "stat").read_text()
            except OSError:  # gone meanwhile
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time, user and system, that the processes have used so far; those that ended count 0."""
    total = 0.0
    for pid in pids:
        try:
            # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the Linux ABI, as clock_getcpuclockid gives.
            total += time.clock_gettime((~pid << 3) | 2)
        except OSError:
            continue
    return total


def reset_peaks(pids: Sequence[int]) -> None:
    """Let `peak_mb` count from now on. Where the kernel refuses that it counts from a process's start."""
    for pid in pids:
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mb(pids: Sequence[int]) -> float:
    """The most that each of the processes has had resident, in all, in MB; pages they share count in each."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return total * 1024 / 1e6


def allow_open_files(count: int) -> None:
    """Raise our limit of open files, which servers inherit; InputError where it can't be so high."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise InputError(
                f"{count:,} files are to be open in a process, and {hard:,} may be",
                where="bench overhead",
                mend=f"raise the limit (ulimit -Hn {count}) or lower --concurrency and --open-streams",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


class Usage(NamedTuple):
    """CPU seconds of the whole machine since it started, and of ours among them."""

    busy: float
    """Spent on anything but waiting."""
    stolen: float
    """That a hypervisor gave to other machines."""
    ours: float
    """Of this process, its children that run, and those that ended."""

    @classmethod
    def now(cls) -> Self:
        """Read the counters."""
        user, nice, system, _idle, _wait, irq, softirq, stolen = (
            int(ticks) / os.sysconf("SC_CLK_TCK")
            for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        ours = cpu_seconds(tree(os.getpid())) + ended.ru_utime + ended.ru_stime
        return cls(user + nice + system + irq + softirq, stolen, ours)

    def elsewhere_since(self, before: Self) -> float:
        """CPU seconds that work other than ours took or that were stolen, since `before`."""
        ours = self.ours - before.ours
        return max(0.0, self.busy - before.busy - ours) + self.stolen - before.stolen


def require_linux() -> None:
    """Raise InputError where CPU time of another process can't be read."""
    if not sys.platform.startswith("linux"):
        raise InputError("needs Linux", where="bench overhead", mend="run it in a container or a VM")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    # It leads a session of its own: whatever it started goes with it.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
