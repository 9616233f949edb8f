"""The soak's accounts: what a whole run finds, and that each claim can fail."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.soak import Check, Sample, Sent, checks, soak

SENT = [Sent("a", "text", 200), Sent("b", "leave", 0), Sent("c", "text", 502)]
FLAT = [Sample(float(n), 60.0, 20, 1 if n < 8 else 0) for n in range(9)]


def unmet(
    sent: Sequence[Sent] = SENT,
    logged: Sequence[str] = "abc",
    counted: float = 3,
    samples: Sequence[Sample] = FLAT,
    log: str = "INFO",
    dropped: float = 0,
) -> list[str]:
    found: list[Check] = checks(sent, Counter(logged), counted, samples, log, dropped)
    return [check.claim for check in found if not check.met]


def test_a_run_in_which_all_is_accounted_for_meets_every_claim() -> None:
    assert unmet() == []


def test_each_claim_fails_by_its_own_fault() -> None:
    grows = [sample._replace(rss_mb=60 + 2 * n) for n, sample in enumerate(FLAT)]
    leaks = [*FLAT[:-1], FLAT[-1]._replace(descriptors=100)]
    flies = [*FLAT[:-1], FLAT[-1]._replace(in_flight=1)]
    assert unmet([*SENT[:2], Sent("c", "text", 504)]) == ["every client saw what its request was to bring"]
    assert unmet(logged="ab") == unmet(logged="abcc") == ["every request has one record"]
    assert unmet(counted=4) == ["the metrics count the same"]
    assert unmet(dropped=1) == ["no record was dropped"]
    assert unmet(samples=grows) == ["memory is flat"]
    assert unmet(samples=leaks) == ["descriptors are not leaked"]
    assert unmet(samples=flies) == ["nothing is left in flight"]
    assert unmet(log="Traceback (most") == ["no traceback in the program log"]


@pytest.mark.whole
async def test_a_short_soak_accounts_for_every_request(tmp_path: Path) -> None:
    document, found = await soak(tmp_path / "soak", seconds=8, rate=15, seed=1)
    # So short a run says nothing about memory.
    assert [check for check in found if not check.met and check.claim != "memory is flat"] == []
    assert document["requests"] == 120
    assert {"text 200", "stream 200"} <= set(document["seen"])
