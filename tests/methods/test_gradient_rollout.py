"""gradient_rollout against its twin, the golden numbers, and what must hold on any model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import (
    FAMILY,
    TARGET,
    batch_is_its_rows,
    close,
    explained,
    golden,
    half_precision_is_finite,
    meets_golden,
    one_token_is_finite,
    padding_is_nothing,
)
from tests.references.eager_attention import reported
from tests.references.gradient_rollout import gradient_rollout
from whyformer.errors import BadInput, UnknownName

METHOD = {"method": "gradient_rollout"}


def test_special_tokens_are_kept_from_being_discarded() -> None:
    # A ViT's class token is the only special one: with everything else discarded its row and column are left.
    plain, kept = (explained("vit", double=True, **METHOD, discard=0.9, protect_special=p)[0] for p in (False, True))
    own = reported("vit", 0, TARGET)
    close(kept.matrix, gradient_rollout(own.attention, own.gradient, discard=0.9, protected=[0]))
    assert not np.allclose(plain.matrix, kept.matrix, atol=1e-6)


@pytest.mark.parametrize("row", [0, 1])
def test_golden(row: int) -> None:
    case = golden()
    found = wf.explain(case.model, case.inputs, target=case.target, **METHOD)[row]
    meets_golden(found.matrix, "grad_rollout.R", row)
    for discard in (0.0, 0.5):
        scores = wf.explain(case.model, case.inputs, target=case.target, discard=discard, **METHOD)[row].scores[1:]
        meets_golden(scores / scores.max(), f"grad_rollout.fixed.discard{discard}", row)


def test_rows_sum_to_one_and_causal_maps_stay_triangular() -> None:
    for name in FAMILY:
        for found in explained(name, **METHOD, keep_layers=True, discard=0.4):
            assert found.matrix is not None and found.layers is not None
            close(np.asarray(found.matrix).sum(1), np.ones(len(found.units)))
            close(found.layers[-1], found.matrix)
            if name in {"gpt2", "llama"}:
                assert not np.triu(found.matrix, 1).any()


def test_depends_on_the_target() -> None:
    one, other = explained("bert", target=0, **METHOD), explained("bert", target=1, **METHOD)
    assert not np.allclose(one[0].scores, other[0].scores, rtol=1e-3)


@pytest.mark.parametrize("name", [*FAMILY, "rtdl_ft_transformer"])
def test_a_batch_is_its_rows(name: str) -> None:
    batch_is_its_rows(name, **METHOD, discard=0.5)  # of all of it, tests/test_contracts.py


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_padding_is_nothing(name: str) -> None:
    padding_is_nothing(name, **METHOD)
    padding_is_nothing(name, **METHOD, discard=0.5)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_one_token(name: str) -> None:
    one_token_is_finite(name, **METHOD)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    half_precision_is_finite("bert", dtype, **METHOD)


def test_bad_options_are_refused() -> None:
    with pytest.raises(BadInput, match="discard=1"):
        explained("bert", **METHOD, discard=1.0)
    with pytest.raises(UnknownName, match="median"):
        explained("bert", **METHOD, heads="median")
    with pytest.raises(BadInput, match="start_layer=7"):
        explained("bert", **METHOD, start_layer=7)
