"""The classes of replies that the proxy logged while a benchmark ran through it.

A harness that sends BFCL's entry id as `X-Case-Id`, alone or before anything that is no word character
(`multi_turn_base_0/arm/trial`), can be scored where its result files lost the text.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.errors import InputError
from bench.score.lines import rows
from calibrators.actions import Action

Logged = Mapping[str, Sequence[Action | None]]
"""By entry id, the class of each reply in the order of time; None for an empty one."""

_ENTRY: Final = re.compile(r"(multi_turn_\w+?_\d+)\b")


def logged_classes(file: Path) -> Logged:
    """The classes of a decision log; entries that it does not name are absent.

    Replies that failed are left out, as the harness asked again. Raises InputError where the file is no
    decision log, or holds more than one run of an entry.
    """
    found: dict[str, list[tuple[str, Action | None]]] = {}
    runs: dict[str, set[str]] = {}
    for record in rows(file, mend="give a decision log of seam serve")[0]:
        case = record.get("case_id")
        entry = _ENTRY.match(case) if isinstance(case, str) else None
        if entry is None or record.get("outcome") != "ok" or record.get("choice"):
            continue
        runs.setdefault(entry[1], set()).add(entry.string)
        action = record.get("action")
        found.setdefault(entry[1], []).append((str(record.get("time")), Action(action) if action else None))
    for id, cases in runs.items():
        if len(cases) > 1:
            raise InputError(
                f"holds {len(cases)} runs of {id} ({', '.join(sorted(cases))})",
                where=str(file),
                mend="give the records of one run",
            )
    return {
        id: [action for _, action in sorted(replies, key=lambda reply: reply[0])]
        for id, replies in found.items()
    }
