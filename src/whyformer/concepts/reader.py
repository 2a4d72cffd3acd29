"""What a layer makes of inputs, and how a target's logit depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.concepts.layer import Tap, layer_name
from whyformer.concepts.pooling import pooled, pooled_gradient
from whyformer.errors import BadInput
from whyformer.explainer import Explainer
from whyformer.head import Head
from whyformer.outputs import require_finite, resolve_targets, scalar_of
from whyformer.study import study_of
from whyformer.subjects.base import Batch, Subject
from whyformer.types import Target

Array = np.ndarray[Any, Any]


class Reader:
    """Reads activations and gradients of one layer; used inside ``borrowed``."""

    def __init__(self, explainer: Explainer, layer: int | str, example: Any, pooling: str, step: int) -> None:
        self.explainer, self.model, self.pooling, self.step = explainer, explainer.model, pooling, step
        if isinstance(layer, str):
            self.name = layer_name(self.model, layer, None)
        else:
            subject, batch = next(self._batches(example))
            self.name = layer_name(self.model, layer, study_of(subject, batch)[0])

    def _batches(self, inputs: Any) -> Any:
        """Subject and batch, ``step`` inputs at a time."""
        if isinstance(inputs, (list, tuple)) and inputs and all(isinstance(x, Tensor) for x in inputs):
            inputs = torch.stack(list(inputs))  # a list of images, not a list of arguments
        if isinstance(inputs, (Tensor, Mapping)):
            subject, batch, _ = self.explainer.prepare(inputs)
            for start in range(0, batch.size, self.step):
                yield subject, batch.select(slice(start, start + self.step))
            return
        raw = list(inputs)
        if isinstance(inputs, str) or not raw:
            raise BadInput("each set of inputs is a list with at least one text or image.")
        for start in range(0, len(raw), self.step):
            subject, batch, _ = self.explainer.prepare(raw[start : start + self.step])
            yield subject, batch

    def activations(self, inputs: Any) -> Array:
        """(N, D)"""
        parts = []
        with Tap(self.model, self.name) as tap, torch.no_grad():
            for subject, batch in self._batches(inputs):
                Head(subject, batch).logits(batch)
                parts.append(_double(pooled(tap.take().detach(), batch.keep_BN, self.pooling)))
        return _joined(parts)

    def gradients(self, inputs: Any, target: Any) -> tuple[Array, str]:
        """(N, D) of the target's logit, and the target's name."""
        parts, name = [], ""
        with Tap(self.model, self.name, leaf=True) as tap, torch.enable_grad():
            for subject, batch in self._batches(inputs):
                head = Head(subject, batch)
                logits_BC = head.logits(batch)
                require_finite(logits_BC)
                aims = _aims(head, batch, logits_BC, target)
                name = _name(head, subject, aims[0])
                leaf = tap.take()
                score = scalar_of(logits_BC, aims, "logit").sum()
                gradient = torch.zeros_like(leaf)
                if score.requires_grad:  # a model whose output does not depend on this layer has no gradient at all
                    gradient = torch.autograd.grad(score, leaf, allow_unused=True)[0]
                    gradient = torch.zeros_like(leaf) if gradient is None else gradient
                parts.append(_double(pooled_gradient(gradient, batch.keep_BN, self.pooling)))
        return _joined(parts), name


def _aims(head: Head, batch: Batch, logits_BC: Tensor, target: Any) -> list[Target]:
    if target is None or isinstance(target, list):
        raise BadInput("tcav asks about one class: give target, by name or index.")
    return resolve_targets(target, logits_BC, head.labels(), head.positions, head.token_id)


def _name(head: Head, subject: Subject, target: Target) -> str:
    first = target.label or head.name(target.index) or str(target.index)
    if target.versus is None:
        return first
    return f"{first} rather than {target.versus_label or head.name(target.versus) or target.versus}"


def _double(values: Tensor) -> Array:
    return values.detach().cpu().double().numpy()


def _joined(parts: list[Array]) -> Array:
    if len({p.shape[1] for p in parts}) > 1:
        raise BadInput('pooling="flat" needs inputs of one length: use "cls" or "mean".')
    return np.concatenate(parts)
