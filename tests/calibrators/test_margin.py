import json
import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.entry import Entry
from calibrators.margin import UNREAD, How, Reading, margin_of, margin_query, position_of, read_margin
from calibrators.reply import Choice
from tests.calibrators.playing import play, request, said

E = Entry((7,), "<tool_call>")


def shown_as(token: int | str) -> str:
    return f"token_id:{token}" if isinstance(token, int) else token


def position(drawn: int | str, logprob: float, *listed: tuple[int | str, float]) -> dict[str, Any]:
    """One position as vLLM shows it."""
    alternatives = [{"token": shown_as(token), "logprob": nats} for token, nats in listed]
    return {"token": shown_as(drawn), "logprob": logprob, "top_logprobs": alternatives}


def choice(*positions: dict[str, Any], **message: Any) -> Choice:
    one = Choice(logprobs=list(positions))
    one.add({"content": "x", **message})
    return one


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def logsumexp(values: Iterable[float]) -> float:
    values = list(values)
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[list[float], frozenset[int]]:
    """Raw log-probabilities of a small vocabulary, and E: some of its tokens, never all."""
    logits = draw(st.lists(st.floats(-12, 12), min_size=2, max_size=9))
    entry = draw(st.sets(st.integers(0, len(logits) - 1), min_size=1, max_size=len(logits) - 1))
    normal = logsumexp(logits)
    return [logit - normal for logit in logits], frozenset(entry)


def top(logprobs: list[float], count: int, drawn: int) -> dict[str, Any]:
    """The list that vLLM gives: the drawn token, then the likeliest, `count` in all."""
    ranked = sorted(range(len(logprobs)), key=lambda token: -logprobs[token])
    listed = [drawn, *(token for token in ranked if token != drawn)][:count]
    return position(drawn, logprobs[drawn], *((token, logprobs[token]) for token in listed))


# Definitions -----------------------------------------------------------------------------------


@given(vocabularies(), st.data())
def test_probability_margin_and_gap_are_the_softmax_written_out(
    vocabulary: tuple[list[float], frozenset[int]], data: st.DataObject
) -> None:
    logprobs, entry = vocabulary
    inside = [logprobs[token] for token in entry]
    others = [nats for token, nats in enumerate(logprobs) if token not in entry]
    drawn = data.draw(st.integers(0, len(logprobs) - 1))
    read = read_margin(choice(top(logprobs, len(logprobs), drawn)), Entry(tuple(entry)))
    assert read.bound is None
    assert read.probability == pytest.approx(math.fsum(map(math.exp, inside)), abs=1e-7)
    assert read.margin is not None
    true = logsumexp(inside) - logsumexp(others)
    assert read.margin == pytest.approx(true, abs=1e-4) or (read.margin > 16.6 and true > 16.6)
    assert read.gap == pytest.approx(max(inside) - max(others))


@given(vocabularies(), st.integers(1, 9), st.data())
def test_a_list_that_lacks_a_token_of_the_entry_gives_no_number_but_a_bound(
    vocabulary: tuple[list[float], frozenset[int]], count: int, data: st.DataObject
) -> None:
    logprobs, entry = vocabulary
    drawn = data.draw(st.integers(0, len(logprobs) - 1))
    shown = top(logprobs, count, drawn)
    listed = {item["token"] for item in shown["top_logprobs"]} | {shown["token"]}
    true = math.fsum(math.exp(logprobs[token]) for token in entry)
    read = read_margin(choice(shown), Entry(tuple(entry)))
    if {shown_as(token) for token in entry} <= listed:
        assert read.probability == pytest.approx(true, abs=1e-7)
    else:
        assert (read.probability, read.margin, read.gap) == (None, None, None)
        assert read.bound is not None
        assert true - 1e-9 <= read.bound <= 1.0


