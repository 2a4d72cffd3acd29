"""grad_cam and vit_cx: layer and grid on every kind of vision model, empty maps, masks and noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import whyformer as wf
from tests.methods.properties import batch_is_its_rows, close, explained, model_of
from tests.models import CASES
from tests.references.differentiable import TARGET, double
from tests.references.grad_cam import features_and_gradient, grad_cam, last_norm
from tests.references.vit_cx import masks_of
from whyformer.engines.gradient.feature_maps import FeatureMap, grid_artefact, smoothed
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.methods.image_features import cluster_masks
from whyformer.views import side_by_side, view_of
from whyformer.views.marks import Heat

CAM = {"method": "grad_cam"}


def test_swin_is_read_on_its_last_grid_with_the_windows_put_back() -> None:
    model = double("swin")
    images = CASES["swin"].inputs()["pixel_values"].double()
    for row, found in enumerate(explained("swin", double=True, **CAM)):
        features, gradient = features_and_gradient(model, last_norm(model), images[row], TARGET)
        small = torch.from_numpy(grad_cam(features, gradient, 0)).view(1, 1, 4, 4)
        large = torch.nn.functional.interpolate(small, size=(8, 8), mode="bilinear", align_corners=False)
        close(found.scores, large.flatten().numpy())


def test_a_detector_is_read_where_its_queries_take_the_values_from() -> None:
    """DETR adds positions to keys alone; over all positions the gradient of keys adds up to rounding errors."""
    images = CASES["detr"].inputs()["pixel_values"].double()
    query, label = 2, 1
    model = double("detr")
    found = wf.explain(model, {"pixel_values": images}, method="grad_cam", target=(query, label))
    for row, own in enumerate(found):
        read: list[torch.Tensor] = []
        hook = model.model.encoder.register_forward_hook(lambda m, a, out, read=read: read.append(out[0]))
        score = model(pixel_values=images[row : row + 1]).logits[0, query, label]
        hook.remove()
        (gradient,) = torch.autograd.grad(score, read[0])
        expected = grad_cam(read[0][0].detach(), gradient[0], 0)
        real = ~np.asarray(own.units.special)
        close(own.scores[real], expected)
        assert expected.max() > 1e-3


@pytest.mark.parametrize(("name", "number"), [("vit", 0), ("vit", -1), ("swin", 1)])
def test_a_layer_by_number_is_the_input_of_that_attention(name: str, number: int) -> None:
    """Swin's second attention is given windows, rolled and cut; the block's own norm has the patches in order."""
    block = [n for n, _ in model_of(name).named_modules() if n.endswith("layernorm_before")][number]
    numbered, named = (explained(name, **CAM, layer=layer) for layer in (number, block))
    for one, other in zip(numbered, named, strict=True):
        close(one.scores, other.scores)


def test_a_layer_whose_patches_carry_no_gradient_is_refused_and_the_right_one_named() -> None:
    last = [n for n, m in model_of("vit").named_modules() if type(m).__name__ == "ViTLayer"][-1]
    for name in (last, "vit.layernorm"):
        with pytest.raises(BadInput, match=r"carry no gradient.*layer=None, the input of .*1\.attention"):
            explained("vit", **CAM, layer=name)


@pytest.mark.parametrize(("name", "kind", "place"), [("vit", "Conv2d", 0), ("beit", "BeitLayer", -1)])
def test_a_module_may_be_read(name: str, kind: str, place: int) -> None:
    """The patch embedding has its channels first; a model that pools its patches may be read at the end."""
    layer = [n for n, m in model_of(name).named_modules() if type(m).__name__ == kind][place]
    for found in explained(name, **CAM, layer=layer):
        assert found.scores.any()


@pytest.mark.parametrize("name", ["dinov2_registers", "swin"])
def test_a_batch_is_its_rows_and_all_kernels_agree(name: str) -> None:
    batch_is_its_rows(name, **CAM)
    fused, eager = (
        wf.explain(CASES[name].build(kind), CASES[name].inputs(), target=TARGET, **CAM)
        for kind in CASES[name].implementations
    )
    for a, b in zip(fused, eager, strict=True):
        close(a.scores, b.scores)


CX = {"method": "vit_cx"}


def test_without_noise_a_mask_scores_what_is_left_of_the_image() -> None:
    """score_i = s(x∘M_i), since x without noise is x."""
    (found, _) = explained("vit", double=True, **CX, noise=0.0, threshold=0.3)
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
    with pytest.raises(BadInput, match="constant over the image"):
        cluster_masks(map_of(torch.ones(2, 4, 4)), 0, (8, 8), 0.1, 128)


def test_the_order_of_channels_does_not_matter() -> None:
    draw = torch.rand(10, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(2))
    one, other = (cluster_masks(map_of(maps), 0, (16, 16), 0.2, 128) for maps in (draw, draw[order]))
    torch.testing.assert_close(one, other)


def test_the_number_of_masks_is_bounded() -> None:
    for found in explained("vit", **CX, masks=3, threshold=0.0):
        assert found.checks["masks"] == 3
        assert found.cost.forwards == 1 + 2 * (3 + 3), "each of the three meets a second noise, for the error"
    for found in explained("vit", **CX, masks=3, threshold=0.0, noise=0.0):
        assert found.cost.forwards == 1 + 2 * 3
        assert found.checks["standard_error"] == 0
    (all_of_them, _) = explained("vit", **CX, threshold=0.0)
    assert all_of_them.checks["masks"] == 32, "one per channel"


def test_the_result_names_what_the_map_is_of() -> None:
    """The probability, as published, unless the scalar that was asked for is wanted."""
    (found, _), (logit, _) = explained("vit", **CX), explained("vit", **CX, score="explained")
    logits = model_of("vit")(**CASES["vit"].inputs()).logits[0].detach()
    assert (found.scalar, logit.scalar) == ("probability", "logit")
    assert found.value == pytest.approx(float(logits.softmax(0)[found.target.index]), abs=1e-5)
    assert logit.value == pytest.approx(float(logits[logit.target.index]), abs=1e-5)
    assert "probability of" in found.to_html()
    again = explained("vit", **CX, score="explained", scalar="probability")[0]
    close(again.scores, found.scores)
    assert not np.allclose(logit.scores, found.scores)


def test_the_picture_shows_patches_apart_that_share_one_side_of_zero() -> None:
    """Each patch has its share of the whole score: on a scale around zero all of them have one colour."""
    (found, _) = explained("vit", **CX)
    assert found.scores[1:].min() > 0 and np.ptp(found.scores[1:]) < 0.5 * found.scores.max()
    for view in (view_of(found), side_by_side([found])):
        scale = next(m.scale for panel in view.panels for m in panel.marks if isinstance(m, Heat))
        assert (scale.low, scale.high) == pytest.approx((found.scores[1:].min(), found.scores[1:].max()))
        assert "Blue" not in view.caption


# The patch grid: maps whose answer is known, and smoothing that keeps sums.


PIXEL_METHODS = {
    "saliency": {},
    "input_x_gradient": {},
    "smooth_grad": {"samples": 3},
    "integrated_gradients": {"steps": 4},
}


def ringed(border: float, inside: float, patch: int = 4, patches: int = 3) -> np.ndarray:
    """One value on the ring of every patch, another inside."""
    one = np.full((patch, patch), inside)
    one[[0, -1], :] = one[:, [0, -1]] = border
    return np.tile(one, (patches, patches))


def test_energy_on_the_ring_of_every_patch() -> None:
    assert grid_artefact(ringed(3.0, 1.0), 4) == pytest.approx(9)
    assert grid_artefact(ringed(1.0, 2.0), 4) == pytest.approx(1 / 4)
    channels = np.stack([ringed(3.0, 1.0), ringed(1.0, 1.0)])
    assert grid_artefact(channels, 4) == pytest.approx((9 + 1) / (1 + 1)), "energy adds up over the channels"
    oblong = np.full((4, 6), 2.0)
    oblong[1:3, 1:5] = 1.0
    assert grid_artefact(torch.from_numpy(np.tile(oblong, (2, 2))), (4, 6)) == pytest.approx(4)


def test_steps_across_borders() -> None:
    """0, 1, 2, 3 in every patch: inside the steps are 1, across a border 3."""
    line = np.tile(np.arange(4.0), 5)
    columns = np.tile(line, (20, 1))
    across, inside = 9 * 4 / (4 + 4), 1 * 15 / (15 + 15)  # the other axis has as many pairs, without any step
    assert grid_artefact(columns, 4, of="steps") == pytest.approx(across / inside)
    assert grid_artefact(columns + columns.T, 4, of="steps") == pytest.approx(9)


@pytest.mark.parametrize("of", ["values", "steps"])
def test_no_grid(of: str) -> None:
    noise = np.random.default_rng(0).normal(size=(3, 64, 64))
    assert grid_artefact(noise, 8, of) == pytest.approx(1, abs=0.1)
    assert grid_artefact(np.zeros((8, 8)), 4, of) == 1
    assert grid_artefact(np.full((8, 8), 2.0), 4, of) == 1
    assert grid_artefact(noise, 64, of="steps") == 1, "one patch has no border to cross"
    patches = np.kron(noise[0, :3, :3], np.ones((4, 4)))
    assert grid_artefact(ringed(1.0, 0.0) if of == "values" else patches, 4, of) == float("inf"), "nothing but grid"


def test_smoothing_keeps_sums_and_takes_the_grid_away() -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(2, 3, 24, 32, generator=draw, dtype=torch.float64)
    spread = smoothed(values, (2.0, 3.0))
    torch.testing.assert_close(spread.sum((2, 3)), values.sum((2, 3)))
    grid = torch.from_numpy(ringed(1.0, 0.0, 8, 6))[None, None]
    assert grid_artefact(smoothed(grid, (4.0, 4.0)), 8) == pytest.approx(1, abs=0.05)
    assert torch.equal(smoothed(values, (0.0, 0.0)), values)


def test_one_pixel_becomes_a_bump() -> None:
    values = torch.zeros(1, 1, 31, 31, dtype=torch.float64)
    values[0, 0, 15, 15] = 1
    spread = smoothed(values, (2.0, 2.0))[0, 0]
    bump = np.exp(-((np.arange(31) - 15) ** 2) / 8)
    expected = np.outer(bump, bump) / bump.sum() ** 2
    np.testing.assert_allclose(spread.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("method", PIXEL_METHODS)
def test_pixel_methods_can_be_smoothed(method: str) -> None:
    """Off by default; on, ``detail`` is the smoothed map and ``scores`` are made from it."""
    how = {"method": method, **PIXEL_METHODS[method]}
    for plain, smooth in zip(explained("vit", **how), explained("vit", **how, patch_smoothing=0.5), strict=True):
        want = smoothed(torch.from_numpy(plain.detail)[None].double(), (4.0, 4.0))[0].numpy()
        close(smooth.detail, want, 1e-4)
        if method in ("input_x_gradient", "integrated_gradients"):
            close(smooth.scores[1:], want.sum(0).reshape(4, 8, 4, 8).sum((1, 3)).ravel(), 1e-4)
            assert smooth.scores.sum() == pytest.approx(plain.scores.sum(), abs=1e-4)
        else:
            energy = (want**2).sum(0).reshape(4, 8, 4, 8).sum((1, 3)).ravel()
            close(smooth.scores[1:], np.sqrt(energy), 1e-4)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: grid_artefact(np.zeros((4, 4)), 2, of="corners"), UnknownName, "corners"),
        (lambda: grid_artefact(np.zeros(4), 2), BadInput, "height and width"),
        (lambda: explained("bert", method="saliency", patch_smoothing=0.5), NotOffered, "pixels"),
        (lambda: explained("vit", method="saliency", patch_smoothing=0.5, at="embeddings"), NotOffered, "pixels"),
        (lambda: explained("vit", method="saliency", patch_smoothing=-1), BadInput, "patch_smoothing=-1"),
    ],
)
def test_refusals(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
