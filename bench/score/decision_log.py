"""The classes of replies that the proxy logged while a benchmark ran through it.

A harness that sends BFCL's entry id as `X-Case-Id`, alone or before anything that is no word character, can
be scored where its result files lost the text. `bench run bfcl` sends ENTRY/ARM/ATTEMPT.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.errors import InputError
from bench.score.lines import Row, each_row, rows
from calibrators.actions import Action, Cues


class LoggedReply(NamedTuple):
    """One reply's classes; None for an empty reply."""

    action: Action | None
    """By the cues that the proxy was configured with."""
    published: Action | None
    """By the published lists; the same where the log doesn't say, as it does with `decisions.text`."""

    def by(self, cues: Cues) -> Action | None:
        """The class that scoring by these cues takes."""
        return self.published if cues is Cues.PUBLISHED else self.action


Logged = Mapping[str, Sequence[LoggedReply]]
"""By entry id, each reply in the order of time."""

_ENTRY: Final = re.compile(r"(multi_turn_\w+?_\d+)\b")
_ATTEMPT: Final = re.compile(r"(?P<entry>.+)/(?P<arm>[A-Za-z0-9-]+)/(?P<number>\d+)")


class Attempt(NamedTuple):
    """Which attempt at which case of a `bench run` a record is of."""

    arm: str
    entry: str
    number: int


def logged_classes(file: Path) -> Logged:
    """The classes of a decision log; entries that it does not name are absent.

    Replies that failed are left out, as the harness asked again. Raises InputError where the file is no
    decision log, or holds more than one run of an entry.
    """
    found: dict[str, Sequence[LoggedReply]] = {}
    runs: dict[str, list[str]] = {}
    for case, records in _by_case([file]).items():
        if entry := _ENTRY.match(case):
            runs.setdefault(entry[1], []).append(case)
            found[entry[1]] = classes(records)
    for id, cases in runs.items():
        if len(cases) > 1:
            raise InputError(
                f"holds {len(cases)} runs of {id} ({', '.join(sorted(cases))})",
                where=str(file),
                mend="give the records of one run",
            )
    return found


def attempt_of(record: Row) -> Attempt | None:
    """The attempt that a record of a whole reply is of; None for any other record."""
    case = record.get("case_id")
    found = _ATTEMPT.fullmatch(case) if isinstance(case, str) and _whole(record) else None
    return Attempt(found["arm"], found["entry"], int(found["number"])) if found else None


def last_attempts(
    files: Iterable[Path], wanted: Container[tuple[str, str]] | None = None
) -> Mapping[str, Mapping[str, Sequence[Row]]]:
    """The records of the whole replies of a `bench run`, by arm and case: each case's last attempt.

    A case is begun anew where a run was killed in it, and only the last attempt made it into the results.
    wanted: (arm, case) of those to read with their requests; by default all, without them, since with their
    prompts and tools they don't fit into memory. Raises InputError where a file is no decision log.
    """
    found: dict[tuple[str, str], tuple[int, list[Row]]] = {}
    for file in files:
        for record in each_row(file, mend="give a decision log of seam serve"):
            attempt = attempt_of(record) if record else None
            if record is None or attempt is None:
                continue
            key = (attempt.arm, attempt.entry)
            if wanted is None:
                record.pop("request", None)
            elif key not in wanted:
                continue
            last, records = found.get(key, (0, []))
            if attempt.number > last:
                found[key] = (attempt.number, [record])
            elif attempt.number == last:
                records.append(record)
    arms: dict[str, dict[str, Sequence[Row]]] = {}
    for (arm, entry), (_, records) in found.items():
        arms.setdefault(arm, {})[entry] = _in_time(records)
    return arms


def classes(records: Iterable[Row]) -> list[LoggedReply]:
    """What replies were, by their records."""
    return [_reply(record) for record in records]


def _by_case(files: Iterable[Path]) -> dict[str, list[Row]]:
    """The records of whole replies by case id, in the order of time."""
    found: dict[str, list[Row]] = {}
    for file in files:
        for record in rows(file, mend="give a decision log of seam serve")[0]:
            case = record.get("case_id")
            if isinstance(case, str) and _whole(record):
                found.setdefault(case, []).append(record)
    return {case: _in_time(records) for case, records in found.items()}


def _whole(record: Row) -> bool:
    """Whether it is of a whole reply, and the first of its n."""
    return record.get("outcome") == "ok" and not record.get("choice")


def _in_time(records: Iterable[Row]) -> list[Row]:
    return sorted(records, key=lambda record: str(record.get("time")))


def _reply(record: Row) -> LoggedReply:
    action = record.get("action")
    both = (action, record.get("action_published", action))
    return LoggedReply(*(Action(each) if each else None for each in both))
