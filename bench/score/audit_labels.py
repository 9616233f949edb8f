"""Label files of the mechanism audit: JSON lines as arXiv:2609.00949 released them, or shorter ones.

    {"case_id": "multi_turn_base_0", "final": {"B1a": 1, "B3": "n.a.", ..}}
    {"case_id": .., "model": .., "rater_a": {"B1a": {"value": 1, "rationale": ..}, ..}, "final": {..}}

Rows of another `split` than `main` (the released pilot) are left out.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import InputError
from bench.score.audit import LABELS, NOT_APPLICABLE, Value
from bench.score.lines import Row, rows

_MEND = "give JSON lines with case_id and labels, as docs/scoring.md has them"


def read(file: Path, rater: str, model: str | None) -> dict[str, dict[str, Value]]:
    """The labels that a rater gave, by case id.

    rater: the member that holds them. model: only rows of this model. Raises InputError where a row has no
    such labels or an unknown value, or where one case is labelled twice and differently.
    """
    found: dict[str, dict[str, Value]] = {}
    for number, row in enumerate(rows(file, mend=_MEND)[0], 1):
        where = f"{file} row {number}"
        if row.get("split", "main") != "main" or (model is not None and row.get("model") != model):
            continue
        id, told = row.get("case_id"), row.get(rater)
        if not isinstance(id, str) or not isinstance(told, dict):
            raise InputError(f"has no case_id with labels of {rater!r}", where=where, mend=_MEND)
        own = {label: _value(told[label], f"{where} {label}") for label in LABELS if label in told}
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
