"""The run folders that are compared: what each is of, its name, and the files that a comparison reads."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bench.errors import InputError
from bench.runs import Manifest, Record, check_done, read_manifest, read_records, result_of

Json = dict[str, Any]
Kind = Literal["decisions", "bfcl", "tau2", "replies", "when2call"]

KINDS: Mapping[str, Kind] = {
    "calibrate": "decisions",
    "score bfcl": "bfcl",
    "run bfcl": "bfcl",
    "run decisions": "replies",
    "run when2call": "when2call",
    "score tau2": "tau2",
    "run tau2": "tau2",
}
"""What a comparison can be made of, by the command that wrote the folder."""
_FILES: Mapping[Kind, tuple[str, ...]] = {
    "decisions": ("result.json", "examples.jsonl", "replies.jsonl"),
    "bfcl": ("result.json", "records.jsonl"),
    "tau2": ("result.json", "records.jsonl"),
    "replies": ("result.json", "records.jsonl"),
    "when2call": ("result.json", "records.jsonl"),
}


class Folder(NamedTuple):
    """One finished run."""

    label: str
    """The name it was given, else its folder's."""
    path: Path
    kind: Kind
    manifest: Manifest
    result: Json
    """Its `result.json`."""

    @property
    def files(self) -> list[Path]:
        """The files that a comparison reads."""
        return [path for name in _FILES[self.kind] if (path := self.path / name).exists()]

    def records(self, name: str = "records") -> Iterator[Record]:
        """The records of `NAME.jsonl`; none where there is no such file."""
        file = self.path / f"{name}.jsonl"
        return read_records(file) if file.exists() else iter(())

    def lines(self, name: str) -> Iterator[Json]:
        """The objects of `NAME.jsonl`, which need no key. Raises InputError where it can't be read."""
        file = self.path / f"{name}.jsonl"
        try:
            with file.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)
        except (OSError, ValueError) as error:
            raise InputError(
                f"cannot be read ({error})",
                where=str(file),
                mend="repeat the run's command with its --out, which writes it again",
            ) from None


def folders(texts: Sequence[str]) -> list[Folder]:
    """The runs of `[NAME=]DIR` arguments, in order.

    Raises InputError where one is no finished run, is of another kind than the first, or comes twice.
    """
    found = [_folder(text) for text in texts]
    for place, folder in enumerate(found):
        if folder.kind != found[0].kind:
            commands = [each.manifest.plan.command for each in (found[0], folder)]
            raise InputError(
                f"is of bench {commands[1]}, and {found[0].path} of bench {commands[0]}",
                where=str(folder.path),
                mend="compare runs of one kind",
            )
        for other in found[:place]:
            if folder.path.resolve() == other.path.resolve():
                raise InputError("is given twice", where=str(folder.path), mend="name each run once")
            if folder.label == other.label:
                raise InputError(
                    f"{other.path} has the name {folder.label!r} too",
                    where=str(folder.path),
                    mend="name them: NAME=DIR",
                )
    return found


def _folder(text: str) -> Folder:
    name, path = _named(text)
    manifest = read_manifest(path)
    kind = KINDS.get(manifest.plan.command)
    if kind is None:
        raise InputError(
            f"is of bench {manifest.plan.command}",
            where=str(path),
            mend=f"give runs of bench {', '.join(KINDS)}",
        )
    check_done(manifest, path)
    return Folder(name or path.resolve().name, path, kind, manifest, result_of(path))


def _named(text: str) -> tuple[str, Path]:
    """A name and a folder; no name where the text is a folder as it stands."""
    name, equals, path = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        return "", Path(text)
    if not name or not path:
        raise InputError(f"{text!r} is no NAME=DIR", where="RUN", mend="write vanilla=runs/vanilla")
    return name, Path(path)
