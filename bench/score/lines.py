"""JSON lines as another program wrote them, perhaps killed while it did."""

import json
from pathlib import Path
from typing import Any

from bench.errors import InputError

Row = dict[str, Any]


def rows(file: Path, *, mend: str) -> tuple[list[Row], int]:
    """The objects of a JSON lines file, and how many cut last lines (0 or 1) were left out.

    Raises InputError with that mend for any other line that is no object.
    """
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(file), mend=mend) from error
    found: list[Row] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # no line end after it: the other was writing it
                return found, 1
            raise InputError("is not JSON", where=f"{file} line {number}", mend=mend) from error
        if not isinstance(row, dict):
            raise InputError("is no JSON object", where=f"{file} line {number}", mend=mend)
        found.append(row)
    return found, 0
