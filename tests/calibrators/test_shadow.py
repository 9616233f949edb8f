import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.entry import Entry
from calibrators.margin import UNREAD, Margin
from calibrators.openers.asks import Ask, answered
from calibrators.shadow import By, can_shadow, shadow_margin
from tests.calibrators.playing import TOOLS

E = Entry((7,))
FIELDS: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Go on."}], "tools": TOOLS}
PROMPT = {"tokens": [11, 12, 13]}


def read(
    by: By, fields: Mapping[str, Any], *answers: Mapping[str, Any], entry: Entry = E
) -> tuple[Margin, list[Ask]]:
    """The margin from these answers, and what was asked for it."""
    asked: list[Ask] = []
    left = list(answers)

    def answer(ask: Ask) -> Mapping[str, Any]:
        asked.append(ask)
        return left.pop(0)

    margin = answered(shadow_margin(by, "m", fields, entry), answer)
    assert not left
    return margin, asked


def prompt_logprobs(*last: tuple[int, float]) -> Mapping[str, Any]:
    """What /v1/completions shows of the last prompt token."""
    shown = {
        str(token): {"logprob": nats, "rank": at, "decoded_token": "x"}
        for at, (token, nats) in enumerate(last, 1)
    }
    return {"choices": [{"text": "x", "prompt_logprobs": [None, {}, shown]}]}


def test_scoring_asks_for_the_entry_behind_the_prompt_and_reads_its_probability() -> None:
    margin, asked = read("scoring", FIELDS, PROMPT, {"data": [{"index": 0, "score": 0.25}]})
    assert asked == [
        Ask("/tokenize", {"model": "m", **FIELDS}),
        Ask(
            "/generative_scoring",
            {
                "model": "m",
                "query": [11, 12],
                "items": [[13]],
                "label_token_ids": [7],
                "apply_softmax": False,
            },
        ),
    ]
    assert margin.probability == pytest.approx(0.25)
    assert margin.margin == pytest.approx(math.log(0.25 / 0.75))
    assert margin.gap is None


def test_the_prompts_own_log_probabilities_show_the_gap_too() -> None:
    shown = prompt_logprobs((7, math.log(0.2)), (1, math.log(0.5)), (2, math.log(0.25)))
    margin, asked = read("prompt", FIELDS, PROMPT, shown)
    assert asked[1] == Ask(
        "/v1/completions",
        {
            "model": "m",
            "prompt": [11, 12, 13, 7],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 2,
        },
    )
    assert margin.probability == pytest.approx(0.2)
    assert margin.gap == pytest.approx(math.log(0.2 / 0.5))


def test_an_entry_that_is_the_likeliest_has_a_gap_to_the_second() -> None:
    shown = prompt_logprobs((7, math.log(0.6)), (1, math.log(0.3)))
    assert read("prompt", FIELDS, PROMPT, shown)[0].gap == pytest.approx(math.log(2))


def test_a_certain_entry_reads_as_a_finite_margin() -> None:
    scored, _ = read("scoring", FIELDS, PROMPT, {"data": [{"score": 1.0}]})
    shown, _ = read("prompt", FIELDS, PROMPT, prompt_logprobs((7, 0.0), (1, -9999.0)))
    assert scored.margin == shown.margin == pytest.approx(16.6, abs=0.1)


def test_the_prompt_is_the_one_that_the_request_makes() -> None:
    fields = {**FIELDS, "chat_template_kwargs": {"enable_thinking": False}, "temperature": 0, "stream": True}
    _, asked = read("scoring", fields, PROMPT, {})
    assert asked[0].body == {**FIELDS, "model": "m", "chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(("effort", "thinking"), [("none", False), ("high", True)])
def test_an_effort_reaches_the_prompt_as_chat_completions_put_it_there(effort: str, thinking: bool) -> None:
    _, asked = read("scoring", {**FIELDS, "reasoning_effort": effort}, PROMPT, {})
    made = {"reasoning_effort": effort, "enable_thinking": thinking}
    assert asked[0].body["chat_template_kwargs"] == made


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        ({**FIELDS, "tools": []}, E),
        ({**FIELDS, "tool_choice": "none"}, E),
        ({**FIELDS, "documents": [{"text": "x"}]}, E),
        ({**FIELDS, "functions": TOOLS, "tools": None}, E),
        (FIELDS, Entry((7, 9))),
        (FIELDS, Entry((7,), after=(4,))),
    ],
    ids=["no tools", "none", "documents", "functions", "several tokens", "after reasoning"],
)
@pytest.mark.parametrize("by", ["scoring", "prompt"])
def test_what_can_not_be_read_beside_the_reply_is_not_asked_for(
    by: By, fields: Mapping[str, Any], entry: Entry
) -> None:
    assert not can_shadow(fields, entry)
    assert read(by, fields, entry=entry) == (UNREAD, [])


def test_thinking_that_is_switched_off_leaves_the_first_position_to_read() -> None:
    entry = Entry((7,), after=(4,), without=frozenset(["off"]))
    fields = {**FIELDS, "chat_template_kwargs": {"enable_thinking": False}}
    assert read("scoring", fields, PROMPT, {"data": [{"score": 0.5}]}, entry=entry)[0].probability is not None


@pytest.mark.parametrize("answer", [{}, {"error": {"message": "no"}}, {"tokens": None}, {"tokens": ["a"]}])
@pytest.mark.parametrize("by", ["scoring", "prompt"])
def test_a_prompt_that_the_server_does_not_tokenize_is_not_read(by: By, answer: Mapping[str, Any]) -> None:
    assert read(by, FIELDS, answer)[0] == UNREAD


@pytest.mark.parametrize(
    "score", [None, "0.5", True, 0.0, -0.1, 1.5, math.nan], ids=lambda value: f"score {value}"
)
def test_a_score_that_is_no_probability_reads_as_nothing(score: Any) -> None:
    assert read("scoring", FIELDS, PROMPT, {"data": [{"score": score}]})[0] == UNREAD


@pytest.mark.parametrize(
    "last", [None, [], {}, {"1": {"logprob": -1.0}}, {"7": None}, {"7": {"logprob": "x"}}]
)
def test_prompt_log_probabilities_without_the_entry_read_as_nothing(last: Any) -> None:
    assert read("prompt", FIELDS, PROMPT, {"choices": [{"prompt_logprobs": [None, last]}]})[0] == UNREAD


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["data", "score", "choices", "prompt_logprobs", "7", "1", "logprob", "tokens"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(["scoring", "prompt"]), st.dictionaries(st.sampled_from(["data", "choices"]), json_values)
)
def test_malformed_answers_read_as_nothing_and_never_raise(by: By, answer: dict[str, Any]) -> None:
    margin, _ = read(by, FIELDS, PROMPT, answer)
    json.dumps(margin, allow_nan=False)
