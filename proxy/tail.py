"""Follows the decision log through its rotation, and shows the records that someone asked for."""

import heapq
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from proxy.errors import ConfigError, printable

Record = Mapping[str, Any]

POLL_SECONDS = 0.2
"""How often a followed file is looked at."""
LOOK_BACK = 2**20
"""How many bytes of a file's end are read for what was last, where no `--since` asks for more."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_COLORS = {"tool_call": 36, "ask": 33, "refuse": 31, "confirm": 32}
_DIM, _BAD = 2, 31


def moment(told: str, now: datetime) -> datetime:
    """A time: so long before `now` (`90s`, `10m`, `2h`, `1d`), or an ISO one, in UTC where it says no zone.

    Raises:
        ValueError
    """
    if ago := re.fullmatch(r"(\d{1,6})([smhd])", told):
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    at = datetime.fromisoformat(told)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


class Wanted(NamedTuple):
    """Which records to show; what is empty or None lets all through."""

    actions: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    applied: tuple[str, ...] = ()
    case: str | None = None
    since: datetime | None = None

    def takes(self, record: Record) -> bool:
        """Whether a record is one of them."""
        return (
            (not self.actions or (record.get("action") or "none") in self.actions)
            and (not self.models or record.get("model") in self.models)
            and (not self.profiles or record.get("profile") in self.profiles)
            and (not self.applied or bool(acted(record) & set(self.applied)))
            and (self.case is None or record.get("case_id") == self.case)
            and (self.since is None or _at_or_after(record.get("time"), self.since))
        )


def acted(record: Record) -> set[str]:
    """What acted on a reply: bias, sri, cri; or `none`."""
    parts = (part.partition("=") for part in str(record.get("applied")).split("; "))
    names = {name for name, _, what in parts if what and not what.startswith("none (")}
    return names & {"bias", "sri", "cri"} or {"none"}


def _at_or_after(time: object, since: datetime) -> bool:
    try:
        return datetime.fromisoformat(str(time)) >= since
    except (ValueError, TypeError):  # no time, or one without a zone
        return False


def parsed(line: bytes) -> Record | None:
    """The record that a line is; None for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("schema"), int) else None


class Followed:
    """One log file. After its rotation what is left of the old file comes first, then all newer ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def last(self, size: int) -> Iterator[bytes]:
        """Whole lines of the last `size` bytes; what is read later goes on from there."""
        self._open(self.path)
        if self._file is not None and (begin := os.fstat(self._file.fileno()).st_size - size) > 0:
            self._file.seek(begin - 1)
            self._file.readline()
        return self.more()

    def all(self) -> Iterator[bytes]:
        """All lines, those of rotated files first; what is read later goes on from there."""
        self._open(next(iter(_rotated(self.path)), self.path))
        return self.more()

    def more(self) -> Iterator[bytes]:
        """The lines that have come since the last call."""
        if self._file is None:
            self._open(self.path)
        yield from self._read()
        while (following := self._following()) is not None:
            yield from self._read()  # what was written between the last look and the rotation
            self.close()
            self._file, self._rest = following, b""
            yield from self._read()

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _following(self) -> BinaryIO | None:
        """The file to go on with; None while the open one is still written to."""
        while self._file is not None:
            mine = _identity(self._file.fileno())
            paths = [*_rotated(self.path), self.path]
            present = [_identity(path) for path in paths]
            newer = present.index(mine) + 1 if mine in present else len(paths) - 1
            at = next((at for at in range(newer, len(paths)) if present[at] is not None), None)
            if at is None:
                return None
            with suppress(FileNotFoundError):
                file = paths[at].open("rb")
                # Names move while they are looked at; what was seen has to have been one state of them.
                still = [_identity(path) for path in paths] == present
                if still and _identity(file.fileno()) == present[at]:
                    return file
                file.close()
        return None

    def _open(self, path: Path) -> None:
        self.close()
        self._rest = b""
        try:
            self._file = path.open("rb")
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name a decision log or its folder") from None

    def _read(self) -> Iterator[bytes]:
        if self._file is None:
            return
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # emptied by others
            self._file.seek(0)
            self._rest = b""
        for line in self._file:
            if not line.endswith(b"\n"):  # half a line: the rest is still to come
                self._rest += line
                return
            yield self._rest + line
            self._rest = b""


def _identity(file: Path | int) -> tuple[int, int] | None:
    try:
        told = os.stat(file)  # noqa: PTH116  (of a descriptor too)
    except OSError:
        return None
    return told.st_dev, told.st_ino


def _rotated(path: Path) -> list[Path]:
    """A log's rotated files, oldest first."""
    numbers = (found.name.removeprefix(path.name + ".") for found in path.parent.glob(f"{path.name}.*"))
    return [
        path.with_name(f"{path.name}.{number}")
        for number in sorted((int(n) for n in numbers if n.isdecimal()), reverse=True)
    ]


