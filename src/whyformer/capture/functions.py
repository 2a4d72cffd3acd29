"""Torch functions that are looked into: attention written out, and which of torch's functions are linear."""

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


# Functions whose gradient is already the rule: linear ones, and those that only move, choose or copy entries.


WEIGHTS = "linear addmm addbmm conv1d conv2d conv3d conv_transpose1d embedding batch_norm"
SUMS = (
    "add sub rsub __rsub__ neg negative sum mean cumsum lerp diff avg_pool1d avg_pool2d adaptive_avg_pool1d "
    "adaptive_avg_pool2d"
)
MOVES = (
    "view reshape flatten unflatten ravel squeeze unsqueeze transpose swapaxes swapdims permute movedim moveaxis T mT "
    "t __get__ view_as reshape_as expand expand_as repeat repeat_interleave tile cat concat stack hstack vstack chunk "
    "split tensor_split unbind roll flip pad unfold fold pixel_shuffle pixel_unshuffle interpolate diagonal diag_embed"
)
CHOICES = (
    "__getitem__ __setitem__ select narrow index_select gather take_along_dim scatter scatter_add index_add index_copy "
    "index_put masked_fill masked_select masked_scatter where tril triu max min amax amin maximum minimum topk sort "
    "clamp clamp_min clamp_max clip adaptive_max_pool1d adaptive_max_pool2d max_pool1d max_pool2d"
)
COPIES = (
    "clone contiguous to type type_as float double half bfloat16 cpu cuda alias detach requires_grad nan_to_num copy "
    "dropout dropout1d dropout2d"
)
LINEAR = frozenset(" ".join((WEIGHTS, SUMS, MOVES, CHOICES, COPIES)).split())