def test_a_drawn_token_that_is_rare_is_no_measure_of_what_the_list_leaves_out() -> None:
    # vLLM puts the drawn token first, and cuts the likeliest after it to the length that was asked for.
    likely, unlisted, rare = logs(0.6, 0.25, 0.0001)
    read = read_margin(choice(position(1, rare, (1, rare), (2, likely))), Entry((3,)))
    assert read.bound is not None
    assert read.bound >= math.exp(unlisted)


@given(vocabularies(), st.data(), st.booleans())
def test_the_gap_of_a_sampled_reply_is_never_taken_from_the_sampled_token_alone(
    vocabulary: tuple[list[float], frozenset[int]], data: st.DataObject, by_id: bool
) -> None:
    logprobs, entry = vocabulary
    drawn = data.draw(st.integers(0, len(logprobs) - 1))
    count = data.draw(st.integers(1, len(logprobs)))
    ids = [drawn, *(token for token in entry if token != drawn)]
    by_ids = position(drawn, logprobs[drawn], *((token, logprobs[token]) for token in ids))
    shown = by_ids if by_id else top(logprobs, count, drawn)
    read = read_margin(choice(shown), Entry(tuple(entry)), sampled=True)
    best = max(nats for token, nats in enumerate(logprobs) if token not in entry)
    if read.gap is not None:
        assert read.gap == pytest.approx(max(logprobs[token] for token in entry) - best)


@given(st.floats(-9999, 0), st.none() | st.floats(-50, 50))
def test_every_margin_fits_into_json(log_p: float, gap: float | None) -> None:
    read = margin_of(log_p, gap)
    assert json.loads(json.dumps(read, allow_nan=False)) == list(read)
    assert read.probability == pytest.approx(math.exp(log_p), abs=1e-7)


# Shapes ----------------------------------------------------------------------------------------


def test_ids_that_were_asked_for_show_the_entry_beside_another_drawn_token() -> None:
    call, text = logs(0.3, 0.5)
    read = read_margin(choice(position(11, text, (11, text), (7, call))), E)
    assert read.probability == pytest.approx(0.3)
    assert read.margin == pytest.approx(math.log(0.3 / 0.7))
    assert read.gap == pytest.approx(call - text)


def test_ids_that_were_asked_for_show_no_gap_where_the_reply_opens_a_call() -> None:
    (call,) = logs(0.3)
    read = read_margin(choice(position(7, call, (7, call))), E)
    assert read.probability == pytest.approx(0.3)
    assert read.gap is None


def test_an_entry_of_several_tokens_is_their_sum() -> None:
    one, two, other = logs(0.2, 0.1, 0.4)
    read = read_margin(choice(position(1, other, (1, other), (7, one), (9, two))), Entry((7, 9)))
    assert read.probability == pytest.approx(0.3)
    assert read.gap == pytest.approx(math.log(0.2 / 0.4))


def test_an_impossible_entry_reads_as_zero() -> None:
    read = read_margin(choice(position(1, -0.5, (1, -0.5), (7, -9999.0))), E)
    assert (read.probability, read.margin) == (0.0, -9999.0)
    assert read_margin(choice(position(1, -0.5, (1, -0.5), (7, -math.inf))), E) == read


def test_a_call_that_rounding_has_made_certain_keeps_a_finite_margin() -> None:
    read = read_margin(choice(position(7, 0.0, (7, 0.0), (1, -17.0))), E)
    assert read.probability == pytest.approx(1.0)
    assert read.margin == pytest.approx(16.6, abs=0.1)
    assert read.gap == 17.0


def test_a_server_that_shows_texts_is_read_by_the_openers_text() -> None:
    call, text = logs(0.3, 0.5)
    shown = position("It", text, ("It", text), ("<tool_call>", call))
    assert read_margin(choice(shown), E).probability == pytest.approx(0.3)


@pytest.mark.parametrize("entry", [Entry((7,)), Entry((7,), "{", shared=True)], ids=["no text", "shared"])
def test_a_server_that_shows_texts_is_not_read_where_they_do_not_tell_the_entry(entry: Entry) -> None:
    call, text = logs(0.3, 0.5)
    assert read_margin(choice(position("It", text, ("It", text), ("{", call))), entry) == UNREAD


