"""Finding entry tokens, against tokenizers and templates of a few lines each."""

from collections.abc import Mapping
from typing import Any

import pytest

from calibrators.entry import Entry, NoEntry, mode_of
from calibrators.openers import Ask, Hint, answered, by_differencing, by_parser, by_strings, find, for_tools
from tests.tokenizers.served import Served
from tests.tokenizers.tiny import MARKERS, PROMPT, serving


def found(server: Served) -> Entry:
    return answered(by_differencing("m"), server).entry


def shown(server: Served, ids: tuple[int, ...]) -> list[str]:
    return [server.vocabulary.decode([token]) for token in ids]


class TestOpeners:
    def test_a_dedicated_opener_is_its_one_token_and_safe_everywhere(self) -> None:
        server = serving('<tool_call>{"name": "{{ name }}"}</tool_call>')
        entry = found(server)
        assert shown(server, entry.tokens) == ["<tool_call>"]
        assert (entry.text, entry.opener) == ("<tool_call>", '<tool_call>{"name": "')
        assert (entry.scope, entry.shared, entry.source) == ("everywhere", False, "differencing")

    def test_the_call_to_verify_with_is_the_template_s_own_without_the_end_of_the_message(self) -> None:
        server = serving("<tool_call>{{ name }}</tool_call>")
        assert answered(by_differencing("m"), server).call == "<tool_call>get_weather</tool_call>"

    def test_an_opener_of_ordinary_text_is_the_set_of_tokens_that_may_begin_it(self) -> None:
        server = serving('{"name": "{{ name }}"}', pieces=[*MARKERS, '{"', " {", "{\n", '"name'])
        entry = found(server)
        assert set(shown(server, entry.tokens)) == {"{", '{"', " {", "{\n"}
        assert (entry.scope, entry.shared) == ("decision", True)

    def test_a_marker_that_the_vocabulary_lacks_is_ordinary_text(self) -> None:
        server = serving(
            "<tool_call>{{ name }}", pieces=["<|im_start|>", "<|im_end|>", "<t", "tool", "tool_call"]
        )
        entry = found(server)
        assert set(shown(server, entry.tokens)) == {"<", "<t"}
        assert (entry.scope, entry.shared) == ("decision", True)

    def test_whitespace_before_the_marker_is_in_the_set_and_keeps_the_scope_to_the_decision(self) -> None:
        server = serving("{{ '\n\n' }}<tool_call>{{ name }}", pieces=[*MARKERS, "\n\n"])
        entry = found(server)
        assert shown(server, entry.tokens) == ["\n\n", "<tool_call>"]
        assert (entry.scope, entry.shared) == ("decision", False)
        assert not set(entry.tokens) & set(entry.space)

    def test_a_token_that_reaches_over_the_prompt_s_end_is_never_taken(self) -> None:
        # History writes "\n\n<tool_call>" as one newline token, which no prompt can be followed by.
        prompt = PROMPT.removesuffix("\n")
        server = serving(
            "{{ '\n\n' }}<tool_call>{{ name }}",
            "{{ '\n' }}{{ m.content }}",
            prompt=prompt,
            generation="{{ '\n' }}",
            pieces=[*MARKERS, "\n\n"],
        )
        assert shown(server, found(server).tokens) == ["\n", "<tool_call>"]

    def test_a_space_that_merges_with_the_first_word_of_every_reply_belongs_to_no_opener(self) -> None:
        server = serving(
            ' {"name": "{{ name }}"}',
            " {{ m.content }}",
            prompt="user: {{ messages[0].content }}\nassistant:",
            pieces=[*MARKERS, " The", " {", ' {"', " [", " I"],
        )
        assert set(shown(server, found(server).tokens)) == {"{", " {", ' {"'}

    def test_whitespace_alone_keeps_the_decision_open(self) -> None:
        server = serving(pieces=[*MARKERS, "\n\n", "  "])
        entry = found(server)
        assert {"\n", "\n\n", " ", "  "} <= set(shown(server, entry.space))

    def test_a_known_parser_s_other_marker_joins_the_set(self) -> None:
        server = serving('{"name": "{{ name }}"}', pieces=[*MARKERS, "<|python_tag|>"])
        entry = found(server)
        assert "<|python_tag|>" in shown(server, entry.tokens)
        assert entry.scope == "decision"

    def test_a_marker_that_is_known_to_stand_inside_calls_too_is_for_the_decision_alone(self) -> None:
        server = serving("]<]minimax[>[<tool_call>\n{{ name }}", pieces=[*MARKERS, "]<]minimax[>["])
        entry = found(server)
        assert (entry.text, entry.scope) == ("]<]minimax[>[", "decision")

    def test_a_name_that_merges_into_the_opener_makes_the_set_depend_on_the_tools(self) -> None:
        server = serving("[{{ name }}(place='Oslo')]", pieces=[*MARKERS, "[get", "[b"])
        entry = found(server)
        assert entry.named
        assert shown(server, entry.tokens) == ["["]
        offered = answered(for_tools("m", entry, ["get_time", "add", "buy"]), server)
        assert shown(server, offered) == ["[", "[get", "[b"]

    def test_an_empty_list_is_no_call(self) -> None:
        server = serving("[{{ name }}(place='Oslo')]", pieces=[*MARKERS, "[]"])
        assert "[]" not in shown(server, found(server).tokens)


