"""`bench compare` and `bench report`: what is paired, dropped and refused, and what a claim says."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from bench.compare.measures import Lost, Measure, Value, claim, claims
from bench.compare.published import published
from bench.intervals import newcombe
from bench.significance import holm
from tests.bench.comparing import (
    Json,
    bfcl_case,
    bfcl_run,
    calibration,
    decision,
    folder,
    reply,
    tau2_run,
    tau2_trial,
)
from tests.bench.deciding import Deciding, rows, running
from tests.bench.scoring import Bench, Shown


def measure(before: Sequence[Value], after: Sequence[Value], **more: Any) -> Measure:
    """Cases of their own in two systems."""
    values = {
        name: {str(case): value for case, value in enumerate(own)}
        for name, own in (("before", before), ("after", after))
    }
    return Measure("part", "gar", {str(case): case for case in range(len(before))}, values, **more)


def claimed(document: Json, system: str, figure: str, part: str = "first token") -> Json:
    (found,) = [
        own
        for own in document["claims"]
        if (own["system"], own["figure"], own["part"]) == (system, figure, part)
    ]
    assert isinstance(found, dict)
    return found


# A claim ----------------------------------------------------------------------------------------------------


def test_a_claim_is_the_2x2_with_newcombe_s_interval_and_mcnemar_s_exact_test() -> None:
    before = [1.0] * 5 + [0.0] * 9 + [1.0] * 2 + [0.0] * 4
    after = [1.0] * 5 + [1.0] * 9 + [0.0] * 2 + [0.0] * 4
    found = claim(measure(before, after), "before", "after", seed=0)
    assert found["outcomes"] == {"both": 5, "gained": 9, "lost": 2, "neither": 4}
    expected = newcombe(5, 9, 2, 4)
    assert (found["estimate"], found["low"], found["high"]) == (
        expected.estimate,
        expected.low,
        expected.high,
    )
    assert found["method"] == "newcombe"
    assert found["test"]["method"] == "exact McNemar"
    assert found["test"]["p"] == pytest.approx(binomtest(9, 11).pvalue)
    assert (found["before"], found["after"]) == (0.35, 0.7)


def test_pairs_that_share_a_cluster_are_tested_by_cluster() -> None:
    values: dict[str, dict[str, Value]] = {"before": {}, "after": {}}
    clusters = {}
    for case in range(16):
        values["before"][str(case)], values["after"][str(case)] = 0.0, float(case < 12)
        clusters[str(case)] = case // 2
    found = claim(Measure("p", "gar", clusters, values), "before", "after", seed=0)
    # Six of eight clusters move, all one way: 2 sign patterns of 2^6 are as extreme, not 2 of 2^12.
    assert found["test"]["method"] == "exact sign flip"
    assert found["test"]["p"] == pytest.approx(2 / 2**6)
    assert found["low"] is None
    assert "8 clusters" in found["reason"]


VALUES = st.sampled_from([0.0, 1.0, Lost.NOT_RUN, Lost.ERRORED, Lost.UNMEASURABLE])


@given(st.lists(st.tuples(VALUES, VALUES), max_size=30))
def test_a_case_that_either_lacks_is_dropped_from_both_and_counted(pairs: list[tuple[Value, Value]]) -> None:
    own = measure([one for one, _ in pairs], [two for _, two in pairs])
    there, back = (claim(own, *order, seed=0) for order in (("before", "after"), ("after", "before")))
    kept = [(a, b) for a, b in pairs if not isinstance(a, Lost) and not isinstance(b, Lost)]
    assert there["n"] == back["n"] == len(kept)
    assert there["n"] + sum(there["dropped"].values()) == len(pairs)
    if not kept:
        assert there["estimate"] is there["test"] is there["outcomes"] is None
        return
    assert sum(there["outcomes"].values()) == len(kept)
    # The other way round it is the same claim, mirrored.
    assert there["outcomes"]["gained"] == back["outcomes"]["lost"]
    assert there["estimate"] == pytest.approx(-back["estimate"])
    assert there["low"] == pytest.approx(-back["high"])
    assert there["test"]["p"] == back["test"]["p"]


def test_p_is_adjusted_for_every_claim_that_is_made() -> None:
    made = [measure([0.0] * 20, [1.0] * hits + [0.0] * (20 - hits)) for hits in (7, 9, 12)]
    found = claims(made, "before", seed=0)
    assert [own["test"]["p_holm"] for own in found] == holm([own["test"]["p"] for own in found])
    assert [own["holds"] for own in found] == [True, True, True]
    # Alone it would hold, in a family of 20 it does not.
    assert not claims([made[0]] * 20, "before", seed=0)[0]["holds"]


def test_no_claim_holds_below_the_noise_floor() -> None:
    def holds(share: float) -> bool:
        floor = {"estimate": share, "n": 40}
        own = measure(
            [0.0] * 40, [1.0] * 12 + [0.0] * 28, floors={"before": {"estimate": 0.0, "n": 40}, "after": floor}
        )
        (found,) = claims([own], "before", seed=0)
        assert found["floor"] == max(floor, {"estimate": 0.0, "n": 40}, key=lambda each: each["estimate"])
        return bool(found["holds"])

    assert holds(0.1)
    assert not holds(0.3)


def test_what_a_reply_costs_is_shown_and_not_tested() -> None:
    own = measure([3.0] * 60, [4.0 + case % 2 for case in range(60)], mean=True)
    (found,) = claims([own], "before", seed=0)
    assert found["test"] is found["outcomes"] is None
    assert found["estimate"] == 1.5
    assert found["low"] < 1.5 < found["high"]


# Calibrations -----------------------------------------------------------------------------------------------


def two(tmp_path: Path, first: Sequence[Json], second: Sequence[Json], **more: Any) -> tuple[Path, Path]:
    return calibration(tmp_path / "a", first), calibration(tmp_path / "b", second, **more)


GAPS = [(False, gap) for gap in (-0.5, 0.5, 0.9, 1.5)] + [(True, gap) for gap in (-0.2, 0.5, 2.0, 3.0)]
"""Label and gap of eight decisions."""


def made(shift: float = 0.0) -> list[Json]:
    return [decision(n, due, gap + (0 if due else shift)) for n, (due, gap) in enumerate(GAPS)]


def test_checkpoints_are_compared_without_a_bias_and_each_at_its_own(bench: Bench, tmp_path: Path) -> None:
    a, b = two(tmp_path, made(), made(-0.8))
    document = bench.document("compare", a, b)
    assert document["baseline"] == "a, b = 0"
    assert [system["name"] for system in document["systems"]] == [
        "a, b = 0",
        "a, b = -1",
        "b, b = 0",
        "b, b = -1",
    ]
    # Greedy decoding opens a call iff g + b > 0.
    rates = {
        name: (own["over_calling"]["estimate"], own["call_recall"]["estimate"])
        for name, own in document["first_token"].items()
    }
    assert rates == {
        "a, b = 0": (0.75, 0.75),
        "a, b = -1": (0.25, 0.5),
        "b, b = 0": (0.5, 0.75),
        "b, b = -1": (0.0, 0.5),
    }
    assert claimed(document, "b, b = 0", "over_calling")["outcomes"] == {
        "both": 2,
        "gained": 0,
        "lost": 1,
        "neither": 1,
    }
    # How well the margins tell the labels apart: 10.5 and 13 of 16 pairs are in order.
    areas = {run: (own["auc"]["estimate"], own["auc_change"]) for run, own in document["runs"].items()}
    assert areas["a"] == (10.5 / 16, None)
    assert areas["b"][0] == 13 / 16
    assert areas["b"][1]["estimate"] == 2.5 / 16
    # a calls on three of four where one is due, and so does b with its bias just below 0.5: then it calls on
    # one of four where none is due, and a on three.
    assert document["runs"]["b"]["at_equal_recall"]["estimate"] == 1 / 4 - 3 / 4
    assert document["runs"]["a"]["at_equal_recall"] is None
    # R(rho) = (rho * over-calling + missed) / (1 + rho)
    costs = document["costs"]
    for name, (over, recall) in rates.items():
        for rho, risk in zip(costs["rho"], costs["risk"][name], strict=True):
            assert risk == pytest.approx((rho * over + 1 - recall) / (1 + rho))
    assert (costs["rho"][0], costs["rho"][-1]) == pytest.approx((0.25, 4))


def test_only_decisions_that_no_run_chose_its_bias_on_are_compared(bench: Bench, tmp_path: Path) -> None:
    first, second = made(), made(-0.8)
    first[0]["split"] = "validation"
    second[1]["split"] = "validation"
    first.append(decision(90, True, 1.0))
    a, b = two(tmp_path, first, second[:-1])
    pairing = bench.document("compare", a, b)["pairing"]
    assert pairing == {
        "cases": 5,
        "clusters": 5,
        "due": 3,
        "not_in_every_run": 2,
        "not_test_in_every_run": 2,
        "beyond_limit": 0,
    }
    limited = bench.document("compare", a, b, "--limit", "3")["pairing"]
    assert (limited["cases"], limited["beyond_limit"]) == (3, 2)


@pytest.mark.parametrize(("offered", "arm"), [(True, "b(x)"), (False, "b(x), not offered")])
def test_a_bias_that_depends_on_the_request_is_compared_and_said_where_it_is_not_offered(
    bench: Bench, tmp_path: Path, offered: bool, arm: str
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    # Two tools where no call is due, so that b(x) is -2 ln 2 there and 0 elsewhere.
    rows = [{**row, "tools": [tool] * (1 if row["should_call"] else 2)} for row in made()]
    fitted = {"b0": 0.0, "weights": {"tools": -2.0}, "low": -5.0, "high": 5.0, "penalty": 1.0}
    run = calibration(tmp_path / "a", rows, contextual={"fitted": fitted, "offered": offered})
    document = bench.document("compare", run)
    own = document["first_token"][arm]
    assert (own["over_calling"]["estimate"], own["call_recall"]["estimate"]) == (0.25, 0.75)
    assert claimed(document, arm, "over_calling")["outcomes"] == {
        "both": 1,
        "gained": 0,
        "lost": 2,
        "neither": 1,
    }
    changed = document["runs"]["a"]["contextual"][arm]
    assert changed["auc"]["estimate"] == 15 / 16
    assert changed["auc_change"]["estimate"] == 4.5 / 16
    # Moved as a whole until three of four due calls are made, it makes none where none is due.
    assert changed["at_equal_recall"]["estimate"] == -3 / 4
    # And as the baseline: without a bias two more of four are over-calls.
    back = bench.document("compare", run, "--baseline", arm)
    assert claimed(back, "b = 0", "over_calling")["outcomes"]["gained"] == 2
    assert back["runs"]["a"]["auc_change"]["estimate"] == -4.5 / 16
    assert back["runs"]["a"]["contextual"][arm]["auc_change"] is None
    page = (run.parent / "page").resolve()
    bench.text("compare", run, "--out", page)
    assert f"a, {arm}" in (page / "report.html").read_text()


def test_conversations_that_are_one_in_any_run_are_one_cluster(bench: Bench, tmp_path: Path) -> None:
    second = made()
    second[0]["group"] = second[1]["group"] = "shared"
    a, b = two(tmp_path, made(), second)
    assert bench.document("compare", a, b)["pairing"]["clusters"] == 7


def test_an_unmeasurable_margin_is_dropped_from_both_arms_and_never_zero(
    bench: Bench, tmp_path: Path
) -> None:
    second = made()
    second[1] = decision(1, False, None)
    a, b = two(tmp_path, made(), second)
    document = bench.document("compare", a, b)
    found = claimed(document, "b, b = 0", "over_calling")
    assert (found["n"], found["dropped"]["unmeasurable"]) == (3, 1)
    assert found["before"] == found["after"] == pytest.approx(2 / 3)
    assert document["first_token"]["b, b = 0"]["counts"] == {
        "planned": 8,
        "run": 8,
        "scored": 7,
        "errored": 0,
        "unmeasurable": 1,
    }
    records = {record["key"]: record for record in bench.records()}
    assert records["first token/over_calling/q1"]["values"]["b, b = 0"] == "unmeasurable"


def test_arms_of_one_run_are_systems_and_its_floor_stands_beside_them(bench: Bench, tmp_path: Path) -> None:
    replies = []
    for n, (due, _) in enumerate(GAPS):
        replies += [
            reply("off", n, True),
            reply("off again", n, n != 2),
            reply("b = -1", n, due, tokens=5),
            reply("b = -1, sri", n, None if n == 0 else due),
        ]
    replies = [each for each in replies if each["key"] != "b = -1/q1"] + [
        reply("b = -1", 1, False, status=500)
    ]
    run = calibration(tmp_path / "a", made(), replies)
    document = bench.document("compare", run)
    assert document["baseline"] == "b = 0"
    found = claimed(document, "b = -1", "over_calling", "whole replies")
    assert found["outcomes"] == {"both": 0, "gained": 0, "lost": 3, "neither": 0}
    assert found["dropped"] == {"not_run": 0, "errored": 1, "unmeasurable": 0}
    assert found["floor"]["estimate"] == 0.25  # one of the four where no call is due
    assert claimed(document, "b = -1", "call_recall", "whole replies")["floor"]["estimate"] == 0
    sri = claimed(document, "b = -1, sri", "over_calling", "whole replies")
    assert sri["dropped"]["unmeasurable"] == 1
    assert document["replies"]["b = -1"]["counts"]["errored"] == 1
    assert claimed(document, "b = -1", "completion_tokens", "whole replies")["before"] == 3
    assert document["noise_floor"]["a"]["decision"]["estimate"] == 0.125
    # Another arm as the baseline: what its first token does is not known, so nothing is claimed of that.
    other = bench.document("compare", run, "--baseline", "b = -1, sri")
    assert {own["part"] for own in other["claims"]} == {"whole replies"}


def test_what_makes_runs_less_alike_is_told(bench: Bench, tmp_path: Path) -> None:
    a, b = two(tmp_path, made(), made(), exploratory=True, digest="b")
    document = bench.document("compare", a, b)
    exploratory, data = document["warnings"]
    assert "b: its b was chosen after its test split had been looked at" in exploratory
    assert "sha256 aaaaaaaaaaaa" in data
    assert "sha256 bbbbbbbbbbbb" in data
    assert [system["exploratory"] for system in document["systems"]] == [False, False, False, True]
    assert "over-calling, exploratory" in (bench.run / "report.html").read_text()


# What is refused --------------------------------------------------------------------------------------------


def refused(bench: Bench, *arguments: str | Path) -> str:
    with pytest.raises(Shown) as shown:
        bench.text("compare", *arguments)
    assert shown.value.code == 2
    assert shown.value.line.count("\n") == 1
    return shown.value.line


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"should_call": True}, "the decision 'q0' has another label than in"),
        (
            {"messages": [{"role": "user", "content": "Else."}]},
            "the decision 'q0' has another request than in",
        ),
    ],
)
def test_other_labels_or_requests_under_one_id_are_refused_with_the_digests(
    bench: Bench, tmp_path: Path, change: Json, told: str
) -> None:
    second = made()
    second[0] |= change
    line = refused(bench, *two(tmp_path, made(), second, digest="b"))
    assert told in line
    assert "(sha256 bbbbbbbbbbbb and sha256 aaaaaaaaaaaa)" in line


def test_runs_that_cannot_be_paired_are_refused_with_the_reason(bench: Bench, tmp_path: Path) -> None:
    a = calibration(tmp_path / "a", made())
    sampled = calibration(tmp_path / "sampled", made(), decoding="sampled")
    others = calibration(tmp_path / "others", [decision(n + 50, n % 2 == 0, 1.0) for n in range(8)])
    planned = calibration(tmp_path / "planned", made(), state="planned")
    scored = bfcl_run(tmp_path / "scored", [bfcl_case("m", "base", 0, True, True)])
    seams = folder(tmp_path / "entry", "entry", {}, {})
    unbiased = calibration(tmp_path / "unbiased", made(), bias=0.0)
    for arguments, told in (
        ((a, sampled), "was chosen for sampled decoding"),
        ((a, others), "no decision is in the test split of every run (0 are in every run at all)"),
        ((a, planned), "is not finished"),
        ((a, scored), "is of bench score bfcl, and"),
        ((a, seams), "is of bench entry; give runs of bench calibrate, score bfcl"),
        ((a, a), "is given twice"),
        ((f"x={a}", f"x={unbiased}"), "has the name 'x' too"),
        ((f"={a}",), "is no NAME=DIR"),
        ((a, tmp_path / "gone"), "no such run"),
        ((unbiased,), "holds one system only"),
        ((a, "--baseline", "vanilla"), "no system 'vanilla'; valid: 'b = 0', 'b = -1'"),
        ((a, "--again", "a"), "have asked their arm without calibration twice"),
    ):
        assert told in refused(bench, *arguments)
    (a / "examples.jsonl").unlink()
    assert "examples.jsonl: cannot be read" in refused(bench, a, unbiased)


def test_the_same_folder_resumes_and_refuses_runs_that_have_changed(bench: Bench, tmp_path: Path) -> None:
    a, b = two(tmp_path, made(), made(-0.8))
    out = tmp_path / "out"
    first = bench.document("compare", a, b, "--out", out)
    page = (out / "report.html").read_bytes()
    assert bench.document("compare", a, b, "--out", out) == first
    assert (out / "report.html").read_bytes() == page
    (b / "result.json").write_text((b / "result.json").read_text() + " ")
    assert "sha256 was" in refused(bench, a, b, "--out", out)


# Benchmarks -------------------------------------------------------------------------------------------------


def outcomes(model: str, hits: Sequence[bool], passes: Sequence[bool]) -> list[Json]:
    """The same entries in two categories, so that two cases are one scenario."""
    return [
        bfcl_case(model, category, entry, hit, passed)
        for category in ("base", "miss_param")
        for entry, (hit, passed) in enumerate(zip(hits, passes, strict=True))
    ]


def test_bfcl_is_paired_by_case_tested_by_category_and_pooled_by_scenario(
    bench: Bench, tmp_path: Path
) -> None:
    one = outcomes("m", [False] * 10, [True] * 10)
    two = outcomes("m", [True] * 7 + [False] * 3, [True] * 9 + [False])
    a, b = bfcl_run(tmp_path / "a", one), bfcl_run(tmp_path / "b", two)
    document = bench.document("compare", a, b)
    found = claimed(document, "b", "gar", "multi_turn_miss_param")
    assert found["outcomes"] == {"both": 0, "gained": 7, "lost": 0, "neither": 3}
    assert (found["test"]["method"], found["test"]["p"]) == ("exact McNemar", pytest.approx(2 / 2**7))
    pooled = claimed(document, "b", "gar", "all multi-turn categories")
    assert (pooled["n"], pooled["clusters"], pooled["test"]["method"]) == (20, 10, "exact sign flip")
    assert pooled["test"]["p"] == pytest.approx(2 / 2**7)
    # Acc - GAR where positive: a passed everything without the gold class.
    parts = document["parts"]["multi_turn_miss_param"]
    assert (parts["a"]["masking"], parts["b"]["masking"]) == (1.0, pytest.approx(0.2))
    assert parts["b"]["crosstab"] == {"hit_passed": 7, "hit_failed": 0, "miss_passed": 2, "miss_failed": 1}
    assert found["floor"] is None
    assert "not asked twice" in (bench.run / "report.html").read_text()


def test_loops_are_compared_case_by_case(bench: Bench, tmp_path: Path) -> None:
    def run(name: str, calls: float, looped: Sequence[float]) -> Path:
        records = [
            bfcl_case("m", "base", n, True, True, loops={"calls_per_turn": calls, "loop_at_3": share})
            for n, share in enumerate(looped)
        ]
        return bfcl_run(tmp_path / name, records)

    # Half of the turns of two cases no longer loop.
    a, b = run("a", 3.0, [0.5, 0.5, 0.0, 1.0]), run("b", 1.5, [0.0, 0.0, 0.0, 1.0])
    document = bench.document("compare", a, b)
    looped = claimed(document, "b", "loop_at_3", "multi_turn_base")
    assert (looped["before"], looped["after"]) == (0.5, 0.25)
    assert (looped["test"]["gained"], looped["test"]["lost"]) == (0, 2)
    calls = claimed(document, "b", "calls_per_turn", "multi_turn_base")
    assert (calls["before"], calls["after"], calls["test"]) == (3.0, 1.5, None)
    assert "Loop@3" in (bench.run / "report.html").read_text()


def test_loops_of_an_errored_case_are_errored_too(bench: Bench, tmp_path: Path) -> None:
    kept = {"calls_per_turn": 1.0, "loop_at_3": 0.0}
    one = [bfcl_case("m", "base", n, True, True, loops=kept) for n in range(8)]
    gone = {key: one[0][key] for key in ("key", "model", "category", "id")} | {"error": "too long"}
    a, b = bfcl_run(tmp_path / "a", one), bfcl_run(tmp_path / "b", [gone, *one[1:]])
    found = claimed(bench.document("compare", a, b), "b", "loop_at_3", "multi_turn_base")
    assert found["dropped"] == {"not_run": 0, "errored": 1, "unmeasurable": 0}


def test_errored_and_lost_cases_are_dropped_from_both_arms(bench: Bench, tmp_path: Path) -> None:
    one = [bfcl_case("m", "miss_func", entry, True, True) for entry in range(8)]
    two = [dict(each) for each in one[:-1]]
    two[0] = {key: two[0][key] for key in ("key", "model", "category", "id")} | {"error": "too long"}
    two[1]["hit"] = None
    a, b = bfcl_run(tmp_path / "a", one), bfcl_run(tmp_path / "b", two)
    document = bench.document("compare", a, b)
    gar = claimed(document, "b", "gar", "multi_turn_miss_func")
    assert (gar["n"], gar["dropped"]) == (5, {"not_run": 1, "errored": 1, "unmeasurable": 1})
    assert claimed(document, "b", "acc", "multi_turn_miss_func")["n"] == 6
    counts = document["parts"]["multi_turn_miss_func"]["b"]["counts"]
    assert counts == {"planned": 8, "run": 7, "scored": 5, "errored": 1, "unmeasurable": 1}


def test_recall_that_cannot_be_seen_is_no_zero_but_a_reason(bench: Bench, tmp_path: Path) -> None:
    seen = [bfcl_case("m", "miss_param", entry, True, True) for entry in range(8)]
    lost = [bfcl_case("m", "miss_param", entry, None, True) for entry in range(8)]
    runs = [bfcl_run(tmp_path / name, records) for name, records in (("a", seen), ("b", lost), ("c", lost))]
    for first, second in ((runs[0], runs[1]), (runs[1], runs[2])):
        document = bench.document("compare", first, second)
        found = claimed(document, second.name, "gar", "multi_turn_miss_param")
        assert found["estimate"] is found["test"] is found["holds"] is None
        assert (found["reason"], found["dropped"]["unmeasurable"]) == ("no pair was scored", 8)
        assert "no pair was scored" in (bench.run / "report.html").read_text()


def test_an_arm_with_the_baseline_s_server_and_calibration_is_the_noise_floor(
    bench: Bench, tmp_path: Path
) -> None:
    costs = {"queries": 4, "prompt_tokens": 100, "completion_tokens": 10, "seconds": 1.5}
    records = [
        bfcl_case(arm, "base", entry, arm == "on" or (arm == "again" and entry == 0), True, **costs)
        for arm in ("off", "again", "on")
        for entry in range(8)
    ]
    for record in records:
        if record["model"] == "on":
            record["queries"] = 5
    server = {"url": "http://127.0.0.1:1", "model": "m"}
    plan: Json = {
        "upstream": dict.fromkeys(("off", "again", "on"), server),
        "profile": {"off": None, "again": None, "on": {"name": "on"}},
    }
    run = bfcl_run(tmp_path / "a", records, command="run bfcl", **plan)
    document = bench.document("compare", run)
    assert document["again"] == "again"
    assert {own["system"] for own in document["claims"]} == {"on"}
    found = claimed(document, "on", "gar", "multi_turn_base")
    assert (found["estimate"], found["floor"]["estimate"]) == (1, 0.125)
    queries = claimed(document, "on", "case_queries", "multi_turn_base")
    assert (queries["before"], queries["after"], queries["test"]) == (4, 5, None)
    # Another baseline has no repeat, until one is named.
    assert bench.document("compare", run, "--baseline", "on")["again"] is None
    named = bench.document("compare", run, "--baseline", "again", "--again", "off")
    assert named["again"] == "off"


def test_tau2_trials_are_reduced_to_their_task_first(bench: Bench, tmp_path: Path) -> None:
    def run(name: str, passes: Sequence[Sequence[bool | None]]) -> Path:
        return tau2_run(
            tmp_path / name,
            [
                tau2_trial(
                    str(task), trial, passed, {"refuse": True}, "scored" if passed is not None else "errored"
                )
                for task, trials in enumerate(passes)
                for trial, passed in enumerate(trials)
            ],
        )

    a = run("a", [[True, False], [False, False], [True, None], [None, None]])
    b = run("b", [[True, True], [True, False], [True, True], [True, True]])
    document = bench.document("compare", a, b)
    found = claimed(document, "b", "acc", "all tasks")
    assert (found["n"], found["dropped"]["errored"]) == (3, 1)
    assert (found["before"], found["after"]) == (0.5, pytest.approx(2.5 / 3))
    assert found["outcomes"] is None  # means are neither yes nor no
    assert found["test"]["method"] == "sign flip"


def test_runs_that_read_their_cases_otherwise_are_refused(bench: Bench, tmp_path: Path) -> None:
    records = [bfcl_case("m", "base", 0, True, True)]
    a = bfcl_run(tmp_path / "a", records)
    published_cues = bfcl_run(tmp_path / "b", records, cues="published")
    other = bfcl_run(tmp_path / "c", [bfcl_case("m", "base", 1, True, True)])
    assert "its cues is published" in refused(bench, a, published_cues)
    assert "no case is in both 'a' and 'c'" in refused(bench, a, other)
    airline = tau2_run(tmp_path / "d", [tau2_trial("1", 0, True, {"refuse": True})])
    retail = tau2_run(tmp_path / "e", [tau2_trial("1", 0, True, {"refuse": True})], domain="retail")
    relabelled = tau2_run(tmp_path / "f", [tau2_trial("1", 0, True, {"tool_call": True})])
    assert "its domain is retail" in refused(bench, airline, retail)
    assert "task 1 is of class" in refused(bench, airline, relabelled)
    assert "holds no record of a case" in refused(bench, a, bfcl_run(tmp_path / "g", []))


# Published rows ---------------------------------------------------------------------------------------------


def test_published_rows_are_marked_with_n_and_stay_out_of_every_claim(bench: Bench, tmp_path: Path) -> None:
    a, b = two(tmp_path, made(), made(-0.8))
    document = bench.document("compare", a, b)
    vanilla = document["published"][0]
    assert (vanilla["name"], vanilla["over_calling"], vanilla["call_recall"]) == ("vanilla GKD", 0.142, 0.915)
    assert not {row["name"] for row in document["published"]} & {
        name for own in document["claims"] for name in (own["system"], own["baseline"])
    }
    page = (bench.run / "report.html").read_text()
    assert page.count("from the paper") >= len(document["published"])
    assert "arXiv:2607.07050" in page


@pytest.mark.parametrize("kind", ["decisions", "bfcl", "tau2"])
def test_every_published_row_says_where_it_is_from_and_what_it_rests_on(kind: str) -> None:
    for row in published(kind):  # type: ignore[arg-type]
        assert row["from"] in ("the paper", "a public run")
        assert row["cite"]
        assert row["protocol"]
        assert row["n"] is None or row["n"] > 0
        assert not {"low", "high"} & row.keys()


# The page ---------------------------------------------------------------------------------------------------


def test_the_page_has_the_forest_the_plane_and_the_costs_and_needs_no_network(
    bench: Bench, tmp_path: Path
) -> None:
    document = bench.document("compare", *two(tmp_path, made(), made(-0.8)))
    page = (bench.run / "report.html").read_text()
    assert not re.search(r"""<link|<img|(src|href)\s*=|url\(|@import""", page)
    names = {"forest-first-token", "plane", "costs"}
    assert {chart.stem for chart in (bench.run / "charts").glob("*.png")} == names
    (inside,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page)
    assert json.loads(inside) == document
    plane = (bench.run / "charts" / "plane.svg").read_text()
    assert plane.count('class="dot') == 4 + 5  # our systems, and the published first-token points
    forest = (bench.run / "charts" / "forest-first-token.svg").read_text()
    assert forest.count('class="whisker') == len(document["claims"]) == 6


def test_a_report_is_made_again_from_the_run_s_own_files(bench: Bench, tmp_path: Path) -> None:
    bench.document("compare", *two(tmp_path, made(), made(-0.8)))
    run = bench.run
    page = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    bench.text("report", run, "--out", run)
    assert (run / "report.html").read_bytes() == page
    other = tmp_path / "elsewhere"
    assert bench.document("report", run, "--out", other) == {"report": str(other / "report.html")}
    assert (other / "report.html").read_bytes() == page


def test_a_report_that_cannot_be_made_is_refused_with_the_reason(bench: Bench, tmp_path: Path) -> None:
    scored = bfcl_run(tmp_path / "scored", [bfcl_case("m", "base", 0, True, True)])
    planned = calibration(tmp_path / "planned", made(), state="planned")
    old = calibration(tmp_path / "old", made())
    for run, told in (
        (scored, "bench score bfcl has no report"),
        (planned, "is not finished"),
        (old, "as an earlier bench left it"),
    ):
        with pytest.raises(Shown) as shown:
            bench.text("report", run, "--out", tmp_path / "page")
        assert shown.value.code == 2
        assert told in shown.value.line


# From end to end --------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_two_calibrated_checkpoints_are_compared_and_both_pages_made_again(
    bench: Bench, tmp_path: Path
) -> None:
    decisions = tmp_path / "decisions.jsonl"
    decisions.write_text("".join(json.dumps(row) + "\n" for row in rows(96)))
    runs = []
    for name, processor in (("vanilla", True), ("deaf", False)):
        runs.append(tmp_path / name)
        with running(Deciding(processor=processor)) as url:
            arguments = ("calibrate", "--upstream", url, "--requests", decisions, "--out", runs[-1])
            bench.text(*arguments)
    document = bench.document("compare", *runs)
    assert [system["name"] for system in document["systems"][::2]] == ["vanilla, b = 0", "deaf, b = 0"]
    assert document["pairing"]["cases"] == 48
    # The same model twice: nothing differs at b = 0, and no more than at its own b.
    for part in ("first token", "whole replies"):
        for figure in ("over_calling", "call_recall"):
            same = claimed(document, "deaf, b = 0", figure, part)
            assert (same["outcomes"]["gained"], same["outcomes"]["lost"]) == (0, 0)
            assert same["floor"]["estimate"] == 0
            assert not same["holds"]
    own = json.loads((runs[0] / "result.json").read_text())
    bias = f"vanilla, b = {own['choice']['bias']:g}"
    changes = own["generation"]["changes"][f"b = {own['choice']['bias']:g}"]
    for figure, change in changes.items():
        found = claimed(document, bias, figure, "whole replies")
        assert (found["estimate"], found["low"], found["high"]) == (
            change["estimate"],
            change["low"],
            change["high"],
        )
        assert found["test"]["p"] == pytest.approx(change["test"]["p"])
    page = (runs[0] / "report.html").read_bytes()
    bench.text("report", runs[0], "--out", tmp_path / "again")
    assert (tmp_path / "again" / "report.html").read_bytes() == page
