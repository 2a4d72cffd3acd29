"""What the formulas of rollout, generic attention, Grad-SAM and occlusion imply on BERT, ViT, GPT-2 and Llama."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whyformer as wf
from tests.models import CASES, model_of
from whyformer.engines.attention.maps import plus_identity, product, row_normalized, with_residual
from whyformer.errors import NotOffered

MODELS = ["bert", "vit", "gpt2", "llama"]
TARGET = 1


def explain(name: str, method: str, **options: Any) -> list[wf.Explanation]:
    return wf.explain(model_of(name), CASES[name].inputs(), method=method, target=TARGET, **options)


def close(found: Any, expected: Tensor) -> None:
    expected = expected.numpy()
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=1e-5)


OPTIONS: list[dict[str, Any]] = [{}, {"residual": 0.0}, {"residual": 0.3}, {"start_layer": 1}]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rows_of_a_rollout_sum_to_one(name: str, options: dict[str, Any]) -> None:
    for found in explain(name, "attention_rollout", **options):
        np.testing.assert_allclose(found.matrix.sum(1), 1, atol=1e-5)


def test_a_token_of_the_models_own_cannot_be_occluded() -> None:
    assert all(found.scores[0] == 0 for found in explain("vit", "occlusion"))


def test_grad_sam_totals_agree_whatever_is_reduced() -> None:
    for a, b in zip(explain("bert", "grad_sam"), explain("bert", "grad_sam", reduce="key"), strict=True):
        assert a.scores.sum() == pytest.approx(b.scores.sum(), rel=1e-5)


def test_grad_sam_by_key_on_the_last_layer_is_generic_attentions_last_layer() -> None:
    """Only CLS has a gradient there: r_key = (GAE row - identity) / N."""
    case = CASES["bert"]
    model = case.build("sdpa")
    record = wf.Explainer(model).record(case.inputs(), grad=True, target=TARGET)
    site = record.sites[-1]
    n = site.attention_BHQK.shape[-1]
    by_key = (site.attention_BHQK * site.attention_grad_BHQK.clamp(min=0)).mean(1).sum(1)[0] / n
    last = wf.explain(model, case.inputs(), method="generic_attention", target=TARGET, start_layer=1)[0].scores.copy()
    last[0] -= 1
    close(by_key.numpy(), torch.from_numpy(last / n))


# Properties of the formulas


def maps(seed: int, n: int = 6) -> Tensor:
    return torch.rand(2, n, n, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def test_one_layer_rolls_out_to_itself() -> None:
    layer = with_residual(maps(0), 0, 0.5, normalize=True)
    torch.testing.assert_close(product([layer]), layer)


def test_full_residual_is_the_identity() -> None:
    layer = with_residual(maps(0), 0, 1.0, normalize=True)
    torch.testing.assert_close(layer, torch.eye(6).expand(2, -1, -1))


def test_permuting_tokens_permutes_the_map() -> None:
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    layers = [with_residual(maps(s), 0, 0.5, normalize=True) for s in range(3)]
    moved = [layer[:, order][:, :, order] for layer in layers]
    torch.testing.assert_close(product(moved), product(layers)[:, order][:, :, order])


def test_product_order_matters() -> None:
    layers = [with_residual(maps(s), 0, 0.5, normalize=True) for s in range(3)]
    assert not torch.allclose(product(layers), product(layers[::-1]), atol=1e-3)


def test_a_zero_row_stays_zero_instead_of_nan() -> None:
    layer = maps(0)
    layer[0, 2] = 0
    assert row_normalized(layer)[0, 2].sum() == 0
    assert torch.isfinite(row_normalized(layer)).all()


def test_generic_attention_is_identity_plus_something_positive() -> None:
    for found in explain("bert", "generic_attention"):
        assert (found.matrix >= np.eye(len(found.scores)) - 1e-6).all()


def test_a_scaled_logit_keeps_the_ranking_of_the_last_layer() -> None:
    case = CASES["bert"]
    model = case.build("sdpa")
    before = wf.explain(model, case.inputs(), method="generic_attention", target=TARGET, start_layer=1)
    with torch.no_grad():
        model.classifier.weight *= 10
        model.classifier.bias *= 10
    after = wf.explain(model, case.inputs(), method="generic_attention", target=TARGET, start_layer=1)
    for a, b in zip(before, after, strict=True):
        assert [u for u, _ in a.ranked()] == [u for u, _ in b.ranked()]


def test_identity_sits_where_the_query_came_from() -> None:
    eye = plus_identity(torch.zeros(1, 1, 5), first_query=4)
    assert eye[0, 0].tolist() == [0, 0, 0, 0, 1]


def test_the_last_layer_has_a_gradient_at_the_readout_only() -> None:
    row, received = (explain("bert", "attention_x_gradient", read=read)[0].scores for read in ("row", "column_sum"))
    np.testing.assert_allclose(row, received, atol=1e-6)


@pytest.mark.parametrize("method", ["raw_attention", "attention_x_gradient"])
def test_a_last_layer_of_one_row_has_no_columns(method: str) -> None:
    """FT-Transformer asks for its CLS row only in the last block."""
    for options in ({"layers": "last"}, {"layers": "product"}):
        for read in ("column", "column_max", "diagonal"):
            with pytest.raises(NotOffered, match="read='row'"):
                explain("rtdl_ft_transformer", method, read=read, **options)
    for options in ({"layers": 0, "read": "column"}, {"layers": "mean", "read": "column_max"}, {"layers": "product"}):
        found = explain("rtdl_ft_transformer", method, **options)
        assert all(len(e.scores) == len(e.units) for e in found)
