"""The six ways of picking a calibration, and what a client sees of the one it picked."""

from pathlib import Path
from typing import Any

import pytest

from tests.seam import TOOLS, Seam, seam
from tests.upstream import CHAT, DONE, Reply, Upstream, chunk, compact, said, streamed

PROFILES = [
    {"name": name, "entry": {"tokens": [7]}, "bias": {"value": value, "apply": "logit_bias"}}
    for name, value in (("strict", -1.5), ("eager", 2.0), ("mild", 0.5))
]
MODELS = {"models": {"m": {"profile": "mild", "aliases": ["gpt-x"]}, "plain": {}}}


async def test_each_way_picks_its_profile(tmp_path: Path) -> None:
    ways: list[tuple[str, dict[str, Any]]] = [
        ("strict", {"calibration": "strict"}),
        ("strict", {"calibration": {"profile": "strict"}}),
        ("strict", {"headers": {"X-Calibration": "strict"}}),
        ("strict", {"to": f"/p/strict{CHAT}"}),
        ("strict", {"model": "m@strict"}),
        ("mild", {}),
        ("mild", {"model": "gpt-x"}),
        ("off", {"model": "plain"}),
        ("inline", {"calibration": {"bias": -3, "apply": "logit_bias"}}),
        ("inline", {"calibration": {"profile": "eager", "bias": -3}}),
    ]
    async with (
        Upstream([said("Hello.")], repeat_last=True, lists=["m", "plain"]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        for label, way in ways:
            answer = await proxy.chat(**{"tools": TOOLS, **way})
            assert answer.status == 200
            assert answer.header("x-calibration") == label, way


async def test_the_first_way_that_applies_wins(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")], repeat_last=True, lists=["m"]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        ways: list[dict[str, Any]] = [
            {"calibration": "strict"},
            {"headers": {"X-Calibration": "eager"}},
            {"to": f"/p/strict{CHAT}"},
            {"model": "m@eager"},
        ]
        for at, expected in enumerate(["strict", "eager", "strict", "eager"]):
            together: dict[str, Any] = {}
            for way in ways[at:]:
                together |= way
            assert (await proxy.chat(**together)).header("x-calibration") == expected


async def test_off_is_a_way_of_picking_too(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")], repeat_last=True, lists=["m"]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        ways: list[dict[str, Any]] = [
            {"calibration": "off"},
            {"headers": {"X-Calibration": "off"}},
            {"to": f"/p/off{CHAT}"},
            {"model": "m@off"},
        ]
        for way in ways:
            answer = await proxy.chat(**{"tools": TOOLS, **way})
            assert answer.header("x-calibration") == "off", way
            assert "logit_bias" not in upstream.requests[-1].json
        assert (await proxy.chat()).header("x-calibration") == "mild"
        await proxy.records(1)  # only the one that did not say off


async def test_what_is_meant_for_the_proxy_does_not_reach_the_server(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")], repeat_last=True, lists=["m"]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        told = {"X-Calibration": "strict", "X-Case-Id": "arm-a/7", "X-Case-Marks": "miss_param"}
        await proxy.chat(
            headers=told, to=f"/p/eager{CHAT}?a=1", model="m@eager", calibration={"explain": False}
        )
        request = upstream.requests[-1]
        assert request.target == f"{CHAT}?a=1"
        assert request.json["model"] == "m"
        assert "calibration" not in request.json
        assert request.header("x-calibration") is None
        assert request.header("x-case-id") is None
        assert request.header("x-case-marks") is None
        assert (await proxy.records(1))[0]["case_id"] == "arm-a/7"


@pytest.mark.parametrize(
    "way",
    [
        {"calibration": "stric"},
        {"calibration": {"profile": "stric"}},
        {"headers": {"X-Calibration": "stric"}},
        {"to": f"/p/stric{CHAT}"},
        {"model": "m@stric"},
    ],
)
async def test_an_unknown_name_is_refused_with_the_valid_ones(tmp_path: Path, way: dict[str, Any]) -> None:
    async with (
        Upstream([], lists=["m"]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        answer = await proxy.chat(**way)
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
        assert "'stric'" in answer.error["message"]
        assert "eager, mild, strict, off" in answer.error["message"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"bais": 1}, "bais: no such key; nearest: bias"),
        ({"bias": 101}, "less than or equal to 100"),
        ({"bias": "a lot"}, "valid number"),
        ({"scope": "nowhere"}, "'decision' or 'everywhere'"),
        ({"apply": "magic"}, "apply"),
        (7, "a profile's name or an object"),
        (["strict"], "a profile's name or an object"),
    ],
)
async def test_a_bad_object_is_refused_with_what_is_wrong(tmp_path: Path, value: Any, words: str) -> None:
    async with Upstream([]) as upstream, seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy:
        answer = await proxy.chat(calibration=value)
        assert answer.status == 400
        assert words in answer.error["message"]
        assert answer.error["param"] == "calibration"


async def test_an_operator_may_forbid_objects_and_leave_names(tmp_path: Path) -> None:
    config = {**MODELS, "selection": {"inline": False}}
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, config, PROFILES) as proxy,
    ):
        refused = await proxy.chat(calibration={"bias": 1})
        assert refused.status == 400
        assert "by name only" in refused.error["message"]
        assert (await proxy.chat(calibration="strict")).header("x-calibration") == "strict"


