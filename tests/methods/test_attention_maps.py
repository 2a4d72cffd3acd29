"""Maps of one layer and of all: options of raw attention, rollout and attention Grad-CAM, and their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.methods.properties import FAMILY, TARGET, close, explained
from tests.references.blocks import blocks_of
from tests.references.eager_attention import reported
from tests.references.gradient_rollout import discard_smallest
from tests.references.value_norms import mixing_ratio
from whyformer.engines.attention.maps import plus_identity, row_normalized, with_residual
from whyformer.errors import NotOffered


def test_a_token_of_the_models_own_cannot_be_occluded() -> None:
    assert all(found.scores[0] == 0 for found in explained("vit", method="occlusion"))


# Properties of the formulas


def maps(seed: int, n: int = 6) -> Tensor:
    return torch.rand(2, n, n, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def test_full_residual_is_the_identity() -> None:
    layer = with_residual(maps(0), 0, 1.0, normalize=True)
    torch.testing.assert_close(layer, torch.eye(6).expand(2, -1, -1))


def test_a_zero_row_stays_zero_instead_of_nan() -> None:
    layer = maps(0)
    layer[0, 2] = 0
    assert row_normalized(layer)[0, 2].sum() == 0
    assert torch.isfinite(row_normalized(layer)).all()


def test_identity_sits_where_the_query_came_from() -> None:
    eye = plus_identity(torch.zeros(1, 1, 5), first_query=4)
    assert eye[0, 0].tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("method", ["raw_attention", "attention_x_gradient"])
def test_a_last_layer_of_one_row_has_no_columns(method: str) -> None:
    """FT-Transformer asks for its CLS row only in the last block."""
    for options in ({"layers": "last"}, {"layers": "product"}):
        for read in ("column", "column_max", "diagonal"):
            with pytest.raises(NotOffered, match="read='row'"):
                explained("rtdl_ft_transformer", method=method, read=read, **options)
    for options in ({"layers": 0, "read": "column"}, {"layers": "mean", "read": "column_max"}, {"layers": "product"}):
        found = explained("rtdl_ft_transformer", method=method, **options)
        assert all(len(e.scores) == len(e.units) for e in found)


GRADCAM = {"method": "attention_gradcam"}


def test_several_layers_are_averaged() -> None:
    both = explained("bert", **GRADCAM, layer="mean")[0]
    single = [explained("bert", **GRADCAM, layer=i)[0] for i in range(2)]
    close(both.matrix, (np.asarray(single[0].matrix) + np.asarray(single[1].matrix)) / 2)
    close(explained("bert", **GRADCAM, layer=[0, 1])[0].scores, both.scores)


ROLLOUT = {"method": "attention_rollout"}


def rolled_out(
    attention: list[np.ndarray],
    fusion: str = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    protected: list[int] | None = None,
) -> np.ndarray:
    whole = np.eye(attention[0].shape[-1])
    for layer in attention:
        fused = getattr(np, fusion)(layer, axis=0)
        discard_smallest(fused, discard, protected or [])
        mixed = (1 - residual) * fused + residual * np.eye(len(fused))
        whole = (mixed / mixed.sum(1, keepdims=True)) @ whole
    return whole


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("layers", [1, 2])
def test_without_normalisation_the_head_mean_only_grows_by_a_factor_of_two_per_layer(name: str, layers: int) -> None:
    how = ROLLOUT | {"start_layer": 2 - layers}
    for plain, raw in zip(explained(name, **how), explained(name, **how, normalize=False), strict=True):
        close(np.asarray(raw.matrix), np.asarray(plain.matrix) * 2**layers)
        close(raw.scores, plain.scores * 2**layers)


@pytest.mark.parametrize(
    "options",
    [{"heads": "max"}, {"heads": "min"}, {"discard": 0.7}, {"discard": 0.7, "heads": "max"}, {"residual": 0.2}],
    ids=str,
)
@pytest.mark.parametrize("name", FAMILY)
def test_fusion_discarding_and_residual(name: str, options: dict[str, object]) -> None:
    for row, found in enumerate(explained(name, double=True, **ROLLOUT, **options)):
        own = reported(name, row, TARGET)
        renamed = {("fusion" if k == "heads" else k): v for k, v in options.items()}
        close(found.matrix, rolled_out(own.attention, **renamed))  # type: ignore[arg-type]


def test_special_tokens_are_kept_from_being_discarded() -> None:
    own = reported("vit", 0, TARGET)
    plain, kept = (explained("vit", double=True, **ROLLOUT, discard=0.9, protect_special=p)[0] for p in (False, True))
    close(kept.matrix, rolled_out(own.attention, discard=0.9, protected=[0]))
    close(plain.matrix, rolled_out(own.attention, discard=0.9))
    assert not np.allclose(plain.matrix, kept.matrix, atol=1e-3)


@pytest.mark.parametrize("name", FAMILY)
def test_a_measured_residual_agrees_with_its_twin(name: str) -> None:
    for row, found in enumerate(explained(name, double=True, **ROLLOUT, residual="mixing")):
        attention = [layer.mean(0) for layer in reported(name, row, TARGET).attention]
        whole = np.eye(len(attention[0]))
        for layer, block in zip(attention, blocks_of(name, row), strict=True):
            mixed = np.zeros_like(layer)
            for i, ratio in enumerate(mixing_ratio(block, "enc").tolist()):
                others = layer[i].copy()
                others[i] = 0
                mixed[i] = ratio * others / others.sum() if others.sum() > 0 else 0
                mixed[i, i] = 1 - ratio if others.sum() > 0 else 1
            whole = mixed @ whole
        close(found.matrix, whole)
        assert found.cost.forwards == 1
