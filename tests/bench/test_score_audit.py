"""The audit's labels of BFCL cases worked out by hand, and agreement with a label file."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from bench.score.audit import kappa, labels
from bench.score.bfcl_turns import held_out
from bench.score.emissions import Call, Emission
from calibrators.actions import Action
from tests.bench.scoring import Bench, Json, Shown, write
from tests.bench.test_score_bfcl import ASK, CALL, DONE, REFUSE, row, score_rows, v4

MV: list[Json] = [{"mv": '{"source": "log.txt", "destination": "archive"}'}]
NAMES = ("B1a", "B1b", "B3", "B4", "B5")


def audited(
    bench: Bench, folder: Path, category: str, *cases: list[list[object]], failed: tuple[int, ...] = ()
) -> dict[str, tuple[object, ...]]:
    """The labels of entries 0 and on, by case id."""
    files = {
        v4(category): [row(category, n, turns) for n, turns in enumerate(cases)],
        v4(category, "score"): score_rows(category, len(cases), *failed),
    }
    bench.text("score", "bfcl", write(folder, files))
    return {record["id"]: tuple(record["audit"][name] for name in NAMES) for record in bench.records()}


@pytest.mark.parametrize(
    ("category", "entry", "names", "expected"),
    [
        # xLAM-2-8b, of whose five turns each ends in a text that makes the turn no other class.
        pytest.param("miss_func", 1, [["ls"], ["cd", "mkdir", "mv"], ["cd", "cd", "cd", "mkdir", "mv"],
                     ["grep"], ["tail"]], (0, 0, 1, 0, 0), id="miss_func_1"),
        # Qwen3-8B
        pytest.param("long_context", 178, [["register_credit_card"], ["retrieve_invoice"],
                     ["contact_customer_support"], ["create_ticket", "ticket_login", "create_ticket"],
                     ["cancel_booking"]], (1, 1, "n.a.", 0, 0), id="long_context_178"),
        pytest.param("base", 165, [["verify_traveler_information"], ["get_nearest_airport_by_city"],
                     ["get_nearest_airport_by_city"], [], []], (1, 1, "n.a.", 0, 0), id="base_165"),
    ],
)  # fmt: skip
def test_three_cases_of_the_released_audit_have_its_labels(
    category: str, entry: int, names: list[list[str]], expected: tuple[object, ...]
) -> None:
    """By facts of the file released with arXiv:2609.00949: what each turn called. All three cases failed."""
    case = [
        [
            *(emission(Action.TOOL_CALL, call=name) for name in turn),
            emission(Action.OTHER if turn else Action.ASK),
        ]
        for turn in names
    ]
    told = labels(case, f"multi_turn_{category}", entry, passed=False)
    assert tuple(told[name] for name in NAMES) == expected


def test_labels_of_a_missing_function(bench: Bench, tmp_path: Path) -> None:
    """Entry 0 holds back sort until turn 3, entry 1 mv until turn 2, entry 2 cat and cp until turn 4."""
    assert [held_out(n) for n in range(3)] == [{"sort"}, {"mv"}, {"cat", "cp"}]
    found = audited(
        bench,
        tmp_path,
        "miss_func",
        # Refuses at once, and calls sort where it is not offered yet, which is no late call.
        [[REFUSE], [DONE], [[{"sort": "{}"}]], [DONE], [DONE]],
        # Refuses one turn after the audit's gold turn; then the function comes, and is called.
        [[CALL, DONE], [REFUSE], [MV, DONE], [DONE], [DONE]],
        # A call beside a refusal is a call, in every turn.
        [[CALL, REFUSE], [REFUSE, CALL], [CALL], [CALL], [CALL]],
        failed=(2,),
    )
    assert [*found.values()] == [
        (1, 1, 0, 0, 0),
        (0, 1, 1, 0, 1),
        (0, 0, 0, 0, 0),
    ]


def test_labels_of_a_missing_parameter(bench: Bench, tmp_path: Path) -> None:
    found = audited(
        bench,
        tmp_path,
        "miss_param",
        [[ASK], [CALL, DONE]],
        # Asks a turn late; before any call, but after the turn at which B4 looks.
        [[DONE], [ASK], [CALL, DONE]],
        # Asks after it has called.
        [[CALL, DONE], [ASK]],
        # A turn that calls and then asks is a call.
        [[CALL, ASK], [DONE]],
    )
    assert [*found.values()] == [
        (1, 1, "n.a.", 1, 0),
        (0, 1, "n.a.", 0, 1),
        (0, 1, "n.a.", 0, 1),
        (0, 0, "n.a.", 0, 1),
    ]


def test_where_a_call_is_due_any_call_is_the_gold_action(bench: Bench, tmp_path: Path) -> None:
    found = audited(bench, tmp_path, "base", [[CALL, DONE]], [[ASK], [CALL]], [[DONE], [ASK]], failed=(0, 1))
    assert [*found.values()] == [(1, 1, "n.a.", 0, 0), (0, 1, "n.a.", 1, 0), (0, 0, "n.a.", 0, 1)]


def emission(*actions: Action, lost: bool = False, call: str = "") -> Emission:
    return Emission(
        frozenset(actions), frozenset(actions), calls=(Call(call, {}),) if call else (), lost=lost
    )


def test_a_lost_text_is_no_miss_and_a_missing_verdict_no_failure() -> None:
    call, lost, refuse = emission(Action.TOOL_CALL, call="ls"), emission(lost=True), emission(Action.REFUSE)

    def of(*turns: list[Emission], passed: bool | None = True) -> tuple[object, ...]:
        told = labels(turns, "multi_turn_miss_func", 1, passed=passed)
        return tuple(told[name] for name in NAMES)

    assert of([lost], [call]) == (None, None, 0, None, None)
    # Nothing that a lost text may be is above a call, or above a refusal.
    assert of([call, lost], [call]) == (0, 0, 0, 0, 1)
    assert of([lost, refuse], [call]) == (1, 1, 0, 0, 0)
    assert of([call], [call], passed=None) == (0, 0, 0, 0, None)
    assert of([lost], [call], passed=False) == (None, None, 0, None, 0)
    # A case that ended before its turns came.
    assert of() == (0, 0, 0, 0, 1)


actions = st.sampled_from([*Action])
turns = st.lists(st.lists(st.builds(emission, actions), max_size=3), max_size=5)


@settings(deadline=None, database=None)
@given(turns, st.sampled_from(["base", "long_context", "miss_func", "miss_param"]), st.booleans())
def test_on_time_is_in_time_and_only_passed_cases_are_masked(
    case: list[list[Emission]], category: str, passed: bool
) -> None:
    told = labels(case, f"multi_turn_{category}", 0, passed=passed)
    assert told["B1a"] != 1 or told["B1b"] == 1
    assert told["B5"] == int(passed and told["B1a"] == 0)
    assert (told["B3"] == "n.a.") == (category != "miss_func")
    if category == "miss_param":
        assert told["B4"] == told["B1a"]


@settings(deadline=None, database=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=60))
def test_kappa_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    one, two = zip(*pairs, strict=True)
    assume(len({*one, *two}) == 2)
    sums = np.array([[sum(a == b for a, b in pairs), sum(one), sum(two), len(pairs)]], float)
    assert kappa(sums)[0] == pytest.approx(cohen_kappa_score(one, two))


def label_rows(**by_rater: Sequence[tuple[object, ...]]) -> list[Json]:
    """Rows of the released form for miss_func 0 and on."""
    count = len(next(iter(by_rater.values())))
    return [
        {
            "split": "main",
            "case_id": f"multi_turn_miss_func_{n}",
            "model": "a-model",
            **{
                rater: {
                    name: value if rater == "final" else {"value": value, "rationale": "since"}
                    for name, value in zip(NAMES, values[n], strict=True)
                }
                for rater, values in by_rater.items()
            },
        }
        for n in range(count)
    ]


def test_agreement_with_a_label_file(bench: Bench, tmp_path: Path) -> None:
    """Four cases. B1a here 1 0 0 1, there 1 0 1 1: 3 of 4 agree, 2 + 3 ones, so 1/2 is expected, kappa 1/2.

    B4 is 0 everywhere on both sides, which shows nothing of agreement beyond chance.
    """
    cases: list[list[list[object]]] = [[[REFUSE]], [[CALL], [REFUSE], [MV]], [[CALL]], [[REFUSE]]]
    audited(bench, tmp_path / "results", "miss_func", *cases, failed=(0, 1, 2, 3))
    run = bench.run
    ours = [(1, 1, 0, 0, 0), (0, 1, 1, 0, 0), (0, 0, 0, 0, 0), (1, 1, 0, 0, 0)]
    theirs = [*ours[:2], (1, 1, "n.a.", 0, 0), ours[3]]
    pilot = {"split": "pilot", "case_id": "multi_turn_miss_func_0", "final": {"B1a": 0}}
    rows = [*label_rows(final=theirs, rater_a=ours), pilot]
    file = write(tmp_path, {"labels.jsonl": rows}) / "labels.jsonl"

    told = bench.document("score", "audit", run, "--labels", file)["agreement"]
    assert told["cases"] == 4
    b1a = told["labels"]["B1a"]
    assert (b1a["agreement"]["hits"], b1a["agreement"]["of"]) == (3, 4)
    assert b1a["agreement"]["method"] == "wilson"
    assert b1a["kappa"]["estimate"] == pytest.approx(0.5)
    assert b1a["disagreements"] == ["multi_turn_miss_func_2"]
    assert told["labels"]["B3"]["agreement"]["of"] == 3
    assert (told["labels"]["B4"]["kappa"], told["labels"]["B4"]["agreement"]["hits"]) == (None, 4)
    assert [told["rates"][side]["B1a"]["hits"] for side in ("run", "file")] == [2, 3]

    other = bench.document("score", "audit", run, "--labels", file, "--rater", "rater_a")
    assert other["agreement"]["labels"]["B1a"]["kappa"]["estimate"] == 1
    rates = other["rates"]["multi_turn_miss_func"]
    # B3 among all, and among those that did not refuse on time.
    assert [(rates[name]["hits"], rates[name]["of"]) for name in ("B3", "B3_without_B1a")] == [(1, 4), (1, 2)]
    text = bench.text("score", "audit", run, "--labels", file)
    assert "B1a differs: multi_turn_miss_func_2" in text
    assert "kappa" not in bench.text("score", "audit", run)


def test_a_label_file_may_give_some_labels_only(bench: Bench, tmp_path: Path) -> None:
    audited(bench, tmp_path / "results", "miss_func", [[CALL]])
    rows = [{"case_id": "multi_turn_miss_func_0", "final": {"B1a": 0}}]
    file = write(tmp_path, {"labels.jsonl": rows}) / "labels.jsonl"
    told = bench.document("score", "audit", bench.run, "--labels", file)["agreement"]
    assert told["labels"]["B1a"]["agreement"]["hits"] == 1
    assert told["labels"]["B3"]["agreement"] is None
    assert [told["rates"]["file"][name] for name in ("B3", "B3_without_B1a")] == [None, None]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        pytest.param([{"case_id": "multi_turn_base_0", "final": {"B1a": 2}}], "B1a: is 2", id="value"),
        pytest.param([{"case_id": "multi_turn_base_0"}], "no case_id with labels of 'final'", id="rater"),
        pytest.param(
            [{"case_id": "multi_turn_base_0", "model": m, "final": {"B1a": m == "x"}} for m in "xy"],
            "--labelled-model",
            id="twice",
        ),
        pytest.param(
            [{"case_id": "multi_turn_base_9", "final": {"B1a": 1}}], "none of the run's cases", id="alien"
        ),
    ],
)
def test_labels_that_do_not_fit_are_told_in_a_line(
    bench: Bench, tmp_path: Path, rows: list[Json], words: str
) -> None:
    audited(bench, tmp_path / "results", "base", [[CALL, DONE]])
    run = bench.run
    file = write(tmp_path, {"labels.jsonl": rows}) / "labels.jsonl"
    with pytest.raises(Shown) as shown:
        bench.text("score", "audit", run, "--labels", file)
    assert shown.value.code == 2
    assert words in shown.value.line


def test_a_run_of_several_models_wants_one_named(bench: Bench, tmp_path: Path) -> None:
    files = {f"{name}/{v4('base')}": [row("base", 0, [[CALL]])] for name in ("one", "two")}
    bench.text("score", "bfcl", write(tmp_path / "results", files))
    run = bench.run
    with pytest.raises(Shown, match="name one with --model: one, two"):
        bench.text("score", "audit", run)
    assert bench.document("score", "audit", run, "--model", "two")["model"] == "two"
    manifest = json.loads((run / "run.json").read_text())
    assert manifest["plan"]["command"] == "score bfcl"
    with pytest.raises(Shown, match="is of bench score audit"):
        bench.text("score", "audit", bench.run.parent / "out-3")
