"""The options of attention_rollout that change its maps: fusion, residual, discarding, normalisation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.methods.properties import FAMILY, TARGET, close, explained
from tests.references.blocks import blocks_of
from tests.references.eager_attention import reported
from tests.references.gradient_rollout import discard_smallest
from tests.references.value_norms import mixing_ratio

METHOD = {"method": "attention_rollout"}


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
    how = METHOD | {"start_layer": 2 - layers}
    for plain, raw in zip(explained(name, **how), explained(name, **how, normalize=False), strict=True):
        close(np.asarray(raw.matrix), np.asarray(plain.matrix) * 2**layers)
        close(raw.scores, plain.scores * 2**layers)


def test_without_normalisation_other_fusions_change_more_than_a_factor() -> None:
    how = METHOD | {"heads": "max"}
    plain, raw = (np.asarray(explained("bert", **how, normalize=n)[0].matrix) for n in (True, False))
    ratio = raw / plain
    assert ratio.max() / ratio.min() > 1.01


@pytest.mark.parametrize(
    "options",
    [{"heads": "max"}, {"heads": "min"}, {"discard": 0.7}, {"discard": 0.7, "heads": "max"}, {"residual": 0.2}],
    ids=str,
)
@pytest.mark.parametrize("name", FAMILY)
def test_fusion_discarding_and_residual(name: str, options: dict[str, object]) -> None:
    for row, found in enumerate(explained(name, double=True, **METHOD, **options)):
        own = reported(name, row, TARGET)
        renamed = {("fusion" if k == "heads" else k): v for k, v in options.items()}
        close(found.matrix, rolled_out(own.attention, **renamed))  # type: ignore[arg-type]


def test_special_tokens_are_kept_from_being_discarded() -> None:
    own = reported("vit", 0, TARGET)
    plain, kept = (explained("vit", double=True, **METHOD, discard=0.9, protect_special=p)[0] for p in (False, True))
    close(kept.matrix, rolled_out(own.attention, discard=0.9, protected=[0]))
    close(plain.matrix, rolled_out(own.attention, discard=0.9))
    assert not np.allclose(plain.matrix, kept.matrix, atol=1e-3)


def test_rows_still_sum_to_one_after_discarding() -> None:
    for found in explained("bert", **METHOD, discard=0.8, heads="max"):
        close(np.asarray(found.matrix).sum(1), np.ones(len(found.units)))


@pytest.mark.parametrize("name", FAMILY)
def test_a_measured_residual_agrees_with_its_twin(name: str) -> None:
    for row, found in enumerate(explained(name, double=True, **METHOD, residual="mixing")):
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
