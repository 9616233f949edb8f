"""`bench run decisions`: whole replies to labelled requests, their figures worked out by hand."""

from pathlib import Path

import pytest

from tests.bench.answering import TOOL, Answering, Json, call
from tests.bench.deciding import running
from tests.bench.scoring import Bench, Shown, write

SAYS: dict[str, Json | str] = {
    # A call is due.
    "q0": call(),
    "q1": call(arguments='{"of": 3}'),
    "q2": call("look"),
    "q3": "Which one do you mean?",
    # None is due.
    "q4": call(),
    "q5": "I'm sorry, I can't do that with the tools I have.",
    "q6": "It is a fine day.",
    "q7": "",
}


def requests(folder: Path, count: int = 9) -> Path:
    rows = [
        {
            "id": f"q{n}",
            "source": "even" if n % 2 == 0 else "odd",
            "messages": [{"role": "user", "content": f"q{n}"}],
            "tools": [TOOL],
            "should_call": n < 4,
            "gold": [{"name": "find", "arguments": {"of": "x"}}] if n < 4 else [],
        }
        for n in range(count)
    ]
    return write(folder, {"mine.jsonl": rows}) / "mine.jsonl"


@pytest.mark.whole
def test_rates_rest_on_whole_replies_and_what_has_no_class_is_counted_apart(
    bench: Bench, tmp_path: Path
) -> None:
    """Calls where due: q0, q1, q2 of 4. Where none is: q4 of q4, q5, q6; q7 is empty, q8 does not fit.

    Of the four calls q1's argument is of another type and q2 names no tool that was offered.
    """
    model = Answering(says=SAYS, too_long=frozenset({"q8"}))
    with running(model) as url:
        command: list[str | Path] = ["run", "decisions", "--requests", requests(tmp_path), "--upstream", url]
        command += ["--out", tmp_path / "run"]
        document = bench.document(*command)
        again = bench.text(*command)  # a finished run shows its result again
    arm = document["arms"]["off"]
    assert arm["counts"] == {"planned": 9, "run": 9, "scored": 7, "errored": 1, "unmeasurable": 1}
    assert arm["call_recall"]["estimate"] == 0.75
    assert arm["over_calling"]["estimate"] == pytest.approx(1 / 3)
    assert arm["valid_calls"]["estimate"] == 0.5
    assert arm["right_tool"]["estimate"] == pytest.approx(2 / 3)
    # Wilson's interval of 1 in 3.
    assert arm["over_calling"]["low"] == pytest.approx(0.0615, abs=0.001)
    assert arm["classes"]["call due"]["ask"] == 1
    assert {name: n for name, n in arm["classes"]["no call due"].items() if n} == {
        "tool_call": 1, "refuse": 1, "other": 1, "none": 1,
    }  # fmt: skip
    assert arm["sources"]["even"]["counts"]["planned"] == 5
    assert arm["errors"] == {"400 the prompt is too long": 1}
    assert document["changes"] == {}
    assert "33.3 %" in again
    assert len(model.asked) == 9
    assert all((body["temperature"], body["max_tokens"]) == (0, 512) for body in model.asked)


@pytest.mark.whole
def test_arms_are_compared_on_the_same_decisions(bench: Bench, tmp_path: Path) -> None:
    """CRI asks again where a call names a tool that was not offered: q2, at least."""
    profile = tmp_path / "retry.yaml"
    profile.write_text("name: retry\ncri: retry\n")
    model = Answering(says=SAYS)
    with running(model) as url:
        document = bench.document(
            "run", "decisions", "--requests", requests(tmp_path, 8), "--upstream", url,
            "--arm", "off=", "--arm", f"retry=profile={profile}",
        )  # fmt: skip
        run = bench.run
    assert [*document["arms"]] == ["off", "retry"]
    assert document["arms"]["off"]["applied"] == {"none": 8}
    assert any("cri" in words for words in document["arms"]["retry"]["applied"])
    assert document["changes"]["retry"]["call_recall"]["test"]["p_holm"] is not None
    assert document["arms"]["retry"]["queries"]["estimate"] > 1
    cases = {line.split('"case_id":')[1].split(",")[0].strip(' "') for line in log(run)}
    assert {"q0/off/1", "q0/retry/1"} <= cases
    assert document["probes"]["retry"]["outcomes"]["cri"]["retried"] >= 1
    page = (run / "report.html").read_text("utf-8")
    assert page.count("<details class=") == 16
    assert 'data-outcome="failed" data-part="call due" data-arm="off"' in page
    # bench compare takes the arms as systems, and comes to the run's own differences.
    compared = bench.document("compare", run)
    rates = {claim["figure"]: claim for claim in compared["claims"] if not claim["mean"]}
    for name, change in document["changes"]["retry"].items():
        assert rates[name]["estimate"] == pytest.approx(change["estimate"])
        assert rates[name]["test"]["p"] == pytest.approx(change["test"]["p"])
    assert compared["parts"]["no call due"]["off"]["counts"]["unmeasurable"] == 1


def log(run: Path) -> list[str]:
    return (run / "proxy-1" / "decisions.jsonl").read_text().splitlines()


@pytest.mark.whole
def test_a_run_whose_first_cases_all_fail_ends_with_the_servers_words(bench: Bench, tmp_path: Path) -> None:
    model = Answering(too_long=frozenset(f"q{n}" for n in range(9)))
    with running(model) as url, pytest.raises(Shown, match="the prompt is too long") as shown:
        bench.text("run", "decisions", "--requests", requests(tmp_path), "--upstream", url)
    assert shown.value.code == 1
    assert len(model.asked) == 5


def test_a_server_that_is_not_there_is_one_line(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(Shown, match="start the server") as shown:
        bench.text("run", "decisions", "--requests", requests(tmp_path), "--upstream", "http://127.0.0.1:9")
    assert shown.value.code == 3
