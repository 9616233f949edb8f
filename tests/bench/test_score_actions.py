"""`bench score actions`: the classifier against texts whose class is known."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.intervals import wilson
from bench.score import classifier_time
from tests.bench.scoring import Bench, Json, Shown, write

DEV = Path(__file__).parents[1] / "data" / "when2call_dev.jsonl"
CASES = Path(__file__).parents[1] / "cases" / "classify.json"


def item(name: str, **answers: str) -> Json:
    return {"uuid": name, "source_id": f"source-{name}", "answers": answers}


def scored(bench: Bench, folder: Path, *rows: Json | str) -> Json:
    return bench.document("score", "actions", write(folder, {"texts.jsonl": rows}) / "texts.jsonl")


def test_each_answer_of_an_item_is_a_text_with_its_class(bench: Bench, tmp_path: Path) -> None:
    result = scored(
        bench,
        tmp_path,
        item("a", request_for_info="Which city?", cannot_answer="I can't do that.", direct="It is noon."),
        item("b", request_for_info="It is noon.", direct="I've booked it.", tool_call='{"name": "f"}'),
    )
    assert result["texts"] == 5
    assert result["confusion"] == {
        "ask": {"ask": 1, "other": 1},
        "refuse": {"refuse": 1},
        "direct": {"other": 1, "confirm": 1},
    }
    assert [each["key"] for each in result["wrong"]] == ["b/request_for_info"]


def test_recall_comes_with_its_interval(bench: Bench, tmp_path: Path) -> None:
    texts: list[Json] = [{"text": "Which one do you mean?", "class": "ask"}] * 6
    recall = scored(bench, tmp_path, *texts, {"text": "It is noon.", "class": "ask"})["recall"]["ask"]
    assert (recall["hits"], recall["of"]) == (6, 7)
    assert (recall["low"], recall["high"]) == (wilson(6, 7).low, wilson(6, 7).high)


def test_texts_of_one_source_are_not_independent(bench: Bench, tmp_path: Path) -> None:
    rows = [{**item(f"i{n}", direct="It is noon."), "source_id": "one"} for n in range(8)]
    recall = scored(bench, tmp_path, *rows)["recall"]["direct"]
    assert recall["clusters"] == 1
    assert recall["low"] is None
    assert recall["reason"]


def test_several_classes_may_be_right_and_none_is_one(bench: Bench, tmp_path: Path) -> None:
    result = scored(
        bench,
        tmp_path,
        {"text": "It is noon.", "class_in": ["confirm", "other"]},
        {"text": " ", "class": None},
    )
    assert result["wrong"] == []
    assert result["confusion"] == {"confirm or other": {"other": 1}, "none": {"none": 1}}


def test_the_cases_from_bug_reports_are_read_run_by_run(bench: Bench) -> None:
    result = bench.document("score", "actions", CASES)
    assert result["texts"] == sum(len(case["runs"]) for case in json.loads(CASES.read_text()))
    assert result["wrong"] == []


@pytest.mark.parametrize(
    ("cues", "hits"),
    [
        ("seam", {"ask": 157, "refuse": 157, "direct": 151}),
        ("published", {"ask": 156, "refuse": 152, "direct": 148}),
    ],
)
def test_the_figures_of_the_documentation_hold(bench: Bench, cues: str, hits: dict[str, int]) -> None:
    recall = bench.document("score", "actions", DEV, "--cues", cues)["recall"]
    assert {gold: each["hits"] for gold, each in recall.items()} == hits
    assert all(each["of"] == 157 for each in recall.values())


def test_every_disputed_text_is_named_in_the_documentation(bench: Bench) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "actions.md").read_text("utf-8")
    wrong = bench.document("score", "actions", DEV)["wrong"]
    assert [each["key"] for each in wrong if each["key"].partition("-")[0] not in docs] == []


def test_the_wrong_texts_are_printed_where_asked_for(bench: Bench, tmp_path: Path) -> None:
    file = (
        write(tmp_path, {"t.jsonl": [{"id": "x1", "text": "It is [noon].", "class": "refuse"}]}) / "t.jsonl"
    )
    assert "x1" not in bench.text("score", "actions", file)
    assert "x1: refuse read as other: It is [noon]." in bench.text("score", "actions", file, "--wrong")


def test_the_classifier_is_timed_where_asked_for(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, small in {"_TRIES": 1, "_REPLIES": 2, "_HOSTILE": 200}.items():
        monkeypatch.setattr(classifier_time, name, small)
    file = write(tmp_path, {"t.jsonl": [{"text": "It is noon.", "class": "other"}]}) / "t.jsonl"
    assert "time" not in bench.document("score", "actions", file)
    time = bench.document("score", "actions", file, "--time")["time"]
    assert (time["characters"], time["replies"]) == (1000, 2)
    assert 0 < time["microseconds_mean"] <= time["microseconds_max"]
    assert "µs a reply of 1000 characters" in bench.text("score", "actions", file, "--time")


def test_each_text_has_a_record(bench: Bench, tmp_path: Path) -> None:
    scored(bench, tmp_path, {"id": "x1", "text": "Which city?", "class": "ask"})
    assert bench.records() == [{"key": "x1", "gold": "ask", "class": "ask", "right": True}]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ([{"text": "It is noon."}], "item 1: has a text and no class; add class or class_in"),
        ([{"text": "It is noon.", "class": "answer"}], "item 1: class 'answer' is unknown"),
        ([{"text": "It is noon.", "class_in": []}], "item 1: class [] is unknown"),
        ([{"question": "Why?"}], "item 1: holds no answers, no runs and no text"),
        ([{"answers": {"tool_call": "{}"}}], "holds no text with a class"),
        (["no json", "{}"], "line 1: is not JSON"),
        (["[1]"], "item 1: is no JSON object"),
        ([], "holds no text with a class"),
    ],
)
def test_a_file_of_another_form_gets_one_line(
    bench: Bench, tmp_path: Path, content: list[Any], line: str
) -> None:
    with pytest.raises(Shown) as shown:
        scored(bench, tmp_path, *content)
    assert shown.value.code == 2
    assert line in shown.value.line
    assert shown.value.line.count("\n") == 1


def test_a_file_that_is_not_there_is_named(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(Shown) as shown:
        bench.text("score", "actions", tmp_path / "gone.jsonl")
    assert (shown.value.code, "gone.jsonl" in shown.value.line) == (2, True)
