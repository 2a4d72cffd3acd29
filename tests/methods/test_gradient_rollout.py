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
from tests.references.eager_attention import reported, reported_by_columns
from tests.references.gradient_rollout import gradient_rollout
from whyformer.errors import BadInput, UnknownName

METHOD = {"method": "gradient_rollout"}
OPTIONS = (
    {},
    {"heads": "max"},
    {"heads": "min"},
    {"discard": 0.6},
    {"discard": 0.6, "heads": "max"},
    {"start_layer": 1},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", FAMILY)
def test_agrees_with_its_twin(name: str, options: dict[str, object]) -> None:
    for row, found in enumerate(explained(name, double=True, **METHOD, **options)):
        own = reported(name, row, TARGET)
        start = int(options.get("start_layer", 0))  # type: ignore[call-overload]
        whole = gradient_rollout(
            own.attention[start:],
            own.gradient[start:],
            str(options.get("heads", "mean")),
            float(options.get("discard", 0.0)),  # type: ignore[arg-type]
        )
        close(found.matrix, whole)
        close(found.scores, whole[own.row])
        assert found.value == pytest.approx(own.logit, abs=1e-4)


def test_agrees_with_its_twin_where_the_last_layer_has_one_row() -> None:
    for row, found in enumerate(explained("rtdl_ft_transformer", double=True, **METHOD, discard=0.3)):
        own = reported_by_columns("rtdl_ft_transformer", row, TARGET)
        assert own.attention[-1].shape[1] == 1
        close(found.scores, gradient_rollout(own.attention, own.gradient, discard=0.3)[0])


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
    batch_is_its_rows(name, **METHOD)
    batch_is_its_rows(name, **METHOD, discard=0.5)


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
