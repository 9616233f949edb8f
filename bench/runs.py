"""The run folder: `run.json` says what a run is, JSONL files hold its records.

    OUT/run.json       the manifest (`Manifest`), written when the run begins and when it is done
    OUT/records.jsonl  one object a line, each with a `key` unique in its file
    OUT/result.json    what the command printed, once the run is done

A second call with the same folder resumes: records already there are done. It refuses when
anything that shapes the records differs (`Plan`). Other files in the folder are the command's own.

    with RunFolder.open(Path("runs/a"), plan) as run:
        records = run.records()
        for case in cases:
            if case.id not in records:
                records.append(case.id, measure(case))
        run.finish(summary(records))
"""

import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from bench.errors import InputError

SCHEMA_VERSION: Final = 1

Record = dict[str, Any]
"""One line of a records file: JSON values, its `key` among them."""


class DataFile(BaseModel):
    """An input file of the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    """Digest of its bytes, in hex."""
    size: int
    """Bytes."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read the file's digest and size; InputError where it can't be read."""
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                return cls(sha256=digest, size=file.tell())
        except OSError as error:
            raise InputError(
                f"cannot be read ({error.strerror})", where=str(path), mend="give a readable file"
            ) from error


class Plan(BaseModel):
    """What shapes a run's records. Two calls with one folder must agree on all of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    """The subcommand, `overhead`."""
    arguments: dict[str, Any]
    """Its own arguments that shape the records, by name."""
    seed: int
    """Seed of all that is drawn."""
    limit: int | None = None
    """--limit."""
    data: dict[str, DataFile] = {}
    """The input files, by the name the command gives them."""
    upstream: dict[str, Any] | None = None
    """The server that was asked: url, kind, version, model, fingerprint, as far as known."""
    profile: dict[str, Any] | None = None
    """The calibration: its name and the digest of its file."""


class Git(BaseModel):
    """The checkout the code ran from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    commit: str
    """Full hash."""
    dirty: bool
    """Whether anything differed from that commit, untracked files included."""


class Session(BaseModel):
    """One call that wrote to the run. More than one means that the run was resumed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    started: datetime
    """UTC."""
    versions: dict[str, str]
    """Python and the packages that matter, `seam` among them."""
    git: Git | None
    """None where the code isn't run from its own checkout."""


class Manifest(BaseModel):
    """`run.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    """Version of this layout; a change that old readers can't read counts it up."""
    state: Literal["planned", "done"]
    """`planned` until every record is written and the result is out."""
    plan: Plan
    """What shapes the records."""
    sessions: tuple[Session, ...]
    """The calls that wrote to the run, first to last."""


class RecordFile:
    """One JSONL file of a run: objects with a `key` that is unique in the file.

    Opening it heals what a kill left: a last line without its end is cut off, so at most that
    record is lost. Only one process may have it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            self._lock()
            self._end = self._heal()
            self._keys = {record["key"] for record in self}
        except BaseException:
            self._file.close()
            raise

    def __iter__(self) -> Iterator[Record]:
        """The records in the order they were written; InputError as `read_records`."""
        return read_records(self.path)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def done(self) -> frozenset[str]:
        """The keys of all records."""
        return frozenset(self._keys)

    def append(self, key: str, record: Mapping[str, Any]) -> None:
        """Write one record; when this returns, only a crash of the machine can lose it.

        Raises InputError when the write fails, which should end the run: the file then holds
        whole records only. A key that is already there, or a value that JSON lacks, is a
        programming error (ValueError, TypeError).
        """
        if key in self._keys:
            raise ValueError(f"{self.path} has a record {key!r} already")
        line = json.dumps({"key": key, **record}, allow_nan=False).encode() + b"\n"
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with suppress(OSError):  # what stays of the line is healed at the next opening
                self._file.truncate(self._end)
            raise _unwritable(self.path, error) from error
        self._end += len(line)
        self._keys.add(key)

    def close(self) -> None:
        """Flush to the disk and let others open the file."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                "another bench is writing to it",
                where=str(self.path),
                mend="wait for it, or give another --out",
            ) from error
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _heal(self) -> int:
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end != len(content):
            self._file.truncate(end)
        return end


