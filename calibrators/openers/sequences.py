"""How much several sequences share at either end; of text in characters, of tokens in ids."""

import itertools
from collections.abc import Sequence
from typing import Any


def common_prefix(sequences: Sequence[Sequence[Any]]) -> int:
    """How many items all sequences begin with alike."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


def common_suffix(sequences: Sequence[Sequence[Any]]) -> int:
    """How many items all sequences end with alike."""
    return common_prefix([sequence[::-1] for sequence in sequences])
