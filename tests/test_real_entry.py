"""Entry tokens of the served model, found and verified on a real vLLM server."""

from dataclasses import replace

import httpx
import pytest

from calibrators.openers import Answer, Ask, Found, answered, by_parser, find, settled, verified

pytestmark = pytest.mark.server


class Client:
    """Answers what a generator asks, by the server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, ask: Ask) -> Answer:
        answer: Answer = httpx.post(self.url + ask.path, json=ask.body, timeout=300).json()
        return answer


@pytest.fixture(scope="module")
def client(vllm_url: str) -> Client:
    return Client(vllm_url)


@pytest.fixture(scope="module")
def model(vllm_url: str) -> str:
    name: str = httpx.get(vllm_url + "/v1/models").json()["data"][0]["id"]
    return name


@pytest.fixture(scope="module")
def found(client: Client, model: str) -> Found:
    return answered(find(model), client)


def test_the_served_model_s_opener_is_its_own_token_and_verified(client: Client, model: str) -> None:
    entry = answered(settled(model), client)
    assert (entry.tokens, entry.text, entry.scope) == ((15,), "<tool_call>", "everywhere")
    assert (entry.source, entry.verified, entry.after) == ("differencing", True, ())


def test_an_id_that_opens_no_call_fails(client: Client, model: str, found: Found) -> None:
    wrong = replace(found.entry, tokens=(400,))
    entry = answered(verified(model, found._replace(entry=wrong)), client)
    assert entry.verified is False
    assert "not in E" in entry.note


def test_an_opener_that_the_server_s_parser_does_not_know_fails(
    client: Client, model: str, found: Found
) -> None:
    # 44 is "<", which the grammar may begin this call with.
    wrong = Found(replace(found.entry, tokens=(44,)), found.call.replace("tool_call", "function_call"))
    entry = answered(verified(model, wrong), client)
    assert entry.verified is False
    assert "does not take it for a call" in entry.note


def test_a_parser_s_entry_is_verified_by_our_processor_where_no_whole_call_is_known(
    client: Client, model: str
) -> None:
    found = answered(by_parser(model, "hermes"), client)
    assert (found.entry.tokens, found.call) == ((15,), "")
    entry = answered(verified(model, found, processor=True), client)
    # The model is weak: a push that makes no whole call leaves it open, and never refutes.
    assert entry.verified in (True, None)
    assert entry.verified or "no call in 3 pushed replies" in entry.note
