"""Checkpoints in transformers: whole ones, and PEFT adapters on a base; runs where torch is."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrators.entry import Entry
from calibrators.openers import Ask, Hint, answered, find, for_tools
from calibrators.request import tool_names

Json = dict[str, Any]
_NAME = "checkpoint"


class CheckpointError(Exception):
    """A checkpoint can't be loaded; one line for the person at the terminal."""


def load(folder: Path, base: Path | None, device: str, kept: Any = None) -> Any:
    """The model of a folder, for inference.

    base: what an adapter is put on; None for what its adapter_config.json names.
    kept: the weights' torch type; None for fp32 on a CPU and the checkpoint's own elsewhere.

    Raises:
        CheckpointError: it is none.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        # An adapter is added to weights that are whole, and the sum is rounded.
        read = torch.float32 if kept or device == "cpu" else "auto"
        model = AutoModelForCausalLM.from_pretrained(base_of(folder, base), dtype=read)
        if is_adapter(folder):
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, folder).merge_and_unload()
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: can't be loaded ({' '.join(str(error).split())[:200]})") from error
    return model.to(device, kept).eval()


def base_of(folder: Path, base: Path | None) -> Path:
    """The whole checkpoint under a folder: itself, or what its adapter is put on."""
    if not is_adapter(folder):
        return folder
    return base or named_base(folder)


def named_base(folder: Path) -> Path:
    """What an adapter says that it is for: a folder, or a name that no folder has."""
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    return Path(config["base_model_name_or_path"])


def is_adapter(folder: Path) -> bool:
    """Whether it holds a PEFT adapter."""
    return (folder / "adapter_config.json").is_file()


def device() -> str:
    """The accelerator if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


class Prompts:
    """A checkpoint's tokenizer and chat template."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{folder}: has no tokenizer ({' '.join(str(error).split())[:200]})"
            ) from error

    def ids(self, request: Mapping[str, Any]) -> list[int]:
        """Token ids of a chat request, up to where the reply begins."""
        return self.tokens(self.text(request))

    def text(self, request: Mapping[str, Any], *, prompt: bool = True, unfinished: bool = False) -> str:
        """A chat request as text up to where the reply begins.

        prompt: False for the conversation alone; unfinished: whether its last message is left open.
        """
        return str(
            self.tokenizer.apply_chat_template(
                [_handed(message) for message in request["messages"]],
                tools=list(request.get("tools") or ()) or None,
                add_generation_prompt=prompt,
                continue_final_message=unfinished,
                tokenize=False,
                **(request.get("chat_template_kwargs") or {}),
            )
        )

    def tokens(self, text: str) -> list[int]:
        """Token ids of a text that has its special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def entry(self, hint: Hint) -> Entry:
        """How calls open, found as on a server. Raises calibrators.entry.NoEntry."""
        return answered(find(_NAME, hint), self._answer).entry

    def entry_tokens(self, entry: Entry, request: Mapping[str, Any]) -> tuple[int, ...]:
        """E of one request, which may depend on the tools that it offers."""
        if not entry.named:
            return entry.tokens
        return answered(for_tools(_NAME, entry, tool_names(request)), self._answer)

    def _answer(self, ask: Ask) -> Json:
        try:
            if ask.path == "/detokenize":
                return {"prompt": self.tokenizer.decode(ask.body["tokens"])}
            if "prompt" in ask.body:
                return {"tokens": self.tokens(ask.body["prompt"])}
            prompt = bool(ask.body.get("add_generation_prompt", True))
            unfinished = bool(ask.body.get("continue_final_message"))
            return {"tokens": self.tokens(self.text(ask.body, prompt=prompt, unfinished=unfinished))}
        except Exception as error:  # a template may raise anything, which a server tells as an error
            return {"error": {"message": str(error), "code": 400}}


def _handed(message: Mapping[str, Any]) -> Json:
    """A message as vLLM hands it to a template: arguments parsed, content never null."""
    handed = {**message, "content": message.get("content") or ""}
    calls: Sequence[Json] = message.get("tool_calls") or ()
    if calls:
        handed["tool_calls"] = [
            {
                **call,
                "function": {**call["function"], "arguments": _parsed(call["function"].get("arguments"))},
            }
            for call in calls
        ]
    return handed


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments or {}
    except ValueError:
        return arguments
