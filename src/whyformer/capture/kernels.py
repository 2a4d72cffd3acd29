"""Folding on a GPU: fused attention that tells its log-sum-exp, and kernels that add up a fused map without storing it.

A map is Σ_h w_h·A_h, or Σ_h w_h·A_h ∘ max(0, dA_h) (attention is never negative, so that this is max(0, A_h ∘ dA_h)),
with A = exp(q·k - lse) and dA = dO·v. ``added_up`` sums it over queries, one block of keys at a time, or over keys.
Tests compare both with plain torch (fold.py), on the CPU by Triton's interpreter.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from whyformer.capture.functions import FusedCall

WIDEST = 256  # of a head


def flash(call: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """Return result and (B, H, Q) log-sum-exp of torch's choice of a fused kernel on a GPU; None if it has none."""
    query, key, value, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    if not available() or call["dropout_p"] or mask is not None:
        return None, None
    if query.shape[-1] > WIDEST or query.shape[-1] != value.shape[-1]:
        return None, None
    aten, scale, causal, given = torch.ops.aten, call["scale"], call["is_causal"], (query, key, value)
    choice = torch._fused_sdp_choice(*given, None, 0.0, causal, scale=scale, enable_gqa=call["enable_gqa"])
    wide = query.shape[-1] % 8 == 0  # others are padded by torch
    if choice == SDPBackend.FLASH_ATTENTION.value and wide:
        out, lse, *_ = aten._scaled_dot_product_flash_attention(*given, 0.0, causal, scale=scale)
    elif choice == SDPBackend.EFFICIENT_ATTENTION.value and query.shape[1] == key.shape[1]:
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(*given, None, True, 0.0, causal, scale=scale)
    elif choice == SDPBackend.CUDNN_ATTENTION.value and wide:
        out, lse, *_ = aten._scaled_dot_product_cudnn_attention(*given, None, True, 0.0, causal, False, scale=scale)
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


def added_up(
    call: FusedCall,
    gradient: Tensor | None,
    head_weights: list[float],
    weights_BRX: Tensor,
    over_queries: bool,
    span: slice | None = None,
) -> Tensor:
    """(B, R, K) weights · map over queries, or (B, R, Q) map · weights.

    gradient: of the call's result. span: outside of these queries all weights are zero.
    """
    import triton

    from whyformer.capture.triton_kernels import pull, push

    query, key, value = call.query, call.key, call.value
    batch, heads, queries, width = query.shape
    groups, keys = key.shape[1:3]
    rows = weights_BRX.shape[1]
    weights = weights_BRX.float().contiguous()
    # A query that looks nowhere has no weights.
    assert call.lse is not None
    lse2 = (call.lse * math.log2(math.e)).masked_fill(call.lse == -math.inf, math.inf)
    together = 1
    if over_queries and rows == 1:
        lse2 = lse2 - weights.log2()  # no weight is negative
    elif over_queries:
        together = 16
    used, weights_H = _used_heads(tuple(head_weights), query.device)
    size = keys if over_queries else queries
    # Queries and keys that are looked at together: wide heads leave less room for them.
    small = query.dtype == torch.float32 or query.shape[-1] > 128 or together > 1
    block_q, block_k = (32, 32) if small else (64, 128) if over_queries else (128, 64)
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
        CAUSAL=call.causal,
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