async def test_an_operator_may_lock_the_default(tmp_path: Path) -> None:
    config = {**MODELS, "selection": {"locked": True}}
    async with (
        Upstream([said("Hello.")], lists=["m"]) as upstream,
        seam(tmp_path, upstream.url, config, PROFILES) as proxy,
    ):
        ways: list[dict[str, Any]] = [
            {"calibration": "off"},
            {"calibration": {"bias": 1}},
            {"headers": {"X-Calibration": "strict"}},
            {"to": f"/p/strict{CHAT}"},
            {"model": "m@strict"},
        ]
        for way in ways:
            answer = await proxy.chat(**way)
            assert answer.status == 400, way
            assert "locked" in answer.error["message"]
        assert (await proxy.chat()).header("x-calibration") == "mild"


async def test_nothing_in_the_prompt_picks_a_calibration(tmp_path: Path) -> None:
    message = {
        "role": "user",
        "content": "X-Calibration: eager. /p/eager/ calibration=eager",
        "name": "eager",
    }
    async with Upstream([said("Hello.")]) as upstream, seam(tmp_path, upstream.url, {}, PROFILES) as proxy:
        assert (await proxy.chat(messages=[message], tools=TOOLS)).header("x-calibration") == "off"
        assert "logit_bias" not in upstream.requests[0].json


# Names -----------------------------------------------------------------------------------------


async def ask_as(proxy: Seam, model: str, **fields: Any) -> Any:
    return await proxy.chat(model=model, **fields)


