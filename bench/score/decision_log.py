"""The classes of replies that the proxy logged while a benchmark ran through it.

A harness that sends BFCL's entry id as `X-Case-Id`, alone or before anything that is no word character, can
be scored where its result files lost the text. `bench run bfcl` sends ENTRY/ARM/ATTEMPT.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.errors import InputError
from bench.score.lines import rows
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
_ATTEMPT: Final = re.compile(r"(?P<entry>\w+)/(?P<arm>[\w-]+)/(?P<attempt>\d+)")


def logged_classes(file: Path) -> Logged:
    """The classes of a decision log; entries that it does not name are absent.

    Replies that failed are left out, as the harness asked again. Raises InputError where the file is no
    decision log, or holds more than one run of an entry.
    """
    found: dict[str, Sequence[LoggedReply]] = {}
    runs: dict[str, list[str]] = {}
    for case, replies in _by_case([file]).items():
        if entry := _ENTRY.match(case):
            runs.setdefault(entry[1], []).append(case)
            found[entry[1]] = replies
    for id, cases in runs.items():
        if len(cases) > 1:
            raise InputError(
                f"holds {len(cases)} runs of {id} ({', '.join(sorted(cases))})",
                where=str(file),
                mend="give the records of one run",
            )
    return found


def last_attempts(files: Iterable[Path], arm: str) -> Logged:
    """The classes of an arm's cases in the logs of a `bench run`: each case's last attempt.

    A case is begun anew where a run was killed in it, and only the last attempt made it into the results.
    Raises InputError where a file is no decision log.
    """
    found: dict[str, tuple[int, Sequence[LoggedReply]]] = {}
    for case, replies in _by_case(files).items():
        attempt = _ATTEMPT.fullmatch(case)
        if attempt and attempt["arm"] == arm:
            number = int(attempt["attempt"])
            if number >= found.get(attempt["entry"], (0, ()))[0]:
                found[attempt["entry"]] = (number, replies)
    return {entry: replies for entry, (_, replies) in found.items()}


def _by_case(files: Iterable[Path]) -> dict[str, list[LoggedReply]]:
    """The whole replies of each case id, by time."""
    found: dict[str, list[tuple[str, LoggedReply]]] = {}
    for file in files:
        for record in rows(file, mend="give a decision log of seam serve")[0]:
            case = record.get("case_id")
            if isinstance(case, str) and record.get("outcome") == "ok" and not record.get("choice"):
                found.setdefault(case, []).append((str(record.get("time")), _reply(record)))
    return {case: [reply for _, reply in sorted(found[case], key=_time)] for case in found}


def _time(reply: tuple[str, LoggedReply]) -> str:
    return reply[0]


def _reply(record: Mapping[str, Any]) -> LoggedReply:
    action = record.get("action")
    classes = (action, record.get("action_published", action))
    return LoggedReply(*(Action(each) if each else None for each in classes))
