"""Read BFCL's multi-turn result and score files, as bfcl-eval writes them (v3 and v4 names).

    result/MODEL/BFCL_v3_multi_turn_base_result.json               one JSON object a line
    result/MODEL/multi_turn/BFCL_v4_multi_turn_base_result.json
    score/MODEL/multi_turn/BFCL_v4_multi_turn_base_score.json      a header, then the failed cases

A result is a list of turns, each a list of emissions: calls as `[{name: arguments}]` (JSON text or an
object), text as a string or a list of strings, in prompting mode everything as text. It is an error string
where the harness gave the case up. Handlers that take an empty list of calls for a call write a text reply as
`[]` and lose the text; where a category holds `[]` and no text at all, `[]` is taken for that.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.errors import InputError
from bench.score.decision_log import Logged, LoggedReply
from bench.score.emissions import Call, Emission, Turn, structured, text_calls
from bench.score.inference_log import StepLog, step_logs
from bench.score.lines import Row, rows
from calibrators.actions import Action, Cues, text_action

GOLD: Final[Mapping[str, Action]] = {
    "multi_turn_base": Action.TOOL_CALL,
    "multi_turn_long_context": Action.TOOL_CALL,
    "multi_turn_miss_func": Action.REFUSE,
    "multi_turn_miss_param": Action.ASK,
}
"""The categories and the class that each is about (calibration.md section 2)."""

_NAME = re.compile(r"BFCL_(v\d+)_(\w+)_(result|score)\.json\Z")
_ID = re.compile(r"(multi_turn_(?:base|long_context|miss_func|miss_param))_(\d+)\Z")


class Case(NamedTuple):
    """One entry as the model answered it."""

    id: str
    entry: int
    """Its number; the four cases of one number are one scenario."""
    turns: tuple[Turn, ...] | None
    """None where the harness gave the case up."""
    error: str | None = None
    """What it wrote instead."""


class Score(NamedTuple):
    """A score file: BFCL's own verdict."""

    path: Path
    correct: int
    total: int
    failed: frozenset[str]
    """Ids of the failed cases; those that passed are not named in the file."""


@dataclass
class Category:
    """One category of one model."""

    name: str
    cases: dict[str, Case] = field(default_factory=dict)
    """By id."""
    ids: set[str] = field(default_factory=set)
    """Of all cases in the files, beyond --limit too."""
    files: list[Path] = field(default_factory=list)
    """Result files it was read from."""
    duplicates: int = 0
    """Rows of an id that came again; the last one is kept, as bfcl-eval keeps it when it updates a file."""
    cut: int = 0
    """Last lines that were not written to their end; left out."""
    text_recorded: bool | None = None
    """Whether text replies are in the files; None where there is no sign of one."""
    recovered: int = 0
    """Lost replies whose text the inference log has, or whose class the decision log has."""
    score: Score | None = None


@dataclass
class Model:
    """One model's folder."""

    folder: Path
    version: str
    """BFCL's, as the file names have it."""
    categories: dict[str, Category] = field(default_factory=dict)
    label: str = ""
    """What tells it from the other models of the call."""


def read(
    paths: Sequence[Path],
    cues: Cues,
    *,
    scores: Path | None = None,
    logged: Logged | None = None,
    limit: int | None = None,
) -> list[Model]:
    """The models found under some files and folders, by label.

    scores: where the score files are; by default beside the results: in the same folder, or in the folder of
    the same name with "score" for "result". logged: what the proxy saw of lost texts. limit: only entries
    below it.

    Raises InputError where a path is missing, a file is not BFCL's, or nothing is found.
    """
    found: dict[tuple[Path, str], dict[str, list[Path]]] = {}
    for path in paths:
        for file, version, kind in _files(path):
            known = found.setdefault((_model_folder(file), version), {}).setdefault(kind, [])
            if file.resolve() not in map(Path.resolve, known):
                known.append(file)
    models = []
    for (folder, version), kinds in found.items():
        if "result" in kinds:
            model = Model(folder, version)
            _read_results(model, kinds["result"], cues, logged or {}, limit)
            for category in model.categories.values():
                category.score = _score(model, category.name, scores)
            models.append(model)
    models += _without_results(found, models)
    if not models:
        raise InputError(
            "no multi-turn result file of BFCL",
            where=", ".join(map(str, paths)),
            mend="give BFCL_v4_multi_turn_*_result.json files, or a folder that holds them",
        )
    for model in models:
        model.label = _label(model, models)
    return sorted(models, key=lambda model: model.label)


