"""`bench run when2call`: figures worked out by hand from given replies and given likelihoods."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from bench.calibrate import asking
from bench.decisions.benchmarks import WHEN2CALL
from bench.decisions.example import Example
from bench.run.when2call.command import Question, drawn
from bench.run.when2call.figures import LABELS, macro_f1
from bench.run.when2call.mcq import Likelihood, chosen
from tests.bench.answering import TOOL, Answering, Json, call
from tests.bench.deciding import running
from tests.bench.scoring import Bench, Shown, write

TOOLS = [json.dumps(TOOL["function"])]
ANSWERS = {
    "direct": "It is x.",
    "tool_call": json.dumps({"name": "find", "arguments": {"of": "x"}}),
    "request_for_info": "Which one do you mean?",
    "cannot_answer": "Sorry, I can't.",
}
CALL = '<call>{"name": "find", "arguments": {"of": "x"}}</call>'
assert [len(ANSWERS["direct"]), len(ANSWERS["request_for_info"]), len(ANSWERS["cannot_answer"])] == [
    8,
    22,
    15,
]
assert len(CALL) == 55


def question(uuid: str, due: str, *, tools: bool = True, **answers: str) -> dict[str, object]:
    return {
        "uuid": uuid,
        "source_id": uuid,
        "question": f"Question {uuid}?",
        "correct_answer": due,
        "answers": {**ANSWERS, **answers},
        "tools": TOOLS if tools else [],
    }


def file(folder: Path, *questions: dict[str, object]) -> Path:
    return write(folder, {"when2call.jsonl": [*questions]}) / "when2call.jsonl"


def replies(path: Path, url: str) -> list[str | Path]:
    """The command that asks for replies alone."""
    return ["run", "when2call", "--file", path, "--upstream", url, "--part", "replies"]


def test_the_likeliest_answer_is_found_by_length_and_as_it_is(bench: Bench, tmp_path: Path) -> None:
    """Sums: direct 8 x -1 = -8, call 55 x -0.2 = -11, ask 22 x -0.6 = -13.2, refuse 15 x -0.8 = -12.

    So direct is likeliest as it is, and the call by length. The second question's own texts turn both: its
    refusal has 4 letters, -0.1 each.
    """
    likes = {ANSWERS["direct"]: -1.0, CALL: -0.2, ANSWERS["request_for_info"]: -0.6,
             ANSWERS["cannot_answer"]: -0.8, "Nope": -0.1}  # fmt: skip
    path = file(
        tmp_path,
        question("a", "tool_call"),
        question("b", "cannot_answer", tools=False, cannot_answer="Nope"),
        question("c", "cannot_answer", tools=False),
        question("d", "request_for_info"),
    )
    model = Answering(likes=likes, too_long=frozenset({"Question d?"}), opens="<think></think>")
    with running(model) as url:
        told = bench.document("run", "when2call", "--file", path, "--upstream", url, "--part", "mcq")["mcq"]

    (served,) = told
    assert served["arms"] == ["off"]
    assert served["counts"] == {"planned": 4, "run": 4, "scored": 3, "errored": 1, "unmeasurable": 0}
    assert [*served["errors"]] == ["400 the prompt is too long"]
    by_length, plain = served["by_length"], served["plain"]
    assert (by_length["accuracy"]["hits"], by_length["accuracy"]["of"]) == (2, 3)
    assert plain["accuracy"]["hits"] == 1
    # Two of them are without tools; by length one chooses the call all the same.
    assert (by_length["hallucination"]["hits"], by_length["hallucination"]["of"]) == (1, 2)
    assert plain["hallucination"]["hits"] == 0
    assert by_length["confusion"]["cannot_answer"] == {
        "tool_call": 1, "request_for_info": 0, "cannot_answer": 1, "direct": 0,
    }  # fmt: skip
    # F1 of the call 2/3, of the refusal 2/3; the other two labels occur nowhere.
    assert by_length["macro_f1"]["estimate"] == pytest.approx(2 / 3)
    # Direct: 0 of 2; refusal: right 1, gold 2, chosen 1; call: gold 1, never chosen.
    assert plain["macro_f1"]["estimate"] == pytest.approx((0 + 2 / 3 + 0) / 3)
    rows = {row["id"]: row for row in map(json.loads, (bench.run / "mcq.jsonl").read_text().splitlines())}
    assert rows["when2call_a"]["answers"]["tool_call"] == {
        "logprob": pytest.approx(-11), "tokens": 55, "characters": 55,
    }  # fmt: skip


@pytest.mark.whole
def test_replies_count_by_what_they_do(bench: Bench, tmp_path: Path) -> None:
    says: dict[str, Json | str] = {
        "Question a?": call(),
        "Question b?": "Which one do you mean?",
        "Question c?": call("look"),
        "Question d?": "",
        "Question f?": "I'm sorry, I can't do that with the tools I have.",
    }
    path = file(
        tmp_path,
        question("a", "tool_call"),
        question("b", "request_for_info"),
        question("c", "cannot_answer", tools=False),
        question("d", "cannot_answer"),
        question("e", "cannot_answer"),
        question("f", "cannot_answer"),
    )
    model = Answering(says=says, too_long=frozenset({"Question e?"}))
    with running(model) as url:
        command = replies(path, url)
        document = bench.document(*command)
        page = (bench.run / "report.html").read_text("utf-8")
        text = bench.text(*command)

    (arm,) = document["replies"]["arms"].values()
    assert arm["counts"] == {"planned": 6, "run": 6, "scored": 4, "errored": 1, "unmeasurable": 1}
    assert (arm["accuracy"]["hits"], arm["accuracy"]["of"]) == (3, 4)
    hits = {label: figure["hits"] for label, figure in arm["recall"].items() if label in LABELS and figure}
    assert hits == {"tool_call": 1, "request_for_info": 1, "cannot_answer": 1}
    assert (arm["hallucination"]["hits"], arm["hallucination"]["of"]) == (1, 1)
    # One of three called where none was due, and to no tool that was offered.
    assert arm["over_calling"]["estimate"] == pytest.approx(1 / 3)
    assert arm["valid_calls"]["estimate"] == 0.5
    assert arm["applied"] == {"none": 5}
    assert arm["errors"] == {"400 the prompt is too long": 1}
    assert "tools" not in next(body for body in model.asked if "c?" in body["messages"][-1]["content"])
    assert "3/4" in text
    found = re.findall(r'<details class="case" data-outcome="([\w ]+)" data-part="(\w+)"', page)
    assert sorted(found) == [
        ("errored", "cannot_answer"),
        ("failed", "cannot_answer"),
        ("not graded", "cannot_answer"),
        ("passed", "cannot_answer"),
        ("passed", "request_for_info"),
        ("passed", "tool_call"),
    ]


@pytest.mark.whole
def test_a_server_that_goes_away_is_one_line_and_what_is_there_is_not_asked_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "TRIES", 1)
    says = {f"Question {n}?": call() for n in range(8)}
    path = file(tmp_path, *(question(str(n), "tool_call") for n in range(8)))
    model = Answering(says=says, gone=6)
    with running(model) as url:
        command = replies(path, url)
        command += ["--concurrency", "1", "--out", tmp_path / "run"]
        with pytest.raises(Shown) as shown:
            bench.text(*command)
        assert shown.value.code == 3
        assert "Traceback" not in shown.value.line
        model.gone = None
        (arm,) = bench.document(*command)["replies"]["arms"].values()
    assert arm["accuracy"]["hits"] == 8
    assert len(model.asked) == 8


@pytest.mark.whole
def test_multiple_choice_asks_a_served_model_once_whatever_its_arms(bench: Bench, tmp_path: Path) -> None:
    likes = {ANSWERS["direct"]: -1.0, CALL: -0.2, ANSWERS["request_for_info"]: -0.6,
             ANSWERS["cannot_answer"]: -0.8}  # fmt: skip
    path = file(tmp_path, question("a", "tool_call"))
    profile = tmp_path / "cut.yaml"
    profile.write_text("name: cut\nsri: lite\n")
    model = Answering(says={"Question a?": call()}, likes=likes)
    with running(model) as url:
        document = bench.document(
            "run",
            "when2call",
            "--file",
            path,
            "--upstream",
            url,
            "--arm",
            "off=",
            "--arm",
            f"cut=profile={profile}",
        )
        compared = bench.document("compare", bench.run)
    assert [each["arms"] for each in document["mcq"]] == [["off", "cut"]]
    assert list(compared["parts"]) == ["all questions", "tool_call"]
    assert compared["parts"]["all questions"]["cut"]["acc"]["estimate"] == 1
    assert model.completed == 1
    assert len(model.asked) == 2
    assert document["replies"]["changes"]["cut"]["estimate"] == 0


def test_a_file_that_is_none_and_a_server_that_shows_no_tokens_are_told_in_a_line(
    bench: Bench, tmp_path: Path
) -> None:
    with pytest.raises(Shown, match="is no When2Call item") as shown:
        bench.text("run", "when2call", "--file", write(tmp_path, {"a.jsonl": [{"uuid": "1"}]}) / "a.jsonl")
    assert shown.value.code == 2

    class Plain(Answering):
        def answer(self, path: str, body: dict[str, object]) -> tuple[int, object]:
            return (404, {}) if path == "/tokenize" else super().answer(path, body)

    with running(Plain()) as url, pytest.raises(Shown, match="take --part replies") as shown:
        bench.text("run", "when2call", "--file", file(tmp_path, question("a", "direct")), "--upstream", url,
                   "--part", "mcq")  # fmt: skip
    assert shown.value.code == 1


@settings(deadline=None, database=None)
@given(st.lists(st.sampled_from(LABELS), max_size=30), st.integers(1, 40), st.integers())
def test_a_limit_is_shared_among_the_labels(labels: list[str], limit: int, seed: int) -> None:
    questions: list[Question] = [
        (Example(str(n), "s", str(n), label == "tool_call", action=WHEN2CALL[label]), {})
        for n, label in enumerate(labels)
    ]
    kept = [example for example, _ in drawn(questions, limit, seed)]
    assert len(kept) == min(limit, len(labels))
    assert [int(example.id) for example in kept] == sorted(int(example.id) for example in kept)
    counts = Counter(example.action for example in kept)
    least = min(
        (counts[WHEN2CALL[each]] for each in labels if counts[WHEN2CALL[each]] < labels.count(each)),
        default=None,
    )
    assert least is None or max(counts.values()) <= least + 1


@settings(deadline=None, database=None)
@given(st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS)), min_size=1, max_size=40))
def test_macro_f1_is_scikit_learns(pairs: list[tuple[str, str]]) -> None:
    gold, picked = zip(*pairs, strict=True)
    sums = [
        *(sum(g == p == label for g, p in pairs) for label in LABELS),
        *(gold.count(label) for label in LABELS),
        *(picked.count(label) for label in LABELS),
    ]
    expected = f1_score(gold, picked, average="macro", zero_division=0)
    assert macro_f1(np.array([sums], float))[0] == pytest.approx(expected)


@settings(deadline=None, database=None)
@given(st.lists(st.floats(-100, -0.01), min_size=4, max_size=4), st.integers(1, 200))
def test_answers_of_one_length_are_chosen_alike_by_either_reading(sums: list[float], length: int) -> None:
    found = {label: Likelihood(each, length, length) for label, each in zip(LABELS, sums, strict=True)}
    assert found[chosen(found, normalised=True)].logprob == pytest.approx(
        found[chosen(found, normalised=False)].logprob
    )
