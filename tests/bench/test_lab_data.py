"""The lab model's data: what is cut out of questions, and how conversations are split."""

import json
import random
from pathlib import Path

import pytest

from bench.decisions.source import Call, Item, SourceError, openai_tool, when2call_items
from bench.lab.cuts import control_cut, missing_cuts, spans, words
from bench.lab.data import SHARES, assign, build, families


def tool(name: str, required: list[str], optional: tuple[str, ...] = ()) -> dict[str, object]:
    properties = {key: {"type": "string"} for key in (*required, *optional)}
    parameters = {"type": "dict", "properties": properties, "required": required}
    return openai_tool({"name": name, "description": f"Does {name}.", "parameters": parameters})


def item(question: str, arguments: dict[str, list[object]], **changes: object) -> Item:
    required = [name for name in arguments if name != "unit"]
    offered = tool("weather.get", required, ("unit",))
    values: dict[str, object] = {
        "id": "a",
        "source": "bfcl_live_simple",
        "origin": "live_simple:1",
        "question": question,
        "tools": [offered],
        "gold": [Call("weather_get", arguments)],
    }
    return Item(**(values | changes))  # type: ignore[arg-type]


def conversations(count: int) -> list[Item]:
    """Call and respond items of `count` unrelated conversations, two variants each."""
    items = []
    for n in range(count):
        offered = [tool(f"tool{n}.find", ["city"], ("unit",)), tool(f"tool{n}.other", ["thing"])]
        gold = [Call(f"tool{n}_find", {"city": [f"Town{n}"]})]
        for variant, label in ((0, gold), (1, [])):
            items.append(
                Item(
                    id=f"c{n}-{variant}",
                    source="bfcl_live_simple" if label else "bfcl_irrelevance",
                    origin=f"conversation {n}",
                    question=f"Please look up whatever there is in Town{n} now, kind {variant}",
                    tools=offered,
                    gold=list(label),
                )
            )
    return items


@pytest.mark.parametrize(
    ("question", "values"),
    [
        ("What is the weather in Paris today?", ["Paris", "Paris, France"]),
        ("Book it for April 5th, 2023 please.", ["2023-04-05"]),
        ("Add 1,250 units to the stock of the shop.", [1250]),
        ("Take a discount of 5% off the whole order.", [0.05]),
        ("Get me three tickets for the show tonight.", [3]),
    ],
)
def test_cut_questions_no_longer_hold_the_value_in_any_of_its_forms(
    question: str, values: list[object]
) -> None:
    cuts = missing_cuts(item(question, {"value": values}))
    assert cuts
    held = [str(values[0]), "Paris", "April 5", "1,250", "5%", "three"]
    present = [form for form in held if form in question]
    assert not any(form in cut.question for cut in cuts for form in present)


def test_dropped_values_take_their_preposition_and_unit_along() -> None:
    asked = item("Find the area of a triangle with a base of 10 units and height of 5 units.", {"base": [10]})
    dropped = [cut.question for cut in missing_cuts(asked) if cut.style == "drop"]
    assert dropped == ["Find the area of a triangle with a base and height of 5 units."]


def test_a_value_that_stands_twice_is_not_cut() -> None:
    assert not missing_cuts(item("Paris, please: the weather in Paris", {"city": ["Paris"]}))


def test_optional_values_are_never_cut_as_missing_but_serve_as_the_control() -> None:
    asked = item(
        "What is the weather in Paris in celsius today?", {"city": ["Paris"], "unit": ["celsius", ""]}
    )
    assert {cut.parameter for cut in missing_cuts(asked)} == {"city"}
    assert [span.required for span in spans(asked)] == [True, False]
    control = control_cut(asked, random.Random(0))
    assert control is not None
    assert "Paris" in control.question
    assert "celsius" not in control.question


def test_parameter_names_read_as_words() -> None:
    assert words("departureDate") == words("departure_date") == "departure date"


def test_conversations_that_share_a_question_or_a_tool_are_one_family() -> None:
    one, other = conversations(2)[::2]
    assert len(set(families([one, other]).values())) == 2
    twin = Item("t", "s", "elsewhere", other.question.upper() + "!", one.tools)
    assert len(set(families([one, other, twin]).values())) == 1


def test_families_do_not_depend_on_the_order_of_items() -> None:
    items = conversations(20)
    assert families(items) == families(items[::-1])


def test_no_conversation_is_on_both_sides_of_a_split() -> None:
    items = conversations(120)
    family = families(items)
    split = assign(items, family, seed=0)
    assert set(split.values()) == set(SHARES)
    sizes = {name: list(split.values()).count(name) / 120 for name in SHARES}
    assert all(abs(sizes[name] - share) < 0.05 for name, share in SHARES.items())

    built = build(items, seed=0)
    (ids,) = built["splits"]
    parts = [{one.rpartition("-")[0] for one in ids[name]} for name in SHARES]
    assert len(set.union(*parts)) == sum(map(len, parts))


def test_every_split_has_missing_parameter_items_and_all_paired_sets() -> None:
    built = build(conversations(120), seed=0)
    assert any(b["label"] == "ask" for tree in built["train"] for b in tree["branches"])
    for name in ("validation", "test"):
        asks = [row for row in built[name] if row["label"] == "ask"]
        assert any("decisions" in row["sets"] for row in asks)
        sets = {one for row in built[name] for one in row["sets"]}
        assert sets >= {"decisions", "swapped", "tool_removed", "parameter_removed"}


def test_a_paired_negative_differs_from_its_original_in_one_thing_only() -> None:
    rows = build(conversations(120), seed=0)["test"]
    by_id = {row["id"]: row for row in rows}
    for row in rows:
        if not row["pair"] or row["sets"] == ["decisions"]:
            continue
        original = by_id[row["pair"]]
        same = (row["tools"] == original["tools"], row["messages"] == original["messages"])
        assert (
            same
            == {
                "swapped": (False, True),
                "tool_removed": (False, True),
                "parameter_removed": (True, False),
                "harmless_cut": (True, False),
            }[row["sets"][0]]
        )
        assert original["should_call"]


def test_unseen_tools_are_in_no_training_tree() -> None:
    built = build(conversations(120), seed=0)
    trained = json.dumps([tree["tools"] for tree in built["train"]])
    marked = [row for row in built["test"] if row["unseen_tools"]]
    assert marked
    assert not any(f'"{one["function"]["name"]}"' in trained for row in marked for one in row["tools"])


def test_the_same_seed_builds_the_same_data() -> None:
    items = conversations(60)
    assert build(items, seed=3) == build(items, seed=3)
    assert build(items, seed=3) != build(items, seed=4)


def test_when2call_items_join_the_family_of_the_question_they_were_made_from(tmp_path: Path) -> None:
    row = {
        "uuid": "u",
        "source_id": "live_multiple_381-136-2",
        "question": "Which alarms are set?",
        "correct_answer": "request_for_info",
        "answers": {"request_for_info": "For which user?"},
        "tools": [json.dumps({"name": "alarms.get", "parameters": {"type": "dict"}})],
    }
    path = tmp_path / "when2call.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (made,) = when2call_items(path)
    assert made.origin == "live_multiple:136"
    assert (made.label, made.reply) == ("ask", "For which user?")


def test_a_line_that_is_no_when2call_item_is_named(tmp_path: Path) -> None:
    path = tmp_path / "when2call.jsonl"
    path.write_text('{"uuid": 1}\n')
    with pytest.raises(SourceError, match=r"when2call\.jsonl:1 is no When2Call item"):
        when2call_items(path)
