"""Contributions of value vectors: value_norms, alti and value_zeroing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any

import torch
from torch import Tensor

from whyformer.capture.blocks.block import Block, Linear
from whyformer.capture.blocks.remainder import Finish
from whyformer.engines.attention.chain import read
from whyformer.engines.attention.maps import chosen_layers, product, read_row, real, row_normalized, with_residual
from whyformer.errors import BadInput, NotOffered, one_of, reading, shown
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.parameters import OneOf, Place, Places, Share
from whyformer.registry import method, one_forward
from whyformer.results.types import Site, Units
from whyformer.run import Attribution, Run, working
from whyformer.shapes import BHKE, BHQK, BQ, BQE, BQK, AnyBQK, Array

# Contribution of each token to each position in a layer: the vectors of the norm-based methods.
#
# T_ij = s_i · (Σ_h α_ij^h F_jh + δ_ij X_i), where F_jh = steps(f_h(x_j)) with f_h(x_j) = (x_j W_V^h + b_V^h) W_O^h, X_i
# is the residual stream after the same steps, and the steps and s_i are the norms up to the level that is asked for,
# with the standard deviations that the model itself had. b_O and the biases of the norms belong to no token.
#
# No tensor of size N²·E is created. ‖Σ_h α^h F_jh‖² = αᵀ G_j α needs only the Gram matrix G_j of the H vectors of
# token j (N²·H numbers); if the vectors themselves are needed, a few query rows are computed at a time.

LEVELS = ("attn", "attn_res", "attn_res_ln", "enc")
BUDGET = 1 << 22  # numbers that a chunk may hold


@dataclass(frozen=True)
class Contributions:
    """The vectors T_ij of one layer, as factors, so that they need not be stored."""

    attention_BHQK: BHQK
    vectors_BHKE: BHKE  # F
    residual_BQE: BQE | None  # X; None at the level of the attention alone
    scale_BQ: BQ | None  # s
    first_query: int

    @property
    def diagonal_BQE(self) -> BQE:
        """T_ii."""
        weights_BHQ = self.attention_BHQK.diagonal(self.first_query, dim1=2, dim2=3)
        queries = self.attention_BHQK.shape[2]
        vectors_BHQE = self.vectors_BHKE[:, :, self.first_query : self.first_query + queries]
        return self._finished(torch.einsum("bhq,bhqe->bqe", weights_BHQ, vectors_BHQE), self.residual_BQE)

    @property
    def others_BQE(self) -> BQE:
        """Σ_{j≠i} T_ij."""
        heads = zip(self.attention_BHQK.unbind(1), self.vectors_BHKE.unbind(1), strict=True)
        total = sum(torch.bmm(weights, vectors) for weights, vectors in heads)
        assert isinstance(total, Tensor)
        return self._finished(total, self.residual_BQE) - self.diagonal_BQE

    def _finished(self, sums_BQE: BQE, residual_BQE: BQE | None) -> BQE:
        if residual_BQE is not None:
            sums_BQE = sums_BQE + residual_BQE
        return sums_BQE if self.scale_BQ is None else sums_BQE * self.scale_BQ[..., None]

    @property
    def norms_BQK(self) -> BQK:
        """Return ‖T_ij‖ by Gram matrices, in double precision: differences of large squares lose digits in single."""
        few_BKHE = torch.split(self.vectors_BHKE.transpose(1, 2), 64, dim=1)
        gram_BKHH = torch.cat([v @ v.mT for v in map(wide, few_BKHE)], 1)
        parts = []
        for rows in self._chunks(self.attention_BHQK.shape[1]):
            weights_BKQH = wide(self.attention_BHQK[:, :, rows]).permute(0, 3, 2, 1)
            squares_BKQ = ((weights_BKQH @ gram_BKHH) * weights_BKQH).sum(-1)
            parts.append(squares_BKQ.clamp(min=0).sqrt().transpose(1, 2))
        norms = torch.cat(parts, 1).to(self.vectors_BHKE.dtype)
        if self.scale_BQ is not None:
            norms = norms * self.scale_BQ[..., None]
        queries = torch.arange(norms.shape[1], device=norms.device)
        norms[:, queries, queries + self.first_query] = self.diagonal_BQE.norm(dim=-1)
        return norms

    def rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield T in chunks (B, a few queries, K, E)."""
        for rows in self._chunks(self.vectors_BHKE.shape[-1]):
            weights_BKQH = self.attention_BHQK[:, :, rows].permute(0, 3, 2, 1)
            vectors_BKQE = weights_BKQH @ self.vectors_BHKE.transpose(1, 2)
            if self.residual_BQE is not None:
                queries = torch.arange(rows.start, rows.stop, device=vectors_BKQE.device)
                vectors_BKQE[:, queries + self.first_query, queries - rows.start] += self.residual_BQE[:, rows]
            if self.scale_BQ is not None:
                vectors_BKQE = vectors_BKQE * self.scale_BQ[:, None, rows, None]
            yield rows, vectors_BKQE.transpose(1, 2)

    def _chunks(self, width: int) -> Iterator[slice]:
        batch, _, queries, keys = self.attention_BHQK.shape
        step = max(1, BUDGET // (batch * keys * width))
        for start in range(0, queries, step):
            yield slice(start, min(start + step, queries))


def transformed(site: Site, block: Block) -> BHKE:
    """f_h(x_j): each value vector through its head's part of the output projection."""
    assert site.value_BHKD is not None
    value = lifted(site.value_BHKD)
    return torch.matmul(value, block.output_HDE.to(value.dtype))


def contributions(site: Site, block: Block, level: str, attention_BHQK: BHQK | None = None) -> Contributions:
    """Return one layer's contributions up to a level; ``attention_BHQK`` replaces the map (a weighted one)."""
    if block.output_HDE.shape[0] != site.heads:
        raise NotOffered(f"{site.path}: {site.heads} heads, but a projection of {block.output_HDE.shape[0]}.")
    weights = lifted(site.attention_BHQK if attention_BHQK is None else attention_BHQK)
    vectors = block.before.apply(transformed(site, block))
    if block.before.scale_BQ is not None:  # a norm between projection and residual: it acts on the query's row
        weights = weights * block.before.scale_BQ[:, None, :, None].to(weights.dtype)
    if level == "attn":
        return Contributions(weights, vectors, None, None, site.first_query)
    way = {"attn_res": Linear((), None), "attn_res_ln": block.attended, "enc": block.finished}[level]
    scale = None if way.scale_BQ is None else way.scale_BQ.to(vectors.dtype)
    return Contributions(weights, way.apply(vectors), way.apply(lifted(block.residual_BQE)), scale, site.first_query)


def lifted(tensor: Tensor) -> Tensor:
    """At least single precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def wide(tensor: Tensor) -> Tensor:
    """Double precision, where the device has it."""
    return tensor if tensor.device.type == "mps" else tensor.double()


LARGEST = 1e30  # above this a product of many layers is rescaled, to stay within float32


@method(
    paper="Kobayashi et al. 2020, arXiv:2004.10102; 2021, arXiv:2109.07152; GlobEnc: Modarressi et al. 2022, "
    "arXiv:2205.03286",
    needs={"attention", "values"},
    cost=lambda units, weight=None, **options: (2, 1) if weight == "gradient" else (1, 0),
    cost_text='1 forward, and the work of 0.2 to 0.7 forwards; weight="gradient": 1 forward + 1 backward more',
    signed=False,
    class_specific=False,
    rowwise=lambda *, weight, **options: weight is None,
    meaning="norm of each token's contribution, combined across layers",
)
def value_norms(
    run: Run,
    *,
    level: Annotated[str, OneOf(*LEVELS)] = "enc",
    aggregate: Annotated[str, OneOf("rollout", "mean")] | Place = "rollout",
    weight: Annotated[str, OneOf("gradient")] | None = None,
    residual: Share | None = None,
) -> Attribution:
    """Measure the norm of the vector that each token adds to each position, and multiply over layers: C_L ··· C_1.

    C[i, j] = ‖T_ij‖. ``level``: "attn": T_ij = Σ_h α_ij^h f_h(x_j), with f_h(x) = (x W_V^h + b_V^h) W_O^h; "attn_res"
    adds the residual stream x_i on the diagonal; "attn_res_ln" applies the norm after that sum, with its true standard
    deviation; "enc" also applies the norm after the MLP, and skips the MLP. Pre-norm blocks have no norm there: the
    last three are equal. ``aggregate``: "rollout" is the plain product, without identity or row normalisation; "mean"
    averages the layers; a number selects one. ``weight="gradient"`` multiplies α_ij^h by max(0, ∂s/∂α_ij^h), which
    makes the scores class-specific. ``residual=a`` uses a fixed residual share, (1-a)·rownorm(C) + a·I; with level
    "attn" and 0.5 this is N-FixedRes in GlobEnc.

    Misleads when: contributions cancel (norms do not), the MLP changes what attention added (it is skipped), and at
    level "attn_res_ln" on post-norm models, whose second norm reverses the first.
    """
    if isinstance(aggregate, int):
        chosen_layers(aggregate, len(run.study.sites) or 1)  # raises before the pass if there is no such layer
    _ = layers(run, level, weight)  # run under the caller's autocast; the formulas below are not
    with torch.no_grad(), torch.autocast(run.keep_BN.device.type, enabled=False):
        contributed = layers(run, level, weight)
        with working(run, "value_norms", level):
            maps = [real(parts.norms_BQK, run.attended_BN, site) for site, parts in contributed]
        sites = run.anatomy().record.sites
        if residual is not None:
            maps = [
                real(with_residual(row_normalized(m), s.first_query, residual, True), run.attended_BN, s)
                for m, s in zip(maps, sites, strict=True)
            ]
        first = sites[-1].first_query
        if aggregate == "rollout":
            whole, warnings = _product(maps)
            return read(run, whole, first, maps, [list(warnings) for _ in run.units] if warnings else None)
        if aggregate != "mean":
            (index,) = chosen_layers(aggregate, len(maps))
            return read(run, maps[index], sites[index].first_query, maps)
        if len({m.shape for m in maps}) == 1:
            return read(run, torch.stack(maps).mean(0), first, maps)
        # A last layer with few rows: only the row that is read exists everywhere.
        rows = [read_row(m, run.readout_BN, s.first_query) for m, s in zip(maps, sites, strict=True)]
        return Attribution(torch.stack(rows).mean(0))


def layers(run: Run, level: str, weight: str | None = None) -> Iterator[tuple[Site, Contributions]]:
    """Yield the contributions of each layer; the passes that they need are made before the first is used."""
    gradients: Sequence[Tensor | None] = ()
    if weight == "gradient":
        refuse_without_gradients(run.modality.model, 'value_norms(weight="gradient")')
        gradients = [site.attention_grad_BHQK for site in run.record(grad=True).sites]
    anatomy = run.anatomy()

    def each() -> Iterator[tuple[Site, Contributions]]:
        for (site, block), gradient in zip_longest(anatomy.layers, gradients):
            raising = None if gradient is None else lifted(site.attention_BHQK) * lifted(gradient).clamp(min=0)
            yield site, contributions(site, block, level, raising)

    return each()


def _product(maps: list[AnyBQK]) -> tuple[AnyBQK, list[str]]:
    """Return C_L ··· C_1, computed in double precision because entries grow with the layers, and warnings."""
    whole, warnings = product([wide(m) for m in maps]), []
    if float(whole.amax()) > LARGEST:
        whole = whole / whole.amax((1, 2), keepdim=True)
        warnings.append("the product of the layers left the range of float32 and was divided by its largest entry.")
    return whole.to(maps[0].dtype), warnings


def per_head(run: Run) -> list[Tensor]:
    """Return per layer (B, H, Q, K): ‖α_ij^h f_h(x_j)‖ of each head (Kobayashi 2020)."""
    norms = []
    for site, parts in layers(run, "attn"):
        maps = parts.attention_BHQK * parts.vectors_BHKE.norm(dim=-1)[:, :, None]
        norms.append(torch.stack([real(m, run.keep_BN, site) for m in maps.unbind(1)], 1))
    return norms


def transformed_norms(run: Run) -> list[Tensor]:
    """Return per layer (B, H, K): ‖f_h(x_j)‖, the length of a head's vector before attention weights it."""
    keep = run.keep_BN[:, None]
    return [transformed(site, block).norm(dim=-1) * keep for site, block in run.anatomy().layers]


def mixing_ratio(run: Run, level: str = "enc") -> Tensor:
    """Return (B, L, N) the share of other positions in each new vector: ‖Σ_{j≠i} T_ij‖ / (‖Σ_{j≠i} T_ij‖ + ‖T_ii‖).

    It is 0 at padding and at positions that a layer does not compute.
    """
    one_of("level", level, LEVELS)
    rows = []
    for site, parts in layers(run, level):
        others, itself = parts.others_BQE.norm(dim=-1), parts.diagonal_BQE.norm(dim=-1)
        total = others + itself
        ratio = torch.where(total > 0, others / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)
        whole = ratio.new_zeros(run.keep_BN.shape)
        whole[:, site.first_query : site.first_query + ratio.shape[1]] = ratio
        rows.append(whole * run.keep_BN)
    return torch.stack(rows, 1)


@dataclass(frozen=True)
class Weighed:
    """The attention of each head on one input, and the lengths of the vectors that it weights."""

    units: Units
    attention: tuple[Array, ...]  # per layer (H, Q, K)
    norms: tuple[Array, ...]  # per layer (H, K): ‖f_h(x_j)‖


def weighed(explainer: Any, inputs: Any) -> list[Weighed]:
    """Return attention weights and value norms of each input that an ``Explainer`` is given."""
    with explainer.session(inputs) as session, torch.no_grad():
        run = session.run(range(session.size))
        norms = transformed_norms(run)
        maps = [site.attention_BHQK for site in run.anatomy().record.sites]
        each = []
        for row, units in enumerate(run.units):
            keep = run.keep_BN[row]
            attention = [m[row][..., keep] for m in maps]
            attention = [m[:, keep] if m.shape[1] == len(keep) else m for m in attention]
            lengths = [n[row][:, keep] for n in norms]
            arrays = (tuple(m.float().cpu().numpy() for m in some) for some in (attention, lengths))
            each.append(Weighed(units, *arrays))
    return each


ORDERS = {"l1": 1, "l2": 2}


@one_forward(
    paper="Ferrando, Gállego & Costa-jussà 2022, arXiv:2203.04212",
    needs={"attention", "values"},
    cost_text="1 forward, and the work of 0.2 to 0.7 forwards",
    rowwise=lambda **options: True,
    meaning="share of each token in the attention output, combined across layers",
)
def alti(run: Run, *, norm: Annotated[str, OneOf(*ORDERS)] = "l1") -> Attribution:
    """Measure how close each token's contribution alone is to the attention block's output, and multiply over layers.

    c_ij = max(0, ‖y_i‖ - ‖y_i - T_ij‖), divided by its sum over j; R = C_L ··· C_1. The identity is not added: T_ij
    includes the residual and the norm after it (value_norms at level "attn_res_ln"). y_i is the output of the attention
    half of the block, with all biases. ``norm``: "l1" (the paper) or "l2".

    Misleads when: the MLP, which is ignored, changes the hidden states a lot; or no single contribution points towards
    the output: such rows are all zero and pass nothing on. The scores are the same for every class.
    """
    anatomy = run.anatomy()
    layers = []
    with working(run, "alti"):
        for site, block in anatomy.layers:
            parts = contributions(site, block, "attn_res_ln")
            near = proximity(parts, lifted(block.attended_BQE), ORDERS[norm])
            layers.append(row_normalized(real(near, run.attended_BN, site)))
    return read(run, product(layers), anatomy.record.sites[-1].first_query, layers)


NEAREST = 1e-4  # of ‖y_i‖: differences of two norms that are smaller may be rounding


def proximity(parts: Contributions, output_BQE: Tensor, order: int) -> BQK:
    """max(0, ‖y_i‖ - ‖y_i - T_ij‖), a few query rows at a time; a row of nothing but rounding is all zero.

    NOTE[DIFF] the authors' distance adds 1e-6 to every difference (torch's pairwise_distance); ours does not.
    """
    chunks = []
    for rows, vectors_BQKE in parts.rows():
        output = output_BQE[:, rows, None]
        distance = torch.linalg.vector_norm(output - vectors_BQKE, ord=order, dim=-1)
        size = torch.linalg.vector_norm(output, ord=order, dim=-1)
        near = (size - distance).clamp(min=0)
        chunks.append(near * (near.amax(2, keepdim=True) > NEAREST * size))
    return torch.cat(chunks, 1)


Distance = Callable[[Tensor, Tensor], Tensor]


@method(
    paper="Mohebbi et al. 2023, arXiv:2301.12971",
    needs={"attention", "values"},
    cost=lambda units, **options: (1.4 * units + 1.5, 0),
    cost_text="1 forward, and the work of 0.3 (long inputs) to 1.4 (short ones) forwards per token",
    at_most=True,
    signed=False,
    class_specific=False,
    rowwise=lambda **options: True,
    meaning="change of hidden states when a token's value vector is zeroed",
    slow=True,
)
def value_zeroing(
    run: Run,
    *,
    distance: Annotated[str, OneOf("cosine", "euclidean")] | Distance = "cosine",
    layers: Annotated[str, OneOf("product", "mean", "last")] | Place | Places = "product",
) -> Attribution:
    """Measure how much each hidden state changes when one token's value vector is zeroed, and multiply over layers.

    D_l[i, t] = distance between the output of block l at i, with and without the value vectors of t in all heads of
    that layer (zeroed after the softmax: attention stays the same), divided by its sum over t; R = D_L ··· D_1, without
    identity. ``distance``: "cosine" (1 - cos), "euclidean", or a function (changed, original) → distance over the last
    axis. ``layers``: "product" (the whole model), "mean", "last", a number, or the mean of a list. The output of a
    block is the residual stream: for the last block of a pre-norm model, before the final norm.

    Misleads when: tokens are redundant (zeroing one of two changes little), and on deep models, where the rows of the
    product become alike. The scores are the same for every class.
    """
    sites = run.anatomy().record.sites
    chosen = chosen_layers(layers, len(sites))
    with working(run, "value_zeroing"):
        maps = [row_normalized(d) for d in distances(run, distance)]
    if layers != "product" and len({maps[i].shape for i in chosen}) > 1:
        raise NotOffered(f"layers={layers!r}: these layers have different query rows, so they cannot be averaged.")
    whole = product(maps) if layers == "product" else torch.stack([maps[i] for i in chosen]).mean(0)
    return read(run, whole, sites[chosen[-1]].first_query, maps)


@torch.no_grad()
def distances(run: Run, distance: str | Distance = "cosine") -> list[AnyBQK]:
    """D_l of every layer before its rows are divided by their sums."""
    measure, tolerance = (partial(_own, distance), 0.0) if callable(distance) else DISTANCES[distance]
    anatomy = run.anatomy()
    finishes = [Finish(site, block) for site, block in anatomy.layers]  # raises for blocks that cannot be run again
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
        # A layer where nothing changes would become a uniform map of rounding errors once rows are normalised.
        least = tolerance * (length if distance == "euclidean" else 1)
        still = (changes.amax((1, 2)) <= least).nonzero()[:, 0].tolist()
        if still:
            raise NotOffered(
                f"{site.path}: zeroing values changed the block's output by no more than rounding (input {still[0]}), "
                "so there are no scores. The output projection or the values of this layer are zero, or too small "
                "for this precision compared with the residual stream. Try float32."
            )
        layers.append(changes)
    return layers


def _own(distance: Distance, changed: Tensor, original: Tensor) -> Tensor:
    """Call a user-defined distance and check its result."""
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


# What a distance may not stay below: in units of the vectors' length for "euclidean".
DISTANCES: dict[str, tuple[Distance, float]] = {
    "cosine": (cosine, 1e-12),
    "euclidean": (lambda changed, original: torch.linalg.vector_norm(changed - original, dim=-1), 1e-7),
}
