"""A stored distillation set: which entry tokens its teacher's supports left out.

JSONL or Parquet, one prompt a row; docs/auditing.md has the schema, `Row` is the schema.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from bench.errors import InputError
from proxy.config import explain

Json = dict[str, Any]


class Row(BaseModel):
    """One prompt with the teacher's support at each position of its reply."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    should_call: StrictBool
    """Whether a call is due: a tool prompt, else a response prompt."""
    top_ids: list[int] | list[list[int]] = Field(min_length=1)
    """Token ids of the support: of the decision position alone, or of every position."""
    top_logprobs: list[float] | list[list[float]] | None = None
    """The teacher's log-probabilities of the same tokens, before any renormalisation."""
    decision: int = Field(0, ge=0)
    """Where every position is given, the index of the decision position."""
    id: str | None = None
    group: str | None = None
    source: str | None = None

    @property
    def ids(self) -> list[int]:
        """The support at the decision position."""
        found: Any = self.top_ids[self.decision] if isinstance(self.top_ids[0], list) else self.top_ids
        return [int(token) for token in found]

    @property
    def logprobs(self) -> list[float] | None:
        """Its log-probabilities, in the same order."""
        if self.top_logprobs is None:
            return None
        nested = isinstance(self.top_ids[0], list)
        found: Any = self.top_logprobs[self.decision] if nested else self.top_logprobs
        return [float(value) for value in found]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        nested = isinstance(self.top_ids[0], list)
        if nested and self.decision >= len(self.top_ids):
            raise ValueError(f"decision is {self.decision} and top_ids has {len(self.top_ids)} positions")
        if self.top_logprobs is None:
            return self
        if len(self.top_logprobs) != len(self.top_ids) or nested != isinstance(self.top_logprobs[0], list):
            raise ValueError("top_logprobs is not of the shape of top_ids")
        if len(self.logprobs or ()) != len(self.ids):
            raise ValueError("the decision position has not as many log-probabilities as ids")
        if not all(value <= 1e-3 for value in self.logprobs or ()):
            raise ValueError("a log-probability is above 0 or no number: give natural logarithms")
        return self


def read(path: Path) -> Iterator[Row]:
    """The rows of a set, each with an id of its own. Raises InputError naming the row that is none."""
    rows = _parquet(path) if path.suffix == ".parquet" else _lines(path)
    number, seen = 0, set[str]()
    for number, document in enumerate(rows, 1):
        try:
            row = Row.model_validate(document)
        except ValidationError as error:
            raise InputError(
                explain(error, Row), where=f"{path} row {number}", mend="docs/auditing.md has the schema"
            ) from None
        own = row.id or f"{path.stem}:{number}"
        if own in seen:
            raise InputError(
                f"the id {own!r} stands twice",
                where=f"{path} row {number}",
                mend="give each prompt an id, and its conversation as group",
            )
        seen.add(own)
        yield row.model_copy(update={"id": own})
    if not number:
        raise InputError("holds no row", where=str(path), mend="give one prompt a row")


def record(row: Row, entry: tuple[int, ...], tops: tuple[int, ...]) -> Json:
    """What the row's decision position says of E.

    `rank` is null where no entry token is in the support, and `beyond` then how many tokens it holds;
    `absent` are the entry tokens that are not in it.
    """
    ids, logprobs = row.ids, row.logprobs
    if logprobs is not None:  # files need not be in order
        pairs = sorted(zip(logprobs, ids, strict=True), key=lambda pair: -pair[0])
        ids = [token for _, token in pairs]
        logprobs = [logprob for logprob, _ in pairs]
    places = [ids.index(token) for token in entry if token in ids]
    kept = [math.exp(value) for value in logprobs or ()]
    inside = [kept[place] for place in places] if logprobs is not None else []
    mass = {str(top): min(1.0, math.fsum(kept[:top])) if top <= len(kept) else None for top in tops}
    return {
        "log_p": min(0.0, math.log(math.fsum(inside))) if inside and math.fsum(inside) > 0 else None,
        "rank": min(places) + 1 if places else None,
        "beyond": None if places else len(ids),
        "absent": [token for token in entry if token not in ids],
        "mass": mass,
    }


def _lines(path: Path) -> Iterator[Any]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    try:
                        yield json.loads(line)
                    except ValueError as error:
                        raise InputError(
                            f"is no JSON ({error})", where=f"{path} line {number}", mend="mend the line"
                        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), mend="give a readable file") from None


def _parquet(path: Path) -> Iterator[Any]:
    import duckdb

    try:
        with duckdb.connect() as database:
            table = database.execute("SELECT * FROM read_parquet(?)", [str(path)])
            names = [column[0] for column in table.description or ()]
            while rows := table.fetchmany(1000):
                for row in rows:
                    yield {name: value for name, value in zip(names, row, strict=True) if value is not None}
    except duckdb.Error as error:
        told = " ".join(str(error).split())[:200]
        raise InputError(f"cannot be read ({told})", where=str(path), mend="give a Parquet file") from None
