"""docs/probes.md shows what the variants really do."""

from pathlib import Path

import pytest

from tests.probes.table import VARIANTS, conversations, tables

DOCUMENT = Path(__file__).parents[2] / "docs" / "probes.md"


@pytest.mark.whole
async def test_the_documented_tables_are_what_the_variants_do() -> None:
    """Where this fails, paste what `python -m tests.probes.table` prints."""
    assert await tables() in DOCUMENT.read_text("utf-8")


def test_the_conversations_are_twelve_from_four_domains() -> None:
    names = [conversation.name for conversation in conversations()]
    assert len(set(names)) == 12
    assert {name.partition(":")[0] for name in names} == {"files", "travel", "shop", "trading"}
    assert len(VARIANTS) == 9
