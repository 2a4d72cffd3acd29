"""The shipped sentiment model as transformers loads it quantised, and its twin with plain weights."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn

from whyformer.demo import model_folder

KINDS = ("nf4", "fp4", "int8", "torchao int8", "torchao float8", "torchao int8 dynamic")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of bitsandbytes (one per product) and the progress bars of loading."""
    noisy = logging.getLogger("bitsandbytes")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        noisy.setLevel(level)


def config_of(kind: str, dtype: torch.dtype) -> Any:
    """Return the quantization_config of ``from_pretrained``."""
    from transformers import BitsAndBytesConfig, TorchAoConfig

    if kind in {"nf4", "fp4"}:
        return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_compute_dtype=dtype)
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    from torchao import quantization

    names = {"int8": "Int8WeightOnly", "float8": "Float8WeightOnly", "int8 dynamic": "Int8DynamicActivationInt8Weight"}
    return TorchAoConfig(getattr(quantization, f"{names[kind.removeprefix('torchao ')]}Config")())


def loaded(kind: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """Return the sentiment model with quantised layers."""
    from transformers import AutoModelForSequenceClassification

    with quiet():
        model = AutoModelForSequenceClassification.from_pretrained(
            model_folder("sentiment"), quantization_config=config_of(kind, dtype), device_map=device, dtype=dtype
        )
    for module in model.modules():
        # On processors that multiply bfloat16 in 512 bits, bitsandbytes has a kernel without a backward pass.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model.eval()


def dequantised(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a copy whose quantised layers are nn.Linear, with weights as the library itself dequantises them."""
    twin = deepcopy(model)
    for path, layer in list(twin.named_modules()):
        weight = getattr(layer, "weight", None)
        if not isinstance(layer, nn.Linear) or weight is None or type(weight) is nn.Parameter:
            continue
        if hasattr(weight, "quant_state"):
            from bitsandbytes.functional import dequantize_4bit

            plain = dequantize_4bit(weight.data, weight.quant_state)
        elif hasattr(weight, "SCB"):
            state = weight if weight.SCB is not None else layer.state  # moved there by the first pass
            plain = weight.data.float() * state.SCB.float()[:, None] / 127
        else:
            plain = weight.dequantize()
        linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, plain.device, dtype)
        linear.weight.data = plain.to(dtype)
        if layer.bias is not None:
            linear.bias.data = layer.bias.data.to(dtype)
        parent, _, name = path.rpartition(".")
        setattr(twin.get_submodule(parent), name, linear)
    return twin


def cosine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