@pytest.mark.parametrize("name", ["gpt-x", "m@strict", "gpt-x@strict"])
async def test_reply_chunks_and_errors_show_the_name_that_the_client_sent(tmp_path: Path, name: str) -> None:
    wrong = {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}}
    script = [said("Hello."), streamed("Hel", "lo."), Reply(404, body=compact(wrong))]
    async with (
        Upstream(script, lists=["m"]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        whole = await proxy.chat(model=name)
        assert whole.body == said("Hello.").body.replace(b'"model":"m"', b'"model":"%s"' % name.encode())
        stream = await proxy.chat(model=name, stream=True)
        assert {event["model"] for event in stream.events} == {name}
        assert stream.text == "Hello."
        error = await proxy.chat(model=name)
        assert error.status == 404
        assert error.json["error"]["message"] == f"The model `{name}` does not exist."
        assert {request.json["model"] for request in upstream.requests} == {"m"}


@pytest.mark.parametrize("name", ["org/m@strict", "listed@eager"])
async def test_a_name_that_is_a_models_own_has_no_suffix(tmp_path: Path, name: str) -> None:
    config: dict[str, Any] = {"models": {"listed@eager": {}}}
    async with (
        Upstream([said("Hello.")], lists=["org/m@strict"]) as upstream,
        seam(tmp_path, upstream.url, config, PROFILES) as proxy,
    ):
        answer = await proxy.chat(model=name)
        assert answer.header("x-calibration") == "off"
        assert answer.body == upstream.last_body
        assert upstream.requests[0].json["model"] == name


async def test_a_name_without_suffix_costs_no_listing(tmp_path: Path) -> None:
    async with Upstream([said("Hello.")], lists=["m"]) as upstream, seam(tmp_path, upstream.url) as proxy:
        await proxy.chat(model="anything")
        assert upstream.listings == 0


async def test_half_a_surrogate_pair_in_a_models_name_is_passed_on(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")], lists=["m"]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        body = rb'{"model":"\ud800@strict","messages":[]}'
        assert (await proxy.ask(CHAT, method="POST", body=body)).status == 200
        assert upstream.requests[0].body == rb'{"model":"\ud800","messages":[]}'


async def test_events_that_are_no_json_reach_a_client_that_sees_its_own_name(tmp_path: Path) -> None:
    odd = Reply(
        writes=(chunk(content="Hel"), b"data: thinking...\n\n", chunk(content="lo."), chunk("stop"), DONE)
    )
    async with (
        Upstream([odd]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        answer = await proxy.chat(model="gpt-x", stream=True)
        assert answer.body == upstream.last_body.replace(b'"model":"m"', b'"model":"gpt-x"')
        assert (await proxy.records(1))[0]["action"] is None


# What happened ---------------------------------------------------------------------------------


async def test_an_explanation_comes_in_the_body(tmp_path: Path) -> None:
    async with (
        Upstream([said("I can't do that.")]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        answer = await proxy.chat(calibration={"profile": "strict", "explain": True}, tools=TOOLS)
        told = answer.json["calibration"]
        assert answer.body == upstream.last_body[:-1] + b',"calibration":' + compact(told) + b"}"
        assert (told["profile"], told["action"], told["bias"], told["queries"]) == (
            "strict",
            "refuse",
            -1.5,
            1,
        )
        assert told["applied"] == answer.header("x-calibration-applied") == "bias=-1.5/logit_bias"
        assert told["added_ms"] >= 0


async def test_an_explanation_is_the_last_chunk_of_a_stream(tmp_path: Path) -> None:
    async with (
        Upstream([streamed("Which ", "one?")]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        answer = await proxy.chat(calibration={"profile": "strict", "explain": True}, stream=True)
        *events, last = answer.events
        assert answer.data[-1] == "[DONE]"
        assert last["choices"][0]["finish_reason"] == "stop"
        assert last["id"] == "c1"
        told = last["calibration"]
        assert told["action"] == "ask"
        assert told["applied"] == "none; reason=no tools offered"
        assert told["skipped"] == {"bias": "no tools offered"}
        without = answer.body.replace(b',"calibration":' + compact(told), b"")
        assert without == upstream.last_body
        assert all("calibration" not in event for event in events)


async def test_an_explanation_may_be_asked_of_the_default(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        told = (await proxy.chat(calibration={"explain": True}, tools=TOOLS)).json["calibration"]
        assert (told["profile"], told["bias"]) == ("mild", 0.5)


async def test_an_inline_bias_takes_the_rest_from_its_profile(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        answer = await proxy.chat(calibration={"profile": "strict", "bias": -4}, tools=TOOLS)
        assert upstream.requests[0].json["logit_bias"] == {"7": -4}
        assert answer.header("x-calibration-applied") == "bias=-4/logit_bias"


async def test_a_bias_acts_to_the_last_digit_that_was_asked_for(tmp_path: Path) -> None:
    async with (
        Upstream([said("Hello.")]) as upstream,
        seam(tmp_path, upstream.url, MODELS, PROFILES) as proxy,
    ):
        await proxy.chat(calibration={"profile": "strict", "bias": -1.23456789}, tools=TOOLS)
        assert set(upstream.requests[0].json["logit_bias"].values()) == {-1.23456789}
