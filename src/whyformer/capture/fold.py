"""Fold: attention whose maps are never stored.

The model's own kernel runs, and of a layer queries, keys and values stay, as for its own backward pass. What a method
makes of the layer's map is made in backward, last layer first, a few query rows at a time: dA = dO·Vᵀ needs nothing of
other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from whyformer.capture import functions as fn
from whyformer.capture.functions import Args, Function, FusedCall, HeadFusion, Kwargs, padding_share, sdpa_operands
from whyformer.capture.roles import HeadGradient, Outline, shape_of
from whyformer.capture.site import Layout, OffPlan, OpenSite, PlannedSite
from whyformer.results.types import Site

# Folding on a GPU: fused attention that tells its log-sum-exp, and kernels that add up a fused map without storing it.
#
# A map is Σ_h w_h·A_h, or Σ_h w_h·A_h ∘ max(0, dA_h) (attention is never negative, so that this is max(0, A_h ∘ dA_h)),
# with A = exp(q·k - lse) and dA = dO·v. ``summed_map`` sums it over queries, one block of keys at a time, or over keys.
# Tests compare both with plain torch, on the CPU by Triton's interpreter.

WIDEST = 256  # of a head


def flash(call: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """Return result and (B, H, Q) log-sum-exp of torch's choice of a fused kernel on a GPU; None if it has none."""
    query, key, value, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    if not available() or call["dropout_p"] or mask is not None:
        return None, None
    if query.shape[-1] > WIDEST or query.shape[-1] != value.shape[-1]:
        return None, None
    aten, scale, causal, operands = torch.ops.aten, call["scale"], call["is_causal"], (query, key, value)
    choice = torch._fused_sdp_choice(*operands, None, 0.0, causal, scale=scale, enable_gqa=call["enable_gqa"])
    wide = query.shape[-1] % 8 == 0  # others are padded by torch
    if choice == SDPBackend.FLASH_ATTENTION.value and wide:
        out, lse, *_ = aten._scaled_dot_product_flash_attention(*operands, 0.0, causal, scale=scale)
    elif choice == SDPBackend.EFFICIENT_ATTENTION.value and query.shape[1] == key.shape[1]:
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(*operands, None, True, 0.0, causal, scale=scale)
    elif choice == SDPBackend.CUDNN_ATTENTION.value and wide:
        out, lse, *_ = aten._scaled_dot_product_cudnn_attention(*operands, None, True, 0.0, causal, False, scale=scale)
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


def summed_map(
    call: FusedCall,
    gradient: Tensor | None,
    head_weights: list[float],
    weights_BRX: Tensor,
    over_queries: bool,
    span: slice | None = None,
) -> Tensor:
    """Return (B, R, K) weights · map over queries, zero outside of ``span``, or (B, R, Q) map · weights."""
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
    """Return numbers and weights of the heads that count, on the device: copying them each time would stop it."""
    used = [head for head, weight in enumerate(weights_H) if weight]
    numbers = torch.tensor(used, device=device, dtype=torch.int32)
    return numbers, torch.tensor([weights_H[head] for head in used], device=device)


TILE_BYTES = {"cpu": 8 * 2**20, "cuda": 128 * 2**20}  # of a (B, H, q, K) block in float32; a few are there at a time
FEWEST_ROWS = 16  # of a tile
HIDES = -1e4  # what is added to a score that is not to count


def tile_bytes(device: torch.device) -> int:
    return TILE_BYTES.get(device.type, TILE_BYTES["cpu"])


