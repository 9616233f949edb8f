"""Public chat templates, the vLLM parser that each goes with, and a real tokenizer to render it with.

The five tokenizers of npm are real, with their own ids. Other families' templates are rendered with one of
these, to which the family's markers are added as tokens of their own: then texts and sets are the family's,
ids are not.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

from calibrators.openers.parsers import parser
from tests.tokenizers import fetch
from tests.tokenizers.served import Served


class Family(NamedTuple):
    """A template and what belongs to it.

    Attributes:
        template: `source/name`, or "own" for the one in the tokenizer's package.
        tokenizer: one of fetch.TOKENIZERS.
        parser: of vLLM; None where it has none.
        real: whether the tokenizer is the family's own.
    """

    template: str
    tokenizer: str
    parser: str | None
    real: bool = False


REAL = (
    Family("own", "qwen3", "hermes", True),
    Family("llama.cpp/meta-llama-Llama-3.1-8B-Instruct", "llama3_1", "llama3_json", True),
    Family("llama.cpp/openai-gpt-oss-120b", "gptoss", "openai", True),
    Family("own", "deepseek_v3", "deepseek_v3", True),
    Family("llama.cpp/deepseek-ai-DeepSeek-V3.1", "deepseek_v3", "deepseek_v31", True),
    Family("own", "gemma3", "pythonic", True),
)

PUBLIC = (
    *(
        Family(f"llama.cpp/{name}", "llama3_1", parser)
        for name, parser in {
            "Apertus-8B-Instruct": "apertus",
            "Apriel-1.6-15b-Thinker-fixed": None,
            "Bielik-11B-v3.0-Instruct": "hermes",
            "ByteDance-Seed-OSS": "seed_oss",
            "Cohere2MoE": "cohere_command4",
            "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere_command3",
            "GLM-4.6": "glm45",
            "GLM-4.7-Flash": "glm47",
            "GigaChat3-10B-A1.8B": "gigachat3",
            "GigaChat3.1-10B-A1.8B": "gigachat3",
            "HuggingFaceTB-SmolLM3-3B": "hermes",
            "Kimi-K2-Thinking": "kimi_k2",
            "Kimi-K3": "kimi_k3",
            "LFM2-8B-A1B": "lfm2",
            "LFM2.5-8B-A1B": "lfm2",
            "MiMo-VL": "hermes",
            "MiniMax-M2": "minimax_m2",
            "MiniMax-M3": "minimax_m3",
            "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
            "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
            "NVIDIA-Nemotron-Nano-v2": None,
            "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
            "StepFun3.5-Flash": "step3p5",
            "fireworks-ai-llama-3-firefunction-v2": None,
            "ibm-granite-granite-3.3-2B-Instruct": "granite",
            "ibm-granite-granite-4.0": "granite4",
            "inclusionai-ling-3.0-flash": "ling3",
            "meetkai-functionary-medium-v3.1": None,
            "meetkai-functionary-medium-v3.2": None,
            "meta-llama-Llama-3.2-3B-Instruct": "llama3_json",
            "microsoft-Phi-3.5-mini-instruct": None,
            "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
            "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
            "moonshotai-Kimi-K2": "kimi_k2",
            "muse-glimmer": "muse_glimmer",
            "openbmb-MiniCPM5-1B": "minicpm5",
            "poolside-Laguna-S-2.1": "poolside_v1",
            "tencent-Hy3": "hy_v3",
            "unsloth-mistral-Devstral-Small-2507": "mistral",
            "upstage-Solar-Open-100B": None,
        }.items()
    ),
    *(
        Family(f"llama.cpp/{name}", "qwen3", parser)
        for name, parser in {
            "Qwen-QwQ-32B": "hermes",
            "Qwen-Qwen2.5-7B-Instruct": "hermes",
            "Qwen3-Coder": "qwen3_coder",
            "Qwen3.5-4B": "qwen3_coder",
        }.items()
    ),
    Family("llama.cpp/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "qwen3", "deepseek_v3"),
    Family("llama.cpp/deepseek-ai-DeepSeek-V3.2", "deepseek_v3", "deepseek_v32"),
    Family("llama.cpp/deepseek-ai-DeepSeek-V4", "deepseek_v3", "deepseek_v4"),
    Family("llama.cpp/google-gemma-4-31B-it", "gemma3", "gemma4"),
    Family("trl/deepseekv3", "deepseek_v3", "deepseek_v3"),
    Family("trl/glm4moe", "llama3_1", "glm45"),
    Family("trl/lfm2_v2", "llama3_1", "lfm2"),
    Family("trl/nemotron_3_super", "llama3_1", "qwen3_coder"),
    Family("trl/qwen3_6", "qwen3", "qwen3_coder"),
    Family("trl/qwen3_instruct_2507", "qwen3", "hermes"),
)


class Vocabulary:
    """A real tokenizer, with markers added that it lacks."""

    def __init__(self, name: str, markers: Iterable[str] = ()) -> None:
        self.tokenizer = Tokenizer.from_file(str(fetch.tokenizer_folder(name) / "tokenizer.json"))
        missing = [marker for marker in markers if self.tokenizer.token_to_id(marker) is None]
        self.tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in missing])

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


# What the templates' families have as tokens of their own: <|x|>, <|x>, <x|>, <｜x｜>, [TOOL_CALLS], ...
_MARKERS = re.compile(
    r"<\|[^|<>\s'\"{}]+\|?>|<[^|<>\s'\"{}]+\|>|<｜[^｜<>\s'\"{}]+｜>|</?[\w:]*(?:think|tool_calls?)(?::\w+)?>"
    r"|\[/?(?:TOOL_CALLS|ARGS|THINK|INST|TOOL_RESULTS|AVAILABLE_TOOLS|CALL_ID|TOOL_CONTENT)\]"
    r"|</?TOOLCALL>|<(?:start|end)_of_turn>|\]<\]minimax\[>\[|\[e~\["
)


def served(family: Family, template: str) -> Served:
    """The family's template behind its tokenizer."""
    config = json.loads(
        (fetch.tokenizer_folder(family.tokenizer) / "tokenizer_config.json").read_text("utf-8")
    )
    text = config["chat_template"] if family.template == "own" else template
    special = {name: _content(config.get(name)) for name in ("bos_token", "eos_token")}
    markers = set(_MARKERS.findall(text))
    known = parser(family.parser) if family.parser and not family.real else None
    if known and known.dedicated in ("true", "likely"):
        # The data knows it for a token even where the template never writes it.
        markers.update(_MARKERS.findall(known.spellings[0].text)[:1])
    return Served(text, Vocabulary(family.tokenizer, sorted(markers)), **special)


def _content(token: Any) -> str:
    return token if isinstance(token, str) else str(token["content"]) if isinstance(token, Mapping) else ""
