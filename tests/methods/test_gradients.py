"""saliency, input_x_gradient and smooth_grad: golden numbers, and what must hold on any model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.methods.properties import FAMILY, close, explained
from tests.references.differentiable import numbers
from tests.references.smooth_grad import standard_error
from whyformer.errors import NotOffered

METHOD = {"method": "saliency"}
SMOOTH = {"method": "smooth_grad", "samples": 6}


@pytest.mark.parametrize("name", FAMILY)
def test_the_gradient_itself_comes_along(name: str) -> None:
    assert all(found.detail is not None for found in explained(name, **METHOD))


class Linear(nn.Module):
    """A table of numbers under one matrix: the gradient is the matrix."""

    def __init__(self, columns: int = 5) -> None:
        super().__init__()
        self.head = nn.Linear(columns, 3)

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


def test_a_score_that_ignores_the_input_has_none() -> None:
    class Blind(Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x) * 0 + 1

    for found in wf.explain(Blind(), (torch.randn(2, 5),), target=0, **METHOD):
        assert np.array_equal(found.scores, np.zeros(5))


# Input times gradient


def test_a_model_that_does_not_care_how_long_its_inputs_are_gets_a_warning() -> None:
    """DeBERTa normalises word embeddings before anything is added to them: x · ∇ is zero but for rounding."""
    for found in explained("deberta_v2", double=True, method="input_x_gradient"):
        assert any("rounding errors" in w for w in found.warnings)
    for name, how in (("deberta_v2", {"at": "embeddings"}), ("bert", {})):
        for found in explained(name, double=True, method="input_x_gradient", **how):
            assert not found.warnings


# Gradients under noise


def test_reports_its_standard_error() -> None:
    for row, found in enumerate(explained("bert", double=True, **SMOOTH)):
        expected = standard_error(numbers("bert", row), samples=6, groups=5)
        assert found.checks["standard_error"] == pytest.approx(expected, rel=1e-4)
        relative = expected / np.abs(found.scores).max()
        assert found.checks["standard_error_relative"] == pytest.approx(relative, rel=1e-4)


def test_without_noise_it_is_saliency() -> None:
    for plain, smooth in zip(explained("vit", method="saliency"), explained("vit", **SMOOTH, noise=0.0), strict=True):
        close(smooth.scores, plain.scores)
        assert smooth.checks["standard_error"] == pytest.approx(0, abs=1e-6)


DRAWN = {"smooth_grad": "bert", "shap": "bert", "vit_cx": "vit"}


@pytest.mark.parametrize("method", DRAWN)
def test_other_seeds_draw_other_numbers_and_leave_numpys_alone(method: str) -> None:
    np.random.seed(11)
    expected = np.random.rand()
    np.random.seed(11)
    how = {"shap": {"algorithm": "permutation", "evaluations": 40}, "smooth_grad": {"samples": 6}}.get(method, {})
    one, same, other = (explained(DRAWN[method], method=method, seed=seed, **how)[0].scores for seed in (1, 1, 2))
    assert np.random.rand() == expected
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("bert", {"method": "smooth_grad", "samples": 25}),
        ("vit", {"method": "vit_cx", "draws": 1, "masks": 12, "noise": 0.5, "threshold": 0.0}),
        ("vit", {"method": "vit_cx", "draws": 3, "masks": 12, "noise": 0.5, "threshold": 0.0}),
    ],
)
def test_the_standard_error_is_about_the_spread_over_seeds(name: str, how: dict[str, Any]) -> None:
    found = [explained(name, seed=10 * seed, **how)[0] for seed in range(10)]
    scores = np.array([e.scores[~np.asarray(e.units.special)] for e in found])
    spread = np.sqrt(np.var(scores, axis=0, ddof=1).mean())
    reported = np.sqrt(np.mean([e.checks["standard_error"] ** 2 for e in found]))
    assert 0.5 < reported / spread < 2
