"""Mixture of experts: which experts each token went to, and their share of the relevance.

Routers are found by running the model: a part of it is called with vectors of tokens, whole numbers (tokens, k) and
weights of the same shape, and returns vectors of the same tokens. So no table of families is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.capture.leaves import slopes
from whyformer.errors import NotOffered
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.parameters import BatchSize, checked
from whyformer.results.codec import Float32
from whyformer.results.interop import dataframe
from whyformer.results.result import Result
from whyformer.results.types import Cost, Target
from whyformer.run import Run
from whyformer.run.session import passing_through
from whyformer.shapes import Array
from whyformer.targets import Aims
from whyformer.views.head_views import experts_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd

LINEAR = 1e-3  # of the largest output: experts whose parts do not add up to it are not weighted by the router


@dataclass(frozen=True, eq=False)
class Experts(Result):
    """The experts of one input's tokens, each (L, N, K): ``chosen``, ``weights`` of the router, and ``relevance``.

    ``relevance`` of an expert at a token is its output, weighted by the router, times the gradient of the explained
    score there: to first order, what the score would lose without it. Shared experts are not routed and not listed.
    """

    what: ClassVar[str] = "experts"
    axes: ClassVar[Mapping[str, str]] = {"paths": "L", "chosen": "LNK", "weights": "LNK", "relevance": "LNK"}

    labels: tuple[str, ...]  # tokens
    paths: tuple[str, ...]  # of the experts of each layer
    count: int  # experts of a layer
    chosen: Float32
    weights: Float32
    relevance: Float32
    target: Target
    value: float
    cost: Cost = field(default_factory=Cost)
    model: str = ""

    def shares(self) -> Array:
        """(L, E) the share of each expert in its layer's relevance, by absolute values; each row sums to 1."""
        return self._by_expert(np.abs(self.relevance))

    def routed(self) -> Array:
        """(L, E) the share of the router's choices that went to each expert; each row sums to 1."""
        return self._by_expert(np.ones_like(self.relevance))

    def _by_expert(self, values_LNK: Array) -> Array:
        totals = np.zeros((len(self.paths), self.count))
        for layer, (experts, values) in enumerate(zip(self.chosen.astype(int), values_LNK, strict=True)):
            np.add.at(totals[layer], experts.ravel(), values.ravel())
        sums = totals.sum(1, keepdims=True)
        return np.divide(totals, sums, out=np.zeros_like(totals), where=sums > 0)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per layer, token and chosen expert."""
        rows = []
        for layer, token, slot in np.ndindex(*self.chosen.shape):
            place = layer, token, slot
            rows.append(
                {
                    "layer": layer,
                    "position": token,
                    "token": self.labels[token],
                    "expert": int(self.chosen[place]),
                    "weight": float(self.weights[place]),
                    "relevance": float(self.relevance[place]),
                }
            )
        return dataframe(rows)


@checked
def experts(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    target: Aims = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    progress: bool | None = None,
) -> Experts | list[Experts]:
    """Return the experts that each token was routed to, with the router's weights and their relevance.

    r_te = w_te E_e(x_t) · ∂s/∂y_t, y the output of the routed experts of a layer, s the explained score. ``target`` as
    in ``explain``. One result for one input, a list for several. Supported: models whose experts are called with the
    chosen experts of each token and their weights (Mixtral, Qwen MoE, GPT-OSS, DeepSeek, OLMoE and similar models).

    Misleads when: an expert matters through what later layers make of it in other ways than to first order (a token
    that would be routed elsewhere without it).
    """
    options: dict[str, Any] = {"processor": processor, "attention_at": attention_at, "batch_size": batch_size}
    with passing_through(model, inputs, target=target, progress=progress, **options) as session:
        refuse_without_gradients(session.model, "experts")
        runs = (session.run([row], alone=True) for row in range(session.size))
        results = [_of_one(run, session.names) for run in runs]
        return results[0] if session.source.single else results


@dataclass
class Routed:
    """One call of a layer's experts. parts_KND: the output of each slot of the router alone."""

    path: str
    chosen_NK: Tensor
    weights_NK: Tensor
    parts_KND: Tensor
    leaf: Tensor  # zeros that were added to the output, to take its gradient at


