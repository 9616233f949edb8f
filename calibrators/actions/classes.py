"""The action classes and the two sets of cues that tell them apart in a text."""

from enum import StrEnum


class Action(StrEnum):
    """The classes of calibration.md section 1; OTHER is none of the framework's four."""

    TOOL_CALL = "tool_call"
    ASK = "ask"
    REFUSE = "refuse"
    CONFIRM = "confirm"
    OTHER = "other"


class Cues(StrEnum):
    """By what a text is classified: our rules, or the lists published with arXiv:2609.00949."""

    SEAM = "seam"
    PUBLISHED = "published"
