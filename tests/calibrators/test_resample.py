import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from calibrators.body import Body
from calibrators.entry import Entry
from calibrators.flow import Query, QueryFailed, Report, Role, calibrated
from calibrators.margin import Position
from calibrators.reply import Reply
from calibrators.resample import DRAWS, Resample, Sampling, entering, first_logprobs
from tests.calibrators.playing import Played, play, refused, request, said

CALL, TEXT, OTHER = 7, 1, 2
PLAIN = Sampling(1.0)
GREEDY = Sampling(0.0)


# The entry probability -------------------------------------------------------------------------


def softmax(values: Sequence[float]) -> list[float]:
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    return [weight / math.fsum(weights) for weight in weights]


def truth(logprobs: Sequence[float], entry: frozenset[int], b: float, sampling: Sampling) -> float:
    """P(E) as vLLM draws: bias, temperature, top_k, top_p, each over what the one before left."""
    moved = [
        (nats + (b if token in entry else 0)) / sampling.temperature for token, nats in enumerate(logprobs)
    ]
    ranked = sorted(enumerate(softmax(moved)), key=lambda item: -item[1])
    if sampling.top_k > 0:
        ranked = ranked[: sampling.top_k]
    total = math.fsum(p for _, p in ranked)
    kept, reached = [], 0.0
    for token, p in ranked:
        if reached >= sampling.top_p * total:
            break
        kept.append((token, p))
        reached += p
    return math.fsum(p for token, p in kept if token in entry) / math.fsum(p for _, p in kept)


def listed(logprobs: Sequence[float], count: int, drawn: int) -> Position:
    """What a server shows of a position: the drawn token and then the likeliest, `count` in all."""
    ranked = sorted(range(len(logprobs)), key=lambda token: -logprobs[token])
    shown = [drawn, *(token for token in ranked if token != drawn)][:count]
    floor = min((logprobs[token] for token in shown if token != drawn), default=0.0)
    return Position({token: logprobs[token] for token in shown}, drawn, floor)


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[list[float], frozenset[int]]:
    """Raw log-probabilities of a small vocabulary without ties, and E: some of its tokens, never all."""
    logits = draw(
        st.lists(st.floats(-8, 8), min_size=2, max_size=10, unique_by=lambda logit: round(logit, 3))
    )
    entry = draw(st.sets(st.integers(0, len(logits) - 1), min_size=1, max_size=len(logits) - 1))
    return [math.log(p) for p in softmax(logits)], frozenset(entry)


samplings = st.builds(
    Sampling,
    st.sampled_from([0.3, 0.7, 1.0, 1.0, 1.3]),
    st.sampled_from([1.0, 1.0, 0.95, 0.6, 0.2]),
    st.sampled_from([0, 0, -1, 1, 2, 3, 5, 20]),
)
biases = st.floats(-8, 0)


@given(vocabularies(), biases, samplings, st.data())
def test_a_wholly_listed_vocabulary_gives_the_entry_probability_under_the_requests_sampling(
    vocabulary: tuple[list[float], frozenset[int]], b: float, sampling: Sampling, data: st.DataObject
) -> None:
    logprobs, entry = vocabulary
    drawn = data.draw(st.sampled_from(sorted(entry)))
    odds = entering(listed(logprobs, len(logprobs), drawn), entry, b, sampling)
    assume(stable(logprobs, entry, b, sampling))
    assert odds.before == pytest.approx(truth(logprobs, entry, 0.0, sampling), abs=1e-4)
    assert odds.after == pytest.approx(truth(logprobs, entry, b, sampling), abs=1e-4)


def stable(logprobs: Sequence[float], entry: frozenset[int], b: float, sampling: Sampling) -> bool:
    """Whether no rounding decides which tokens truncation keeps."""
    near = [sampling._replace(top_p=min(1.0, sampling.top_p * factor)) for factor in (1 - 1e-6, 1 + 1e-6)]
    for bias in (0.0, b):
        one, two = (truth(logprobs, entry, bias, s) for s in near)
        moved = sorted(nats + (bias if token in entry else 0) for token, nats in enumerate(logprobs))
        ties = any(high - low < 1e-9 for low, high in itertools.pairwise(moved))
        if abs(one - two) > 1e-4 or ties:
            return False
    return True


