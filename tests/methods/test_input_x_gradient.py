"""input_x_gradient against its twin, the golden numbers, and what must hold on any model."""

from __future__ import annotations

import pytest
import torch

import whyformer as wf
from tests.methods.properties import (
    batch_is_its_rows,
    explained,
    golden,
    half_precision_is_finite,
    meets_golden,
    one_token_is_finite,
    padding_is_nothing,
)

METHOD = {"method": "input_x_gradient"}


def test_a_model_that_does_not_care_how_long_its_inputs_are_gets_a_warning() -> None:
    """DeBERTa normalises word embeddings before anything is added to them: x · ∇ is zero but for rounding."""
    for found in explained("deberta_v2", double=True, **METHOD):
        assert any("rounding errors" in w for w in found.warnings)
    for name, how in (("deberta_v2", {"at": "embeddings"}), ("bert", {})):
        for found in explained(name, double=True, **METHOD, **how):
            assert not found.warnings


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("at", ["word_embeddings", "embeddings"])
def test_golden(at: str, row: int) -> None:
    case = golden()
    found = wf.explain(case.model, case.inputs, target=case.target, **METHOD, at=at)[row]
    meets_golden(found.scores, f"input_x_gradient.{at}", row)


def test_a_batch_is_its_rows() -> None:
    batch_is_its_rows("swin", **METHOD)  # of others, tests/test_contracts.py


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_padding_is_nothing(name: str) -> None:
    padding_is_nothing(name, **METHOD)


def test_one_token() -> None:
    one_token_is_finite("bert", **METHOD)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    half_precision_is_finite("bert", dtype, **METHOD)
