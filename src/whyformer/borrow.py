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

Changes = list[tuple[Any, str, Any]]  # owner, attribute, value
VISIBLE = {None, "sdpa", "eager"}
NO_TOKEN = -1  # stands for the padding token of a model that names none


@dataclass
class Loan:
    """What belongs to a model while it lives: its lock, and what was found out about it (study/)."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    known: dict[Any, Any] = field(default_factory=dict)
    modules: list[nn.Module] | None = None  # while it is borrowed


_LOANS: weakref.WeakKeyDictionary[nn.Module, Loan] = weakref.WeakKeyDictionary()
_LOANS_LOCK = threading.Lock()


def _loan(model: nn.Module) -> Loan:
    with _LOANS_LOCK:
        return _LOANS.setdefault(model, Loan())


def known_about(model: nn.Module) -> dict[Any, Any]:
    """What was found out about a model, to be read and added to; it goes with the model."""
    return _loan(model).known


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules of a model, found once while it is borrowed."""
    modules = _loan(model).modules
    return list(model.modules()) if modules is None else modules


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
    loan = _loan(model)
    with loan.lock, contextlib.ExitStack() as stack:
        modules = list(model.modules())
        # Not model.parameters(): it would walk through the modules once more.
        parameters = [p for m in modules for p in m._parameters.values() if p is not None]
        if any(p.is_meta for p in parameters):
            require_loaded(model)
            stack.callback(_put_by_name, [(m, n, p.requires_grad) for m in modules for n, p in _offloaded(m)])
        changes: Changes = [(loan, "modules", modules)]
        changes += [(m, "training", False) for m in modules if m.training]
        changes += [(p, "requires_grad", False) for p in parameters if p.requires_grad and not p.is_inference()]
        # flash and flex kernels never pass a torch function: the model runs on sdpa meanwhile.
        configs = {id(c): c for m in modules if (c := m.__dict__.get("config")) is not None}
        hidden = [c for c in configs.values() if getattr(c, "_attn_implementation", None) not in VISIBLE]
        changes += [(c, "_attn_implementation", "sdpa") for c in hidden]
        if names_no_padding(model):  # it takes one input at a time; with an id that no token has, several of one length
            changes.append((model.__dict__["config"], "pad_token_id", NO_TOKEN))
        stack.callback(_put, [(owner, name, getattr(owner, name)) for owner, name, _ in changes])
        _put(changes)
        # Whatever the model or a method draws, the caller's random numbers go on as if nothing had happened.
        devices = {p.device for p in parameters if p.device.type == "cuda"}
        stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        if any(m._compiled_call_impl is not None or "_orig_mod" in m._modules for m in modules):
            # compiled parts would run without the function mode being asked
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.inference_mode(False))
        yield


def _put(values: Changes) -> None:
    for owner, name, value in values:
        setattr(owner, name, value)


# Weights that are elsewhere: accelerate's offload leaves them on the meta device, and a hook brings them for each pass.


def _offloaded(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in module._parameters.items() if p is not None and p.is_meta]


def _put_by_name(values: list[tuple[nn.Module, str, bool]]) -> None:
    """Such a weight is another object after each pass, so that it is known by its name only."""
    for module, name, requires_grad in values:
        parameter = module._parameters.get(name)
        if parameter is not None and parameter.requires_grad != requires_grad:
            parameter.requires_grad = requires_grad


def require_loaded(model: nn.Module) -> None:
    """Refuse a model with weights on the meta device that no hook brings."""
    brought: tuple[str, ...] = ()  # paths whose hook places everything below
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        if getattr(hook, "place_submodules", False):
            brought += (f"{path}." if path else "",)
        missing = _offloaded(module)
        hooked = hook is not None or module._forward_pre_hooks or "forward" in module.__dict__
        if missing and not hooked and not path.startswith(brought):
            name = f"{path}.{missing[0][0]}" if path else missing[0][0]
            raise NotOffered(
                f"{name} is on the meta device, which holds shapes and no numbers, and no hook loads it before a pass: "
                "there is nothing to explain yet. Load the weights, e.g. with from_pretrained(…) or "
                "model.load_state_dict(state, assign=True)."
            )


def execution_device(model: nn.Module) -> torch.device:
    """Where a model runs whose first weight is on the meta device: as its other weights, or its hooks, say."""
    for parameter in model.parameters():
        if not parameter.is_meta:
            return parameter.device
    for module in modules_of(model):
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")


def names_no_padding(model: nn.Module) -> bool:
    """transformers' classifiers on decoders read the last token before the padding, whose id they have to be told."""
    config = model.__dict__.get("config")
    classifies = any(c.__name__.endswith("ForSequenceClassification") for c in type(model).__mro__)
    return classifies and getattr(config, "pad_token_id", 0) in {None, NO_TOKEN}


def refuse_without_gradients(model: nn.Module, method: str) -> None:
    """Quantised or inference-mode weights cannot be differentiated through: say so before running."""
    if getattr(model, "opaque", False):
        raise NotOffered(f"{method} needs gradients, and the model is asked from outside (a function, a server).")
    if getattr(model, "is_quantized", False):
        raise NotOffered(f"{method} needs gradients, but the model is quantised. {_PRECISIONS}")
    for module in modules_of(model):
        parameters = {n: p for n, p in module._parameters.items() if p is not None}
        whole = all(p.is_floating_point() or p.is_complex() for p in parameters.values())
        if "quantized" in type(module).__module__ or not whole:
            part = _path(model, module) or "the model"
            raise NotOffered(f"{method} needs gradients, but {part} is quantised. {_PRECISIONS}")
        for name, parameter in parameters.items():
            if parameter.is_inference():
                raise NotOffered(
                    f"{method} needs gradients, but {_path(model, module)}.{name} was created in "
                    f"torch.inference_mode(). Load the model outside of it."
                )


_PRECISIONS = "Load the model in float16, bfloat16 or float32."


def _path(model: nn.Module, module: nn.Module) -> str:
    return next(name for name, m in model.named_modules() if m is module)
