"""Decision sets: what is read, what is refused with its line, and how conversations are split."""

import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.decisions import benchmarks
from bench.decisions.apigen import apigen
from bench.decisions.benchmarks import bfcl, when2call
from bench.decisions.example import Example, question
from bench.decisions.log import read_log
from bench.decisions.requests import read_requests
from bench.decisions.split import grouped, joined, sampled, split
from bench.errors import CheckFailed, InputError

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def line(**changes: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "Find it."}], "tools": [TOOL], "should_call": True}
    return {key: value for key, value in {**asked, **changes}.items() if value is not None}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "own.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return path


def example(name: str, due: bool = True, **changes: Any) -> Example:
    return Example(**{"id": name, "source": "s", "group": name, "should_call": due, **changes})


# One's own requests -----------------------------------------------------------------------------------------


def test_a_line_needs_a_request_and_a_label_only(tmp_path: Path) -> None:
    (made,), ignored = read_requests(written(tmp_path, line()))
    assert (made.id, made.group, made.source, made.should_call) == ("own:1", "own:1", "own", True)
    assert made.request == {"messages": [{"role": "user", "content": "Find it."}], "tools": [TOOL]}
    assert not ignored


@pytest.mark.parametrize(("action", "due"), [("tool_call", True), ("ask", False), ("refuse", False)])
def test_a_gold_action_class_is_a_label_too(tmp_path: Path, action: str, due: bool) -> None:
    (made,), _ = read_requests(written(tmp_path, line(should_call=None, action=action)))
    assert made.should_call is due


