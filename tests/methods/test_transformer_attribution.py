"""transformer_attribution against its twin, the golden numbers, and the laws of relevance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import FAMILY, TARGET, close, explained, golden, half_precision_is_finite, meets_golden
from tests.models import CASES
from tests.models.case import randint
from tests.models.others import OTHERS
from tests.references.eager_attention import reported
from tests.references.transformer_attribution import transformer_attribution

METHOD = {"method": "transformer_attribution"}
VARIANTS = ("full", "rollout", "last_layer", "lrp")


@pytest.mark.parametrize("row", [0, 1])
def test_golden(row: int) -> None:
    """The authors' BERT: rows normalised; of the map's own cell they make the row's minimum, or zero."""
    case = golden()

    def scores(**options: object) -> np.ndarray:
        return wf.explain(case.model, case.inputs, target=case.target, **METHOD, **options)[row].scores.copy()

    for start in (0, 2):
        found = scores(normalize=True, start_layer=start)
        found[0] = found.min()
        meets_golden(found, f"te.transformer_attribution.start{start}", row)
    for key, variant in (("te.partial_lrp", "last_layer"), ("te.full_lrp", "lrp")):
        found = scores(variant=variant)
        found[0] = 0
        meets_golden(found, key, row)


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


def test_attention_in_the_place_of_relevance_is_generic_attention() -> None:
    for row, found in enumerate(explained("bert", double=True, method="generic_attention")):
        own = reported("bert", row, TARGET)
        close(found.matrix, transformer_attribution(own.attention, own.gradient))


@pytest.mark.parametrize("name", ["bert", "vit", "llama"])
def test_the_road_to_attention_does_not_matter(name: str) -> None:
    inputs = CASES[name].inputs()
    for variant in ("rollout", "lrp"):
        fused, eager = (
            wf.explain(CASES[name].build(a), inputs, **METHOD, target=TARGET, variant=variant)
            for a in ("sdpa", "eager")
        )
        for one, other in zip(fused, eager, strict=True):
            close(one.scores, other.scores, 1e-6)  # double precision: no amplified rounding


def test_layers_lead_to_the_whole() -> None:
    for name in FAMILY:
        for found in explained(name, **METHOD, keep_layers=True):
            assert found.matrix is not None and found.layers is not None
            close(found.layers[-1], found.matrix)
            assert (found.scores >= 0).all()
            assert found.cost.forwards == found.cost.backwards == 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_as_many_inputs_as_positions(variant: str) -> None:
    ids = randint(5, 100, 4, 4, seed=4)  # and as many as heads
    together = explained("bert", {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, **METHOD, variant=variant)
    for row, found in enumerate(together):
        one = {"input_ids": ids[row : row + 1], "attention_mask": torch.ones(1, 4, dtype=torch.long)}
        close(found.scores, explained("bert", one, **METHOD, variant=variant)[0].scores)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """The relevance pass itself runs in double precision, so it sums to one all the same."""
    for name in ("bert", "llama"):
        half_precision_is_finite(name, dtype, **METHOD)
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