@given(vocabularies(), biases, samplings, st.integers(1, 10), st.data())
def test_a_partial_list_is_never_called_exact_where_it_is_not(
    vocabulary: tuple[list[float], frozenset[int]],
    b: float,
    sampling: Sampling,
    count: int,
    data: st.DataObject,
) -> None:
    logprobs, entry = vocabulary
    support = [t for t in entry if truth(logprobs, frozenset([t]), 0.0, sampling) > 0]
    assume(support)  # a token that was drawn is one that truncation keeps
    odds = entering(listed(logprobs, count, data.draw(st.sampled_from(support))), entry, b, sampling)
    assert 0.0 <= odds.before <= 1.0 + 1e-9
    assert 0.0 <= odds.after <= 1.0 + 1e-9
    if odds.exact:
        assert odds.before == pytest.approx(truth(logprobs, entry, 0.0, sampling), abs=1e-5)
        assert odds.after == pytest.approx(truth(logprobs, entry, b, sampling), abs=1e-5)


def shown(**probabilities: float) -> Position:
    """A list of tokens `tN=p`, the entry (t7) drawn."""
    logs: dict[int | str, float] = {int(name[1:]): math.log(p) for name, p in probabilities.items()}
    return Position(logs, CALL, min(logs[token] for token in logs if token != CALL))


E = frozenset([CALL])


@pytest.mark.parametrize(
    ("position", "sampling", "exact"),
    [
        (shown(t7=0.4, t1=0.3, t2=0.1), PLAIN, True),
        (shown(t7=0.4, t1=0.3, t2=0.1), Sampling(1.0, 1.0, 2), True),
        (shown(t7=0.4, t1=0.3, t2=0.1), Sampling(0.7, 1.0, 2), True),
        (shown(t7=0.4, t1=0.3, t2=0.1), Sampling(1.0, 0.6), True),
        (shown(t7=0.4, t1=0.3, t2=0.1), Sampling(0.7), False),  # the tail's weight is unknown
        (shown(t7=0.4, t1=0.3, t2=0.1), Sampling(1.3), False),
        (shown(t7=0.4, t1=0.3, t2=0.1), Sampling(1.0, 1.0, 50), False),  # some of the tail is cut off
        (shown(t7=0.4, t1=0.3, t2=0.1), Sampling(1.0, 0.95), False),
        (shown(t7=0.4, t1=0.3, t2=0.29999), Sampling(1.0, 0.7), False),  # rounding may decide
    ],
)
def test_exact_is_what_the_list_covers(position: Position, sampling: Sampling, exact: bool) -> None:
    assert entering(position, E, -0.1, sampling).exact is exact


def test_an_entry_that_is_not_wholly_listed_is_no_exact_one() -> None:
    assert not entering(shown(t7=0.4, t1=0.3), E | {8}, -1.0, PLAIN).exact


def test_a_tail_too_light_to_matter_is_exact_at_low_temperatures() -> None:
    assert entering(shown(t7=0.6, t1=0.3999, t2=1e-5), E, -1.0, Sampling(0.5)).exact


def test_a_bias_that_lifts_unlisted_tokens_into_top_k_is_not_exact() -> None:
    # With the entry pushed down, the third likeliest is a token that nobody showed.
    assert not entering(shown(t7=0.5, t1=0.3, t2=0.1), E, -5.0, Sampling(1.0, 1.0, 3)).exact


def test_a_certain_call_is_not_called_exact_where_rounding_is_all_that_is_left() -> None:
    certain = Position({CALL: 0.0, TEXT: -17.0}, CALL, -17.0)
    assert not entering(certain, E, -20.0, PLAIN).exact


@given(st.floats(0, 20), st.floats(-20, 0))
def test_greedy_enters_iff_gap_and_bias_are_above_zero(gap: float, b: float) -> None:
    position = Position({CALL: -0.1, TEXT: -0.1 - gap, OTHER: -30.0}, CALL, -30.0)
    odds = entering(position, E, b, GREEDY)
    assert odds.exact
    assert odds.after == float(-0.1 - (-0.1 - gap) + b > 0)


def test_greedy_without_another_token_in_the_list_is_exact_only_where_its_floor_decides() -> None:
    both = Position({CALL: -0.5, 8: -4.0}, CALL, -4.0)
    assert entering(both, E | {8}, -3.0, GREEDY) == (1.0, 1.0, True)
    assert not entering(both, E | {8}, -4.0, GREEDY).exact


@given(
    st.dictionaries(st.integers(0, 9) | st.just("{"), st.floats(-9999, 0), min_size=1, max_size=5),
    st.floats(-100, 0),
    st.builds(Sampling, st.floats(0, 5), st.floats(0, 1, exclude_min=True), st.integers(-1, 30)),
)
def test_odd_numbers_never_raise(logprobs: dict[int | str, float], b: float, sampling: Sampling) -> None:
    drawn, *rest = logprobs
    position = Position(logprobs, drawn, min((logprobs[token] for token in rest), default=0.0))
    odds = entering(position, frozenset([drawn]), b, sampling)
    assert 0.0 <= odds.before <= 1.0 + 1e-9
    assert 0.0 <= odds.after <= 1.0 + 1e-9


