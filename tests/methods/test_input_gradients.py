"""Input × gradient and integrated gradients against their twins, and the axioms they are known for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.references.input_x_gradient import input_x_gradient
from tests.references.integrated_gradients import integrated_gradients

TARGET = 1


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_input_x_gradient(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs()
    found = wf.explain(case.build("sdpa"), inputs, method="input_x_gradient", target=TARGET)
    model = case.build("eager").double()
    for row, explanation in enumerate(found):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()]
        expected = input_x_gradient(model, ids, TARGET).numpy()
        np.testing.assert_allclose(explanation.scores, expected, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_integrated_gradients(name: str) -> None:
    case = CASES[name]
    inputs = {k: v[1:] for k, v in case.inputs().items()}
    found = wf.explain(case.build("sdpa"), inputs, method="integrated_gradients", target=TARGET, baseline=3, steps=150)
    ids = inputs["input_ids"][0][inputs["attention_mask"][0].bool()]
    expected = integrated_gradients(case.build("eager").double(), ids, TARGET, 3, points=600).numpy()
    np.testing.assert_allclose(found[0].scores, expected, atol=2e-3 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2"])
def test_the_sum_is_the_change_in_score_within_the_reported_error(name: str) -> None:
    case = CASES[name]
    for e in wf.explain(case.build("sdpa"), case.inputs(), method="integrated_gradients", target=TARGET, steps=60):
        assert e.base is not None
        error = abs(e.value - e.base - float(e.scores.sum()))
        assert error <= e.checks["completeness_error"] + 1e-3
        np.testing.assert_allclose(e.detail.sum(), e.scores.sum(), rtol=1e-3, atol=1e-3)


class Linear(nn.Module):
    """No attention, no curve: integrated gradients is exact at a single step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 8, 3, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bnd,ndc->bc", x, self.weight)


def test_linear_models_are_exact_at_one_step() -> None:
    model = Linear()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    expected = torch.einsum("bnd,nd->bn", x, model.weight[:, :, TARGET]).detach().numpy()
    for method, options in (("integrated_gradients", {"steps": 1}), ("input_x_gradient", {})):
        for row, found in enumerate(wf.explain(model, (x,), method=method, target=TARGET, **options)):
            np.testing.assert_allclose(found.scores, expected[row], atol=1e-5)
