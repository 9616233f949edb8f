"""Run `bench score` in this process, and write the files it reads."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import cli

Json = dict[str, Any]


class Shown(Exception):
    """A command that did not end with 0; what it wrote to stderr."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code, self.line = code, line


class Bench:
    """`bench`, with a run folder of its own for each call."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys, self._folder, self._calls = capsys, folder, 0

    def text(self, *arguments: str | Path) -> str:
        """What a command prints; raises Shown where it fails."""
        self._calls += 1
        out = () if "--out" in arguments else ("--out", str(self.run))
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, arguments), *out])
        printed = self._capsys.readouterr()
        if ended.value.code != 0:
            assert isinstance(ended.value.code, int)
            raise Shown(ended.value.code, printed.err)
        return printed.out

    def document(self, *arguments: str | Path) -> Json:
        """What it prints under --json."""
        shown: Json = json.loads(self.text(*arguments, "--json"))
        return shown

    @property
    def run(self) -> Path:
        """The last call's run folder."""
        return self._folder / f"out-{self._calls}"

    def records(self) -> list[Json]:
        """The last call's records."""
        return [json.loads(line) for line in (self.run / "records.jsonl").read_text().splitlines()]


def write(folder: Path, files: Mapping[str, Sequence[str | Json] | Json]) -> Path:
    """Write files: a list is JSON lines, an object one JSON document."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Mapping):
            file.write_text(json.dumps(content))
        else:
            lines = [line if isinstance(line, str) else json.dumps(line) for line in content]
            file.write_text("".join(f"{line}\n" for line in lines))
    return folder


def public_runs(command: str) -> list[Any]:
    """The runs of tests/cases/bench.json that call a command."""
    cases = json.loads((Path(__file__).parents[1] / "cases" / "bench.json").read_text())
    return [
        pytest.param(run, id=f"{case['id']}/{run['run']}")
        for case in cases
        for run in case["runs"]
        if run.get("command") == command
    ]
