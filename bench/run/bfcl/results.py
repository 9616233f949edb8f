"""BFCL's result files of a run while upstream writes them, and after a kill."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

_PATTERN: Final = "BFCL_v4_*_result.json"


def result_files(root: Path, arm: str) -> list[Path]:
    """The result files of an arm under BFCL_PROJECT_ROOT."""
    return sorted((root / "result" / arm).rglob(_PATTERN))


def heal(root: Path, arms: Iterable[str]) -> None:
    """Cut off last lines that a kill left without their end: upstream can't read a file with one."""
    for arm in arms:
        for file in result_files(root, arm):
            content = file.read_bytes()
            end = content.rfind(b"\n") + 1
            if end != len(content):
                with file.open("r+b") as opened:
                    opened.truncate(end)


def errored(row: Mapping[str, Any]) -> bool:
    """Whether upstream gave the case up: it then writes the error as the result, and its traceback."""
    return "traceback" in row and isinstance(row.get("result"), str)


def prompt_tokens(row: Mapping[str, Any]) -> list[int]:
    """The lengths of a case's prompts in tokens as the server counted them, in no order."""
    found: list[int] = []
    left = [row.get("input_token_count")]
    while left:
        item = left.pop()
        if isinstance(item, list):
            left += item
        elif isinstance(item, int):
            found.append(item)
    return found


class Watch:
    """Whole rows as they come: each is given out once."""

    def __init__(self, root: Path, arms: Iterable[str]) -> None:
        self._root = root
        self._arms = tuple(arms)
        self._read: dict[Path, int] = {}

    def new(self) -> Iterator[tuple[str, Json]]:
        """(arm, row) of every row that was finished since the last call."""
        for arm in self._arms:
            for file in result_files(self._root, arm):
                with file.open("rb") as opened:
                    opened.seek(self._read.get(file, 0))
                    whole, newline, _ = opened.read().rpartition(b"\n")
                self._read[file] = self._read.get(file, 0) + len(whole) + len(newline)
                for line in whole.splitlines():
                    yield arm, json.loads(line)
