"""A second model around the same weights: what is drawn anew in it, nobody sees who uses the first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from whyformer.borrow import share_known
from whyformer.errors import NotOffered


def twin_of(model: nn.Module) -> nn.Module:
    """All modules once more, their parameters in the same memory, their buffers copied, their hooks shared.

    torch.func.functional_call would put other weights into the model itself while it runs, for all threads.
    """
    modules = list(model.modules())
    twins: dict[int, Any] = {id(m): m.__class__.__new__(m.__class__) for m in modules if "_orig_mod" not in m._modules}
    for module in modules:
        if "_orig_mod" in module._modules:  # torch.compile's, which runs what it was made of
            twins[id(module)] = twins[id(module._modules["_orig_mod"])]
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in twins:
                with torch.inference_mode(parameter.is_inference()):
                    twins[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        for buffer in module._buffers.values():
            if buffer is not None and id(buffer) not in twins:
                with torch.inference_mode(buffer.is_inference()):
                    twins[id(buffer)] = buffer.detach().clone()
    for module in modules:
        if "_orig_mod" not in module._modules:
            contents = {name: _twin_value(value, twins) for name, value in module.__dict__.items()}
            twins[id(module)].__dict__.update(contents, _compiled_call_impl=None)
    twin = cast(nn.Module, twins[id(model)])
    share_known(model, twin)
    return twin


def _twin_value(value: Any, twins: dict[int, Any]) -> Any:
    """The value with twins in place of modules, parameters and buffers."""
    if id(value) in twins:
        return twins[id(value)]
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        changed = value.copy()
        for key, inner in value.items():
            changed[key] = _twin_value(inner, twins)
        return changed
    if type(value) in {list, tuple, set}:
        return type(value)(_twin_value(inner, twins) for inner in value)
    if isinstance(value, MethodType):
        owner = _twin_value(value.__self__, twins)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if isinstance(value, functools.partial):
        named = {k: _twin_value(v, twins) for k, v in value.keywords.items()}
        return functools.partial(_twin_value(value.func, twins), *(_twin_value(v, twins) for v in value.args), **named)
    if isinstance(value, FunctionType) and any(_holds(cell, twins) for cell in value.__closure__ or ()):
        raise NotOffered(
            f"the function {value.__qualname__} holds a module of the model itself, so a copy with random weights "
            "would still run the trained ones. Give the module as an argument instead (functools.partial)."
        )
    return value


def _holds(cell: Any, twins: dict[int, Any]) -> bool:
    try:
        inside = cell.cell_contents
    except ValueError:  # empty
        return False
    return id(inside) in twins or (isinstance(inside, MethodType) and id(inside.__self__) in twins)


def require_whole(model: nn.Module, twin: nn.Module, forward: Callable[[nn.Module], Any]) -> None:
    """Refuse a twin whose pass leads through other modules than the model's: something in it still leads there."""
    if calls_of(twin, forward) != calls_of(model, forward):
        raise NotOffered(
            f"a copy of {type(model).__name__} with random weights would still run parts of the trained model (an "
            "object in it holds one of its modules), so random weights cannot be tried out."
        )


def calls_of(model: nn.Module, forward: Callable[[nn.Module], Any]) -> list[str]:
    """The modules with parameters in the order in which a pass leaves them."""
    order: list[str] = []
    names = {id(m): name for name, m in model.named_modules()}
    handles = [
        module.register_forward_hook(lambda m, *_: order.append(names[id(m)]))
        for module in model.modules()
        if module._parameters
    ]
    try:
        with torch.no_grad():
            forward(model)
    finally:
        for handle in handles:
            handle.remove()
    return order
