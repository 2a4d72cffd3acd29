"""vit_cx against its twin, and what its masks and noise must do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.methods.properties import close, explained, model_of
from tests.models import CASES
from tests.references.differentiable import TARGET, double
from tests.references.grad_cam import features_and_gradient, last_norm
from tests.references.vit_cx import masks_of
from whyformer.engines.gradient.feature_maps import FeatureMap
from whyformer.errors import BadInput
from whyformer.methods.image_features import cluster_masks
from whyformer.views import side_by_side, view_of
from whyformer.views.marks import Heat

METHOD = {"method": "vit_cx"}


def test_without_noise_a_mask_scores_what_is_left_of_the_image() -> None:
    """score_i = s(x∘M_i), since x without noise is x."""
    (found, _) = explained("vit", double=True, **METHOD, noise=0.0, threshold=0.3)
    model, image = double("vit"), CASES["vit"].inputs()["pixel_values"][0].double()
    features, _ = features_and_gradient(model, last_norm(model), image.clone(), TARGET)
    masks = masks_of(features[1:], (4, 4), (32, 32), 0.3)
    assert found.checks["masks"] == len(masks)
    with torch.no_grad():
        left = [model(pixel_values=(image * torch.from_numpy(m))[None]).logits[0].softmax(0)[TARGET] for m in masks]
    total = sum(float(s) * m for s, m in zip(left, masks, strict=True))
    close(found.detail, total / sum(masks) / len(masks))


def map_of(channels: Tensor) -> FeatureMap:
    """(D, g, g) → features of one image."""
    grid = (channels.shape[1], channels.shape[2])
    return FeatureMap("made up", grid, channels.flatten(1).T[None], None)


def test_masks_that_are_alike_are_one_and_constant_ones_are_left_out() -> None:
    draw = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alike = torch.cat([draw[:1], draw[:1] * 3 + 1, torch.full((1, 4, 4), 2.0), draw[1:2].flip(1) ** 4])
    masks = cluster_masks(map_of(alike), 0, (8, 8), 0.1, 128)
    assert len(masks) == 2
    assert masks.amin() == 0 and masks.amax() == 1
    with pytest.raises(BadInput, match="the same everywhere"):
        cluster_masks(map_of(torch.ones(2, 4, 4)), 0, (8, 8), 0.1, 128)


def test_the_order_of_channels_does_not_matter() -> None:
    draw = torch.rand(10, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(2))
    one, other = (cluster_masks(map_of(maps), 0, (16, 16), 0.2, 128) for maps in (draw, draw[order]))
    torch.testing.assert_close(one, other)


def test_the_number_of_masks_is_bounded() -> None:
    for found in explained("vit", **METHOD, masks=3, threshold=0.0):
        assert found.checks["masks"] == 3
        assert found.cost.forwards == 1 + 2 * (3 + 3), "each of the three meets a second noise, for the error"
    for found in explained("vit", **METHOD, masks=3, threshold=0.0, noise=0.0):
        assert found.cost.forwards == 1 + 2 * 3
        assert found.checks["standard_error"] == 0
    (all_of_them, _) = explained("vit", **METHOD, threshold=0.0)
    assert all_of_them.checks["masks"] == 32, "one per channel"


def test_the_explained_scalar_can_be_used_in_place_of_the_probability() -> None:
    logit = explained("vit", **METHOD, score="explained", noise=0.0)[0]
    probability = explained("vit", **METHOD, noise=0.0)[0]
    again = explained("vit", **METHOD, score="explained", scalar="probability", noise=0.0)[0]
    close(again.scores, probability.scores)
    assert not np.allclose(logit.scores, probability.scores)


def test_the_result_names_what_the_map_is_of() -> None:
    """The probability, as published, unless the scalar that was asked for is wanted."""
    (found, _), (logit, _) = explained("vit", **METHOD), explained("vit", **METHOD, score="explained")
    logits = model_of("vit")(**CASES["vit"].inputs()).logits[0].detach()
    assert (found.scalar, logit.scalar) == ("probability", "logit")
    assert found.value == pytest.approx(float(logits.softmax(0)[found.target.index]), abs=1e-5)
    assert logit.value == pytest.approx(float(logits[logit.target.index]), abs=1e-5)
    assert "probability of" in found.to_html()


def test_the_picture_shows_patches_apart_that_share_one_side_of_zero() -> None:
    """Each patch has its share of the whole score: on a scale around zero all of them have one colour."""
    (found, _) = explained("vit", **METHOD)
    assert found.scores[1:].min() > 0 and np.ptp(found.scores[1:]) < 0.5 * found.scores.max()
    for view in (view_of(found), side_by_side([found])):
        scale = next(m.scale for panel in view.panels for m in panel.marks if isinstance(m, Heat))
        assert (scale.low, scale.high) == pytest.approx((found.scores[1:].min(), found.scores[1:].max()))
        assert "Blue" not in view.caption
