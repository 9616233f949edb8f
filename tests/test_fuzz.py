"""The readers that face strangers, on their seeds and some made-up inputs (tests/fuzz.py)."""

import pytest

from tests.fuzz import TARGETS, tried


@pytest.mark.parametrize("name", TARGETS)
def test_what_must_hold_for_any_input_holds(name: str) -> None:
    tried(TARGETS[name], 60)
