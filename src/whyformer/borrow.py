"""Borrow a model and hand it back exactly as it came.

One lock per model: explaining from several threads is safe. Inside, the model is in eval mode with frozen weights (so
that no gradient is kept for them) and with an attention implementation that can be seen; afterwards, also after an
exception or Ctrl-C, every flag is what it was.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from whyformer.errors import BadInput, NotOffered


@dataclass
class Memory:
    """What is kept per model while it lives: its lock, and facts learned about it (capture/probe.py)."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    facts: dict[Any, Any] = field(default_factory=dict)


_MEMORIES: weakref.WeakKeyDictionary[nn.Module, Memory] = weakref.WeakKeyDictionary()
_MEMORIES_LOCK = threading.Lock()


def memory_of(model: nn.Module) -> Memory:
    with _MEMORIES_LOCK:
        return _MEMORIES.setdefault(model, Memory())


def unwrapped(model: Any) -> nn.Module:
    """The plain module inside torch.compile, DataParallel and DistributedDataParallel."""
    while isinstance(model, nn.Module):
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if inner is None:
            break
        model = inner
    if isinstance(model, torch.jit.ScriptModule):
        raise NotOffered("TorchScript hides its functions from Python. Pass the Python model it was made from.")
    if not isinstance(model, nn.Module):
        raise BadInput(
            f"model is a {type(model).__name__}, not a torch.nn.Module. Pass the module itself, or a transformers "
            "pipeline or model."
        )
    return model


@contextlib.contextmanager
def borrowed(model: nn.Module) -> Iterator[None]:
    """Hold the model's lock, with the model ready to be explained."""
    with memory_of(model).lock, contextlib.ExitStack() as stack:
        modules = list(model.modules())
        training = [m for m in modules if m.training]
        stack.callback(_restore_training, training)
        for module in training:
            module.training = False
        trainable = [p for p in model.parameters() if p.requires_grad and not p.is_inference()]
        stack.callback(_restore_grad, trainable)
        for parameter in trainable:
            parameter.requires_grad_(False)
        stack.enter_context(_visible_attention(modules))
        stack.enter_context(_random_state(model))
        if any(_is_compiled(m) for m in modules):  # compiled parts would run without the function mode being asked
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.inference_mode(False))
        yield


def _is_compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in module._modules


def _restore_training(modules: list[nn.Module]) -> None:
    for module in modules:
        module.training = True


def _restore_grad(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.requires_grad_(True)


VISIBLE = {None, "sdpa", "eager"}


@contextlib.contextmanager
def _visible_attention(modules: list[nn.Module]) -> Iterator[None]:
    """flash and flex kernels never pass a torch function: switch to sdpa for the call."""
    before = [(config, config._attn_implementation) for config in _hidden_configs(modules)]
    try:
        for config, _ in before:
            config._attn_implementation = "sdpa"
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation


def _hidden_configs(modules: list[nn.Module]) -> list[Any]:
    found: dict[int, Any] = {}
    for module in modules:
        config: Any = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) not in VISIBLE:
            found[id(config)] = config
    return list(found.values())


@contextlib.contextmanager
def _random_state(model: nn.Module) -> Iterator[None]:
    """Whatever the model or a method draws, the caller's random numbers go on as if nothing had happened."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        yield


def refuse_without_gradients(model: nn.Module, method: str) -> None:
    """Quantised or inference-mode weights cannot be differentiated through: say so before running."""
    for name, parameter in model.named_parameters():
        if parameter.is_inference():
            raise NotOffered(
                f"{method} needs gradients, but {name} was created in torch.inference_mode(). Load the model outside "
                "of it, or use a method without gradients (raw_attention, attention_rollout, occlusion)."
            )
    quantised = _quantised_part(model)
    if quantised:
        raise NotOffered(
            f"{method} needs gradients, but {quantised} is quantised. Load the model in float16, bfloat16 or float32, "
            "or use a method without gradients (raw_attention, attention_rollout, occlusion)."
        )


def _quantised_part(model: nn.Module) -> str:
    if getattr(model, "is_quantized", False):
        return "the model"
    for name, module in model.named_modules():
        if "quantized" in type(module).__module__:
            return name or "the model"
        for tensor in module.parameters(recurse=False):
            if not tensor.is_floating_point() and not tensor.is_complex():
                return name or "the model"
    return ""
