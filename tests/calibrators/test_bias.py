import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.bias import Bias, Idle, biased
from calibrators.body import Body
from calibrators.entry import Entry
from calibrators.skip import Skip
from tests.calibrators.playing import TOOLS, play, request, said

ENTRY = Entry((7, 9), "<tool_call>", "everywhere")
LOGIT_BIAS = Bias(2.0, ENTRY, "logit_bias", "everywhere")

logits = st.lists(st.floats(-20, 20), min_size=2, max_size=12)
biases = st.floats(-30, 30)


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    return [weight / math.fsum(weights) for weight in weights]


@given(logits, biases, st.floats(0.1, 3), st.data())
def test_the_biased_probability_is_the_softmax_written_out(
    values: list[float], b: float, temperature: float, data: st.DataObject
) -> None:
    entry = data.draw(st.integers(1, len(values) - 1))  # the first so many tokens open a call
    moved = [value + b if at < entry else value for at, value in enumerate(values)]
    before = math.fsum(softmax([value / temperature for value in values])[:entry])
    after = math.fsum(softmax([value / temperature for value in moved])[:entry])
    if before < 1 - 1e-7:  # nearer to 1 a float no longer says well how far from it the rest is
        assert biased(before, b, temperature) == pytest.approx(after, rel=1e-6, abs=1e-9)


@given(st.floats(1e-300, 1, exclude_max=True), biases)
def test_the_bias_moves_the_log_odds_by_itself(p: float, b: float) -> None:
    moved = biased(p, b)
    assert 0.0 <= moved <= 1.0
    if 1e-9 < p < 1 - 1e-9 and 1e-9 < moved < 1 - 1e-9:
        assert math.log(moved / (1 - moved)) - math.log(p / (1 - p)) == pytest.approx(b, abs=1e-5)


@given(st.floats(0, 1), st.floats(-100, 100), st.floats(-100, 100))
def test_more_bias_never_means_fewer_calls(p: float, b: float, c: float) -> None:
    low, high = sorted((b, c))
    assert biased(p, low) <= biased(p, high)


@pytest.mark.parametrize(("p", "b"), [(0.0, 50.0), (1.0, -50.0)])
def test_what_is_certain_stays_certain(p: float, b: float) -> None:
    assert biased(p, b) == p


def test_the_processor_is_told_in_the_servers_extra_arguments() -> None:
    played = play(request(), [Bias(-1.5, ENTRY, "processor")], said())
    assert played.sent()["vllm_xargs"] == {"seam_bias": -1.5, "seam_entry": [7, 9]}
    assert "logit_bias" not in played.sent()
    assert played.report.header() == "bias=-1.5/processor"


def test_the_processor_is_told_the_scope_and_where_reasoning_ends() -> None:
    entry = Entry((7,), after=(4,), space=(5, 6))
    sent = play(request(), [Bias(1, entry, "processor", "everywhere")], said()).sent()["vllm_xargs"]
    assert sent == {
        "seam_bias": 1,
        "seam_entry": [7],
        "seam_scope": "everywhere",
        "seam_after": [4],
        "seam_space": [5, 6],
    }


def test_the_clients_own_extra_arguments_stay() -> None:
    played = play(request(vllm_xargs={"top_a": 0.1}), [Bias(-1, ENTRY, "processor")], said())
    assert played.sent()["vllm_xargs"] == {"top_a": 0.1, "seam_bias": -1, "seam_entry": [7, 9]}


@pytest.mark.parametrize(
    ("own", "sent"),
    [
        (None, {"7": 2.0, "9": 2.0}),
        ({"1500": -5}, {"1500": -5, "7": 2.0, "9": 2.0}),
        ({"7": -1.5}, {"7": 0.5, "9": 2.0}),
        ({"7": 99}, {"7": 100, "9": 2.0}),
        ({"7": -100}, {"7": -100, "9": 2.0}),
        ({"7": -100, "9": -100}, {"7": -100, "9": -100}),
    ],
)
def test_logit_bias_adds_to_the_clients_and_never_lifts_a_ban(own: Any, sent: dict[str, float]) -> None:
    asked = request() if own is None else request(logit_bias=own)
    assert play(asked, [LOGIT_BIAS], said()).sent()["logit_bias"] == sent


def test_a_clients_numbers_stay_as_they_were_written() -> None:
    asked = Body.parse('{"tools":[1],"logit_bias": {"1500": -5.10},"seed":9007199254740993}')
    sent = play(asked, [LOGIT_BIAS], said()).queries[0].body.render()
    assert sent == '{"tools":[1],"logit_bias": {"1500": -5.10,"7":2.0,"9":2.0},"seed":9007199254740993}'


@pytest.mark.parametrize("own", [[1], "x", 5, {"7": "much"}])
def test_a_field_that_can_not_be_added_to_is_left_to_the_server(own: Any) -> None:
    played = play(request(logit_bias=own), [LOGIT_BIAS], said())
    assert played.sent()["logit_bias"] == own
    assert played.report.skipped["bias"].code == "bad_field"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"tools": None}, "no_tools"),
        ({"tools": []}, "no_tools"),
        ({"tool_choice": "none"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "ship"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
        ({"guided_json": {}}, "structured_outputs"),
        ({"continue_final_message": True}, "continues_message"),
        ({"use_beam_search": True}, "beam_search"),
    ],
)
def test_a_request_without_a_decision_goes_on_as_it_came(fields: dict[str, Any], code: str) -> None:
    asked = request(**fields)
    played = play(asked, [LOGIT_BIAS], said())
    assert played.queries[0].body is asked
    assert played.report.skipped["bias"].code == code
    assert played.report.header().startswith("none; reason=")


@pytest.mark.parametrize("fields", [{"tool_choice": "auto"}, {"response_format": {"type": "text"}}, {"n": 3}])
def test_a_request_that_leaves_the_decision_open_is_biased(fields: dict[str, Any]) -> None:
    assert "logit_bias" in play(request(**fields), [LOGIT_BIAS], said()).sent()


def test_legacy_functions_are_tools_too() -> None:
    asked = Body.parse('{"functions":[{"name":"ship"}]}')
    assert "logit_bias" in play(asked, [LOGIT_BIAS], said()).sent()


def test_a_bias_that_can_not_be_given_says_why() -> None:
    played = play(request(tools=TOOLS), [Idle(Skip("zero_bias", "the bias is 0"))], said())
    assert played.report.header() == "none; reason=the bias is 0"
