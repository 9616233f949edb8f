"""Probing an upstream for entry tokens, with what profiles tell it to fall back to."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from calibrators.bias import Idle
from calibrators.openers import Ask, Hint
from proxy.config import Config
from proxy.config import Upstream as Settings
from proxy.headers import Headers
from proxy.plan import is_stale, plan
from proxy.probe import hints_of, probe
from proxy.profiles import BiasSetting, Profile
from proxy.upstream import Facts, Upstream
from tests.tokenizers.served import Served
from tests.tokenizers.tiny import serving

CALL = {"function": {"name": "get_weather", "arguments": '{"place": "Oslo"}'}}


class Tiny(Upstream):
    """An upstream of one tiny model, without a connection."""

    def __init__(self, served: Served, finish: str = "tool_calls") -> None:
        super().__init__("tiny", Settings(url="http://127.0.0.1:1"))
        self.served = served
        self.finish = finish

    async def get_json(
        self, method: str, path: str, body: bytes = b"", headers: Headers | tuple[()] = ()
    ) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "m", "owned_by": "vllm"}]}
        if path == "/version":
            return 200, {"version": "0.32.0"}
        asked = json.loads(body)
        if path == "/v1/chat/completions":
            return 200, self._forced(asked)
        return 200, self.served(Ask(path, asked))

    def _forced(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        first = next(iter(asked.get("logit_bias", ())), "0")
        message = {"tool_calls": [CALL]}
        return {"choices": [{"finish_reason": self.finish, "message": message, "token_ids": [int(first)]}]}


def profile(**entry: Any) -> Profile:
    return Profile.model_validate({"name": "p", "bias": -1, "entry": entry})


async def probed(upstream: Upstream, *profiles: Profile) -> Facts:
    return await probe(upstream, hints_of(profiles))


async def test_what_the_server_shows_is_verified_by_one_forced_query() -> None:
    entry = (await probed(Tiny(serving()))).models["m"].entry
    assert entry is not None
    assert (entry.text, entry.verified) == ("<tool_call>", True)


async def test_an_entry_that_fails_its_forced_query_is_none() -> None:
    model = (await probed(Tiny(serving(), finish="stop"))).models["m"]
    assert model.entry is None
    assert "fails verification" in str(model.no_entry)


async def test_a_profile_s_parser_helps_where_the_template_drops_calls() -> None:
    named, unnamed = profile(parser="hermes"), profile()
    facts = await probed(Tiny(serving("(a call)")), named)
    assert facts.models["m"].entry is None
    entry = facts.models["m"].under(named.entry.hint).entry
    assert entry is not None
    assert (entry.source, entry.verified) == ("parser hermes", None)
    assert facts.models["m"].under(unnamed.entry.hint) is facts.models["m"]


async def test_a_profile_s_strings_are_tried_after_its_parser() -> None:
    named = profile(parser="openai", strings=["CALL:"])
    facts = await probed(Tiny(serving("(a call)")), named)
    entry = facts.models["m"].under(named.entry.hint).entry
    assert entry is not None
    assert entry.source == "profile"


async def test_staleness_is_told_by_the_entry_that_the_profile_uses() -> None:
    named = profile(parser="hermes")
    facts = await probed(Tiny(serving("(a call)")), named)
    entry = facts.models["m"].under(named.entry.hint).entry
    assert entry is not None
    assert not is_stale(named.model_copy(update={"fingerprint": entry.fingerprint}), facts.models["m"])
    assert is_stale(named.model_copy(update={"fingerprint": "other"}), facts.models["m"])


async def test_an_unverified_entry_is_not_biased_at_every_position() -> None:
    named = profile(parser="qwen3_coder").model_copy(
        update={"bias": BiasSetting(value=-1, apply="logit_bias")}
    )
    facts = await probed(Tiny(serving("(a call)")), named)
    config = Config(upstreams={"tiny": Settings(url="http://127.0.0.1:1")})
    (bias,) = [each for each in plan(named, "m", facts, config) if isinstance(each, Idle)]
    assert bias.reason.code == "unverified"


async def test_hints_are_for_the_models_of_their_profiles() -> None:
    other = Profile.model_validate({"name": "p", "model": "other", "entry": {"parser": "hermes"}})
    assert not (await probed(Tiny(serving()), other)).models["m"].hinted
    assert hints_of([other, profile()]) == {Hint("hermes"): {"other"}}


def test_an_unknown_parser_is_no_profile_and_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="nearest is 'hermes'"):
        profile(parser="hermess")
