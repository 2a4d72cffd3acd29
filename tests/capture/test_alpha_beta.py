"""The short ways of the alpha-beta rules against the rules as they are written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from whyformer.capture.lrp.positive_linear import Desk, positive_linear
from whyformer.capture.lrp.redistribution import positive_part, product_of_two, proportional


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("signs", ["one", "both"])
@pytest.mark.parametrize("rows", ["all", "one"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_linear_layer(precision: torch.dtype, signs: str, rows: str, cancelled: bool) -> None:
    x, weight, bias = drawn(2, 300, 8, seed=0), drawn(6, 8, seed=1).float(), drawn(6, seed=2).float()
    weight, bias = weight.to(precision), bias.to(precision)
    relevance = drawn(2, 300, 6, seed=3)
    if cancelled:  # one entry raises the result, by next to nothing
        x, weight = -x.abs(), weight.abs()
        x[..., 0] = 1e-13
    filled = relevance if rows == "all" else relevance[:, :1]
    filled.copy_(
        filled.abs() if signs == "one" else filled - filled.mean((1, 2), keepdim=True)
    )  # Σ|R| is large beside |ΣR|: no rounding
    if rows == "one":
        relevance[:, 1:] = 0
    want, got = as_written_and_short(x, weight, bias, relevance)
    rounded = precision == torch.float32 and signs == "one" and rows == "all" and not cancelled
    assert float((want - got).abs().max()) <= (1e-6 if rounded else 1e-9) * float(want.abs().max())


def test_large_relevance_of_both_signs_leaves_no_rounding_in_the_others_sum() -> None:
    x, weight, bias = drawn(600, 32, seed=0), drawn(24, 32, seed=1).float(), drawn(24, seed=2).float()
    relevance = drawn(600, 24, seed=3).abs()
    large = 1e6 * drawn(5, 24, seed=4)
    relevance[::120] = large - large.mean(1, keepdim=True)
    want, got = as_written_and_short(x, weight, bias, relevance)
    assert float((want - got).abs().sum()) <= 1e-5 * float(relevance.sum())


def as_written_and_short(x: Tensor, weight: Tensor, bias: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    x.requires_grad_()
    shown = torch.nn.functional.linear(x.detach(), weight.double(), bias.double())
    written = positive_part(torch.nn.functional.linear, shown, x, weight)
    short = positive_linear(Desk(torch.float64), x, weight, bias)
    torch.testing.assert_close(shown, short, rtol=1e-14, atol=1e-14)
    want, got = (torch.autograd.grad(out, x, relevance)[0] for out in (written, short))
    return want, got


@pytest.mark.parametrize("shape", [((3, 4, 5), (3, 5, 6)), ((2, 9, 2), (2, 2, 9))])
def test_a_product_of_two(shape: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    left, right = (drawn(*s, seed=i).requires_grad_() for i, s in enumerate(shape))
    shown = (left @ right).detach()
    relevance = drawn(*shown.shape, seed=5)
    want = torch.autograd.grad(proportional(torch.matmul, shown, left, right), (left, right), relevance)
    short = product_of_two(shown, left, right) * 1.0
    for a, b in zip(want, torch.autograd.grad(short, (left, right), relevance), strict=True):
        torch.testing.assert_close(a, b)
