"""Maps of torch's own attention kernel, of several layers in one go: the numbers of one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from whyformer.capture import functions
from whyformer.capture.functions import FusedCall, all_gradients, all_weights


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