class TestRefusals:
    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            ("(a call)", "drops calls"),
            ("", "drops calls"),
            ("{{ name }}(place='Oslo')", "the function's name"),
            ("<|im_end|>{{ name }}", "also ends a message"),
            ("{{ raise_exception('no tools here') }}", "no tools here"),
        ],
    )
    def test_a_template_that_shows_no_safe_opener_says_why(self, call: str, reason: str) -> None:
        with pytest.raises(NoEntry, match=reason):
            found(serving(call))

    def test_calls_chosen_in_a_message_s_header_have_no_token_set(self) -> None:
        server = serving(
            " to=functions.{{ name }}<|message|>",
            "<|channel|>final<|message|>{{ m.content }}",
            pieces=[*MARKERS, "<|channel|>", "<|message|>", " to"],
        )
        with pytest.raises(NoEntry, match="header"):
            found(server)

    def test_two_markers_where_each_is_a_token_are_no_such_header(self) -> None:
        server = serving(
            "<|CALL|>{{ name }}", "<|TEXT|>{{ m.content }}", pieces=[*MARKERS, "<|CALL|>", "<|TEXT|>"]
        )
        assert found(server).text == "<|CALL|>"

    def test_what_only_history_has_before_the_reply_is_no_decision(self) -> None:
        with pytest.raises(NoEntry, match="share 'Reply: '"):
            found(serving("Reply: <tool_call>{{ name }}", "Reply: {{ m.content }}"))

    def test_a_server_without_tokenize_is_named_as_one(self) -> None:
        with pytest.raises(NoEntry, match=r"/tokenize refused .*Not Found"):
            answered(by_differencing("m"), lambda ask: {"detail": "Not Found"})


class TestRetries:
    def test_a_template_that_writes_the_call_s_id_for_its_name(self) -> None:
        server = serving("<tool_call>{{ id }}")
        assert found(server).opener == "<tool_call>functions."

    def test_a_template_that_wants_the_final_message_continued(self) -> None:
        server = serving()

        def as_mistral_does(ask: Ask) -> Mapping[str, Any]:
            final = ask.body["messages"][-1]["role"] if "messages" in ask.body else "user"
            if final == "assistant" and not ask.body.get("continue_final_message"):
                return {"error": {"message": "Expected last role User or Tool"}}
            return server(ask)

        assert answered(by_differencing("m"), as_mistral_does).entry.text == "<tool_call>"

    def test_a_template_that_wants_a_result_behind_each_call(self) -> None:
        server = serving(
            "{% if messages | length < 3 %}{{ raise_exception('a call wants its result') }}{% endif %}"
            "<tool_call>{{ name }}"
        )
        assert found(server).text == "<tool_call>"


