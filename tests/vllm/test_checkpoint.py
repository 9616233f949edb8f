"""The lab model's tokenizer and chat template, as transformers and vLLM render with them."""

import json
import shutil
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM lives in an environment of its own", exc_type=ImportError)

from transformers import AutoTokenizer
from vllm.renderers.hf import _detect_content_format

from bench.lab import checkpoint

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather\n  of a "city".',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": ["string", "null"]},
                "more": {"anyOf": []},
            },
            "required": ["city"],
        },
    },
}
ARGUMENTS = {"city": 'Ünï "q" <b>', "days": [1, 2.5, None, True]}
USER = {"role": "user", "content": "Is it warm?"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(checkpoint.ensure())


@pytest.fixture(scope="module")
def render(tokenizer: Any) -> Any:
    def rendered(*messages: dict[str, Any], tools: Any = None, prompt: bool = False) -> str:
        text = tokenizer.apply_chat_template(
            list(messages), tools=tools, add_generation_prompt=prompt, tokenize=False
        )
        assert isinstance(text, str)
        return text

    return rendered


def call(arguments: Any, name: str = "get_weather") -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def said(*calls: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def turns(text: str) -> list[str]:
    """The turns of a rendering, each as `role\\ntext`."""
    first, *rest = text.split("<|im_start|>")
    assert first == ""
    assert all(turn.endswith("<|im_end|>\n") for turn in rest)
    return [turn.removesuffix("<|im_end|>\n") for turn in rest]


def test_the_call_tokens_are_single_and_seen_in_decoded_text(tokenizer: Any) -> None:
    ids = tokenizer.encode(CALL)
    assert (ids[0], ids[-1]) == (15, 16)
    assert tokenizer.decode(ids, skip_special_tokens=True) == CALL


@pytest.mark.parametrize(
    "text",
    ["Hello  World's 1234 apples\n\n\tand 😀 ünï", "", " <tool_call > ", "a<|im_end|>b", "数字１２３"],
)
def test_text_comes_back_as_it_was(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_tokens_of_their_own(tokenizer: Any) -> None:
    assert len(tokenizer.encode("2048")) == 4


def test_a_conversation_without_tools_is_smollms_own(render: Any) -> None:
    assert render(USER, prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nIs it warm?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_are_one_line_each_below_the_system_text(render: Any) -> None:
    bare: dict[str, Any] = {"name": "now", "description": None, "parameters": {}}
    system, *_ = turns(render({"role": "system", "content": "Be brief."}, USER, tools=[TOOL, bare]))
    lines = system.splitlines()
    assert lines[:2] == ["system", "Be brief."]
    assert '- get_weather(city: string, unit?: string|null, more?: any) Weather of a "city".' in lines
    assert "- now()" in lines


def test_an_empty_list_of_tools_is_none(render: Any) -> None:
    assert render(USER, tools=[]) == render(USER)


def test_calls_and_results_of_one_turn_stay_together(render: Any) -> None:
    text = render(
        USER,
        said(call({"city": "Oslo"}), call({}, "now")),
        {"role": "tool", "tool_call_id": "1", "content": "12"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "noon"}]},
        {"role": "assistant", "content": "12 degrees."},
    )
    second = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert turns(text)[2:] == [
        f"assistant\n{CALL}\n{second}",
        "user\n<tool_response>\n12\n</tool_response>\n<tool_response>\nnoon\n</tool_response>",
        "assistant\n12 degrees.",
    ]


def test_text_before_a_call_stays_before_it(render: Any) -> None:
    text = render(USER, said(call({"city": "Oslo"}), content="Let me see."))
    assert turns(text)[-1] == f"assistant\nLet me see.\n{CALL}"


def test_arguments_are_json_whether_parsed_or_not(render: Any) -> None:
    parsed = render(USER, said(call(ARGUMENTS)))
    assert parsed == render(USER, said(call(json.dumps(ARGUMENTS, ensure_ascii=False))))
    written = turns(parsed)[-1].splitlines()[2]
    assert json.loads(written) == {"name": "get_weather", "arguments": ARGUMENTS}
    nothing: tuple[Any, ...] = (None, "", {}, "{}")
    for empty in nothing:
        assert '"arguments": {}}' in render(USER, said(call(empty)))


def test_content_may_be_null_text_or_parts(render: Any) -> None:
    parts = [{"type": "text", "text": "Is it"}, {"type": "text", "text": "warm?"}]
    assert turns(render({"role": "user", "content": parts}))[1] == "user\nIs it\nwarm?"
    assert turns(render({"role": "user", "content": None}))[1] == "user\n"
    assert turns(render({"role": "assistant"}))[1] == "assistant\n"


def test_vllm_hands_over_parts(tokenizer: Any) -> None:
    assert _detect_content_format(tokenizer.chat_template, default="string") == "openai"


def test_a_late_system_message_stays_where_it_is(render: Any) -> None:
    late = {"role": "system", "content": "Be kind."}
    developer = {"role": "developer", "content": "Be quick."}
    assert turns(render(USER, late, developer))[1:] == [
        "user\nIs it warm?",
        "system\nBe kind.",
        "system\nBe quick.",
    ]


@pytest.mark.parametrize("content", ["Yes.", "<tool_call>"])
def test_the_prompt_is_a_prefix_of_every_reply(render: Any, content: str) -> None:
    prompt = render(USER, tools=[TOOL], prompt=True)
    assert render(USER, {"role": "assistant", "content": content}, tools=[TOOL]).startswith(prompt)
    assert render(USER, said(call({})), tools=[TOOL]).startswith(prompt + "<tool_call>\n")


def test_the_folder_is_made_once_and_again_when_its_recipe_changes(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def convert(gguf: Any, out: Any) -> None:
        made.append(gguf.name)
        (out / "weights").write_text(str(len(made)))

    monkeypatch.setattr(checkpoint, "_convert", convert)
    out = tmp_path / "base"
    assert checkpoint.ensure(out) == checkpoint.ensure(out) == out
    template = tmp_path / "template"
    template.write_text("another")
    monkeypatch.setattr(checkpoint, "TEMPLATE", template)
    checkpoint.ensure(out)
    assert (out / "weights").read_text() == "2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "base.lock", "template"]


def test_a_conversion_that_fails_leaves_the_old_folder(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(gguf: Any, out: Any) -> None:
        raise RuntimeError("no")

    out = tmp_path / "base"
    out.mkdir()
    (out / "weights").write_text("old")
    monkeypatch.setattr(checkpoint, "_convert", fail)
    with pytest.raises(RuntimeError):
        checkpoint.ensure(out)
    assert (out / "weights").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "base.lock"]


def test_a_full_disk_is_one_line(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(checkpoint.CheckpointError, match=r"0\.0 GB free, the checkpoint needs 1\.5"):
        checkpoint.ensure(tmp_path / "base")
