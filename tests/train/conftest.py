"""A checkpoint of a few thousand weights with the lab model's template; torch lives in vLLM's environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch lives in vLLM's environment", exc_type=ImportError)
pytest.importorskip("peft", reason="peft lives in vLLM's environment", exc_type=ImportError)

from bench.lab.checkpoint import CALL_TOKENS, TEMPLATE

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOL = {
    "type": "function",
    "function": {"name": "find", "parameters": {"type": "object", "properties": {"of": {"type": "string"}}}},
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole checkpoint: every byte a token, one token that opens calls and one that closes them."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("checkpoint")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*SPECIAL, *CALL_TOKENS.values(), *letters]
    core = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(p, special=p in SPECIAL, normalized=False) for p in pieces[: -len(letters)]])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=TEMPLATE.read_text(),
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def conversation(number: int) -> dict[str, Any]:
    """Every other one is answered by a call."""
    call = {"type": "function", "function": {"name": "find", "arguments": '{"of": "x"}'}}
    reply: dict[str, Any] = {"role": "assistant", "content": f"No {number}."}
    if number % 2:
        reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"messages": [{"role": "user", "content": f"Ask {number}?"}, reply], "tools": [TOOL]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(conversation(number)) + "\n" for number in range(12)))
    return file