class TestReasoning:
    history = "{% if m.reasoning %}<think>\n{{ m.reasoning }}\n</think>\n\n{% endif %}"

    def thinking(self, generation: str) -> Served:
        return serving(
            self.history + "<tool_call>{{ name }}",
            self.history + "{{ m.content }}",
            generation=generation,
            pieces=[*MARKERS, "\n\n"],
        )

    def test_reasoning_that_the_prompt_opens(self) -> None:
        server = self.thinking("<think>\n")
        entry = found(server)
        assert (shown(server, entry.after), entry.thinking) == (["</think>"], "prompt")
        assert "\n\n" in shown(server, entry.space)

    def test_reasoning_that_the_model_opens_shows_in_a_prompt_that_closes_it(self) -> None:
        server = self.thinking("{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}")
        entry = found(server)
        assert (shown(server, entry.after), entry.thinking) == (["</think>"], "model")
        for switched in (None, True, False):
            assert entry.after_for({"chat_template_kwargs": {"enable_thinking": switched}}) == entry.after

    def test_reasoning_that_is_off_without_a_trace_is_not_waited_for(self) -> None:
        server = self.thinking("{% if enable_thinking is not false %}<think>\n{% endif %}")
        entry = found(server)
        assert entry.thinking == "prompt"
        assert entry.after_for({}) == entry.after
        assert entry.after_for({"chat_template_kwargs": {"enable_thinking": False}}) == ()
        assert entry.after_for({"reasoning_effort": "none"}) == ()

    def test_reasoning_that_history_alone_can_show_is_settled_by_the_model_s_first_token(self) -> None:
        server = self.thinking("")
        assert found(server).thinking == "never"
        start = server.vocabulary.encode("<think>")

        def replying(ask: Ask) -> Mapping[str, Any]:
            return {"choices": [{"token_ids": start}]} if "completions" in ask.path else server(ask)

        entry = answered(by_differencing("m"), replying).entry
        assert (entry.thinking, shown(server, entry.after)) == ("model", ["</think>"])

    def test_a_marker_that_only_the_prompt_shows_is_known_by_name(self) -> None:
        server = serving("<tool_call>{{ name }}", generation="<think>\n")
        entry = found(server)
        assert (entry.thinking, shown(server, entry.after)) == ("prompt", ["</think>"])

    @pytest.mark.parametrize(
        ("fields", "mode"),
        [
            ({}, "default"),
            ({"reasoning_effort": "high"}, "on"),
            ({"reasoning_effort": "none"}, "off"),
            ({"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}}, "on"),
            ({"chat_template_kwargs": {"enable_thinking": "yes"}}, "default"),
        ],
    )
    def test_a_request_switches_thinking_as_vllm_reads_it(self, fields: dict[str, Any], mode: str) -> None:
        assert mode_of(fields) == mode


class TestFallbacks:
    def test_a_parser_s_opener_is_tokenized_by_the_server(self) -> None:
        server = serving("(a call)")
        entry = answered(by_parser("m", "qwen3_coder"), server).entry
        assert (shown(server, entry.tokens), entry.scope) == (["<tool_call>"], "everywhere")
        assert entry.source == "parser qwen3_coder"

    def test_a_parser_s_entry_is_no_wider_than_the_data_allows(self) -> None:
        # GigaChat 3 opens calls with the token that also ends a message.
        server = serving("(a call)", pieces=[*MARKERS, "<|message_sep|>"])
        entry = answered(by_parser("m", "gigachat3"), server).entry
        assert (shown(server, entry.tokens), entry.scope) == (["<|message_sep|>"], "decision")

    def test_of_two_spellings_the_vocabulary_s_own_is_taken(self) -> None:
        server = serving("(a call)", pieces=[*MARKERS, "<|tool_call|>"])
        assert shown(server, answered(by_parser("m", "granite"), server).entry.tokens) == [
            "<|tool_call|>",
            "<tool_call>",
        ]
        other = serving("(a call)", pieces=["<|im_end|>", "<|tool_call|>"])
        assert shown(other, answered(by_parser("m", "granite"), other).entry.tokens) == ["<|tool_call|>"]

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("openai", "header"),
            ("kimi_k3", "header"),
            ("hf", "entry.strings"),
            ("jamba", "no token of this model"),
            ("hermess", "nearest is 'hermes'"),
        ],
    )
    def test_a_parser_that_gives_no_safe_set_says_why(self, name: str, reason: str) -> None:
        with pytest.raises(NoEntry, match=reason):
            answered(by_parser("m", name), serving())

    def test_strings_of_the_user_s_own(self) -> None:
        server = serving("(a call)", pieces=[*MARKERS, "<<"])
        entry = answered(by_strings("m", ["<<CALL"]), server).entry
        assert set(shown(server, entry.tokens)) == {"<", "<<"}
        assert (entry.source, entry.scope, entry.shared) == ("profile", "decision", True)

    def test_a_named_parser_rules_which_opener_there_is(self) -> None:
        server = serving()
        assert answered(find("m", Hint("hermes")), server).entry.source == "parser hermes"
        server = serving('<tool_call>{"name": "{{ name }}"}')
        assert answered(find("m", Hint("hermes")), server).entry.source == "differencing"

    def test_where_nothing_helps_every_reason_is_given(self) -> None:
        with pytest.raises(NoEntry, match=r"drops calls.*; .*header"):
            answered(find("m", Hint("openai")), serving("(a call)"))


class TestFingerprint:
    def test_it_tells_templates_and_vocabularies_apart(self) -> None:
        one, same, other = (
            found(serving()),
            found(serving()),
            found(serving(answer="Answer: {{ m.content }}")),
        )
        assert one.fingerprint == same.fingerprint != other.fingerprint
        assert found(serving(pieces=["<new>", *MARKERS])).fingerprint != one.fingerprint

    def test_it_does_not_change_with_the_day(self) -> None:
        days = [
            found(serving(prompt=f"Today is {day}.\n" + PROMPT)) for day in ("1 Jan 2026", "30 November 2027")
        ]
        assert days[0].fingerprint == days[1].fingerprint
