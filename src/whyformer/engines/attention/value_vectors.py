"""What each token's value adds to each position, layer by layer: the vectors behind the norm-based methods.

T_ij = s_i · (Σ_h α_ij^h F_jh + δ_ij X_i), where F_jh = steps(f_h(x_j)) with f_h(x_j) = (x_j W_V^h + b_V^h) W_O^h, X_i
is the residual stream after the same steps, and the steps and s_i are the norms up to the level that is asked for,
with the standard deviations that the model itself had. b_O and the biases of the norms belong to no token.

Nothing of size N²·E exists at once. ‖Σ_h α^h F_jh‖² = αᵀ G_j α needs only the Gram matrix G_j of the H vectors of
token j (N²·H numbers); where the vectors themselves are needed, a few query rows at a time are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer.capture.blocks.block import Block, Linear
from whyformer.errors import NotOffered
from whyformer.results.types import Site
from whyformer.shapes import BHKE, BHQK, BQ, BQE, BQK

LEVELS = ("attn", "attn_res", "attn_res_ln", "enc")
BUDGET = 1 << 22  # numbers that a chunk may hold


@dataclass(frozen=True)
class Contributions:
    """The vectors T_ij of one layer, taken apart so that they need not be stored."""

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
        """‖T_ij‖, by Gram matrices: in double precision, for a difference of large squares would lose single ones."""
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
        """T itself, (B, a few queries, K, E) at a time."""
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
    """One layer's contributions up to a level; ``attention_BHQK`` stands in for the map (a weighted one)."""
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
