"""smooth_grad against its twin, and what noise and seeds must and must not do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import (
    close,
    explained,
    half_precision_is_finite,
    one_token_is_finite,
    padding_is_nothing,
)
from tests.methods.test_saliency import Linear
from tests.references.differentiable import numbers
from tests.references.smooth_grad import standard_error
from whyformer.errors import BadInput

METHOD = {"method": "smooth_grad", "samples": 6}


def test_reports_its_standard_error() -> None:
    for row, found in enumerate(explained("bert", double=True, **METHOD)):
        expected = standard_error(numbers("bert", row), samples=6, groups=5)
        assert found.checks["standard_error"] == pytest.approx(expected, rel=1e-4)
        relative = expected / np.abs(found.scores).max()
        assert found.checks["standard_error_relative"] == pytest.approx(relative, rel=1e-4)


def test_the_standard_error_is_about_the_spread_over_seeds() -> None:
    found = [explained("bert", seed=seed, method="smooth_grad", samples=25)[0] for seed in range(12)]
    spread = np.sqrt(np.var([e.scores for e in found], axis=0, ddof=1).mean())
    reported = np.sqrt(np.mean([e.checks["standard_error"] ** 2 for e in found]))
    assert 0.5 < reported / spread < 2


def test_without_noise_it_is_saliency() -> None:
    for plain, smooth in zip(explained("vit", method="saliency"), explained("vit", **METHOD, noise=0.0), strict=True):
        close(smooth.scores, plain.scores)
        assert smooth.checks["standard_error"] == pytest.approx(0, abs=1e-6)


def test_on_a_linear_model_noise_changes_nothing() -> None:
    torch.manual_seed(0)
    model = Linear()
    for found in wf.explain(model, (torch.randn(3, 5),), target=1, **METHOD):
        close(found.scores, model.head.weight[1].abs().detach().numpy())


def test_seeds_reproduce_and_differ() -> None:
    one, same, other = (explained("bert", **METHOD, seed=seed)[0].scores for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("at", ["input", "embeddings"])
def test_padding_is_nothing(name: str, at: str) -> None:
    padding_is_nothing(name, **METHOD, at=at)


def test_one_token_and_one_sample() -> None:
    one_token_is_finite("bert", **METHOD)
    one_token_is_finite("bert", method="smooth_grad", samples=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    half_precision_is_finite("bert", dtype, **METHOD)


def test_bad_options_are_refused() -> None:
    for options, word in (({"samples": 0}, "samples=0"), ({"noise": -1.0}, "noise"), ({"memory_mb": 0}, "memory_mb")):
        with pytest.raises(BadInput, match=word):
            explained("bert", **(METHOD | options))
