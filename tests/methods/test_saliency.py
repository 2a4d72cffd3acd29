"""saliency against its twin, the golden numbers, and what must hold on any model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.methods.properties import (
    FAMILY,
    batch_is_its_rows,
    close,
    explained,
    golden,
    half_precision_is_finite,
    meets_golden,
    one_token_is_finite,
    padding_is_nothing,
)
from whyformer.errors import NotOffered, UnknownName

METHOD = {"method": "saliency"}


@pytest.mark.parametrize("norm", ["l2", "l1", "max", "sum"])
@pytest.mark.parametrize("name", FAMILY)
def test_the_gradient_itself_comes_along(name: str, norm: str) -> None:
    assert all(found.detail is not None for found in explained(name, double=True, **METHOD, norm=norm))


@pytest.mark.parametrize("row", [0, 1])
def test_golden(row: int) -> None:
    case = golden()
    meets_golden(wf.explain(case.model, case.inputs, target=case.target, **METHOD)[row].scores, "gradient.l2", row)


class Linear(nn.Module):
    """A table of numbers under one matrix: the gradient is the matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def test_on_a_linear_model_it_is_the_weight() -> None:
    torch.manual_seed(0)
    model = Linear()
    for found in wf.explain(model, (torch.randn(4, 5),), target=2, **METHOD):
        close(found.scores, model.head.weight[2].abs().detach().numpy())


def test_columns_with_categories_are_differentiated_where_they_enter_the_first_block() -> None:
    for found in explained("rtdl_ft_transformer", **METHOD):
        assert (found.scores[1:] > 0).all(), "numbers and categories alike"
    with pytest.raises(NotOffered, match="at='embeddings'"):
        explained("rtdl_ft_transformer", **METHOD, at="input")


def test_a_batch_is_its_rows() -> None:
    batch_is_its_rows("swin", **METHOD)  # of others, tests/test_contracts.py


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("at", ["input", "embeddings"])
def test_padding_is_nothing(name: str, at: str) -> None:
    padding_is_nothing(name, **METHOD, at=at)


def test_one_token() -> None:
    one_token_is_finite("bert", **METHOD)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    half_precision_is_finite("bert", dtype, **METHOD)


def test_a_score_that_ignores_the_input_has_none() -> None:
    class Blind(Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x) * 0 + 1

    for found in wf.explain(Blind(), (torch.randn(2, 5),), target=0, **METHOD):
        assert np.array_equal(found.scores, np.zeros(5))


def test_bad_options_are_refused() -> None:
    with pytest.raises(UnknownName, match="l3"):
        explained("bert", **METHOD, norm="l3")
    with pytest.raises(UnknownName, match="attic"):
        explained("bert", **METHOD, at="attic")
