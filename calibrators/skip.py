"""Why a calibrator did not act."""

from typing import NamedTuple


class Skip(NamedTuple):
    """A reason: a short code for counting, a text for people.

    Attributes:
        quoted: the server's words. They may repeat what the client wrote, so they are for the client alone.
    """

    code: str
    text: str
    quoted: str = ""
