"""JSON lines as another program wrote them, perhaps killed while it did."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.errors import InputError

Row = dict[str, Any]


def rows(file: Path, *, mend: str) -> tuple[list[Row], int]:
    """The objects of a JSON lines file, and how many cut last lines (0 or 1) were left out.

    Raises InputError with that mend for any other line that is no object.
    """
    found: list[Row] = []
    for row in each_row(file, mend=mend):
        if row is None:
            return found, 1
        found.append(row)
    return found, 0


def each_row(file: Path, *, mend: str) -> Iterator[Row | None]:
    """The objects one by one, for files that are too large to be held; None for a cut last line.

    Raises InputError as `rows` does.
    """
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    if not line.endswith(b"\n"):  # the other was writing it
                        yield None
                        return
                    raise InputError("is not JSON", where=f"{file} line {number}", mend=mend) from error
                if not isinstance(row, dict):
                    raise InputError("is no JSON object", where=f"{file} line {number}", mend=mend)
                yield row
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(file), mend=mend) from error
