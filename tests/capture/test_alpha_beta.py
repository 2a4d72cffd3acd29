"""The short ways of the alpha-beta rules against the rules as they are written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from whyformer.capture.lrp.alpha_beta import AlphaBeta
from whyformer.capture.lrp.redistribution import Desk, positive_linear, positive_part, product_of_two, proportional


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


def relevance(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Value and relevance of x, all of the value's being 1."""
    leaf = x.clone().requires_grad_()
    with AlphaBeta(1, {}, {0: 0}, positions=5, dtype=torch.float64) as rules:
        out = function(leaf * 1)
    assert not rules.unruled
    return out.detach(), torch.autograd.grad(out.sum(), leaf)[0]


@pytest.mark.parametrize(
    "bias",
    [
        lambda x: drawn(6, seed=1).expand_as(x),
        lambda x: drawn(1, 1, 6, seed=1),
        lambda x: drawn(2, seed=1).repeat_interleave(3),
        lambda x: drawn(6, seed=1),
    ],
)
def test_a_bias_takes_nothing_in_whatever_shape(bias: Callable[[Tensor], Tensor]) -> None:
    x = drawn(1, 5, 6, seed=0)
    value, shares = relevance(lambda t: t + bias(t), x)
    torch.testing.assert_close(value, x + bias(x))
    torch.testing.assert_close(shares, torch.ones_like(x))
    heads = relevance(lambda t: t.view(1, 5, 2, 3) + drawn(2, seed=1)[None, None, :, None], x)[1]
    torch.testing.assert_close(heads, torch.ones_like(x))
    positions = relevance(lambda t: t + drawn(5, 6, seed=1), x)[1]
    assert not torch.allclose(positions, torch.ones_like(x)), "positions take a share"


@pytest.mark.parametrize("added", ["index_add", "index_add_", "scatter_add"])
def test_what_meets_in_one_place_shares(added: str) -> None:
    x, index = drawn(4, 3, seed=0).abs(), torch.tensor([0, 1, 0])

    def summed(t: Tensor) -> Tensor:
        base, source = t[:1].expand(2, 3) * 1, t[1:] * torch.ones(3, 3)
        if added == "scatter_add":
            return base.scatter_add(0, index[:, None].expand(3, 3), source)
        out: Tensor = getattr(base, added)(0, index, source)
        return out

    value, shares = relevance(summed, x)
    torch.testing.assert_close(value, summed(x))
    torch.testing.assert_close(shares[1:], x[1:] / value[index])
    torch.testing.assert_close(shares.sum(), torch.tensor(6.0, dtype=torch.float64))


def test_stretches_of_rows_with_matrices_of_their_own() -> None:
    x, weights = drawn(5, 8, seed=0), drawn(2, 8, 16, seed=1).bfloat16()
    ends = torch.tensor([2, 5], dtype=torch.int32)
    grouped = relevance(lambda t: torch._grouped_mm(t, weights, offs=ends), x)
    each = relevance(lambda t: torch.cat([t[:2] @ weights[0].double(), t[2:] @ weights[1].double()]), x)
    torch.testing.assert_close(grouped, each)
