"""Label files: JSON lines as arXiv:2609.00949 released them, or shorter ones.

    {"case_id": "multi_turn_base_0", "final": {"B1a": 1, "B3": "n.a.", ..}}
    {"case_id": .., "model": .., "rater_a": {"B1a": {"value": 1, "rationale": ..}, ..}, "final": {..}}
    {"sim_id": .., "model": .., "tool": "cancel_reservation", "confirmed": true}

The last is a judgement of one tau2 write; a simulation's stand in the order of its writes. Rows of another
`split` than `main` (the released pilot) are left out.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bench.errors import InputError
from bench.score.audit import NOT_APPLICABLE, Value
from bench.score.lines import Row, rows
from bench.score.tau2_audit import CONFIRMED, write_id

_MEND = "give JSON lines with case_id and labels, as docs/scoring.md has them"


def read(file: Path, rater: str, model: str | None, labels: Collection[str]) -> dict[str, dict[str, Value]]:
    """The labels that a rater gave, by case id.

    rater: the member that holds them. model: only rows of this model. labels: those of the run's benchmark.
    Raises InputError where a row has no such labels or an unknown value, or where one case is labelled twice
    and differently.
    """
    found: dict[str, dict[str, Value]] = {}
    writes: Counter[str] = Counter()
    for number, row in enumerate(rows(file, mend=_MEND)[0], 1):
        where = f"{file} row {number}"
        if row.get("split", "main") != "main" or (model is not None and row.get("model") != model):
            continue
        id, told = row.get("case_id"), row.get(rater)
        if CONFIRMED in labels and CONFIRMED in row:
            simulation = str(row.get("sim_id"))
            id, told = write_id(simulation, writes[simulation], str(row.get("tool"))), row
            writes[simulation] += 1
        if not isinstance(id, str) or not isinstance(told, dict):
            raise InputError(f"has no case_id with labels of {rater!r}", where=where, mend=_MEND)
        own = {label: _value(told[label], f"{where} {label}") for label in labels if label in told}
        if found.setdefault(id, own) != own:
            raise InputError(
                f"labels {id} otherwise than an earlier row ({_model(row)})",
                where=where,
                mend="name one model: --labelled-model",
            )
    if not found:
        of = f" of model {model!r}" if model else ""
        raise InputError(f"holds no labels{of}", where=str(file), mend=_MEND)
    return found


def _model(row: Row) -> str:
    return f"model {row['model']}" if "model" in row else "without a model"


def _value(told: Any, where: str) -> Value:
    value = told.get("value") if isinstance(told, Mapping) else told
    if value is None or value == NOT_APPLICABLE:
        return value
    if value in (0, 1):
        return 1 if value else 0
    raise InputError(f"is {value!r}", where=where, mend=f"0, 1, {NOT_APPLICABLE} or null")
