"""Activations of a layer, pooled over positions, and the gradient of a target's logit at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.explainer import CoreExplainer
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.output import Output
from whyformer.run.session import Session
from whyformer.shapes import Array
from whyformer.study import Study
from whyformer.targets import require_finite, resolve_targets, scalar_of


def layer_name(model: nn.Module, layer: int | str, study: Study | None) -> str:
    """The dotted name of a module: itself, or the block around the ``layer``-th attention."""
    modules = dict(model.named_modules())
    if isinstance(layer, str):
        if layer not in modules or not layer:
            raise UnknownName("module", layer, [n for n in modules if n])
        return layer
    sites = study.sites if study is not None else ()
    blocks = list(dict.fromkeys(b for b in (_block(modules, site.path) for site in sites) if b))
    if not blocks:
        raise NotOffered("no list of attention blocks was found in the model: give the layer as a dotted module name.")
    if not -len(blocks) <= layer < len(blocks):
        raise BadInput(f"layer={layer}: a number from 0 to {len(blocks) - 1}, or a module name such as {blocks[0]!r}.")
    return blocks[layer]


def _block(modules: dict[str, nn.Module], path: str) -> str:
    """The innermost module around an attention site that is one of a list: its output is the residual stream."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        parent = modules.get(".".join(parts[: end - 1]))
        if isinstance(parent, (nn.ModuleList, nn.Sequential)):
            return ".".join(parts[:end])
    return ""


class Tap:
    """While open, stores the output of a module; with ``leaf``, as the start of the graph, to be differentiated."""

    def __init__(self, model: nn.Module, name: str, leaf: bool = False) -> None:
        self.module, self.name, self.leaf = model.get_submodule(name), name, leaf
        self._outputs: list[Tensor] = []
        self._handle: Any = None

    def __enter__(self) -> Tap:
        self._handle = self.module.register_forward_hook(self._keep)
        return self

    def __exit__(self, *exc: object) -> None:
        self._handle.remove()
        self._outputs.clear()

    def _keep(self, module: nn.Module, args: Any, out: Any) -> Any:
        tensor = out[0] if isinstance(out, (tuple, list)) else out
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise NotOffered(f"{self.name} returns a {type(tensor).__name__}, not a tensor: choose another layer.")
        tensor = tensor.detach().requires_grad_() if self.leaf else tensor
        self._outputs.append(tensor)
        if not self.leaf:
            return None
        return (tensor, *out[1:]) if isinstance(out, tuple) else tensor

    def take(self) -> Tensor:
        """Return the output of the module in the last pass."""
        outputs, self._outputs = self._outputs, []
        if len(outputs) != 1:
            raise NotOffered(
                f"{self.name} ran {len(outputs)} times in one pass: a layer that runs exactly once is needed. "
                "Give another module by its dotted name."
            )
        return outputs[0]


POOLINGS = ("cls", "mean", "flat")


def pooled(activation: Tensor, keep_BN: Tensor | None, pooling: str, gradient: bool = False) -> Tensor:
    """(B, D): the first real token, the mean over real tokens, or everything; gradient: the derivative for its step."""
    if activation.ndim == 2:
        return activation
    if pooling == "flat":
        if keep_BN is not None and not keep_BN.all():
            raise NotOffered('pooling="flat" needs inputs of one length, and these were padded: use "cls" or "mean".')
        return activation.flatten(1)
    if activation.ndim != 3:
        raise NotOffered(
            f"pooling={pooling!r} needs activations of inputs × tokens × features; this layer gives "
            f'{tuple(activation.shape)}. Use pooling="flat" or another layer.'
        )
    if keep_BN is None or keep_BN.shape[1] != activation.shape[1]:
        keep_BN = activation.new_ones(activation.shape[:2]).bool()
    keep_BN = keep_BN.to(activation.device)
    if pooling == "cls":
        return activation[range(len(activation)), keep_BN.float().argmax(1)]
    weights_BN1 = keep_BN[:, :, None].to(activation)
    total_BD = (activation * weights_BN1).sum(1)
    return total_BD if gradient else total_BD / weights_BN1.sum(1)  # the mean takes a step where every real token does


class Reader:
    """Reads activations and gradients of one layer; used inside ``borrowed``."""

    def __init__(
        self, explainer: CoreExplainer, layer: int | str, example: Any, pooling: str, batch_size: int | None
    ) -> None:
        self.explainer, self.model, self.pooling = explainer, explainer.model, pooling
        self.batch_size = batch_size
        self.name = layer_name(self.model, layer, None if isinstance(layer, str) else self._session(example).study)

    def _session(self, inputs: Any) -> Session:
        """Return a session over a set of inputs, which are encoded part by part."""
        if isinstance(inputs, (list, tuple)) and inputs and all(isinstance(x, Tensor) for x in inputs):
            inputs = torch.stack(list(inputs))  # a list of images, not a list of arguments
        if not isinstance(inputs, (Tensor, Mapping)):
            if isinstance(inputs, str) or not list(inputs):
                raise BadInput("each set of inputs must be a list with at least one text or image.")
            inputs = list(inputs)
        return Session(self.explainer, inputs, batch_size=self.batch_size, at_once=False)

    def _batches(self, inputs: Any) -> Iterator[tuple[Modality, Batch]]:
        session = self._session(inputs)
        for rows in session.parts(sort=False):
            yield session.modality, session.part(rows)

    def activations(self, inputs: Any) -> Array:
        """(N, D)"""
        parts = []
        with Tap(self.model, self.name) as tap, torch.no_grad():
            for modality, batch in self._batches(inputs):
                Output(modality, batch).logits(batch)
                parts.append(pooled(tap.take(), batch.keep_BN, self.pooling))
        return _joined(parts)

    def gradients(self, inputs: Any, target: Any) -> tuple[Array, str]:
        """(N, D) of the target's logit, and the target's name."""
        if target is None or isinstance(target, list):
            raise BadInput("tcav explains one class: give target, by name or index.")
        parts, name = [], ""
        with Tap(self.model, self.name, leaf=True) as tap, torch.enable_grad():
            for modality, batch in self._batches(inputs):
                output = Output(modality, batch)
                logits_BC = output.logits(batch)
                require_finite(logits_BC)
                aims = resolve_targets(target, logits_BC, output.labels, output.positions, output.token_id)
                aim = aims[0]
                name = aim.label or output.name(aim.index) or str(aim.index)
                if aim.versus is not None:
                    name += f" rather than {aim.versus_label or output.name(aim.versus) or aim.versus}"
                leaf = tap.take()
                score = scalar_of(logits_BC, aims, "logit").sum()
                gradient = torch.zeros_like(leaf)
                if score.requires_grad:  # a model whose output does not depend on this layer has no gradient at all
                    (gradient,) = torch.autograd.grad(score, leaf, materialize_grads=True)
                parts.append(pooled(gradient, batch.keep_BN, self.pooling, gradient=True))
        return _joined(parts), name


def _joined(parts: list[Tensor]) -> Array:
    if len({p.shape[1] for p in parts}) > 1:
        raise BadInput('pooling="flat" needs inputs of one length: use "cls" or "mean".')
    return np.concatenate([part.detach().cpu().double().numpy() for part in parts])
