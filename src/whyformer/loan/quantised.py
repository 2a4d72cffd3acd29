"""Linear layers without a plain weight: quantised ones, and those with an adapter (LoRA) beside their weight.

Libraries store codes in place of weights, or a sum of products, and each multiplies in its own way. This module knows
none of the libraries. A linear layer is f(x) = Wx + b, so a step of any size measures its slope: ``Backward`` compares
that with the layer's own backward pass, once per kind of layer and model. W is what the layer makes of unit vectors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily

from whyformer.loan.spread import execution_device, is_distributed

# Found by what a layer holds. Flags and configs also mark weights that loading dequantised.

# Positions and masks may be parameters, too: no library packs weights into these types.
NO_WEIGHTS = frozenset({torch.int64, torch.bool})


def is_packed(tensor: Tensor) -> bool:
    """Whether a tensor holds codes: integers, floats of eight bits, or a tensor class around codes (torchao)."""
    dtype = tensor.dtype
    if dtype not in NO_WEIGHTS and (dtype.itemsize < 2 or not (dtype.is_floating_point or dtype.is_complex)):
        return True
    return hasattr(type(tensor), "__tensor_flatten__") and not is_distributed(tensor)


def is_quantized(module: nn.Module) -> bool:
    """Whether a layer itself (not a layer inside it) computes with codes in place of weights."""
    origin = type(module).__module__
    # Torch's own quantised layers hold their weights in objects that are neither parameters nor buffers.
    # GPTQ, AWQ and BitNet register their weights as buffers (qweight).
    buffers = [buffer for name, buffer in module._buffers.items() if "weight" in name]
    weights = [tensor for tensor in (*module._parameters.values(), *buffers) if tensor is not None]
    return (origin.startswith("torch.") and "quantized" in origin) or any(map(is_packed, weights))


def is_adapted(module: nn.Module) -> bool:
    """Whether a layer is another one with an adapter beside it (all kinds of peft that change layers)."""
    return isinstance(module._modules.get("base_layer"), nn.Module)


def outermost(layers: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the layers that are not inside another one of them: an adapter has a quantised layer inside."""
    listed = list(layers)
    inside = {id(inner) for layer in listed for inner in layer.modules() if inner is not layer}
    return [layer for layer in listed if id(layer) not in inside]


ROWS = 4  # directions, of which all have to agree: one may do so by chance
TOLERANCE = 0.1  # of the change: layers that also round their input to eight bits differ by about 0.01
# Roundings of a layer that rounds nothing but its weights: many small ones in a sum, or few of the sum itself.
EXACT = {torch.float16: 4, torch.bfloat16: 12}

NO_BACKWARD = "its operator has no backward pass"
WRONG = (
    "its backward pass does not give the slope of its output ({said:.3g}; measured: {slope:.3g}), as in layers that "
    "round their input as well"
)


@dataclass(frozen=True)
class Backward:
    """The backward pass of a kind of layer, compared with measured slopes."""

    fault: str = ""  # why it cannot be used; "" if it is right, or if the layer could not be run by itself
    exact: bool = False  # the output is linear up to the rounding of the model's floats
    functions: frozenset[type] = frozenset()  # autograd functions in it that are not torch's


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Inside ``with``: no torch function mode is active. Tensor classes keep theirs, which torchao computes with."""
    with contextlib.ExitStack() as stack:
        for _ in range(len(_get_current_function_mode_stack())):
            stack.enter_context(_pop_mode_temporarily())
        yield


def kind_of(layer: nn.Module) -> Hashable:
    """Return a key that layers with the same code and tensors of the same form share."""
    tensors = (*layer.named_parameters(), *layer.named_buffers())
    forms = tuple((name, t.dtype, tuple(t.shape), type(t), str(t.device)) for name, t in tensors)
    return type(layer), forms, getattr(layer, "in_features", None), getattr(layer, "out_features", None)


def compute_type(parameters: Iterable[Tensor]) -> torch.dtype:
    """Return the type of a model's activations: that of the first parameter that is not packed."""
    floats = (p.dtype for p in parameters if p.is_floating_point() and not is_packed(p))
    return next(floats, torch.float32)


