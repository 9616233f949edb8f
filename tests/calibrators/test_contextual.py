import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.contextual import NO_FEATURES, Contextual, Features, features_of


def tool(
    name: str, description: str = "", required: tuple[str, ...] = (), **properties: Any
) -> dict[str, Any]:
    """A tool whose parameters are strings unless told otherwise."""
    schemas = {name: {"type": "string"} for name in required} | properties
    parameters = {"type": "object", "properties": schemas, "required": list(required)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


WEATHER = tool("get_weather", "Current weather of a city.", ("city",))
LOAN = tool(
    "loan_payment",
    "Monthly payment of a loan.",
    ("amount", "years"),
    amount={"type": "number"},
    years={"type": "integer"},
)


def features(text: str, *tools: dict[str, Any], then: tuple[dict[str, Any], ...] = ()) -> Features:
    return features_of({"messages": [{"role": "user", "content": text}, *then], "tools": list(tools)})


def test_a_request_in_the_words_of_a_tool_fits_it() -> None:
    assert (
        features("What is the weather in Oslo?", WEATHER).fit > features("Tell me a joke.", WEATHER).fit == 0
    )


def test_the_tool_that_fits_best_is_the_one_whose_values_are_looked_for() -> None:
    both = features("What would the monthly loan payment be?", WEATHER, LOAN)
    assert both.required == 2
    assert both.missing == 2


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("What is the monthly payment of a loan of 20000 over 5 years?", 0),
        ("What is the monthly payment of a loan of 20000?", 1),
        ("What is the monthly payment of a loan?", 2),
        ("What is the monthly payment of a loan of a thousand over two years?", 0),
    ],
)
def test_numbers_that_a_tool_needs_are_missed(text: str, missing: float) -> None:
    assert features(text, LOAN).missing == missing


def test_a_name_in_the_request_is_a_value_and_the_tools_own_words_are_none() -> None:
    assert features("What is the weather in Oslo?", WEATHER).missing == 0
    assert features("What is the current weather of the city?", WEATHER).missing == 1


def test_a_choice_is_looked_for_among_its_values() -> None:
    unit = tool("set_unit", "", ("unit",), unit={"type": "string", "enum": ["celsius", "kelvin"]})
    assert features("Set the unit to kelvin.", unit).missing == 0
    assert features("Set the unit.", unit).missing > 0


def test_values_may_come_from_earlier_turns_and_from_results() -> None:
    earlier = [
        {"role": "user", "content": "I am in Oslo."},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": "What is the weather of the city?"},
    ]
    assert features_of({"messages": earlier, "tools": [WEATHER]}).missing == 0


def test_a_turn_that_has_a_result_is_told_from_a_new_one() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    answered = (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
    )
    assert features("Weather in Oslo?", WEATHER, then=answered).answered == 1
    assert features("Weather in Oslo?", WEATHER).answered == 0


@pytest.mark.parametrize(
    "fields", [{}, {"tools": [WEATHER]}, {"messages": [{"role": "user", "content": "Hi"}]}]
)
def test_a_request_without_tools_or_question_has_no_features(fields: dict[str, Any]) -> None:
    assert features_of(fields) == NO_FEATURES


def test_tools_are_read_in_every_api_s_shape() -> None:
    chat = features("Weather in Oslo?", WEATHER)
    schema = WEATHER["function"]["parameters"]
    told = {"name": "get_weather", "description": "Current weather of a city."}
    responses = {"type": "function", **told, "parameters": schema}
    messages = {**told, "input_schema": schema}
    assert features("Weather in Oslo?", responses) == features("Weather in Oslo?", messages) == chat


def test_the_bias_is_the_sum_of_its_parts_within_its_range() -> None:
    bias = Contextual(b0=-1.0, weights={"fit": 2.0, "missing": -1.5}, low=-2.0, high=1.0)
    known = Features(fit=0.5, missing=0)
    assert bias.value(known) == 0.0
    assert bias.parts(known) == {"fit": 1.0, "missing": 0.0}
    assert bias.value(Features(fit=0, missing=3)) == -2.0
    assert bias.value(Features(fit=3)) == 1.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
SHAPED = st.fixed_dictionaries(
    {"name": st.text(max_size=12)},
    optional={
        "description": JSON,
        "parameters": JSON | st.fixed_dictionaries({"properties": JSON, "required": JSON}),
    },
)


@given(tools=st.lists(SHAPED | JSON, max_size=4), content=JSON)
def test_no_request_is_too_odd(tools: list[Any], content: Any) -> None:
    found = features_of({"messages": [{"role": "user", "content": content}], "tools": tools})
    assert all(json.dumps(value) != "NaN" for value in found)
    assert 0 <= found.missing <= 3
