"""Layers of a borrowed model without a plain weight: is their backward pass right, and what is their weight?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from whyformer.errors import NotOffered
from whyformer.loan.borrow import fact, known_about, loan_of, module_names, modules_of
from whyformer.loan.quantised import (
    Backward,
    backward_of,
    compute_type,
    is_adapted,
    is_packed,
    is_quantized,
    kind_of,
    outermost,
    with_forwards,
    written_out,
)

BACKWARDS = "backward passes of layers"  # a fact about a model: by kind of layer
OTHER_KERNEL = (
    "Load the model in float16, bfloat16 or float32, or quantise it so that only the weights are rounded and the "
    "backward pass exists (bitsandbytes; torchao's weight-only configs; GPTQConfig or AwqConfig with "
    "backend='auto_trainable')."
)


def refuse_without_gradients(model: nn.Module, method: str) -> None:
    """Raise before any pass if a quantised layer has no right backward, or a weight was created in inference mode.

    What is quantised and no linear layer is left to the measured slopes of the whole model (study/interference.py).
    """
    if reason := why_no_gradients(model):
        raise NotOffered(f"{method} needs gradients, {reason}")


def why_no_gradients(model: nn.Module) -> str:
    """Return why gradients of a model are not taken, "" if they can be."""
    loan = loan_of(model)
    if loan.lent is None:  # a replay, for which nothing is borrowed
        return _why_no_gradients(model)
    if why_no_gradients not in loan.known:
        loan.known[why_no_gradients] = _why_no_gradients(model)
    reason: str = loan.known[why_no_gradients]
    return reason


def _why_no_gradients(model: nn.Module) -> str:
    if getattr(model, "opaque", False):
        return "and the model is asked from outside (a function, a server)."
    for layer, backward in backwards_of(model):
        if backward.fault:
            return f"but {_named(model, layer)} is quantised, and {backward.fault}. {OTHER_KERNEL}"
    for module in modules_of(model):
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_inference():
                return (
                    f"but {module_names(model)[id(module)]}.{name} was created in torch.inference_mode(). Load the "
                    "model outside of it."
                )
    return ""


def refuse_quantised(model: nn.Module, what: str) -> None:
    """Raise if weights cannot be trained or drawn anew: a layer is quantised, or the model is asked from outside."""
    if getattr(model, "opaque", False):
        raise NotOffered(f"{what}, and the model has no weights here: it is asked from outside (a function, a server).")
    for layer in quantised_layers(model):
        raise NotOffered(f"{what}, but {_named(model, layer)} is quantised. Load the model in float32.")


def _named(model: nn.Module, layer: nn.Module) -> str:
    return f"{module_names(model)[id(layer)] or 'the model'} ({type(layer).__name__})"


def quantised_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that compute with codes in place of weights."""
    loan = loan_of(model)
    if loan.lent is not None and loan.look is not None and not loan.look.quantized:
        each = {(p.__class__, p.dtype): p for p in loan.lent.parameters}  # which two decide
        if not any(map(is_packed, each.values())):
            return []
    return list(filter(is_quantized, modules_of(model)))


def backwards_of(model: nn.Module) -> list[tuple[nn.Module, Backward]]:
    """Return the quantised layers with the check of their backward pass."""
    return checked(model, quantised_layers(model))


def checked(model: nn.Module, layers: list[nn.Module]) -> list[tuple[nn.Module, Backward]]:
    """Return layers of a model with the check of their backward pass, which is run once per kind of layer."""
    if not layers:
        return []
    known: dict[Hashable, Backward] = known_about(model).setdefault(BACKWARDS, {})
    dtype = _compute_type(model)
    kinds = [(layer, (kind_of(layer), dtype)) for layer in layers]
    for layer, kind in kinds:
        if kind not in known:
            known[kind] = backward_of(layer, dtype)
    return [(layer, known[kind]) for layer, kind in kinds]


def _compute_type(model: nn.Module) -> torch.dtype:
    return compute_type(p for module in modules_of(model) for p in module._parameters.values() if p is not None)


def rounds_activations(model: nn.Module) -> bool:
    """Whether a quantised layer rounds more than its weights, so that its output moves in steps."""
    return not all(backward.exact for _, backward in backwards_of(model))


def has_adapter(model: nn.Module, layer: nn.Module | None) -> bool:
    """Whether a layer of a model has an adapter beside it."""
    adapted = filter(is_adapted, modules_of(model))
    return layer is not None and any(layer in {module, module._modules["base_layer"]} for module in adapted)


def with_weights(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Inside ``with``: linear layers that are quantised or have an adapter are plain products with one weight."""
    adapted = list(filter(is_adapted, modules_of(model)))
    linear = [layer for layer, backward in checked(model, adapted) if backward.exact]
    layers = outermost([*linear, *quantised_layers(model)])
    if not layers:
        return contextlib.nullcontext()
    return written_out(layers, _compute_type(model))


# Activations that a model may have written as a torch.autograd.Function, inside of which no relevance rule applies.
TORCH_ACTIVATIONS = (partial(F.gelu, approximate="tanh"), F.gelu, F.silu, F.mish, F.relu)


def with_activations(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Inside ``with``: activations by a torch.autograd.Function (Bloom's GELU) are torch's own, which equal them."""
    if not (known := _torch_activations(model)):
        return contextlib.nullcontext()
    return with_forwards((layer, known[type(layer)]) for layer in modules_of(model) if type(layer) in known)


@fact
def _torch_activations(model: nn.Module) -> dict[type, Callable[..., torch.Tensor]]:
    """Return torch's function for each class of layers that applies a torch.autograd.Function and equals one."""
    kinds = {type(layer): layer for layer in modules_of(model) if not layer._parameters}
    codes = {kind: getattr(kind.forward, "__code__", None) for kind in kinds}
    applied = {kind: kinds[kind] for kind, code in codes.items() if code and "apply" in code.co_names}
    return {k: f for k, m in applied.items() if (f := _torch_activation(m)) is not None}


def _torch_activation(layer: nn.Module) -> Callable[..., torch.Tensor] | None:
    """Return the function of torch that equals a layer's on numbers from -10 to 10; None if there is none."""
    numbers = torch.linspace(-10, 10, 201)[None]
    with torch.no_grad(), contextlib.suppress(Exception):  # of the user's own code, which may take anything else
        result = type(layer).forward(layer, numbers)
        for function in TORCH_ACTIVATIONS:
            if isinstance(result, torch.Tensor) and torch.allclose(result, function(numbers), rtol=0, atol=1e-5):
                return function
    return None