class RunFolder:
    """A run's folder, new or resumed; a context manager that closes its record files."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._files = ExitStack()

    @classmethod
    def open(cls, path: Path, plan: Plan) -> Self:
        """Begin the run in `path`, or resume the one that is there.

        Raises InputError where the folder can't be written, holds something else than a run, or
        holds a run of another plan; the message names the first difference.
        """
        # Through JSON, so that it compares with one read from a file (tuples become lists).
        plan = Plan.model_validate_json(plan.model_dump_json())
        session = Session(started=datetime.now(UTC), versions=versions(), git=git_state())
        file = path / "run.json"
        if file.exists():
            earlier = read_manifest(path)
            _agree(earlier.plan, plan, file)
            if earlier.state == "done":
                return cls(path, earlier)
            manifest = earlier.model_copy(update={"sessions": (*earlier.sessions, session)})
        else:
            _empty(path)
            manifest = Manifest(state="planned", plan=plan, sessions=(session,))
        run = cls(path, manifest)
        run._write("run.json", manifest.model_dump_json(indent=2))
        return run

    @property
    def done(self) -> bool:
        """Whether an earlier call finished the run."""
        return self.manifest.state == "done"

    def records(self, name: str = "records") -> RecordFile:
        """Open `NAME.jsonl`; closed with the folder."""
        records = RecordFile(self.path / f"{name}.jsonl")
        self._files.callback(records.close)
        return records

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write `result.json` and mark the run done."""
        self._write("result.json", json.dumps(result, indent=2, allow_nan=False))
        self.manifest = self.manifest.model_copy(update={"state": "done"})
        self._write("run.json", self.manifest.model_dump_json(indent=2))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.close()

    def _write(self, name: str, text: str) -> None:
        """Replace a file whole, so that a kill leaves the old one or the new one."""
        target, draft = self.path / name, self.path / f".{name}.draft"
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        except OSError as error:
            raise _unwritable(target, error) from error


def read_records(file: Path) -> Iterator[Record]:
    """The records of a JSONL file, in order, without opening it for writing.

    A last line without its end is left out: the run is going on, or was killed there. Raises
    InputError for any other line that is no record, since only damage from outside makes one.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                record["key"]
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(
                    "is not a record",
                    where=f"{file} line {number}",
                    mend="take the line out, or give another --out",
                ) from error
            yield record


def read_manifest(path: Path) -> Manifest:
    """The manifest of the run in a folder.

    Raises InputError where there is none, or it is damaged, or of a newer schema.
    """
    file = path / "run.json"
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise InputError("no such run", where=str(file), mend="give a run's folder") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(
            f"{field}: {first['msg']} (this bench reads schema {SCHEMA_VERSION})",
            where=str(file),
            mend="give another --out, or the bench that wrote it",
        ) from error


def result_of(path: Path) -> dict[str, Any]:
    """The `result.json` of a run folder; InputError where it can't be read."""
    file = path / "result.json"
    try:
        document: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read ({error})", where=str(file), mend="repeat the run with another --out"
        ) from None
    return document


def check_done(manifest: Manifest, path: Path) -> None:
    """Raise InputError for a run that is not at its end."""
    if manifest.state != "done":
        raise InputError(
            "is not finished", where=str(path), mend="repeat its command with the same --out, which goes on"
        )


def versions() -> dict[str, str]:
    """Versions of Python, of seam, and of those of its dependencies that are installed.

    Development tools are left out: they shape no figure.
    """
    found = {"python": platform.python_version(), "seam": metadata.version("seam")}
    for requirement in metadata.requires("seam") or ():
        name = re.match(r"[\w.-]+", requirement)
        assert name is not None, requirement
        if "extra == 'dev'" not in requirement:
            with suppress(metadata.PackageNotFoundError):
                found[name[0]] = metadata.version(name[0])
    return found


def git_state() -> Git | None:
    """Commit and cleanness of the checkout this code runs from; None for an installed package."""
    package = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(package), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        # An installed package may lie in some other project's checkout, ignored by it.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return Git(commit=git("rev-parse", "HEAD"), dirty=bool(git("status", "--porcelain")))
    except (OSError, subprocess.CalledProcessError):
        return None


def _agree(earlier: Plan, plan: Plan, file: Path) -> None:
    """Raise InputError naming the first difference between two plans."""
    before, now = _flat(earlier.model_dump(mode="json")), _flat(plan.model_dump(mode="json"))
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise InputError(
                f"{name} was {_shown(before, name)} and is {_shown(now, name)}",
                where=str(file),
                mend="call it as before to resume, or give another --out",
            )


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            flat |= _flat(item, f"{prefix}{name}.")
        else:
            flat[prefix + name] = item
    return flat


def _shown(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "absent"


def _empty(path: Path) -> None:
    """Make the folder; InputError where it exists and holds files, since they are not ours."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        # A kill while the first run.json was written leaves its draft.
        occupied = any(entry.name != ".run.json.draft" for entry in path.iterdir())
    except OSError as error:
        raise _unwritable(path, error) from error
    if occupied:
        raise InputError("holds files but no run.json", where=str(path), mend="give a new or empty folder")


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot be written ({error.strerror})",
        where=str(path),
        mend="mend that and repeat the same command, which resumes",
    )