def test_white_space_that_keeps_the_decision_open_is_read_past() -> None:
    space = position(5, -0.1, (5, -0.1), (7, -9.0))
    decision = position(1, math.log(0.5), (1, math.log(0.5)), (7, math.log(0.3)))
    entry = Entry((7,), space=(5, 6))
    assert read_margin(choice(space, decision), entry).probability == pytest.approx(0.3)
    assert read_margin(choice(space), entry) == UNREAD
    assert read_margin(choice(space, decision), E).probability == pytest.approx(math.exp(-9))


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_a_reply_that_began_with_reasoning_is_not_read(field: str) -> None:
    shown = position(1, -0.5, (1, -0.5), (7, -1.0))
    assert read_margin(choice(shown, **{field: "Let me see."}), E) == UNREAD


def test_a_reply_without_log_probabilities_is_not_read() -> None:
    assert read_margin(choice(), E) == UNREAD
    assert read_margin(Choice(), E) == UNREAD


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
tokens = json_values | st.sampled_from(["token_id:7", "token_id:²", "token_id:" + "9" * 5000, "<tool_call>"])
items = st.fixed_dictionaries({}, optional={"token": tokens, "logprob": json_values | st.floats(-20, 5)})
positions = st.builds(
    lambda item, listed: {**item, "top_logprobs": listed}, items, st.lists(items | json_values) | json_values
)


@given(st.lists(positions, max_size=3), st.booleans())
def test_malformed_log_probabilities_read_as_nothing_and_never_raise(
    shown: list[dict[str, Any]], sampled: bool
) -> None:
    read = read_margin(choice(*shown), Entry((7,), "<tool_call>", space=(5,)), sampled=sampled)
    json.dumps(read, allow_nan=False)
    assert read.bound is None or 0 <= read.bound <= 1


@pytest.mark.parametrize("logprob", [None, "x", True, math.nan, 1.0, math.inf, [], {}])
def test_what_is_no_log_probability_shows_nothing(logprob: Any) -> None:
    assert position_of({"token": "token_id:7", "logprob": logprob}) is None


# Queries ---------------------------------------------------------------------------------------


def test_the_query_for_a_margin_makes_one_token_with_the_entry_banned_and_shown() -> None:
    asked = request(stream=True, stream_options={"include_usage": True}, n=4, seed=1, max_completion_tokens=9)
    sent = json.loads(margin_query(asked, Entry((7, 9))).render())
    assert sent == {
        **request().fields,
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "logprob_token_ids": [7, 9],
        "return_tokens_as_token_ids": True,
        "logit_bias": {"7": -100, "9": -100},
    }


@pytest.mark.parametrize(
    ("how", "own", "added"),
    [
        ("ids", {}, {"logprobs": True, "return_tokens_as_token_ids": True, "logprob_token_ids": [7]}),
        ("top_logprobs", {}, {"logprobs": True, "return_tokens_as_token_ids": True, "top_logprobs": 20}),
        ("top_logprobs", {"logprobs": False}, {"logprobs": True, "top_logprobs": 20}),
        # A client's own list goes on, longer: ids would replace it.
        ("ids", {"logprobs": True}, {"top_logprobs": 20}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 3}, {"top_logprobs": 20}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 25}, {}),
    ],
)
def test_a_reading_adds_the_fields_that_show_the_margin(
    how: How, own: dict[str, Any], added: dict[str, Any]
) -> None:
    sent = play(request(**own), [Reading(E, how)], said()).sent()
    ids = {"return_tokens_as_token_ids": True} if not own.get("logprobs") else {}
    assert sent == {**request(**own).fields, **added, **ids}


def test_a_request_without_a_decision_is_not_read() -> None:
    asked = request(tool_choice="none")
    assert play(asked, [Reading(E, "ids")], said()).queries[0].body is asked
