"""Attention maps by kernels: layers in one go as one by one; GPU kernels, interpreted, as tiles of plain torch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from whyformer.capture import functions
from whyformer.capture.fold import FoldedSite, added_up
from whyformer.capture.functions import FusedCall, HeadFusion, all_gradients, all_weights


def calls(key_heads: int, layers: int = 3) -> list[FusedCall]:
    """Heads as transposed views, as most models lay them out."""
    generator = torch.Generator().manual_seed(0)

    def heads(count: int) -> torch.Tensor:
        return torch.randn(2, 7, count, 8, generator=generator).transpose(1, 2)

    return [FusedCall(heads(4), heads(key_heads), heads(key_heads)) for _ in range(layers)]


@pytest.mark.parametrize("key_heads", [4, 2])
def test_layers_together_are_layers_one_by_one(key_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    several = calls(key_heads)
    results = [call.query * 0.5 for call in several]
    together = all_weights(several), all_gradients(several, results)
    monkeypatch.setitem(functions.TOGETHER, "cpu", 1)
    alone = all_weights(several), all_gradients(several, results)
    for batched, single in zip(together, alone, strict=True):
        assert len(batched) == len(single) == len(several)
        for one, other in zip(batched, single, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_right_factors_lie_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN on ARM takes ten times as long for many small products with a transposed factor."""
    laid_out, matmul = [], torch.matmul

    def watched(left: torch.Tensor, right: torch.Tensor) -> Any:
        laid_out.append(right.is_contiguous())
        return matmul(left, right)

    several = calls(4)
    monkeypatch.setattr(torch, "matmul", watched)
    all_weights(several)
    all_gradients(several, [call.query for call in several])
    assert laid_out == [True, True]


CASES = [  # batch, heads, key heads, queries, keys, width, causal, dtype; rows, with a gradient
    ((2, 2, 1, 50, 50, 32, True, torch.float32), 1, False),
    ((2, 2, 1, 50, 50, 32, True, torch.float32), 3, True),
    ((1, 3, 3, 33, 40, 20, False, torch.float32), 1, True),
    ((1, 1, 1, 20, 20, 256, False, torch.float32), 3, True),
    ((1, 2, 1, 80, 80, 64, True, torch.float16), 3, False),
]


@pytest.mark.parametrize(("case", "rows", "gradient"), CASES, ids=str)
def test_kernels_add_up_what_tiles_do(case: tuple[int, ...], rows: int, gradient: bool) -> None:
    batch, heads, groups, queries, keys, width, causal, dtype = case
    generator = torch.Generator().manual_seed(0)
    query, key, value, slope = (
        torch.randn(batch, n, m, width, generator=generator).to(dtype)  # type: ignore[arg-type]
        for n, m in ((heads, queries), (groups, keys), (groups, keys), (heads, queries))
    )
    scores = query.float() @ key.float().repeat_interleave(heads // groups, 1).transpose(-2, -1) / width**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), -torch.inf)
    lse = scores.logsumexp(-1)
    weights = [0.25, 0.0, 0.5][-heads:]  # a head without a weight is left out
    given = torch.tensor(weights)[:, None, None]

    def fused(attention: torch.Tensor, at: torch.Tensor | None) -> torch.Tensor:
        return ((attention if at is None else attention * at.clamp(min=0)) * given).sum(1)

    exact = FusedCall(query.float(), key.float(), value.float(), None, bool(causal), None)
    out = slope.float() if gradient else None
    fusion = HeadFusion(fused, gradient)
    tiles = FoldedSite(0, "", 0, (batch, heads, queries, keys), fusion, call=exact, out_gradient_BHQD=out)
    call = FusedCall(query, key, value, None, bool(causal), None, lse)
    added = partial(added_up, call, slope if gradient else None, weights)
    left = torch.rand(batch, rows, queries, generator=generator)
    left[:, :, queries // 2 :] = 0  # rows without a weight
    right = torch.rand(batch, rows, keys, generator=generator)
    close(added(left, True), tiles.pulled(left))
    close(added(left, True, slice(0, queries // 2)), tiles.pulled(left))
    close(added(right, False), tiles.pushed(right))


def close(kernel: torch.Tensor, tiles: torch.Tensor) -> None:
    assert kernel.shape == tiles.shape
    assert float((kernel - tiles).abs().max()) <= 1e-4 * float(tiles.abs().max())


def test_a_query_that_looks_nowhere_has_no_weights() -> None:
    query = torch.randn(1, 1, 20, 16, generator=torch.Generator().manual_seed(0))
    lse = torch.full((1, 1, 20), -torch.inf)
    call = FusedCall(query, query, query, lse=lse)
    assert not added_up(call, None, [1.0], torch.ones(1, 1, 20), True).any()
