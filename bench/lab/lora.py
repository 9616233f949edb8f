"""Low-rank adapters on linear maps, in the file format of PEFT.

Training on two cores is bound by matrix products and memory traffic, so the adapter is folded into
the weight once a step and each map stays one product forward and one backward; PEFT's unmerged
form costs a third more time. Only the format is PEFT's: its loaders and vLLM's read the files.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import linear

MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
_PREFIX = "base_model.model."


class _Adapted(torch.autograd.Function):  # type: ignore[misc]  # torch is absent where types are checked
    """y = x (W + s B A)^T + c, with gradients for x, A and B but not for W and c."""

    @staticmethod
    def forward(ctx: Any, x: Any, folded: Any, bias: Any, a: Any, b: Any, scale: float) -> Any:
        ctx.save_for_backward(x, folded, a, b)
        ctx.scale = scale
        return linear(x, folded, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, folded, a, b = ctx.saved_tensors
        grad = grads[0]
        grad_x = grad @ folded if ctx.needs_input_grad[0] else None
        flat, inputs = grad.flatten(0, -2), x.flatten(0, -2)
        grad_b = ctx.scale * flat.T @ (inputs @ a.T.to(x.dtype))
        grad_a = ctx.scale * (flat @ b.to(x.dtype)).T @ inputs
        return grad_x, None, None, grad_a.to(a.dtype), grad_b.to(b.dtype), None


class Adapted(nn.Module):  # type: ignore[misc]
    """A frozen linear map with a trainable low-rank addition, in fp32; `fold` after every step.

    The map itself, and the products with it, are of the base's type.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.scale = alpha / rank
        self.base = base.weight.detach()
        self.bias = None if base.bias is None else base.bias.detach()
        self.folded = self.base.clone()
        on = self.base.device
        self.a = nn.Parameter(torch.empty(rank, base.in_features, device=on))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=on))
        # PEFT's default initialisation; torch.manual_seed decides it.
        nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def fold(self) -> None:
        """Bring the folded weight up to date with A and B."""
        with torch.no_grad():
            self.folded.copy_(torch.addmm(self.base.float(), self.b, self.a, alpha=self.scale))

    def forward(self, x: torch.Tensor) -> Any:
        """The adapted map of x."""
        return _Adapted.apply(x, self.folded, self.bias, self.a, self.b, self.scale)


def attach(model: nn.Module, layers: range, rank: int, alpha: float) -> dict[str, Adapted]:
    """Freeze the model and replace the maps of `layers`; returns them by their module path."""
    model.requires_grad_(False)
    adapted = {}
    for path, module in list(model.named_modules()):
        parts = path.split(".")
        if parts[-1] not in MAPS or int(parts[parts.index("layers") + 1]) not in layers:
            continue
        adapted[path] = Adapted(module, rank, alpha)
        setattr(model.get_submodule(path.rpartition(".")[0]), parts[-1], adapted[path])
    return adapted


def save(
    folder: Path, adapted: dict[str, Adapted], layers: range, rank: int, alpha: float, base: str = BASE
) -> None:
    """Write `adapter_model.safetensors` (bf16) and `adapter_config.json`, which names the base."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, module in sorted(adapted.items()):
        tensors[f"{_PREFIX}{path}.lora_A.weight"] = module.a.detach().to(torch.bfloat16)
        tensors[f"{_PREFIX}{path}.lora_B.weight"] = module.b.detach().to(torch.bfloat16)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(MAPS),
        "layers_to_transform": list(layers),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(folder: Path, adapted: dict[str, Adapted]) -> None:
    """Take the weights that `save` wrote into attached maps.

    Raises ValueError where its maps, or its rank or scale, are others.
    """
    tensors = load_file(folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    names = {f"{_PREFIX}{path}.lora_{part}.weight" for path in adapted for part in "AB"}
    if names != set(tensors):
        layers = config.get("layers_to_transform") or "all"
        raise ValueError(f"it is of other linear maps (layers {layers})")
    rank, scale = config["r"], config["lora_alpha"] / config["r"]
    first = next(iter(adapted.values()))
    if (rank, scale) != (len(first.a), first.scale):
        raise ValueError(f"it is of rank {rank} and scale {scale:g}, not {len(first.a)} and {first.scale:g}")
    with torch.no_grad():
        for path, module in adapted.items():
            module.a.copy_(tensors[f"{_PREFIX}{path}.lora_A.weight"])
            module.b.copy_(tensors[f"{_PREFIX}{path}.lora_B.weight"])


def additions(folder: Path) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """For each adapted weight its name in the base checkpoint and what to do with it, in fp32."""
    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    tensors = load_file(folder / "adapter_model.safetensors")
    for key in sorted(tensors):
        if not key.endswith(".lora_A.weight"):
            continue
        a = tensors[key].float()
        b = tensors[key.replace("lora_A", "lora_B")].float()
        name = key.removeprefix(_PREFIX).replace(".lora_A.weight", ".weight")
        yield name, lambda weight, a=a, b=b: weight + scale * (b @ a)  # type: ignore[misc]
