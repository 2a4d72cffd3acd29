"""Scaled dot-product attention written out, equal to torch's own to rounding."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(q·kᵀ·scale + mask) over the keys, in at least float32, returned in the query's dtype."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = _scaled_products(query, key, scale)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(future, -math.inf)
    if attn_mask is None:
        return scores.softmax(-1).to(query.dtype)
    if attn_mask.dtype == torch.bool:
        hidden = ~attn_mask.any(-1, keepdim=True)
        scores.masked_fill_(~attn_mask, -math.inf)
    else:
        hidden = (attn_mask == -math.inf).all(-1, keepdim=True)
        scores = scores + attn_mask.to(scores.dtype)
    if scores.device.type == "cpu" and not hidden.any():  # a GPU would have to stop and answer
        return scores.softmax(-1).to(query.dtype)
    # A query that may look nowhere attends to nothing, as in torch's own kernels, instead of giving NaN.
    weights = scores.masked_fill(hidden, 0).softmax(-1).masked_fill(hidden, 0)
    return weights.to(query.dtype)


def _scaled_products(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """q·kᵀ·scale in at least float32, in memory that may be written to."""
    if query.dtype in (torch.float16, torch.bfloat16):
        return torch.matmul(query, key.transpose(-2, -1)).float().mul_(scale)
    plain = query.device.type == "cpu" and query.ndim == 4 and query.shape[:2] == key.shape[:2]
    if torch.is_grad_enabled() or not plain:
        return torch.matmul(query, key.transpose(-2, -1)).mul_(scale)
    # Heads are a transposed view in most models. One input at a time they are multiplied where they lie; all at once,
    # torch would copy queries and keys first, and the scale would take a pass over N × N numbers of its own.
    scores = query.new_empty(*query.shape[:-1], key.shape[-2])
    for out, q, k in zip(scores, query, key, strict=True):
        torch.baddbmm(out, q, k.transpose(-2, -1), beta=0, alpha=scale, out=out)
    return scores


def repeat_heads(query: Tensor, shared: Tensor) -> Tensor:
    """Grouped-query attention: each key/value head serves several query heads."""
    groups = query.shape[-3] // shared.shape[-3]
    return shared if groups == 1 else shared.repeat_interleave(groups, dim=-3)
