"""Functions whose gradient is already the rule: linear ones, and those that only move, choose or copy entries."""

from __future__ import annotations

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
