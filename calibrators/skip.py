"""Why a calibrator did not act."""

from typing import NamedTuple


class Skip(NamedTuple):
    """A reason: a short code for counting, a text for people."""

    code: str
    text: str
