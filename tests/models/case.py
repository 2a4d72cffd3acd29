"""What a test model is, and what every family shares: weights, running, reading its own attention."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor] | tuple[Tensor, ...]
Build = Callable[[str | None], nn.Module]
Attention = Callable[[nn.Module, Inputs], dict[int, Tensor]]

QUERY_OR_KEY = re.compile(
    r"(^|[._])(q|k|query|key|(q|k|query|key|qkv)_(proj|lin)|W_[qk]"
    r"|(to_|W)?qkv|query_key_value|c_attn|in_proj_weight)([._]|$)"
)
BATCH, HEADS, WIDTH, LAYERS, CLASSES = 2, 4, 32, 2, 3


@dataclass(frozen=True)
class Case:
    """One family: how to build it, feed it, and know from the model itself what it attends to.

    `attention` wants a model built as `implementations[-1]` (eager, where there is a choice); it gives
    site index in call order -> (B, H, Q, K); Swin has windows in place of B. `self_only`: one stream of
    self-attention under a classification-like head. `readout` is the query row that feeds `logits`, in
    the last attention that reaches them: an index, "last" (last real token), "before_last", "eos", "mean" (of
    the rows that are not special), or None where no single row does. Call the model through `run`.
    """

    name: str
    build: Build
    inputs: Callable[[], Inputs]
    attention: Attention
    sites: int = LAYERS
    implementations: tuple[str | None, ...] = (None,)
    self_only: bool = True
    units: str = "tokens"
    readout: int | str | None = 0
    logits: Callable[[Any], Tensor] | None = lambda output: output

    def reference(self) -> dict[int, Tensor]:
        """The attention maps of a fresh model on this case's inputs."""
        return self.attention(self.build(self.implementations[-1]), self.inputs())


def run(model: nn.Module, inputs: Inputs, **options: Any) -> Any:
    """Call the model with its inputs, given by name or by position; what is random in it (ViLT) is seeded."""
    with torch.random.fork_rng(devices=[]), _default_dtype_of(model):
        torch.manual_seed(0)
        if isinstance(inputs, dict):
            return model(**inputs, **options)
        return model(*inputs, **options)


@contextmanager
def _default_dtype_of(model: nn.Module) -> Iterator[None]:
    """Before version 5 of transformers, CLIP fills its mask with the lowest float64 in the default dtype."""
    before = torch.get_default_dtype()
    wide = any(parameter.dtype == torch.float64 for parameter in model.parameters())
    torch.set_default_dtype(torch.float64 if wide else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def alone(inputs: Inputs, row: int, cut: bool = True) -> Inputs:
    """One input, its padding cut off; not where the model reads on into it (convolutions)."""
    if isinstance(inputs, tuple):
        ids = inputs[0]
        real = slice(None) if ids.is_floating_point() or len(inputs) > 1 else ids[row] != 0
        return tuple(x[row : row + 1, real] for x in inputs)
    one = {k: v[row : row + 1] for k, v in inputs.items()}
    mask = one.get("attention_mask")
    if mask is None or not cut:
        return one
    real = mask[0].bool()
    return {k: v[:, real] if v.shape[:2] == mask.shape else v for k, v in one.items()}


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randint(low: int, high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def seeded(make: Callable[[], nn.Module], gain: float = 1.5, seed: int = 0) -> nn.Module:
    """Make a model whose attention is far from uniform at every layer, and whose biases are not zero.

    Matrices get standard deviation 1/sqrt(fan_in), times `gain` where they make queries and keys; embeddings
    and tokens 1; vectors (biases, norms) a little noise around what they were. Frozen parameters (sinusoids)
    and scalars are left as they are.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
        owners = dict(model.named_modules())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and parameter.ndim:
                    owner = owners[name.rpartition(".")[0]]
                    _fill(owner, parameter, gain if QUERY_OR_KEY.search(name) else 1.0)
    return model.eval()


def _fill(module: nn.Module, parameter: nn.Parameter, gain: float) -> None:
    if parameter.ndim == 1:
        parameter.add_(0.1 * torch.randn_like(parameter))
        return
    weighs = isinstance(module, nn.Linear | nn.MultiheadAttention | nn.modules.conv._ConvNd)
    if weighs:
        fan_in = math.prod(parameter.shape[1:])
    elif type(module).__name__ == "Conv1D" or (parameter.ndim == 3 and len(parameter) > 1):  # GPT-2, XLNet
        fan_in = parameter.shape[0]
    else:
        fan_in, gain = 1, 1.0
    parameter.copy_(torch.randn_like(parameter) * gain / math.sqrt(fan_in))
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        parameter[module.padding_idx] = 0


@contextmanager
def softmax_outputs() -> Iterator[list[Tensor]]:
    """Every softmax that runs inside, in call order, however it is spelled."""
    found: list[Tensor] = []
    inside = False

    def spy(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def softmax(*args: Any, **kwargs: Any) -> Tensor:
            nonlocal inside
            if inside:
                return original(*args, **kwargs)
            inside = True
            try:
                out = original(*args, **kwargs)
            finally:
                inside = False
            found.append(out)
            return out

        return softmax

    with ExitStack() as stack:
        for owner in (torch.nn.functional, torch, Tensor):
            stack.enter_context(patch.object(owner, "softmax", spy(owner.softmax)))
        yield found


def numbered(maps: Any) -> dict[int, Tensor]:
    return {index: probabilities.detach() for index, probabilities in enumerate(maps)}


@torch.no_grad()
def spied(model: nn.Module, inputs: Inputs) -> dict[int, Tensor]:
    """Reference attention of a model whose only softmaxes are its attention, brought to (B, H, Q, K)."""
    with softmax_outputs() as found:
        run(model, inputs)
    return numbered(p if p.ndim == 4 else p.unflatten(0, (BATCH, -1)) for p in found)


def reported(maps: Callable[[Any], Any], **options: Any) -> Attention:
    """Reference attention that the model itself returns; `maps` puts its output in call order."""

    @torch.no_grad()
    def attention(model: nn.Module, inputs: Inputs) -> dict[int, Tensor]:
        return numbered(maps(run(model, inputs, **options)))

    return attention
