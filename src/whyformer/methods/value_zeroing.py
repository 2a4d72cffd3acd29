"""Value zeroing: silence one token's value vector in one layer, and see how much each position changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from whyformer.capture.blocks.remainder import Finish
from whyformer.engines.attention.chain import read
from whyformer.engines.attention.maps import chosen_layers, product, real, row_normalized
from whyformer.engines.attention.value_vectors import lifted
from whyformer.errors import BadInput, NotOffered, UnknownName, reading, shown
from whyformer.parameters import OneOf, Place, Places
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run
from whyformer.shapes import BQK, AnyBQK

Distance = Callable[[Tensor, Tensor], Tensor]


@method(
    paper="Mohebbi et al. 2023, arXiv:2301.12971",
    needs={"attention", "values"},
    cost=constant(1, 0),
    cost_text="1 forward; then per unit what follows attention in every block, a third to two thirds of a forward",
    signed=False,
    class_specific=False,
    specificity="attention",
    rowwise=lambda **options: True,
)
def value_zeroing(
    run: Run,
    *,
    distance: Annotated[str, OneOf("cosine", "euclidean")] | Distance = "cosine",
    layers: Annotated[str, OneOf("product", "mean", "last")] | Place | Places = "product",
) -> Attribution:
    """How much a position's vector changes when one token's value is zeroed: rows of shares, multiplied: D_L ··· D_1.

    D_l[i, t] = distance between the output of block l at i as it was and with the value vectors of t zeroed in all
    heads of that layer (after the softmax: attention stays as it is), divided by its sum over t. No identity is added.
    ``distance``: "cosine" (1 - cos), "euclidean", or a function (changed, original) → distance over the last axis.
    ``layers``: "product" (the whole model), "mean", "last", a number, or the mean of a list: D_l of those alone.
    The output of a block is what the next block adds to: of a pre-norm model, the stream before the final norm.

    Misleads when: tokens back each other up (silencing one of two changes little), and on deep models, where the
    product of shares flattens out. It is the same for every class.
    """
    sites = run.anatomy().record.sites
    chosen = chosen_layers(layers, len(sites))
    maps = [row_normalized(d) for d in distances(run, distance)]
    if layers != "product" and len({maps[i].shape for i in chosen}) > 1:
        raise NotOffered(f"layers={layers!r}: these layers ask for different rows, so there is no mean of them.")
    whole = product(maps) if layers == "product" else torch.stack([maps[i] for i in chosen]).mean(0)
    return read(run, whole, sites[chosen[-1]].first_query, maps)


@torch.no_grad()
def distances(run: Run, distance: str | Distance = "cosine") -> list[AnyBQK]:
    """D_l of every layer before its rows are divided by their sums."""
    measure, tolerance = _measure(distance)
    anatomy = run.anatomy()
    finishes = [Finish(site, block) for site, block in anatomy.layers]  # what cannot be run again is refused first
    layers = []
    for site, finish in zip(anatomy.record.sites, run.track(finishes, "value zeroing"), strict=True):
        changes = lifted(site.attention_BHQK).new_zeros(site.attention_BHQK[:, 0].shape)
        length = 0.0
        matters_K = run.attended_BN.any(0) & site.attention_BHQK.amax((0, 1, 2)).bool()
        for tokens, changed, original in finish.without_each(matters_K.nonzero()[:, 0].tolist()):
            moved = measure(lifted(changed), lifted(original))
            changes[:, :, tokens] = moved.movedim(0, -1).to(changes.dtype)
            length = length or float(lifted(original).norm(dim=-1).amax())
        changes = real(changes, run.attended_BN, site)
        _require_change(changes, tolerance * (length if distance == "euclidean" else 1), site.path)
        layers.append(changes)
    return layers


def _measure(distance: str | Distance) -> tuple[Distance, float]:
    """The distance, and what it may not stay below, in units of the vectors' length for "euclidean"."""
    if callable(distance):
        return partial(_own, distance), 0.0
    if distance == "cosine":
        return cosine, 1e-12
    if distance == "euclidean":
        return euclidean, 1e-7
    raise UnknownName("value of distance", distance, ["cosine", "euclidean", "a function of two tensors"])


def _own(distance: Distance, changed: Tensor, original: Tensor) -> Tensor:
    """A distance of the user's own."""
    with reading("distance of value_zeroing failed", "It is called with two tensors (…, width), and returns (…)."):
        measured = distance(changed, original)
    if not isinstance(measured, Tensor) or measured.shape != changed.shape[:-1]:
        raise BadInput(
            f"distance of value_zeroing returned {shown(measured)} for tensors of shape {tuple(changed.shape)}: return "
            "a tensor without the last axis."
        )
    return measured


def cosine(changed: Tensor, original: Tensor) -> Tensor:
    """1 - cos, as half the squared distance of the unit vectors: small angles keep their digits."""
    a, b = (torch.nn.functional.normalize(v, dim=-1) for v in (changed, original))
    return torch.linalg.vector_norm(a.sub_(b), dim=-1).square() / 2


def euclidean(changed: Tensor, original: Tensor) -> Tensor:
    return torch.linalg.vector_norm(changed - original, dim=-1)


def _require_change(changes_BQK: BQK, tolerance: float, path: str) -> None:
    """A layer where nothing changes would become a uniform map of rounding errors once rows are normalised."""
    still = (changes_BQK.amax((1, 2)) <= tolerance).nonzero()[:, 0].tolist()
    if still:
        raise NotOffered(
            f"{path}: zeroing values changed the block's output by no more than rounding (input {still[0]}), so there "
            "is nothing to share out. The attention of this layer writes nothing: its output projection or its values "
            "are zero, or they drown in the residual stream in this precision. Try float32."
        )