class Tail:
    """The records of a log, or of all logs in a folder.

    Attributes:
        broken: how many lines were no records.

    Raises:
        ConfigError: there is nothing of that name.
    """

    def __init__(self, path: Path, wanted: Wanted) -> None:
        if not path.exists():
            raise ConfigError(f"{path}: no such file or folder; decisions.path in seam.yaml names it")
        self.broken = 0
        self._path = path
        self._wanted = wanted
        self._files: dict[Path, Followed] = {}

    def past(self, count: int) -> Iterable[Record]:
        """The last records so far, in the order of their time; all of them where `since` was asked for."""
        short = self._wanted.since is None
        files = (file.last(LOOK_BACK) if short else file.all() for file in self._followed())
        records = heapq.merge(*map(self._records, files), key=lambda record: str(record.get("time")))
        return deque(records, maxlen=count) if short else records

    def fresh(self) -> Iterator[Record]:
        """The records that have come since the last call."""
        for file in self._followed():
            yield from self._records(file.more())

    def close(self) -> None:
        """Let the files go."""
        for file in self._files.values():
            file.close()

    def _followed(self) -> list[Followed]:
        paths = sorted(self._path.glob("*.jsonl")) if self._path.is_dir() else [self._path]
        for path in paths:
            self._files.setdefault(path, Followed(path))
        return list(self._files.values())

    def _records(self, lines: Iterable[bytes]) -> Iterator[Record]:
        for line in lines:
            record = parsed(line)
            if record is None:
                self.broken += bool(line.strip())
            elif self._wanted.takes(record):
                yield record


def run(tail: Tail, lines: int, follow: bool, as_json: bool) -> None:
    """Print past records, then what comes, until interrupted."""
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def show(record: Record) -> None:
        line = json.dumps(record, separators=(",", ":")) if as_json else shown(record, colored)
        click.echo(line, color=colored)  # which also sends it on at once

    try:
        for record in tail.past(lines):
            show(record)
        while follow:
            for record in tail.fresh():
                show(record)
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:  # how people end it
        pass
    finally:
        tail.close()
        if tail.broken:
            click.echo(f"seam: {tail.broken} lines are no decision records", err=True)


def shown(record: Record, colored: bool) -> str:
    """A record as one line for people."""
    action = _word(record.get("action") or "none")
    good = record.get("outcome") == "ok"
    model = f"{_word(record.get('model'))}@{_word(record.get('profile'))}"
    parts = [
        _paint(_word(record.get("time"))[5:23].replace("T", " "), _DIM, colored),
        _paint(f"{action:<9}", _COLORS.get(action, _DIM), colored),
        model,
        f"turn {_word(record.get('turn'))}",
        _chance(record),
        "" if record.get("applied") == "none" else _word(record.get("applied")),
        ", ".join(map(_word, record["calls"])) if isinstance(record.get("calls"), list) else "",
        _cost(record),
        ""
        if good
        else _paint(f"{_word(record.get('outcome'))} {_word(record.get('status'))}", _BAD, colored),
        _paint(_word(record.get("request_id")), _DIM, colored),
    ]
    return "  ".join(part for part in parts if part)


def _chance(record: Record) -> str:
    p, most = record.get("entry_probability"), record.get("entry_probability_at_most")
    if isinstance(p, int | float):
        return f"p {p:.3f}"
    return f"p ≤ {most:.3f}" if isinstance(most, int | float) else ""


def _cost(record: Record) -> str:
    """Milliseconds of server and proxy, and how many queries where it was not one."""
    ms, queries = record.get("ms"), record.get("queries")
    times = ms if isinstance(ms, dict) else {}
    spent = [value for value in (times.get("upstream"), times.get("own")) if isinstance(value, int | float)]
    many = f" in {len(queries)} queries" if isinstance(queries, list) and len(queries) > 1 else ""
    return f"{sum(spent):.0f} ms{many}" if spent else ""


def _word(value: object) -> str:
    """A value from a log that may hold what clients sent: nothing in it steers a terminal."""
    return printable(str(value)) if isinstance(value, str | int | float) else "?"


def _paint(text: str, color: int, colored: bool) -> str:
    return f"\x1b[{color}m{text}\x1b[0m" if colored and text else text