@dataclass(frozen=True, eq=False)
class FoldedSite:
    """One attention with its heads fused, in blocks of query rows: from ``call``, or ``map_BQK`` if written out."""

    number: int
    path: str
    first_query: int
    shape: tuple[int, int, int, int]  # B, H, Q, K
    fusion: HeadFusion
    inputs: range | None = None  # those whose scores the gradient is of, if one row runs for several
    call: FusedCall | None = None
    out_gradient_BHQD: Tensor | None = None
    map_BQK: Tensor | None = None

    @property
    def blocks(self) -> Iterator[slice]:
        """Query rows that are looked at together, within the memory of a tile."""
        batch, heads, queries, keys = self.shape
        step = max(FEWEST_ROWS, tile_bytes(self.device) // (4 * batch * heads * keys))
        step = queries if self.map_BQK is not None else step
        return (slice(start, min(start + step, queries)) for start in range(0, queries, step))

    def rows(self, rows: slice) -> tuple[slice, Tensor]:
        """Keys, and the (B, q, K) fused map over them: of others it is zero."""
        if self.map_BQK is not None:
            return slice(0, self.shape[3]), self.map_BQK[:, rows]
        assert self.call is not None
        gradient = None if self.out_gradient_BHQD is None else self.call.gradient(rows, self.out_gradient_BHQD)
        return self.call.keys_of(rows), self.fusion.fused(self.call.attention(rows), gradient)

    def whole(self) -> Tensor:
        """(B, Q, K) the fused map: the heads are gone, and it is the one map of this size."""
        whole = torch.zeros(self.shape[0], *self.shape[2:], device=self.device)
        for rows in self.blocks:
            keys, block = self.rows(rows)
            whole[:, rows, keys] = block
        return whole

    def pulled(self, weights_BRQ: Tensor, span: slice | None = None) -> Tensor:
        """(B, R, K) weights · map. No weight is negative; ``span``: outside of these rows all are zero."""
        if self._kernel is not None:
            return self._kernel(weights_BRQ, True, span)
        batch, _, _, keys = self.shape
        result = torch.zeros(batch, weights_BRQ.shape[1], keys, device=self.device)
        for rows in self.blocks:
            if span is not None and (rows.stop <= span.start or rows.start >= span.stop):
                continue
            part = weights_BRQ[:, :, rows]
            where, block = self.rows(rows)
            result[:, :, where] += torch.bmm(part, block)
        return result

    def pushed(self, weights_BRK: Tensor) -> Tensor:
        """(B, R, Q) map · weights, in the order of the rows."""
        if self._kernel is not None:
            return self._kernel(weights_BRK, False)
        batch, _, queries, _ = self.shape
        result = torch.zeros(batch, weights_BRK.shape[1], queries, device=self.device)
        for rows in self.blocks:
            where, block = self.rows(rows)
            result[:, :, rows] = torch.bmm(weights_BRK[:, :, where], block.transpose(1, 2))
        return result

    def row_sums(self, keep_BN: Tensor) -> Tensor:
        """(B, 1, Q) of the map over real keys: without a mask, and where all are real, those of a softmax."""
        weights_H = self.fusion.weights(self.shape[1])
        unmasked = self.call is not None and self.call.mask is None
        if weights_H is None or not unmasked or self.fusion.gradient or not bool(keep_BN.all()):
            return self.pushed(keep_BN[:, None].float())
        return torch.full((self.shape[0], 1, self.shape[2]), sum(weights_H), device=self.device)

    @property
    def device(self) -> torch.device:
        if self.map_BQK is not None:
            return self.map_BQK.device
        assert self.call is not None
        return self.call.query.device

    @property
    def _kernel(self) -> Callable[..., Tensor] | None:
        """The GPU kernel that adds up this call's map, where there is one."""
        if self.call is None or self.call.lse is None:
            return None
        weights_H = self.fusion.weights(self.shape[1])
        return None if weights_H is None else partial(summed_map, self.call, self.out_gradient_BHQD, weights_H)


At = Callable[[FoldedSite], None]


class Fold(HeadGradient, Outline):
    """Hands each attention to ``at`` with the heads fused: in backward, or, without gradients, after the pass."""

    def __init__(self, *where: Any, fusion: HeadFusion) -> None:
        super().__init__(*where)
        self.fusion = fusion
        self.keep_BN: Tensor | None = None  # real positions, where it is to be seen how much attention others get
        self.lost_B: list[Tensor] = []  # by site: attention of real positions that others get
        self.one_stream = False  # each attention works on what the one before made
        self.leaves: list[Tensor] = []
        self.at: At | None = None
        self.inputs: range | None = None
        self.measures = False  # the slopes are asked for
        self.reached: dict[int, float] = {}  # by site: Σ O ∘ ∂s/∂O, the slope along a change of its size
        self._calls: list[FoldedSite] = []  # without gradients: all of them
        self._hides: dict[int, tuple[Tensor, bool]] = {}  # masks that were looked at

    # In the forward pass

    def _sdpa(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        return self._folded(super()._sdpa, func, args, kwargs)

    def _next_fused(self, expected: PlannedSite, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        return self._folded(partial(super()._next_fused, expected), func, args, kwargs)

    def _folded(self, seen_by: Callable[..., Tensor], func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        """An attention call whose site is opened by ``seen_by``, with its result tapped."""
        operands = sdpa_operands(args, kwargs)
        query, key, value, mask, _, causal, scale, _ = operands.values()
        heads_first = self.batch_axes.get(len(self.sites)) == 1
        if query.ndim != 4 or query.shape[0] != self.batch or query.shape[1] % key.shape[1] or heads_first:
            raise NotFolded if self.plan is None else OffPlan
        # On a GPU by the same kernel under its own name, which returns the log-sum-exp.
        out, lse = flash(operands) if query.is_cuda else (None, None)
        if out is None:
            out = func(*args, **kwargs)
        call = FusedCall(query, key, value, mask, causal, scale, lse)
        result = seen_by(lambda *_, **__: out, args, kwargs)
        site = self.sites[-1]
        site.call, site.value = None, shape_of(site.value)  # nothing of it stays here
        seen = FoldedSite(len(self.sites) - 1, site.path, site.first_query, call.shape, self.fusion)
        self._note_padding(seen, call)
        if not self.fusion.gradient:
            self._calls.append(replace(seen, inputs=self.inputs, call=call))
            return result
        result = self._differentiated(result)
        tapped: Tensor = _ResultGradient.apply(result, self, seen, causal, scale, query, key, value, mask, lse)
        if self._since_site is not None:
            self._since_site.put(tapped, True)
        if self.plan is None:
            self._trail.copy(result, tapped)
        return tapped

    def at_site(self, site: OpenSite) -> None:
        if site.attention.is_meta:  # of a fused kernel: see _sdpa
            return
        if site.parallel:
            raise NotFolded
        layout = site.layout
        shape = tuple(layout.to_canonical(site.attention.detach()).shape)
        seen = FoldedSite(len(self.sites), site.path, site.first_query, shape, self.fusion)  # type: ignore[arg-type]
        if self.keep_BN is not None:
            self.lost_B.append(padding_share(site.attention_BHQK.detach(), self.keep_BN, site.first_query))
        if not self.fusion.gradient:
            map_BQK = self.fusion.fused(site.attention_BHQK.float(), None)
            self._calls.append(replace(seen, inputs=self.inputs, map_BQK=map_BQK))
            return
        site.attention = self._differentiated(site.attention)
        site.attention = _MapGradient.apply(site.attention, self, seen, layout)

    def _differentiated(self, tensor: Tensor) -> Tensor:
        """Return a tensor that backward reaches. Backward ends at the first attention (of each stream)."""
        if not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_()
            self.leaves.append(tensor)
        elif not self.leaves or (not self.one_stream and not self.leaves[0].is_leaf):
            self.leaves.append(tensor)
        return tensor

    def _note_padding(self, seen: FoldedSite, call: FusedCall) -> None:
        """Note how much of an attention goes to padding; most masks hide it."""
        if self.keep_BN is None:
            return
        if call.mask is not None:
            known = self._hides.get(id(call.mask))
            if known is None or known[0] is not call.mask:
                known = self._hides[id(call.mask)] = (call.mask, _hides_padding(call.mask, self.keep_BN))
            if known[1]:
                self.lost_B.append(torch.zeros(len(self.keep_BN), device=self.keep_BN.device))
                return
        lost_B = torch.zeros(len(self.keep_BN), device=self.keep_BN.device)
        with torch.no_grad():
            for rows in replace(seen, call=call).blocks:
                attention, keys = call.attention(rows), call.keys_of(rows)
                real_BQ = self.keep_BN[:, rows].float()
                lost_B += torch.einsum("bhqk,bq,bk->b", attention, real_BQ, 1 - self.keep_BN[:, keys].float())
        first, queries = seen.first_query, seen.shape[2]
        count_B = self.keep_BN[:, first : first + queries].sum(1).clamp(min=1) * seen.shape[1]
        self.lost_B.append(lost_B / count_B)

    @property
    def outlines(self) -> list[Site]:
        """The sites without their maps."""
        return [Site(site.path, site.kind, ("", ""), site.layout.to_canonical(site.attention)) for site in self.sites]

    # In the backward pass

    def take_gradient(
        self, seen: FoldedSite, gradient_BHQX: Tensor, changed_BHQX: Tensor, call: FusedCall | None = None
    ) -> None:
        """Hand on a site with the gradient of its result, or, without a call, of the map that the model wrote out."""
        if self.at is None:
            return
        slope = float((gradient_BHQX.double() * changed_BHQX.double()).sum()) if self.measures else 0.0
        self.reached[seen.number] = self.reached.get(seen.number, 0.0) + slope
        if seen.number == len(self.sites) - 1:
            spoke_BQ = gradient_BHQX.abs().amax((1, 3)) > 0
            self.spoke_BQ = spoke_BQ if self.spoke_BQ is None else torch.cat([self.spoke_BQ, spoke_BQ])
        site = replace(seen, inputs=self.inputs)
        if call is None:
            self.at(replace(site, map_BQK=self.fusion.fused(changed_BHQX.float(), gradient_BHQX.float())))
        else:
            self.at(replace(site, call=call, out_gradient_BHQD=gradient_BHQX.to(call.query.dtype)))

    def hand_on_all(self, at: At) -> None:
        """Hand on all sites of a pass without gradients, last first; each is forgotten then."""
        for call in (site.call for site in self._calls if site.call is not None):
            if call.version != call.written():
                raise NotFolded  # the model wrote over what it had given to an attention
        while self._calls:
            at(self._calls.pop())

    def backward(self, scalar: Tensor, at: At, again: bool = False, inputs: range | None = None) -> None:
        """Hand on every site that the scalar depends on, last first. The mode stays on, for checkpointed models."""
        self.at, self.inputs = at, inputs
        replay = type(self)(self.batch, self.names, self.batch_axes, fusion=self.fusion)
        try:
            with torch.autograd.set_multithreading_enabled(False), replay:
                fn.open_body(torch.autograd.grad)(scalar, self.leaves, retain_graph=again, allow_unused=True)
        finally:
            self.at = None


class NotFolded(OffPlan):
    """An attention that can be had as a whole map only."""


class _ResultGradient(torch.autograd.Function):
    """The result of an attention, unchanged; backward hands its gradient to the fold."""

    @staticmethod
    def forward(
        ctx: Any, out: Tensor, fold: Fold, seen: FoldedSite, causal: bool, scale: float | None, *tensors: Tensor | None
    ) -> Tensor:
        # As autograd saves tensors, so that whoever packs them (checkpointing, offloading) is asked for them, too.
        ctx.save_for_backward(out, *tensors)
        ctx.fold, ctx.seen, ctx.causal, ctx.scale = fold, seen, causal, scale
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        out, query, key, value, mask, lse = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            call = FusedCall(query, key, value, mask, ctx.causal, ctx.scale, lse)
            ctx.fold.take_gradient(ctx.seen, gradient, out, call)
        return (gradient, *[None] * 9)


class _MapGradient(torch.autograd.Function):
    """An attention map, unchanged; backward hands its gradient to the fold."""

    @staticmethod
    def forward(ctx: Any, attention: Tensor, fold: Fold, seen: FoldedSite, layout: Layout) -> Tensor:
        ctx.save_for_backward(attention)
        ctx.fold, ctx.seen, ctx.layout = fold, seen, layout
        return attention.view_as(attention)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (attention,) = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            ctx.fold.take_gradient(ctx.seen, ctx.layout.to_canonical(gradient), ctx.layout.to_canonical(attention))
        return gradient, None, None, None


def _hides_padding(mask: Tensor, keep_BN: Tensor) -> bool:
    """Return whether a mask hides all padding from all real positions."""
    if mask.ndim != 4 or mask.shape[-1] != keep_BN.shape[1] or mask.shape[-2] not in {1, keep_BN.shape[1]}:
        return False
    seen = mask if mask.dtype == torch.bool else mask > HIDES
    rows = keep_BN[:, None, :, None] if mask.shape[-2] > 1 else keep_BN.new_ones(1, 1, 1, 1)
    return not bool((seen & rows & ~keep_BN[:, None, None, :]).any())


class Scaled(Outline):
    """Every attention's result times a number: what a change of the whole map by that number gives."""

    def __init__(self, *where: Any, factors: dict[int, Any]) -> None:
        super().__init__(*where)
        self.factors = factors  # numbers, or tensors that hold one

    def _sdpa(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        factor = self.factors.get(len(self.sites), 1.0)
        return super()._sdpa(lambda *a, **k: func(*a, **k) * factor, args, kwargs)

    def at_site(self, site: OpenSite) -> None:
        if not site.attention.is_meta:
            site.attention = site.attention * self.factors.get(len(self.sites), 1.0)
