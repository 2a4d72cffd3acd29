"""The arguments of a model: their names, the tensors that a user gives for them, and what it raises when called."""

from __future__ import annotations

import inspect
import traceback
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.capture.plan import OffPlan
from whyformer.dense import require_dense
from whyformer.errors import BadInput, ModelFailed, WhyformerError, listed
from whyformer.inputs.batch import Batch

# What passes through the model's forward without being its doing.
NOT_THE_MODELS = (WhyformerError, torch.OutOfMemoryError, OffPlan)
_SIGNATURES: weakref.WeakKeyDictionary[Any, dict[str, inspect.Parameter]] = weakref.WeakKeyDictionary()


def signature_of(model: nn.Module) -> dict[str, inspect.Parameter]:
    """The arguments of a model, by name."""
    forward = model.forward
    function = getattr(forward, "__func__", None)  # of the class: the same for all its models
    parameters = None if function is None else _SIGNATURES.get(function)
    if parameters is None:
        signature = inspect.signature(forward).parameters
        parameters = {n: p for n, p in signature.items() if p.kind is not p.VAR_POSITIONAL}
        if function is not None:
            _SIGNATURES[function] = parameters
    return dict(parameters)


def named_tensors(
    tensors: Mapping[str, Any] | Sequence[Any] | Tensor, parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """The user's own tensors by the names of the model's arguments."""
    if isinstance(tensors, Mapping):
        return dict(tensors)
    if isinstance(tensors, Tensor):
        tensors = (tensors,)
    if len(tensors) > len(parameters):
        raise BadInput(f"{len(tensors)} tensors for a model that takes {len(parameters)}: {', '.join(parameters)}.")
    return dict(zip(parameters, tensors, strict=False))


def require_dense_inputs(inputs: Mapping[Any, Any] | Sequence[Any] | Tensor) -> None:
    """Refuse tensors that hold no ordinary numbers before anything reads them."""
    if isinstance(inputs, Tensor):
        parts: dict[str, Any] = {"the input": inputs}
    elif isinstance(inputs, Mapping):
        parts = {str(name): part for name, part in inputs.items()}
    else:
        parts = {f"inputs[{place}]": part for place, part in enumerate(inputs)}
    for name, part in parts.items():
        if isinstance(part, Tensor):
            require_dense(name, part, f"give {'the tensor' if part is inputs else name}{{}}.")


def require_numbers(tensors: Mapping[str, Tensor], main: str) -> None:
    """Nothing empty, NaN or infinite among the inputs, and no truth values but in masks."""
    for name, tensor in tensors.items():
        hides = "mask" in name or "padding" in name or "bias" in name
        if not tensor.numel():
            raise BadInput(f"{name} has shape {tuple(tensor.shape)}: it holds nothing to explain.")
        if tensor.dtype is torch.bool and not hides and (name == main or len(tensors) == 1):
            raise BadInput(
                f"{name} holds True and False, and numbers are expected: convert it, {name}.long() or .float()."
            )
        numbers = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch computes little in 8 bits
        if tensor.is_floating_point() and not bool(torch.isfinite(numbers).all()):
            if not hides or bool(numbers.isnan().any()):  # a mask that is added to scores hides by minus infinity
                row = int((~torch.isfinite(numbers)).flatten(1).any(1).int().argmax()) if tensor.ndim > 1 else 0
                raise BadInput(
                    f"{name} holds NaN or infinity in input {row}: fill those places, or leave the input out."
                )


def require_shown(name: str, keep_BN: Tensor) -> None:
    """A mask of the model's own name that hides a whole input says the opposite of what it is taken for."""
    hidden = (~keep_BN.any(1)).nonzero()[:, 0].tolist()
    if hidden and name == "attention_mask":
        raise BadInput(f"attention_mask hides every position of input {hidden[0]}: there is nothing to explain in it.")
    if hidden:
        raise BadInput(
            f"{name} hides every position of input {hidden[0]}, where True is taken for a real position. If True means "
            "hidden in your model, give the argument a name with 'padding' in it, or wrap the model and pass ~mask on."
        )


def model_failed(model: nn.Module, batch: Batch, error: Exception) -> ModelFailed:
    """Whose code raised, on which input, and what to try."""
    trace = traceback.extract_tb(error.__traceback__)
    last = trace[-1]
    shapes = ", ".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in batch.tensors.items())
    name = type(model).__name__
    message = " ".join(str(error).split())
    said = f"{type(error).__name__}: {message[:300]}{'…' if len(message) > 300 else ''}"
    return ModelFailed(
        f"{name} raised {said} (in {Path(last.filename).name}, line {last.lineno}, {last.name}), when it was run on "
        f"{shapes}. Call it by yourself on the same tensors, model(**tensors): where that fails too, the model and "
        "these inputs do not fit each other (their processor, length, dtype or device)."
    )


OTHERS = (
    "the model also reads {others}, which {are} no unit{s} here: what is taken away or put back is {main} alone, and "
    "scores of attention, or of gradients where the first block begins, are of all that was put together at a position."
)


def others_note(main: str, others: Sequence[str]) -> str:
    """What every explanation has to say where numbers of the input are no units."""
    many = len(others) > 1
    return OTHERS.format(others=listed(others, "and"), are="are" if many else "is", s="s" * many, main=main)
