"""docs/scale.md: what its arithmetic rests on is what a real proxy and a real Redis do."""

from pathlib import Path

import pytest

from tests.redis_server import needs_redis
from tests.scale import costs

PAGE = Path(__file__).parents[1] / "docs/scale.md"


@pytest.mark.whole
@needs_redis
async def test_a_request_asks_redis_as_often_as_the_page_says(tmp_path: Path) -> None:
    found, _ = await costs(tmp_path, 5)
    page = PAGE.read_text("utf-8")
    for name, cost in found.items():
        assert f"| {name} | {cost.commands:.1f} |" in page
