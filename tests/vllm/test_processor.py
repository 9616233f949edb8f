"""The logits processor against vLLM's own loaders, interfaces and batch."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM lives in an environment of its own", exc_type=ImportError)

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import (
    _load_custom_logitsprocs,
    validate_logits_processors_parameters,
)
from vllm.v1.worker.gpu.sample.logits_processor import (
    build_custom_logits_processors_params_validator,
)

from calibrators import processor
from calibrators.processor import MAX_SPACE, ToolEntryBias
from tests.vllm.engines import PROCESSOR, SLOTS, VOCABULARY, Request, V1Engine, V2Engine

ENTRY, OTHER_ENTRY, END, END_TAIL, BLANK, OTHER_BLANK, WORD = 3, 4, 5, 6, 7, 8, 9

Engine = V1Engine | V2Engine
ENGINES: dict[str, Callable[[random.Random], Engine]] = {
    "v1": V1Engine,
    "v1 async": lambda rng: V1Engine(rng, asynchronous=True),
    "v2": V2Engine,
    "v2 with drafts": lambda rng: V2Engine(rng, drafts=3),
}
each_engine = pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES.keys())


def arguments(**more: Any) -> dict[str, Any]:
    keys = {f"seam_{key}": value for key, value in more.items()}
    return {"seam_bias": -2.5, "seam_entry": [ENTRY], **keys}


def run(engine: Engine, *requests: Request) -> None:
    """Serve requests to their end; the engine checks each row of each step."""
    for request in requests:
        engine.admit(request)
    while engine.running:
        engine.step()


# Where the bias acts; the engine compares every row with the definition in `acts` -------------


@each_engine
@pytest.mark.parametrize("scope", ["decision", "everywhere"])
@pytest.mark.parametrize("space", [[], [BLANK]], ids=["bare", "space"])
@pytest.mark.parametrize("after", [[], [END], [END, END_TAIL]], ids=["", "end", "long-end"])
@pytest.mark.parametrize("tail", [[], [END], [END, END_TAIL], [END, END_TAIL, BLANK]])
def test_the_bias_acts_where_the_definition_says(
    make: Any, scope: str, space: list[int], after: list[int], tail: list[int]
) -> None:
    script = [BLANK, ENTRY, WORD, END, END_TAIL, BLANK, BLANK, ENTRY, END, ENTRY, WORD, BLANK]
    asked = arguments(scope=scope, space=space, after=after)
    run(make(random.Random(0)), Request("a", [WORD, END, WORD, *tail], script, asked))


@each_engine
def test_the_decision_stays_open_over_whitespace_up_to_a_limit(make: Any) -> None:
    script = [BLANK] * (MAX_SPACE + 3)
    run(make(random.Random(0)), Request("a", [WORD], script, arguments(space=[BLANK])))
    thought = [WORD, END, *script]
    run(
        make(random.Random(0)),
        Request("a", [WORD], thought, arguments(space=[BLANK], after=[END])),
    )


@each_engine
def test_reasoning_that_an_earlier_reply_closed_opens_nothing(make: Any) -> None:
    prompt = [END, BLANK, WORD, BLANK]
    for scope in ("decision", "everywhere"):
        asked = arguments(scope=scope, after=[END], space=[BLANK])
        run(make(random.Random(0)), Request("a", prompt, [WORD, WORD, END, ENTRY], asked))


@each_engine
def test_a_chunk_of_a_prompt_that_ends_on_an_older_end_opens_nothing(make: Any) -> None:
    for scope in ("decision", "everywhere"):
        asked = arguments(scope=scope, after=[END])
        run(make(random.Random(0)), Request("a", [WORD, END, WORD, WORD], [WORD] * 4, asked, unfilled=2))


@each_engine
@pytest.mark.parametrize("blanks", [MAX_SPACE, MAX_SPACE + 1])
def test_whitespace_at_the_end_of_the_prompt_counts_too(make: Any, blanks: int) -> None:
    for scope in ("decision", "everywhere"):
        asked = arguments(scope=scope, after=[END], space=[BLANK])
        run(make(random.Random(0)), Request("a", [END, *[BLANK] * blanks], [WORD] * 3, asked))


@each_engine
def test_an_end_may_begin_in_the_prompt(make: Any) -> None:
    for scope in ("decision", "everywhere"):
        asked = arguments(scope=scope, after=[END, END_TAIL])
        run(make(random.Random(0)), Request("a", [WORD, END], [END_TAIL, ENTRY, WORD], asked))


@each_engine
def test_a_long_reply_with_bias_everywhere_stays_biased_beside_one_that_reasons(make: Any) -> None:
    long = Request("long", [WORD], [WORD] * 90, arguments(scope="everywhere"))
    late = Request("late", [WORD], [WORD] * 90, arguments(scope="everywhere", after=[END]))
    late.script[2] = END
    engine = make(random.Random(0))
    engine.admit(long)
    for _ in range(70):
        engine.step()
    run(engine, late)


def test_a_rejected_draft_closes_no_reasoning() -> None:
    engine = V2Engine(random.Random(0), drafts=3, wrong=[END])
    for scope in ("decision", "everywhere"):
        run(engine, Request("a", [WORD], [WORD] * 30, arguments(scope=scope, after=[END])))


@each_engine
def test_every_entry_token_gets_the_bias_once_and_unknown_ids_are_left_out(make: Any) -> None:
    asked = arguments(entry=[ENTRY, OTHER_ENTRY, ENTRY, VOCABULARY, 2**31 - 1])
    run(make(random.Random(0)), Request("a", [WORD], [ENTRY, WORD], asked))


@each_engine
def test_a_masked_token_stays_masked(make: Any) -> None:
    engine = make(random.Random(0))
    engine.admit(Request("a", [WORD], [WORD], arguments(bias=100)))
    logits = torch.zeros(1, VOCABULARY)
    logits[0, ENTRY] = -torch.inf
    if isinstance(engine, V1Engine):
        engine.batch.refresh_metadata()
        got = engine.processor.apply(logits.clone())
    else:
        engine.processor.apply_staged_writes()
        context = engine._context(list(engine.running.values()), {"a": []})
        got = engine.processor.apply(logits.clone(), context)
    assert torch.equal(got, logits)


@each_engine
def test_a_slot_forgets_its_last_request(make: Any) -> None:
    engine = make(random.Random(0))
    for turn in range(3 * SLOTS):
        asked = arguments(scope="everywhere", after=[END]) if turn % 2 else {}
        run(engine, Request("a", [WORD], [END, WORD] if turn % 4 else [WORD, WORD], asked))
        run(
            engine,
            Request("plain", [WORD], [WORD, WORD], {}),
            Request("biased", [WORD], [WORD, WORD], arguments()),
        )


# Random lives of many requests ----------------------------------------------------------------

_TOKENS = st.sampled_from([ENTRY, END, END_TAIL, BLANK, OTHER_BLANK, WORD])
_ARGUMENTS = st.one_of(
    st.just({}),
    st.just({"another_plugin": 1}),
    st.builds(
        arguments,
        bias=st.sampled_from([-3.0, 1.5, 0]),
        entry=st.sampled_from([[ENTRY], [ENTRY, OTHER_ENTRY], [VOCABULARY + 5]]),
        scope=st.sampled_from(["decision", "everywhere"]),
        after=st.sampled_from([[], [END], [END, END_TAIL], [END, BLANK]]),
        space=st.sampled_from([[], [BLANK], [BLANK, OTHER_BLANK]]),
    ),
)
_REQUESTS = st.lists(
    st.tuples(
        st.lists(_TOKENS, min_size=1, max_size=12),
        st.lists(_TOKENS, min_size=1, max_size=12),
        _ARGUMENTS,
    ),
    min_size=1,
    max_size=12,
)


@each_engine
@settings(max_examples=60, deadline=None)
@given(requests=_REQUESTS, seed=st.integers(0, 2**16))
def test_requests_that_come_go_move_and_are_preempted_keep_their_own_bias(
    make: Any, requests: list[tuple[list[int], list[int], dict[str, Any]]], seed: int
) -> None:
    rng = random.Random(seed)
    engine = make(rng)
    waiting = [Request(str(n), *request) for n, request in enumerate(requests)]
    while waiting or engine.running:
        while waiting and len(engine.running) < SLOTS and rng.random() < 0.7:
            request = waiting.pop()
            # Partial prefill: some steps feed a chunk only.
            fed = len(request.prompt) + len(request.output)
            request.unfilled = rng.randrange(fed) if rng.random() < 0.4 else 0
            engine.admit(request)
        if engine.running:
            engine.step()
        for name in list(engine.running):
            chance = rng.random()
            if chance < 0.1:  # preempted: comes back with its tokens
                waiting.insert(0, engine.drop(name))
            elif chance < 0.13:  # its client has gone
                engine.drop(name)


# What vLLM's front end sees -------------------------------------------------------------------


def refusal(given: dict[str, Any] | None) -> str | None:
    """Return the text that the request is refused with, the same under both runners."""
    params = SamplingParams(extra_args=given)
    validators: list[Callable[[], None]] = [
        lambda: validate_logits_processors_parameters([PROCESSOR], params),
        lambda: build_custom_logits_processors_params_validator([PROCESSOR])(params),
    ]
    first, second = map(_error, validators)
    assert first == second
    return first


def _error(validate: Callable[[], None]) -> str | None:
    try:
        validate()
    except VLLMValidationError as error:
        return str(error)
    return None


def test_both_loaders_take_the_class() -> None:
    assert _load_custom_logitsprocs([PROCESSOR]) == [ToolEntryBias]
    assert isinstance(V2Engine(random.Random(0)).processor, ToolEntryBias)


def test_v1_runs_it_for_greedy_requests_too() -> None:
    assert not ToolEntryBias(None, torch.device("cpu"), False).is_argmax_invariant()


@pytest.mark.parametrize(
    ("runner", "validator"),
    [
        ("v1", partial(validate_logits_processors_parameters, [PROCESSOR])),
        ("v2", build_custom_logits_processors_params_validator([PROCESSOR])),
    ],
)
def test_the_handshake_tells_name_version_interfaces_and_which_runner_asks(
    runner: str, validator: Callable[[SamplingParams], None]
) -> None:
    with pytest.raises(VLLMValidationError, match="seam-processor") as told:
        validator(SamplingParams(extra_args={"seam_hello": 1}))
    name, about = str(told.value).split(" ", 1)
    assert name == "seam-processor"
    assert json.loads(about) == {
        "name": "seam-processor",
        "version": processor.VERSION,
        "interfaces": ["v1", "v2"],
        "runner": runner,
    }


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"another_plugin": "x"},
        arguments(),
        arguments(bias=0),
        arguments(bias=7, scope="everywhere", after=list(range(16)), space=[BLANK]),
        arguments(entry=list(range(128))),
        arguments(entry=[2**31 - 1]),
    ],
)
def test_good_values_are_let_through(given: dict[str, Any] | None) -> None:
    assert refusal(given) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (arguments(bias="2"), "vllm_xargs.seam_bias must be a number from -100 to 100, not '2'"),
        (arguments(bias=101), "vllm_xargs.seam_bias must be a number from -100 to 100, not 101"),
        (
            arguments(bias=float("nan")),
            "vllm_xargs.seam_bias must be a number from -100 to 100, not nan",
        ),
        ({"seam_entry": [1]}, "vllm_xargs.seam_bias must be a number from -100 to 100, not None"),
        ({"seam_bias": 1}, "vllm_xargs.seam_entry must be a list of 1 to 128 token ids, not []"),
        (
            arguments(entry=[1.5]),
            "vllm_xargs.seam_entry must be a list of 1 to 128 token ids, not [1.5]",
        ),
        (
            arguments(entry=[-1]),
            "vllm_xargs.seam_entry must be a list of 1 to 128 token ids, not [-1]",
        ),
        (
            arguments(entry=[2**31]),
            "vllm_xargs.seam_entry must be a list of 1 to 128 token ids, not [2147483648]",
        ),
        (
            arguments(entry="15"),
            "vllm_xargs.seam_entry must be a list of 1 to 128 token ids, not '15'",
        ),
        (
            arguments(after=[1] * 17),
            "vllm_xargs.seam_after must be a list of 0 to 16 token ids, not " + repr([1] * 17),
        ),
        (
            arguments(scope="all"),
            "vllm_xargs.seam_scope must be 'decision' or 'everywhere', not 'all'",
        ),
        (arguments(space=[ENTRY]), "vllm_xargs.seam_space holds 3, which is in seam_entry"),
        (arguments(bais=1), "vllm_xargs.seam_bais is unknown to seam-processor 1.0"),
    ],
)
def test_bad_values_are_refused_with_what_is_wrong(given: dict[str, Any], text: str) -> None:
    assert refusal(given) == text


def test_a_long_bad_value_is_shown_in_part() -> None:
    text = refusal(arguments(entry=list(range(1000))))
    assert text is not None
    assert text.endswith("...")
    assert len(text) < 200


def test_the_file_loads_alone_where_vllm_has_one_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is mounted by itself into servers, older ones among them."""
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.sample.logits_processor", None)
    spec = importlib.util.spec_from_file_location("alone", processor.__file__)
    assert spec is not None
    assert spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "alone", alone)
    spec.loader.exec_module(alone)
    assert alone.INTERFACES == ["v1"]
    assert alone.ToolEntryBias(None, torch.device("cpu"), False)
