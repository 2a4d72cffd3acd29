"""Folding on a GPU: fused attention that tells its log-sum-exp, and kernels that add up a fused map without storing it.

A map is Σ_h w_h·A_h, or Σ_h w_h·A_h ∘ max(0, dA_h) (attention is never negative, so that this is max(0, A_h ∘ dA_h)),
with A = exp(q·k - lse) and dA = dO·v. ``pulled`` adds it up over queries, one block of keys at a time, ``pushed`` over
keys. Both are held to their twins in plain torch (fold.py), on the CPU by Triton's interpreter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from whyformer.capture.functions import attention_weights, repeat_heads

WIDEST = 256  # of a head


@dataclass(frozen=True)
class Operands:
    """What an attention call was given. Keys and values may have fewer heads than queries."""

    query_BHQD: Tensor
    key_BGKD: Tensor
    value_BGKD: Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float | None
    lse_BHQ: Tensor | None = None  # log-sum-exp of the scores, where the kernel told
    version: int = 0  # how often its tensors had been written to

    def versions(self) -> int:
        tensors = (self.query_BHQD, self.key_BGKD, self.value_BGKD, self.mask)
        return sum(t._version for t in tensors if t is not None)

    def keys_of(self, rows: slice) -> slice:
        """Those that these queries may look at, as far as it can be told without the mask."""
        return slice(0, min(rows.stop, self.key_BGKD.shape[2]) if self.is_causal else self.key_BGKD.shape[2])

    def attention(self, rows: slice) -> Tensor:
        """(B, H, q, K) in float32, over ``keys_of(rows)``."""
        keys, mask = self.keys_of(rows), self.mask
        query = self.query_BHQD[:, :, rows]
        if self.is_causal:
            places = torch.arange(keys.stop, device=query.device)
            mask = places <= torch.arange(rows.start, rows.stop, device=query.device)[:, None]
        elif mask is not None:
            mask = mask if mask.shape[-2] == 1 else mask[..., rows, :]
        key = repeat_heads(query, self.key_BGKD[:, :, keys])
        return attention_weights(query, key, mask, False, self.scale).float()

    def gradient(self, rows: slice, out_gradient_BHQD: Tensor) -> Tensor:
        """(B, H, q, K) ∂s/∂A = ∂s/∂O · Vᵀ in float32, over ``keys_of(rows)``."""
        part = out_gradient_BHQD[:, :, rows]
        value = repeat_heads(part, self.value_BGKD[:, :, self.keys_of(rows)])
        return torch.matmul(part, value.transpose(-2, -1)).float()


def flash(call: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """Result and (B, H, Q) log-sum-exp of a fused attention on a GPU, in the graph; None where it has no such kernel.

    The kernel is the one that torch would choose, called by its own name.
    """
    query, key, value, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    if not available() or call["dropout_p"] or query.shape[-1] > WIDEST or query.shape[-1] != value.shape[-1]:
        return None, None
    aten, scale = torch.ops.aten, call["scale"]
    options = {"scale": scale, "enable_gqa": call["enable_gqa"]}
    choice = torch._fused_sdp_choice(query, key, value, mask, 0.0, call["is_causal"], **options)
    wide = query.shape[-1] % 8 == 0  # others are padded by torch
    if choice == SDPBackend.FLASH_ATTENTION.value and mask is None and wide:
        out, lse, *_ = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, call["is_causal"], scale=scale)
    elif choice == SDPBackend.EFFICIENT_ATTENTION.value and query.shape[1] == key.shape[1] and mask is None:
        options = {"scale": scale}
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, call["is_causal"], **options
        )
    elif choice == SDPBackend.CUDNN_ATTENTION.value and mask is None and wide:
        out, lse, *_ = aten._scaled_dot_product_cudnn_attention(
            query, key, value, None, True, 0.0, call["is_causal"], False, scale=scale
        )
        lse = lse.squeeze(-1)
    else:
        return None, None
    return out, lse.detach()[..., : query.shape[2]]


@cache
def available() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


@dataclass(frozen=True)
class Flash:
    """A map that the kernels can add up: what the call was given, the gradient of its result, weights of the heads."""

    call: Operands
    out_gradient_BHQD: Tensor | None
    weights_H: list[float]


def pulled(flash: Flash, weights_BRQ: Tensor, rows: slice | None = None) -> Tensor:
    """(B, R, K) weights · map; ``rows``: outside of them all weights are zero."""
    return _added_up(flash, weights_BRQ, True, rows)


def pushed(flash: Flash, weights_BRK: Tensor) -> Tensor:
    """(B, R, Q) map · weights."""
    return _added_up(flash, weights_BRK, False)


def _added_up(flash: Flash, weights_BRX: Tensor, over_queries: bool, span: slice | None = None) -> Tensor:
    import triton

    from whyformer.capture.triton_kernels import pull, push

    call, gradient = flash.call, flash.out_gradient_BHQD
    query, key, value = call.query_BHQD, call.key_BGKD, call.value_BGKD
    batch, heads, queries, width = query.shape
    groups, keys = key.shape[1:3]
    rows = weights_BRX.shape[1]
    weights = weights_BRX.float().contiguous()
    # A query that looks nowhere has no weights.
    assert call.lse_BHQ is not None
    lse2 = (call.lse_BHQ * math.log2(math.e)).masked_fill(call.lse_BHQ == -math.inf, math.inf)
    together = 1
    if over_queries and rows == 1:
        lse2 = lse2 - weights.log2()  # no weight is negative
    elif over_queries:
        together = 16
    used, weights_H = _used_heads(tuple(flash.weights_H), query.device)
    size = keys if over_queries else queries
    block_q, block_k = _blocks(query, over_queries, together)
    # A head's sum stands by itself, and heads are added up afterwards in one order: same numbers every time.
    parts = torch.empty(batch, len(used), rows, size, device=query.device)
    tensors = (query, key, key if gradient is None else value, query if gradient is None else gradient)
    strides = [stride for tensor in tensors for stride in tensor.stride()]
    blocks = triton.cdiv(size, block_k if over_queries else block_q)
    (pull if over_queries else push)[blocks, batch * len(used), triton.cdiv(rows, together)](
        *tensors,
        lse2.contiguous(),
        weights,
        parts,
        used,
        *strides,
        queries,
        keys,
        rows,
        heads,
        len(used),
        heads // groups,
        0 if span is None else span.start,
        queries if span is None else span.stop,
        (1 / math.sqrt(width) if call.scale is None else call.scale) * math.log2(math.e),
        WIDTH=max(16, triton.next_power_of_2(width)),
        EXACT_WIDTH=width,
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        CAUSAL=call.is_causal,
        GRADIENT=gradient is not None,
        PRECISE=query.dtype == torch.float32,
        BLOCK_R=together,
        num_warps=4,
        num_stages=2 if width > 64 else 3,
    )
    return torch.einsum("bhrx,h->brx", parts, weights_H)


@lru_cache(maxsize=64)
def _used_heads(weights_H: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Numbers and weights of the heads that count, held on the device: to bring them there each time would stop it."""
    used = [head for head, weight in enumerate(weights_H) if weight]
    numbers = torch.tensor(used, device=device, dtype=torch.int32)
    return numbers, torch.tensor([weights_H[head] for head in used], device=device)


def _blocks(query: Tensor, over_queries: bool, together: int) -> tuple[int, int]:
    """Queries and keys that are looked at together: wide heads leave less room for them."""
    if query.dtype == torch.float32 or query.shape[-1] > 128 or together > 1:
        return 32, 32
    return (64, 128) if over_queries else (128, 64)