def _without_results(
    found: Mapping[tuple[Path, str], Mapping[str, list[Path]]], models: Sequence[Model]
) -> Iterator[Model]:
    """Models of which there are score files only: BFCL's accuracy and nothing else."""
    used = {each.score.path.resolve() for model in models for each in model.categories.values() if each.score}
    for (folder, version), kinds in found.items():
        alone = [file for file in kinds.get("score", ()) if file.resolve() not in used]
        if "result" not in kinds and alone:
            scores = [(_NAME.search(file.name), read_score(file)) for file in alone]
            yield Model(
                folder,
                version,
                {name[2]: Category(name[2], score=score) for name, score in scores if name is not None},
            )


def _files(path: Path) -> Iterator[tuple[Path, str, str]]:
    """The files that a path names, each with BFCL's version and its kind (result or score)."""
    if path.is_dir():
        for file in sorted(path.rglob("BFCL_v*_multi_turn_*.json")):
            name = _NAME.search(file.name)
            if name and name[2] in GOLD:
                yield file, name[1], name[3]
    elif path.is_file():
        name = _NAME.search(path.name)
        yield path, name[1] if name else "", name[3] if name else "result"
    else:
        raise InputError("no such file or folder", where=str(path), mend="give BFCL result files or folders")


def _model_folder(file: Path) -> Path:
    """v4 keeps the files in a folder of the category's group."""
    folder = file.resolve().parent
    return folder.parent if folder.name == "multi_turn" else folder


def _label(model: Model, models: Sequence[Model]) -> str:
    """The folder's name, with as much before it, and the version after it, as tells it from the others."""
    parts = model.folder.parts
    others = [other.folder.parts for other in models if other.folder != model.folder]
    depth = 1
    while depth < len(parts) and any(other[-depth:] == parts[-depth:] for other in others):
        depth += 1
    label = "/".join(parts[-depth:])
    return f"{label} ({model.version})" if len(models) > len(others) + 1 else label


def _read_results(model: Model, files: Sequence[Path], cues: Cues, logged: Logged, limit: int | None) -> None:
    raw: dict[str, dict[str, Row]] = {}
    for file in files:
        of_file, cut = rows(file, mend="take the line out, and bfcl generate makes the case again")
        for row in of_file:
            name, entry = _identity(row, file)
            category = model.categories.setdefault(name, Category(name))
            if file not in category.files:
                category.files.append(file)
                category.cut += cut
            category.ids.add(row["id"])
            if limit is None or entry < limit:
                known = raw.setdefault(name, {})
                category.duplicates += row["id"] in known
                known.pop(row["id"], None)
                known[row["id"]] = row
    for name, by_id in raw.items():
        _classify(model.categories[name], by_id, cues, logged)


def _identity(row: Row, file: Path) -> tuple[str, int]:
    match = _ID.match(row["id"]) if isinstance(row.get("id"), str) else None
    if match is None:
        what = f"id {json.dumps(row['id'])} is none of" if "id" in row else "a row without an id, so none of"
        raise InputError(
            f"{what} {', '.join(GOLD)}", where=str(file), mend="give multi-turn result files of bfcl generate"
        )
    return match[1], int(match[2])


def _classify(category: Category, by_id: Mapping[str, Row], cues: Cues, logged: Logged) -> None:
    replies = [
        reply
        for row in by_id.values()
        if isinstance(row.get("result"), list)
        for turn in row["result"]
        for reply in _replies(turn)
    ]
    if any(_text(reply) is not None for reply in replies):
        category.text_recorded = True
    elif any(reply == [] for reply in replies):
        category.text_recorded = False
    for id in sorted(by_id, key=_entry):
        entry, row = _entry(id), by_id[id]
        result = row.get("result")
        if isinstance(result, list):
            logs = step_logs(row.get("inference_log"), texts=category.text_recorded is False)
            turns = tuple(
                tuple(
                    _emission(reply, logs.get((place, step)), category, cues)
                    for step, reply in enumerate(_replies(turn))
                )
                for place, turn in enumerate(result)
            )
            category.cases[id] = Case(id, entry, _completed(turns, logged.get(id, ()), category, cues))
        else:
            error = result if isinstance(result, str) else f"result is {json.dumps(result)}"
            category.cases[id] = Case(id, entry, None, error)


def _entry(id: str) -> int:
    return int(id.rpartition("_")[2])


def _replies(turn: Any) -> list[Any]:
    return turn if isinstance(turn, list) else [turn]


