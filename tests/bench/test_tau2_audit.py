"""The audit's labels of tau2 simulations worked out by hand, and agreement with labels and verdicts."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.score.emissions import Emission
from bench.score.tau2_audit import labels
from calibrators.actions import Action
from tests.bench.scoring import Bench, Json, Shown, write
from tests.bench.test_judge import NO, YES, cancelled
from tests.bench.test_score_tau2 import message, results, simulation, user
from tests.upstream import Upstream, said

ASKS = message("Which flight do you mean?")
REFUSES = message("I can't change that flight.")
READS = message(None, ("get_user_details", {}))


def scored(bench: Bench, folder: Path, *simulations: Json, **tasks: int) -> Path:
    """The run folder of scored airline simulations; tasks: `t19=1` is task 19 with one reference action."""
    document = results(*simulations, tasks={name[1:]: actions for name, actions in tasks.items()})
    bench.text("score", "tau2", write(folder, {"results.json": document}) / "results.json")
    return bench.run


def test_labels_by_class(bench: Bench, tmp_path: Path) -> None:
    # 19 is in all three lists of ASK, 8 is a candidate only; no list has 1 and 3.
    failed = {"reward": 0.0, "action_checks": [{"action_match": False}]}
    scored(
        bench,
        tmp_path,
        simulation("19", user(), ASKS, user(), READS, reward=0.0, reward_info=failed),
        simulation("8", user(), READS, user(), REFUSES),
        cancelled("1", user("Cancel it.")),
        simulation("3", user(), READS, ASKS, termination_reason="infrastructure_error"),
        t19=1,
        t8=1,
        t1=0,
        t3=0,
    )
    assert {record["task"]: record["audit"] for record in bench.records()} == {
        # Asks before it calls; its reference action failed.
        "19": {"ask": {"B1b": 1, "B4": 1, "B5": 0}, "tool_call": {"B1b": 0, "B4": 1, "B5": "n.a."}},
        # Never asks, and passes: the gold action of ASK is missing.
        "8": {"ask": {"B1b": 0, "B4": 0, "B5": 1}, "tool_call": {"B1b": 1, "B4": 0, "B5": "n.a."}},
        # Writes where nothing should be written, and passes.
        "1": {"refuse": {"B1b": 0, "B4": 0, "B5": 1}},
        # Not scored.
        "3": {},
    }


emissions = st.lists(st.sets(st.sampled_from([*Action])).map(frozenset), max_size=6)


@settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    emissions,
    st.dictionaries(st.sampled_from(["refuse", "ask_valid", "tool_call"]), st.booleans()),
    st.booleans(),
)
def test_only_passed_misses_are_masked_and_only_what_comes_before_a_call_is_asked_first(
    classes: list[frozenset[Action]], hits: dict[str, bool], passed: bool
) -> None:
    told = labels([[Emission(each, each)] for each in classes], hits, passed=passed)
    before = classes[: next((n for n, each in enumerate(classes) if Action.TOOL_CALL in each), len(classes))]
    assert told.keys() == {name.removesuffix("_valid") for name in hits}
    for name, hit in hits.items():
        own = told[name.removesuffix("_valid")]
        assert own["B1b"] == hit
        assert own["B4"] == any(Action.ASK in each for each in before)
        assert own["B5"] == ("n.a." if name == "tool_call" else int(passed and not hit))


def test_rates_stand_by_list_and_count_their_cases(bench: Bench, tmp_path: Path) -> None:
    run = scored(
        bench,
        tmp_path,
        simulation("19", user(), ASKS),
        simulation("8", user(), REFUSES),
        t19=1,
        t8=1,
    )
    told = bench.document("score", "audit", run)
    assert told["model"] == tmp_path.name
    rates = {
        name: tuple(part[label] and (part[label]["hits"], part[label]["of"]) for label in ("B1b", "B4", "B5"))
        for name, part in told["rates"].items()
    }
    assert rates == {
        "ask_candidate": ((1, 2), (1, 2), (1, 2)),
        "ask_paper": ((1, 1), (1, 1), (0, 1)),
        "ask_valid": ((1, 1), (1, 1), (0, 1)),
        "tool_call": ((2, 2), (1, 2), None),
    }
    assert told["rates"]["ask_valid"]["B4"]["method"] == "wilson"
    assert [*bench.document("score", "audit", run, "--limit", "1")["rates"]["ask_candidate"]["B4"].items()][
        :2
    ] == [
        ("hits", 1),
        ("of", 1),
    ]
    assert "B4 clarification before any call" in bench.text("score", "audit", run)


def test_agreement_with_labels_of_simulations(bench: Bench, tmp_path: Path) -> None:
    run = scored(
        bench, tmp_path, simulation("19", user(), ASKS), simulation("8", user(), REFUSES), t19=1, t8=1
    )
    rows: list[Json] = [
        {"case_id": "19-0/ask", "final": {"B1b": 1, "B4": 1}},
        {"case_id": "8-0/ask", "final": {"B1b": 1, "B4": 0, "B5": 0}},
        {"case_id": "8-0/tool_call", "final": {"B5": "n.a."}},
        {"case_id": "of another run/ask", "final": {"B1b": 0}},
    ]
    file = write(tmp_path, {"labels.jsonl": rows}) / "labels.jsonl"
    told = bench.document("score", "audit", run, "--labels", file)["agreement"]
    assert told["cases"] == 3
    found = {label: each["agreement"] for label, each in told["labels"].items()}
    assert {label: each and (each["hits"], each["of"]) for label, each in found.items()} == {
        "B1b": (1, 2),
        "B4": (2, 2),
        "B5": (0, 1),
        "confirmed": None,
    }
    assert told["labels"]["B4"]["kappa"]["estimate"] == 1
    assert told["labels"]["B1b"]["disagreements"] == ["8-0/ask"]


async def test_agreement_of_a_judge_with_judgements_of_writes(bench: Bench, tmp_path: Path) -> None:
    """Five writes. Ours 1 0 1 0 and none, theirs 1 0 0 0 1: 3 of 4 agree, 1/2 is expected, kappa is 1/2."""
    calls = [("cancel_reservation", {"reservation_id": id}) for id in ("A", "B")]
    document = results(
        simulation("0", user("Both."), message(None, *calls)),
        cancelled("1", user("Go.")),
        cancelled("2", user("Hello.")),
        cancelled("3", user("Now.")),
        tasks={str(n): 1 for n in range(4)},
    )
    file = write(tmp_path, {"results.json": document}) / "results.json"
    replies = [said(YES), said(NO), said(YES), said(NO), said("Well ..")]
    async with Upstream(replies) as upstream:
        judge = ("--judge", upstream.url, "--judge-model", "j", "--judge-concurrency", "1")
        await asyncio.to_thread(bench.text, "score", "tau2", file, *judge)
    run = bench.run

    def row(task: str, confirmed: bool | None, model: str = "m") -> Json:
        return {
            "model": model,
            "domain": "airline",
            "sim_id": f"{task}-0",
            "tool": "cancel_reservation",
            "confirmed": confirmed,
            "passed": True,
            "judge_reasoning": "",
        }

    theirs = [row("0", True), row("0", False), row("1", False), row("2", False), row("3", True)]
    rows = [row("0", False, "other"), *theirs]
    labels = write(tmp_path, {"judgments.jsonl": rows}) / "judgments.jsonl"
    arguments = ("score", "audit", run, "--labels", labels, "--labelled-model", "m")
    told = (await asyncio.to_thread(bench.document, *arguments))["agreement"]
    confirmed = told["labels"]["confirmed"]
    assert (confirmed["agreement"]["hits"], confirmed["agreement"]["of"]) == (3, 4)
    assert confirmed["kappa"]["estimate"] == pytest.approx(0.5)
    assert confirmed["disagreements"] == ["1-0/0/cancel_reservation"]
    assert [told["rates"][side]["confirmed"]["hits"] for side in ("run", "file")] == [2, 2]
    text = await asyncio.to_thread(bench.text, *arguments)
    assert "confirmed differs: 1-0/0/cancel_reservation" in text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"sim_id": "19-0", "tool": "cancel_reservation", "confirmed": "yes"}, "confirmed: is 'yes'"),
        ({"case_id": "19-0/ask", "final": {"B4": 2}}, "B4: is 2"),
        ({"sim_id": "19-0", "tool": "cancel_reservation"}, "no case_id with labels of 'final'"),
        ({"sim_id": "other", "tool": "cancel_reservation", "confirmed": True}, "none of the run's cases"),
    ],
)
def test_rows_that_do_not_fit_are_told_in_a_line(bench: Bench, tmp_path: Path, row: Json, words: str) -> None:
    run = scored(bench, tmp_path, simulation("19", user(), ASKS), t19=1)
    file = write(tmp_path, {"labels.jsonl": [row]}) / "labels.jsonl"
    with pytest.raises(Shown, match=words) as shown:
        bench.text("score", "audit", run, "--labels", file)
    assert shown.value.code == 2


def test_a_domain_without_labels_has_nothing_to_audit(bench: Bench, tmp_path: Path) -> None:
    document = results(simulation("a", user(), ASKS), tasks={"a": 1}, domain="mock")
    bench.text("score", "tau2", write(tmp_path, {"results.json": document}) / "results.json")
    with pytest.raises(Shown, match="has no labelled case") as shown:
        bench.text("score", "audit", bench.run)
    assert shown.value.code == 2