# The flow --------------------------------------------------------------------------------------


class Server:
    """A simulated server: draws its first token by the request's seed, and obeys bans."""

    def __init__(self, probabilities: dict[int, float], seed: int) -> None:
        self.probabilities = probabilities
        self.draws = random.Random(seed)

    def answer(self, query: Query) -> Reply:
        fields = Body.parse(query.body.render()).fields
        banned = {int(token) for token, bias in (fields.get("logit_bias") or {}).items() if bias <= -100}
        weights = {t: 0.0 if t in banned else p for t, p in self.probabilities.items()}
        seed = fields.get("seed")
        draws = self.draws if seed is None else random.Random(seed)
        if fields.get("temperature") == 0:
            return opened_with(max(weights, key=lambda t: weights[t]), self.probabilities)
        return opened_with(draws.choices(list(weights), list(weights.values()))[0], self.probabilities)


def opened_with(drawn: int, probabilities: dict[int, float], **shown: Any) -> Reply:
    """A reply whose first token is `drawn`, with the raw log-probabilities of that position."""
    logs = {token: math.log(p) for token, p in probabilities.items()}
    ranked = sorted(logs, key=lambda token: -logs[token])
    alternatives = [{"token": f"token_id:{token}", "logprob": logs[token]} for token in ranked]
    first = {"token": f"token_id:{drawn}", "logprob": logs[drawn], "top_logprobs": alternatives, **shown}
    reply = said()
    reply.choices.clear()
    reply.add({"choices": [{"index": 0, "message": {"content": "x"}, "logprobs": {"content": [first]}}]})
    return reply


def run(asked: Body, resample: Resample, answer: Callable[[Query], Reply]) -> Played:
    """Run the flow with a function as the server."""
    report = Report()
    flow = calibrated(Query(asked, asked.fields), [resample], report)
    queries = [next(flow)]
    while True:
        try:
            queries.append(flow.send(answer(queries[-1])))
        except StopIteration as stop:
            return Played(stop.value, queries, report)


def entered(reply: Reply) -> bool:
    return bool(reply.first.logprobs[0]["token"] == f"token_id:{CALL}")


MIXED = {CALL: 0.6, TEXT: 0.3, OTHER: 0.1}
ENTRY = Entry((CALL,), "<tool_call>")
HALVES = Resample(-1.5, ENTRY, PLAIN)


