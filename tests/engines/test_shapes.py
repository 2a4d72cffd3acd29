"""The checking of shapes that conftest.py switches on is really on."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from whyformer.engines.attention.maps import over_heads, read_row, row_normalized, with_ratio
from whyformer.engines.attention.value_vectors import Contributions


def test_a_missing_axis_is_caught() -> None:
    with pytest.raises(TypeCheckError, match="B Q K"):
        row_normalized(torch.ones(2, 3))


def test_two_sizes_for_one_letter_are_caught() -> None:
    with pytest.raises(TypeCheckError, match="B H Q K"):
        over_heads(torch.ones(2, 3, 3), "mean")
    with pytest.raises(TypeCheckError, match="B Q"):
        with_ratio(torch.ones(2, 3, 3), 0, torch.ones(2, 5))
    with pytest.raises(TypeCheckError):
        read_row(torch.ones(2, 3, 3), torch.ones(1, 3))


def test_the_parts_of_one_layer_fit_together() -> None:
    vectors = torch.ones(2, 4, 3, 8)
    with pytest.raises(TypeCheckError):
        Contributions(torch.ones(2, 2, 3, 3), vectors, None, None, 0)


def test_masks_and_weights_pass_alike() -> None:
    maps = torch.ones(2, 3, 3)
    assert torch.equal(read_row(maps, torch.ones(2, 3)), read_row(maps, torch.ones(2, 3, dtype=torch.bool)))
