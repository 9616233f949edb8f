"""Every fault looks as docs/faults.md says, from the client, the decision log and the metrics."""

from pathlib import Path

import pytest

from tests.faults.faults import FAKETIME, FAULTS, Seen, look
from tests.redis_server import needs_redis

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"

needs_faketime = pytest.mark.skipif(not FAKETIME, reason="libfaketime is missing (apt install faketime)")
NEEDS = {"Redis down in between": [needs_redis], "clock set back an hour": [needs_faketime]}


def documented() -> dict[str, Seen]:
    """The table of docs/faults.md."""
    rows = [line.strip("|").split("|") for line in PAGE.read_text("utf-8").splitlines() if line[:2] == "| "]
    return {name.strip(): Seen(*(cell.strip() for cell in cells)) for name, *cells in rows[2:]}


def test_the_page_has_a_row_for_every_fault() -> None:
    assert list(documented()) == list(FAULTS)


@pytest.mark.whole
@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in FAULTS])
async def test_a_fault_looks_as_the_page_says(name: str, tmp_path: Path) -> None:
    assert await look(name, tmp_path) == documented()[name]
