"""What holds for every vocabulary and template: over random merges, prompts and openers."""

from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators.entry import NoEntry
from calibrators.openers import answered, by_differencing
from tests.tokenizers.tiny import MARKERS, serving

OPENERS = ('{"name": "', '[{"name": "', "[", "<tool_call>", "\\n<tool_call>", "<call ", "call:", " {")
GLUE = '{["<>ncT \n'
merges = st.lists(st.text(GLUE, min_size=2, max_size=4), max_size=12)


@given(st.sampled_from(OPENERS), st.sampled_from(["", "\\n", " ", "assistant: "]), merges)
@settings(max_examples=150, deadline=None)
def test_the_set_holds_what_may_begin_the_call_and_nothing_else(
    opener: str, generation: str, pieces: list[str]
) -> None:
    literal = "{{ '" + opener + "' }}{{ name }}"
    server = serving(literal, generation="{{ '" + generation + "' }}", pieces=[*MARKERS, *pieces])
    try:
        entry = answered(by_differencing("m"), server).entry
    except NoEntry:
        return  # merges that leave no safe set; refusing is always right
    text = "".join(opener.replace("\\n", "\n").split())
    for token in entry.tokens:
        shown = "".join(server.vocabulary.decode([token]).split())
        # xLAM's parser takes this marker besides its list.
        assert text.startswith(shown) or (text.startswith("[{") and shown == "<tool_call>"), entry
    assert entry.tokens
    assert not set(entry.tokens) & set(entry.space)
    assert all(not server.vocabulary.decode([token]).strip() for token in entry.space)
    assert server.vocabulary.encode("<|im_end|>")[0] not in entry.tokens
    assert entry.scope == "decision" or len(entry.tokens) == 1


@given(merges)
@settings(max_examples=100, deadline=None)
def test_the_first_token_that_a_model_would_write_for_the_call_is_in_the_set(pieces: list[str]) -> None:
    server = serving('{{ \'{"name": "\' }}{{ name }}', pieces=[*MARKERS, *pieces])
    try:
        entry = answered(by_differencing("m"), server).entry
    except NoEntry:
        return
    prompt = server.vocabulary.encode("assistant\n")
    written = server.vocabulary.encode('assistant\n{"name": "get_weather"')
    if written[: len(prompt)] == prompt:
        assert written[len(prompt)] in entry.tokens
