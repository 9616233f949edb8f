"""`bench calibrate` against the served model: a small sample, from decisions to a profile that acts.

The model is weak and the sample small, so nothing is expected of the rates: only that what was computed from
one reading is what the server does once the bias acts.
"""

import json
from pathlib import Path

import pytest

from bench.cli import main
from proxy.profiles import read_profiles

pytestmark = pytest.mark.server

DECISIONS = Path(__file__).parent / "data" / "bfcl_decisions.jsonl"


def test_the_curve_from_one_reading_is_what_the_server_does_under_a_bias(
    vllm_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--upstream", vllm_url, "--requests", str(DECISIONS), "--out", str(tmp_path)]
    # A rate that any model can be brought to, since a choice may be refused for what a weak one can't do.
    chosen = ["--objective", "call-recall:0.5", "--rerun", "--max-tokens", "24", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *arguments, *chosen])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    result = json.loads(printed.out)

    counts = result["counts"]
    assert counts["validation"]["scored"] + counts["test"]["scored"] == 92
    assert [point["agrees"] for point in result["rerun"]] == [True] * 5
    assert result["validation"]["chosen"]["call_recall"]["estimate"] >= 0.5
    (profile,) = read_profiles(tmp_path / "profile").values()
    assert profile.fingerprint == result["fingerprint"]

    # Greedy replies open a call where the first token does; what stays text was cut or broke.
    arms = result["generation"]["arms"]
    assert arms["off"]["counts"]["run"] == counts["test"]["scored"]
    assert arms["off"]["counts"]["errored"] == 0
    assert (tmp_path / "report.html").stat().st_size > 50_000