class Always(random.Random):
    """Draws the one number that keeps no reply, or every one."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value


REDRAWS = Resample(-1.5, ENTRY, PLAIN, Always(1.0))
KEEPS = Resample(-1.5, ENTRY, PLAIN, Always(0.0))


@pytest.mark.parametrize("b", [-0.5, -1.5, -4.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_share_of_calls_is_the_biased_probability(b: float, temperature: float) -> None:
    # At temperature T a server draws by p^(1/T); its raw log-probabilities stay those of temperature 1.
    weights = {token: p ** (1 / temperature) for token, p in MIXED.items()}
    tempered = {token: weight / math.fsum(weights.values()) for token, weight in weights.items()}
    server = Server(tempered, seed=1)
    resample = Resample(b, ENTRY, PLAIN, random.Random(2))

    def answer(query: Query) -> Reply:
        drawn = server.answer(query).first.logprobs[0]["token"]
        return opened_with(int(drawn.removeprefix("token_id:")), MIXED)

    draws = 1500
    asked = request(temperature=temperature)
    calls = sum(entered(run(asked, resample, answer).served) for _ in range(draws))
    q = truth([math.log(p) for p in MIXED.values()], frozenset([0]), b, Sampling(temperature))
    assert abs(calls / draws - q) < 4 * math.sqrt(q * (1 - q) / draws)


def test_replies_that_open_no_call_keep_their_proportions() -> None:
    server = Server(MIXED, seed=3)
    resample = Resample(-2.0, ENTRY, PLAIN, random.Random(4))
    served = [run(request(), resample, server.answer).served for _ in range(1500)]
    texts = [reply.first.logprobs[0]["token"] for reply in served if not entered(reply)]
    share = texts.count(f"token_id:{TEXT}") / len(texts)
    assert abs(share - 0.75) < 4 * math.sqrt(0.75 * 0.25 / len(texts))


def test_a_reply_that_opens_no_call_is_served_as_it_came() -> None:
    reply = opened_with(TEXT, MIXED)
    played = play(request(), [REDRAWS], reply)
    assert played.served is reply
    assert played.queries[0].body.render() == request().render()
    assert played.report.header() == "bias=-1.5/resample"


def test_a_call_that_the_bias_leaves_is_served_as_it_came() -> None:
    reply = opened_with(CALL, MIXED)
    played = play(request(), [KEEPS], reply)
    assert played.served is reply
    assert played.report.header() == "bias=-1.5/resample"


def test_a_call_that_the_bias_prevents_is_drawn_again_until_the_reply_opens_none() -> None:
    replies = [opened_with(token, MIXED) for token in (CALL, CALL, CALL, TEXT)]
    played = play(request(), [REDRAWS], *replies)
    assert played.served is replies[-1]
    assert [query.role for query in played.queries] == [Role.FIRST, *[Role.RESAMPLE] * 3]
    assert all("logit_bias" not in played.sent(number) for number in range(4))
    assert played.report.header() == "bias=-1.5/resample"


def test_after_three_draws_the_entry_is_banned_and_that_is_called_approximate() -> None:
    replies = [opened_with(CALL, MIXED) for _ in range(1 + DRAWS)] + [opened_with(TEXT, MIXED)]
    played = play(request(), [REDRAWS], *replies)
    assert DRAWS == 3
    assert played.served is replies[-1]
    assert played.sent(4)["logit_bias"] == {"7": -100}
    assert played.report.header() == "bias=-1.5/resample approximate"


def test_each_draw_takes_the_next_seed() -> None:
    replies = [opened_with(CALL, MIXED) for _ in range(1 + DRAWS)] + [opened_with(TEXT, MIXED)]
    played = play(request(seed=41), [REDRAWS], *replies)
    assert [played.sent(number)["seed"] for number in range(5)] == [41, 42, 43, 44, 41]
    unseeded = play(request(), [REDRAWS], opened_with(CALL, MIXED), opened_with(TEXT, MIXED))
    assert "seed" not in unseeded.sent(1)


def test_a_seeded_request_gets_no_call_that_its_seed_would_only_repeat() -> None:
    server = Server({CALL: 0.5, TEXT: 0.5}, seed=0)
    for seed in range(40):
        assert not entered(run(request(seed=seed), REDRAWS, server.answer).served)


@pytest.mark.parametrize(("b", "queries"), [(-0.69, 1), (-0.70, 2)])
def test_greedy_flips_at_the_gap_with_one_ban(b: float, queries: int) -> None:
    server = Server({CALL: 0.6, TEXT: 0.3, OTHER: 0.1}, seed=0)  # the gap is log 2
    played = run(request(temperature=0), Resample(b, ENTRY, PLAIN), server.answer)
    assert len(played.queries) == queries
    assert entered(played.served) is (queries == 1)
    if queries == 2:
        assert played.sent(1)["logit_bias"] == {"7": -100}
        assert played.report.header().endswith("approximate")  # later calls are forbidden too


def test_the_clients_own_logit_bias_stays_and_makes_the_rate_an_estimate() -> None:
    replies = [opened_with(CALL, MIXED), opened_with(TEXT, MIXED)]
    greedy = Resample(-5.0, ENTRY, GREEDY)
    played = play(request(logit_bias={"9": 2, "7": 1}), [greedy], *replies)
    assert played.sent(0)["logit_bias"] == {"9": 2, "7": 1}
    assert played.sent(1)["logit_bias"] == {"9": 2, "7": -100}
    kept = play(request(logit_bias={"9": 2}), [KEEPS], opened_with(CALL, MIXED))
    assert kept.report.header() == "bias=-1.5/resample approximate"


def test_a_list_that_does_not_cover_the_support_is_called_approximate() -> None:
    partial = {CALL: 0.4, TEXT: 0.3}
    asked = request(temperature=0.7)
    played = play(asked, [KEEPS], opened_with(CALL, partial))
    assert played.report.header() == "bias=-1.5/resample approximate"


def test_white_space_before_a_decision_that_was_not_looked_at_is_called_approximate() -> None:
    spaced = Resample(-1.5, Entry((CALL,), space=(TEXT,)), PLAIN)
    played = play(request(), [spaced], opened_with(TEXT, MIXED))
    assert played.report.header() == "bias=-1.5/resample approximate"


def test_the_servers_sampling_defaults_hold_where_a_request_does_not_say() -> None:
    replies = [opened_with(CALL, MIXED), opened_with(TEXT, MIXED)]
    flips = play(request(), [Resample(-5.0, ENTRY, GREEDY)], *replies)  # greedy by default
    assert flips.served is replies[1]
    stays = play(request(temperature=1), [Resample(-5.0, ENTRY, GREEDY, Always(0.0))], replies[0])
    assert stays.served is replies[0]


@pytest.mark.parametrize(
    ("resample", "fields", "reason"),
    [
        (Resample(0.5, ENTRY, PLAIN), {}, "no bias above 0"),
        (HALVES, {"n": 2}, "n > 1"),
        (HALVES, {"frequency_penalty": 0.1}, "frequency_penalty"),
        (HALVES, {"presence_penalty": -0.1}, "presence_penalty"),
        (HALVES, {"repetition_penalty": 1.1}, "repetition_penalty"),
        (HALVES, {"min_p": 0.05}, "min_p"),
        (HALVES, {"tool_choice": "required"}, "tool_choice is required"),
        (HALVES, {"tools": []}, "no tools offered"),
        (Resample(-1.5, ENTRY), {}, "needs to know temperature"),
        (Resample(-1.5, ENTRY), {"temperature": 1, "top_p": 1}, "needs to know top_k"),
        (Resample(-1.5, Entry((CALL,), after=(4,)), PLAIN), {}, "after reasoning"),
    ],
)
def test_what_can_not_be_drawn_again_is_left_alone_with_the_reason(
    resample: Resample, fields: dict[str, Any], reason: str
) -> None:
    asked = request(**fields)
    played = play(asked, [resample], opened_with(CALL, MIXED))
    assert played.queries[0].body is asked
    assert played.report.header().startswith("none; reason=")
    assert reason in played.report.header()


@pytest.mark.parametrize("fields", [{"min_p": 0}, {"presence_penalty": None}, {"repetition_penalty": 1.0}])
def test_neutral_fields_are_no_hindrance(fields: dict[str, Any]) -> None:
    played = play(request(**fields), [KEEPS], opened_with(CALL, MIXED))
    assert played.report.header() == "bias=-1.5/resample"


def test_a_request_that_says_all_of_its_sampling_needs_no_defaults() -> None:
    asked = request(temperature=1, top_p=1, top_k=0)
    played = play(asked, [Resample(-1.5, ENTRY, None, Always(0.0))], opened_with(CALL, MIXED))
    assert played.report.header() == "bias=-1.5/resample"


def test_thinking_that_a_request_switches_off_leaves_the_decision_at_the_first_token() -> None:
    entry = Entry((CALL,), after=(4,), without=frozenset(["off"]))
    resample = Resample(-1.5, entry, PLAIN, Always(0.0))
    asked = request(chat_template_kwargs={"enable_thinking": False})
    assert play(asked, [resample], opened_with(CALL, MIXED)).report.header() == "bias=-1.5/resample"


def test_a_server_that_shows_no_log_probabilities_says_so() -> None:
    reply = said()
    played = play(request(), [REDRAWS], reply)
    assert played.served is reply
    assert played.report.header() == "none; reason=the reply shows no log-probabilities to resample by"


def test_an_error_is_served_as_it_is() -> None:
    error = refused(status=500)
    played = play(request(), [REDRAWS], error)
    assert played.served is error
    assert played.report.applied == {}


def test_a_draw_that_is_refused_serves_the_first_reply_and_says_so() -> None:
    first = opened_with(CALL, MIXED)
    played = play(request(), [REDRAWS], first, refused(status=500))
    assert played.served is first
    assert played.report.header() == "none; reason=drawing again failed: status 500"


def test_a_draw_that_gets_no_answer_serves_the_first_reply_and_says_so() -> None:
    asked, report, first = request(), Report(), opened_with(CALL, MIXED)
    flow = calibrated(Query(asked, asked.fields), [REDRAWS], report)
    next(flow)
    flow.send(first)
    with pytest.raises(StopIteration) as stopped:
        flow.throw(QueryFailed("timed out"))
    assert stopped.value.value is first
    assert report.header() == "none; reason=drawing again failed: timed out"


def test_a_stream_is_held_until_the_first_tokens_log_probabilities_have_come() -> None:
    reply = Reply(200)
    reply.add({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    assert not first_logprobs(reply)
    shown = {"content": [{"token": "It", "logprob": -0.5, "top_logprobs": []}]}
    reply.add({"choices": [{"index": 0, "delta": {"content": "It"}, "logprobs": shown}]})
    assert first_logprobs(reply)
    flow = calibrated(Query(request(), request().fields), [REDRAWS], Report())
    assert next(flow).settled is first_logprobs