def test_members_that_are_no_part_of_the_request_are_told_and_never_sent(tmp_path: Path) -> None:
    (made,), ignored = read_requests(written(tmp_path, line(temperature=0.3, note="x"), ""))
    assert set(made.request) == {"messages", "tools"}
    assert ignored == {"temperature": 1, "note": 1}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"should_call": None}, "no label: give should_call (true or false) or action"),
        ({"should_call": "yes"}, "should_call: input should be a valid boolean"),
        ({"action": "call"}, "action: input should be 'tool_call'"),
        ({"action": "ask"}, "should_call is True and action is ask"),
        ({"should_call": False, "gold": [{"name": "find"}]}, "gold calls, and none is due"),
        ({"messages": []}, "messages: list should have at least 1 item"),
        ({"tools": None}, "tools: field required"),
        ({"tools": [{"name": "find"}, {}]}, "a tool has no function.name"),
        ({"tool_choice": "required"}, "no decision to calibrate: tool_choice is required"),
        ({"messages": [{"role": "assistant", "content": "It is."}]}, "the assistant's own reply: leave it"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        read_requests(written(tmp_path, line(), line(**changes)))
    assert "own.jsonl line 2: " in str(refused.value)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{"], "line 1: is no JSON"),
        (["[1]"], "line 1: the document: input should be a valid dictionary"),
        ([line(id="a"), line(id="a")], "line 2: the id 'a' stands twice"),
        ([""], "holds no example"),
    ],
)
def test_a_file_that_is_no_set_of_requests_is_refused(tmp_path: Path, lines: list[Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_requests(written(tmp_path, *lines))


def test_an_example_written_as_a_row_is_read_back_the_same(tmp_path: Path) -> None:
    first = line(id="a", group="g", source="s", gold=[{"name": "find", "arguments": {"of": 1}}], split="test")
    (made,), _ = read_requests(written(tmp_path, first))
    (again,), ignored = read_requests(written(tmp_path, made.row()))
    assert again == made
    assert not ignored


def test_the_question_is_the_last_thing_the_user_said() -> None:
    parts = [{"type": "text", "text": "Find\n it"}, {"type": "image_url"}]
    messages = [{"role": "user", "content": "Hello"}, {"role": "user", "content": parts}, {"role": "tool"}]
    assert question({"messages": messages}) == "Find it"
    assert question({}) == ""


# Benchmarks -------------------------------------------------------------------------------------------------


def test_bfcl_s_call_categories_are_due_and_its_irrelevance_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "bfcl.whl"
    function = {"name": "area.get", "description": "", "parameters": {"type": "dict", "properties": {}}}
    with zipfile.ZipFile(wheel, "w") as archive:
        from bench.decisions.source import CALL_CATEGORIES, RESPOND_CATEGORIES

        for category in CALL_CATEGORIES + RESPOND_CATEGORIES:
            asked = [[{"role": "user", "content": f"What about {category}?"}]]
            row = {"id": f"{category}_0-7-0", "question": asked, "function": [function]}
            archive.writestr(f"bfcl_eval/data/BFCL_v4_{category}.json", json.dumps(row))
            gold = {"id": row["id"], "ground_truth": [{"area.get": {"side": [4]}}]}
            archive.writestr(f"bfcl_eval/data/possible_answer/BFCL_v4_{category}.json", json.dumps(gold))
    monkeypatch.setattr(benchmarks, "fetch", lambda _: wheel)
    due = Counter(made.should_call for made in bfcl())
    assert due == {True: len(CALL_CATEGORIES), False: len(RESPOND_CATEGORIES)}
    called = next(made for made in bfcl() if made.source == "bfcl_live_multiple")
    assert called.gold == [{"name": "area_get", "arguments": {"side": 4}}]
    assert called.group == "live_multiple:7"


def when2call_row(label: str, number: int) -> dict[str, Any]:
    replies = {label: "For whom?"}
    if label == "tool_call":
        replies = {label: json.dumps({"name": "alarms.get", "arguments": {"user": "U1"}})}
    return {
        "uuid": str(number),
        "source_id": f"live_multiple_381-136-{number}",
        "question": "Which alarms are set?",
        "correct_answer": label,
        "answers": replies,
        "tools": [json.dumps({"name": "alarms.get", "parameters": {"type": "dict"}})],
    }


def test_when2call_s_labels_are_action_classes_and_its_source_is_the_group(tmp_path: Path) -> None:
    labels = {
        "tool_call": "tool_call",
        "request_for_info": "ask",
        "cannot_answer": "refuse",
        "direct": "other",
    }
    rows = [when2call_row(label, number) for number, label in enumerate(labels)]
    made = when2call(written(tmp_path, *rows))
    assert [one.action for one in made] == list(labels.values())
    assert [one.should_call for one in made] == [True, False, False, False]
    assert {one.group for one in made} == {"live_multiple:136"}


def test_a_line_that_is_no_when2call_item_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"own\.jsonl:1 is no When2Call item"):
        when2call(written(tmp_path, {"uuid": 1}))


def apigen_row(*said: tuple[str, str]) -> dict[str, Any]:
    tools = json.dumps([{"name": "find", "description": "", "parameters": {"type": "object"}}])
    conversations = [{"from": who, "value": what} for who, what in said]
    return {"system": "Be kind.", "tools": tools, "conversations": conversations}


CALL = ("function_call", '{"name": "find", "arguments": {"of": "x"}}')


def test_apigen_s_decision_is_the_final_assistant_turn_after_all_that_came_before(tmp_path: Path) -> None:
    talk = (("human", "Find x."), CALL, ("observation", "42"), ("gpt", "It is 42."))
    rows = [apigen_row(*talk), apigen_row(("human", "Find x."), CALL, ("observation", "42"))] * 20
    made = apigen(written(tmp_path, json.dumps(rows)))
    answered = next(one for one in made if not one.should_call)
    assert [message["role"] for message in answered.request["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    call, result = answered.request["messages"][2:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    called = next(one for one in made if one.should_call)
    assert [message["role"] for message in called.request["messages"]] == ["system", "user"]
    assert called.gold == [{"name": "find", "arguments": {"of": "x"}}]


def test_apigen_s_split_is_a_tenth_and_a_fifth_of_the_conversations_and_always_the_same(
    tmp_path: Path,
) -> None:
    rows = [apigen_row(("human", f"Find {n}."), ("gpt", "No.")) for n in range(50)]
    path = written(tmp_path, *rows)
    assert Counter(one.split for one in apigen(path)) == {"validation": 5, "test": 10}
    assert apigen(path) == apigen(path)


def test_a_row_that_is_no_apigen_conversation_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 2: is no APIGen-MT conversation"):
        apigen(written(tmp_path, apigen_row(("human", "Hi."), ("gpt", "Hi.")), {"tools": "[]"}))


# The decision log -------------------------------------------------------------------------------------------


def record(number: int, **changes: Any) -> dict[str, Any]:
    known = {
        "request_id": f"r{number}",
        "choice": 0,
        "case_id": f"c{number % 3}",
        "tools": 2,
        "tool_choice": "auto",
        "action": "other",
        "entry_probability": 0.2,
        "margin": -1.4,
        "gap": -1.1,
        "text": "It is 42.",
    }
    return {**known, **changes}


def test_a_log_without_texts_can_t_be_labelled_and_says_what_to_set(tmp_path: Path) -> None:
    silent = {key: value for key, value in record(1).items() if key != "text"}
    with pytest.raises(CheckFailed, match=r"set decisions\.text: true in seam\.yaml"):
        read_log(written(tmp_path, silent))


def test_a_log_without_margins_says_how_to_read_them(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="set reading: top_logprobs"):
        read_log(written(tmp_path, record(1, margin=None), record(2, gap=None)))


def test_replies_that_nobody_can_judge_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = [record(1), record(2, action=None), record(3, tools=0), record(4, margin=None)]
    asked = record(5, margin=None, request={"messages": [], "tools": []})
    usable, left_out = read_log(written(tmp_path, *lines, asked))
    assert [one["request_id"] for one in usable] == ["r1", "r5"]
    assert left_out == {"without tools, cut, or errored": 2, "without margin": 1}


def test_a_file_that_is_no_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1: is no decision record"):
        read_log(written(tmp_path, line()))


# Splits -----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from("abcdefgh")


@given(st.dictionaries(NAMES, st.lists(st.integers(0, 5).map(str), max_size=3)))
def test_names_are_joined_exactly_where_links_connect_them(links: dict[str, list[str]]) -> None:
    root = joined(links)
    reached = {name: {name} for name in links}
    for _ in links:
        for own in reached.values():
            touched = {link for other in own for link in links[other]}
            own |= {other for other in links if touched & set(links[other])}
    for name in links:
        assert {other for other in links if root[other] == root[name]} == reached[name]


def test_the_same_question_with_other_tools_is_the_same_conversation() -> None:
    asked = [{"role": "user", "content": "Find it!"}]
    again = [{"role": "user", "content": "find  it"}]
    made = [
        example("1", group="b", request={"messages": asked, "tools": [TOOL]}),
        example("2", group="a", request={"messages": again, "tools": []}),
        example("3", group="a"),
        example("4", group="c"),
    ]
    assert [one.group for one in grouped(made)] == ["a", "a", "a", "c"]


GROUPS = st.lists(st.tuples(st.integers(0, 30).map(str), st.booleans()), min_size=1, max_size=60)


@given(GROUPS, st.integers(0, 5))
def test_no_conversation_is_on_both_sides_and_order_does_not_matter(
    pairs: list[tuple[str, bool]], seed: int
) -> None:
    made = [example(str(n), due, group=group) for n, (group, due) in enumerate(pairs)]
    sides = {one.id: one.split for one in split(made, seed)}
    assert {one.id: one.split for one in split(made[::-1], seed)} == sides
    for group in {one.group for one in made}:
        assert len({sides[one.id] for one in made if one.group == group}) == 1


def test_each_kind_of_conversation_is_halved() -> None:
    made = [example(str(n), due=n % 3 == 0, source="ab"[n % 2]) for n in range(240)]
    counts = Counter((one.source, one.should_call, one.split) for one in split(made, seed=1))
    for (source, due, _), count in counts.items():
        assert abs(count - (20 if due else 40)) <= 1, (source, due)


def test_a_split_that_the_set_gives_stands() -> None:
    made = [
        example("1", split="test"),
        example("2", split="validation"),
        example("3", split="test", group="2"),
    ]
    assert [one.split for one in split(made, seed=0)] == ["test", "test", "test"]


def test_a_limited_sample_has_both_labels_as_evenly_as_it_can() -> None:
    made = [example(str(n), due=n < 10) for n in range(100)]
    few = sampled(made, 30, seed=0)
    assert Counter(one.should_call for one in few) == {True: 10, False: 20}
    assert Counter(one.should_call for one in sampled(made, 8, seed=0)) == {True: 4, False: 4}
    assert few == sampled(made, 30, seed=0) != sampled(made, 30, seed=1)
    assert sampled(made, None, seed=0) == made
