"""Reference rows that papers print: points with n, shown beside a comparison, never part of it."""

from functools import cache
from importlib import resources
from typing import Any

import yaml

from bench.compare.folders import Kind

Json = dict[str, Any]


def published(kind: Kind) -> list[Json]:
    """The rows for a comparison of a kind, each with `from`, `cite` and `protocol` of its source.

    Rates are shares; a figure that the source does not print is absent or null.
    """
    data = _data()
    rows = data.get("decisions" if kind == "replies" else kind, ())
    return [
        {**row, **data["sources"][row["source"]]}
        for row in rows
        if kind != "replies" or row["part"] == "whole replies"
    ]


@cache
def _data() -> Json:
    text = resources.files("bench").joinpath("data/published_rows.yaml").read_text("utf-8")
    document: Json = yaml.safe_load(text)
    return document
