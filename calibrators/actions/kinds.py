"""What one sentence of the assistant does."""

from enum import Enum


class Kind(Enum):
    """What one sentence does; the class of the text follows from these (`seam`)."""

    ASKS = "asks"
    """Asks the user for what the request needs."""
    MAY_ASK = "may ask"
    """An offer or a condition: asks only where nothing of substance comes before it."""
    DECLINES = "declines"
    """The assistant can't or may not."""
    MAY_DECLINE = "may decline"
    """A limit that isn't the assistant's own: declines only where nothing of substance comes before it."""
    REPORTS = "reports"
    """Reports completion."""
    COURTESY = "courtesy"
    """Greets, apologizes, agrees, closes: nothing of substance."""
    STATES = "states"
    """Anything else: substance."""