def backward_of(layer: nn.Module, dtype: torch.dtype) -> Backward:
    """Compare the backward pass of a layer with the change of its output, on random input."""
    width = getattr(layer, "in_features", None)
    if not isinstance(width, int):
        return Backward()
    generator = torch.Generator().manual_seed(0)
    device = execution_device(layer)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    x, step = (draw(1, ROWS, width).to(device, dtype) for _ in range(2))
    with without_modes():
        try:
            with torch.no_grad():
                moved = layer(x + step)  # first: bitsandbytes packs weights for inference in a pass without gradients
            with torch.enable_grad():
                leaf = x.clone().requires_grad_()
                out = layer(leaf)
            change = (moved - out.detach()).double()
        except Exception:  # not a layer of one argument, or not for these floats: the slope of the whole model decides
            return Backward()
        if not out.requires_grad:
            return Backward(NO_BACKWARD)
        weights = draw(*out.shape).to(device)
        try:
            (gradient,) = torch.autograd.grad(out, leaf, weights.to(out.dtype), retain_graph=True, allow_unused=True)
        except Exception as error:
            text = " ".join(str(error).split())[:200].rstrip(".")
            return Backward(f"its backward pass raises {type(error).__name__}: {text}")
        if gradient is None:
            return Backward(NO_BACKWARD)
    terms = change * weights.to(out.dtype)
    said_R, slope_R = (gradient.double() * step).sum(-1).flatten(), terms.sum(-1).flatten()
    size_R = terms.square().sum(-1).sqrt().flatten() + torch.finfo(torch.float32).tiny
    error_R = (said_R - slope_R).abs() / size_R
    if not bool((error_R <= TOLERANCE).all()):
        worst = int(error_R.nan_to_num(nan=torch.inf).argmax())
        return Backward(WRONG.format(said=float(said_R[worst]), slope=float(slope_R[worst])))
    exact = float(error_R.max()) <= EXACT.get(dtype, 64) * torch.finfo(dtype).eps
    return Backward(exact=exact, functions=frozenset(_functions(out.grad_fn)))


def _functions(start: Any) -> set[type]:
    """Return the classes of torch.autograd.Function in a graph."""
    seen, waiting, classes = {start}, [start], set()
    while waiting:
        node = waiting.pop()
        written = getattr(node, "_forward_cls", None)
        if written is not None:
            classes.add(written)
        waiting += [after for after, _ in node.next_functions if after is not None and after not in seen]
        seen.update(waiting)
    return classes


AT_ONCE = 1024  # unit vectors that a layer is run on


def weight_of(
    layer: nn.Module, forward: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """(out, in) and (out,) the weights and the bias of a linear layer. own: its forward."""
    device, width = execution_device(layer), int(str(layer.in_features))
    rows = []
    with torch.no_grad(), without_modes():
        # f(x) + f(-x) = 2b. Not f(0): layers that round their input divide by its largest entry.
        ones = torch.ones(1, 1, width, device=device, dtype=dtype)
        offset = torch.cat([forward(ones), forward(-ones)]).to(dtype).mean(0)[0]
        bias = offset if bool(offset.any()) else None
        for start in range(0, width, AT_ONCE):
            count = min(AT_ONCE, width - start)
            units = torch.zeros(1, count, width, device=device, dtype=dtype)
            units[0, range(count), range(start, start + count)] = 1
            rows.append(forward(units)[0].to(dtype))
        weight = torch.cat(rows)
        return (weight if bias is None else weight - bias).t(), bias


def written_out(layers: Iterable[nn.Module], dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    """Inside ``with``: these layers are F.linear of the weights that they stand for, read again in each pass.

    For methods whose rules need the weights. A whole dequantised copy would take the memory that quantising saved.
    """

    def plain(forward: Callable[[Tensor], Tensor], layer: nn.Module, x: Tensor) -> Tensor:
        weight, bias = weight_of(layer, forward, dtype)
        with without_modes():  # which would take the weights for a function of x
            weight, bias = weight.to(x), None if bias is None else bias.to(x)
        return F.linear(x, weight, bias)

    linear = (layer for layer in layers if isinstance(getattr(layer, "in_features", None), int))
    return with_forwards((layer, partial(plain, layer.forward, layer)) for layer in linear)


@contextlib.contextmanager
def with_forwards(forwards: Iterable[tuple[nn.Module, Callable[..., Tensor]]]) -> Iterator[None]:
    """Inside ``with``: these layers compute with the function that stands beside them."""
    before: list[tuple[nn.Module, Any]] = []  # accelerate gives layers a forward of their own
    try:
        for layer, forward in forwards:
            before.append((layer, layer.__dict__.get("forward")))
            layer.__dict__["forward"] = forward
        yield
    finally:
        for layer, usual in before:
            if usual is None:
                layer.__dict__.pop("forward", None)
            else:
                layer.__dict__["forward"] = usual
