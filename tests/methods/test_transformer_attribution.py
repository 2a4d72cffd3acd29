"""transformer_attribution against its twin, the golden numbers, and the laws of relevance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import FAMILY, TARGET, close, explained, half_precision_is_finite
from tests.models.others import OTHERS

METHOD = {"method": "transformer_attribution"}


@pytest.mark.parametrize(
    "name", [*FAMILY, "roberta", "modernbert", "qwen3", "gemma2", "dinov2", "einsum", "folded_heads", "looped_heads",
             "nn_transformer_encoder_seq_first", "rtdl_ft_transformer"],
)  # fmt: skip
def test_relevance_is_conserved(name: str) -> None:
    """Seeded with one, one arrives at the tokens, whatever biases the model has."""
    for found in explained(name, **METHOD, variant="lrp"):
        assert found.scores.sum() == pytest.approx(1, abs=1e-4)
        assert not [w for w in found.warnings if "pools others besides" not in w]  # DINOv2


def test_experts_keep_what_is_seeded_whichever_way_they_are_multiplied() -> None:
    case, results = OTHERS["mixtral"], {}
    for way in ("grouped_mm", "eager"):
        model = case.build(case.implementations[0])
        model.config._experts_implementation = way
        results[way] = wf.explain(model, case.inputs(), target=TARGET, **METHOD, variant="lrp")
        for found in results[way]:
            assert found.scores.sum() == pytest.approx(1, abs=1e-4)
            assert not any("no relevance rule" in w for w in found.warnings)
    for one, other in zip(*results.values(), strict=True):
        close(one.scores, other.scores)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """The relevance pass itself runs in double precision, so it sums to one all the same."""
    for name in ("bert", "llama"):
        for found in half_precision_is_finite(name, dtype, **METHOD, variant="lrp"):
            assert found.scores.sum() == pytest.approx(1, abs=1e-4)


def test_biases_of_experts_take_no_share_however_the_experts_are_computed():
    case, results = OTHERS["gpt_oss"], []
    for implementation in ("eager", "grouped_mm", "batched_mm"):
        model = case.build("eager")
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("proj_bias"):
                    parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
        results.append(wf.explain(model, case.inputs(), method="transformer_attribution", target=7, progress=False)[0])
    for other in results[1:]:
        np.testing.assert_allclose(other.scores, results[0].scores, rtol=1e-3, atol=1e-12)
