"""Attention maps by kernels: GPU kernels, interpreted, as tiles of plain torch."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from whyformer.capture.fold import FoldedSite, added_up
from whyformer.capture.functions import FusedCall, HeadFusion

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