def _text(reply: Any) -> str | None:
    """The text of a reply that is text; some handlers write it as a list of parts."""
    if isinstance(reply, str):
        return reply
    if isinstance(reply, list) and reply and all(isinstance(part, str) for part in reply):
        return "\n".join(reply)
    return None


def _emission(reply: Any, log: StepLog | None, category: Category, cues: Cues) -> Emission:
    offered = log.offered if log else None
    if reply == [] and category.text_recorded is False:
        if log is None or log.text is None:
            return Emission(frozenset(), frozenset(), lost=True, offered=offered)
        category.recovered += 1
        reply = log.text
    text = _text(reply)
    if text is None:
        calls = tuple(_structured(reply))
        called = frozenset({Action.TOOL_CALL} if calls else ())
        return Emission(called, called, calls, offered=offered)
    actions, published = (_class(text, each) for each in (cues, Cues.PUBLISHED))
    if Action.TOOL_CALL in actions:
        return Emission(actions, published, text_calls(text), offered=offered)
    return Emission(actions, published, text=bool(text.strip()), offered=offered)


def _completed(
    turns: tuple[Turn, ...], logged: Sequence[LoggedReply], category: Category, cues: Cues
) -> tuple[Turn, ...]:
    """The turns with the classes of lost replies as the proxy logged them.

    Only where the log has the same replies: as many, with calls in the same places.
    """
    emissions = [emission for turn in turns for emission in turn]
    same = len(logged) == len(emissions) and all(
        _unread(emission) or (emission.actions == {Action.TOOL_CALL}) == (reply.by(cues) is Action.TOOL_CALL)
        for emission, reply in zip(emissions, logged, strict=True)
    )
    if not same:
        return turns
    replies = iter(logged)
    return tuple(
        tuple(_logged(emission, next(replies), category, cues) for emission in turn) for turn in turns
    )


def _logged(emission: Emission, reply: LoggedReply, category: Category, cues: Cues) -> Emission:
    if not _unread(emission) or not (emission.lost or reply.by(cues)):
        return emission
    category.recovered += 1
    actions, published = (frozenset({each} if each else ()) for each in (reply.by(cues), reply.published))
    return Emission(actions, published, text=bool(actions - {Action.TOOL_CALL}), offered=emission.offered)


def _unread(emission: Emission) -> bool:
    """Whether the file shows neither call nor text.

    Where other replies have their text this looks like an empty reply; but a server that loses texts does so
    beside a proxy whose own words arrive.
    """
    return emission.lost or not emission.actions


def _class(text: str, cues: Cues) -> frozenset[Action]:
    action = text_action(text, cues)
    return frozenset({action} if action else ())


def _structured(reply: Any) -> Iterator[Call]:
    """Calls as the handlers of APIs write them; Cohere's name their parts."""
    for item in reply if isinstance(reply, list) else [reply]:
        if not isinstance(item, dict):
            continue
        name = item.get("name", item.get("tool_name"))
        arguments = item.get("arguments", item.get("parameters"))
        if isinstance(name, str) and arguments is not None:
            yield structured(name, arguments)
        else:
            yield from (structured(name, arguments) for name, arguments in item.items())


def _score(model: Model, category: str, scores: Path | None) -> Score | None:
    """The score file of a model's category, in whichever place it is."""
    folder = model.folder
    places = [folder, _sibling(folder)] if scores is None else [scores / folder.name, scores]
    name = f"BFCL_{model.version}_{category}_score.json"
    for place in places:
        for file in (place / "multi_turn" / name, place / name):
            if file.is_file():
                return read_score(file)
    return None


def _sibling(folder: Path) -> Path:
    """The folder of the scores: the nearest `result` in its path is `score` there."""
    parts = list(folder.parts)
    for place in range(len(parts) - 1, 0, -1):
        if "result" in parts[place]:
            parts[place] = parts[place].replace("result", "score")
            break
    return Path(*parts)


def read_score(file: Path) -> Score:
    """A score file of `bfcl evaluate`; InputError where it is none."""
    header, *failed = rows(file, mend="repeat bfcl evaluate")[0] or [{}]
    correct, total = header.get("correct_count"), header.get("total_count")
    if not isinstance(correct, int) or not isinstance(total, int) or not 0 <= correct <= total:
        raise InputError(
            "its first line has no correct_count and total_count",
            where=str(file),
            mend="give a score file of bfcl evaluate",
        )
    return Score(
        file, correct, total, frozenset(str(row.get("id")) for row in failed if not row.get("valid"))
    )