def _of_one(run: Run, names: Mapping[int, str]) -> Experts:
    started = time.perf_counter()
    with torch.enable_grad(), _watched(run.modality.model, names) as calls:
        value = run.scalars(run.output.logits(run.batch))
    if not calls:
        raise NotOffered(
            f"{type(run.modality.model).__name__}: no experts were found, a module that is called with the vectors of "
            "tokens, the numbers of the experts chosen for each, and their weights. The model has none, or its experts "
            "are called in another way: most models of transformers 4 call each by itself, and need transformers 5."
        )
    gradients = slopes(value.sum(), [call.leaf for call in calls])
    keep_N = run.keep_BN[0].cpu()
    layers = []
    for call, gradient in zip(calls, gradients, strict=True):
        relevance_NK = torch.einsum(
            "knd,nd->nk", call.parts_KND.float(), gradient.reshape(call.parts_KND.shape[1:]).float()
        )
        if len(relevance_NK) != len(keep_N):
            raise NotOffered(f"{call.path}: {len(relevance_NK)} tokens were routed, and the input has {len(keep_N)}.")
        layers.append([part.detach().float().cpu()[keep_N] for part in (call.chosen_NK, call.weights_NK, relevance_NK)])
    chosen, weights, relevance = (torch.stack(part).numpy() for part in zip(*layers, strict=True))
    units = run.units[0]
    return Experts(
        labels=units.labels,
        paths=tuple(call.path for call in calls),
        count=_count(run.modality.model, calls),
        chosen=chosen,
        weights=weights,
        relevance=relevance,
        target=run.targets[0],
        value=float(value.detach()[0]),
        cost=Cost(1, 1, time.perf_counter() - started),
        model=type(run.modality.model).__name__,
    )


def _count(model: nn.Module, calls: list[Routed]) -> int:
    """The number of experts: the first axis of the weights of the module, else the highest that was chosen."""
    first = dict(model.named_modules())[calls[0].path]
    sizes = [p.shape[0] for p in first.parameters(recurse=False) if p.ndim == 3]
    return max([*sizes[:1], *(int(call.chosen_NK.max()) + 1 for call in calls)])


@contextmanager
def _watched(model: nn.Module, names: Mapping[int, str]) -> Iterator[list[Routed]]:
    """Inside ``with``: note every call of experts, and add zeros to its output that gradients are taken at."""
    calls: list[Routed] = []
    inside = False

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        nonlocal inside
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        if inside or not isinstance(output, Tensor) or not (found := _routed(tensors, output)):
            return None
        vectors, chosen, weights = found
        width, parts = chosen.shape[1], []
        inside = True
        try:
            for slot in range(width):
                alone = _only(weights, chosen, slot)
                again = {id(weights): alone}
                with torch.no_grad():
                    swapped = [again.get(id(a), a) for a in args]
                    parts.append(module(*swapped, **{k: again.get(id(v), v) for k, v in kwargs.items()}))
        finally:
            inside = False
        parts_KND = torch.stack(parts).reshape(width, len(vectors), -1)
        if (parts_KND.sum(0) - output.reshape(len(vectors), -1)).abs().max() > LINEAR * output.abs().max() + 1e-6:
            return None  # not a sum over slots, weighted by these numbers
        leaf = torch.zeros_like(output, requires_grad=True)
        own = weights if weights.shape == chosen.shape else weights.gather(1, chosen)
        calls.append(Routed(names.get(id(module), ""), chosen, own, parts_KND, leaf))
        return output + leaf

    handles = [m.register_forward_hook(note, with_kwargs=True) for m in model.modules()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _routed(tensors: list[Tensor], output: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Vectors (N, D), numbers of the chosen experts (N, K), and weights (N, K) or (N, experts), if these are they."""
    chosen = [t for t in tensors if t.dtype in (torch.int64, torch.int32) and t.ndim == 2]
    if len(chosen) != 1 or len(tensors) < 3:
        return None
    tokens = len(chosen[0])
    floats = [t for t in tensors if t.is_floating_point()]
    vectors = [t for t in floats if t.numel() == output.numel() and t.shape[-1] == output.shape[-1]]
    weights = [t for t in floats if t.ndim == 2 and len(t) == tokens and all(t is not v for v in vectors)]
    if not vectors or not weights or vectors[0].numel() != tokens * vectors[0].shape[-1]:
        return None
    return vectors[0].reshape(tokens, -1), chosen[0].long(), weights[0]


def _only(weights: Tensor, chosen_NK: Tensor, slot: int) -> Tensor:
    """The weights with all but one slot of each token zero."""
    alone = torch.zeros_like(weights)
    if weights.shape == chosen_NK.shape:
        alone[:, slot] = weights[:, slot]
        return alone
    index = chosen_NK[:, slot : slot + 1]
    return alone.scatter(1, index, weights.gather(1, index))


view_of.register(Experts, experts_view)
