"""grad_cam against its twin, layer and grid found on every kind of vision model, and empty maps refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import batch_is_its_rows, close, explained, model_of
from tests.models import CASES
from tests.references.differentiable import TARGET, double
from tests.references.grad_cam import SPECIAL, features_and_gradient, grad_cam, last_norm
from whyformer.errors import BadInput

METHOD = {"method": "grad_cam"}


@pytest.mark.parametrize("name", SPECIAL)
def test_tokens_of_the_models_own_are_no_part_of_the_image(name: str) -> None:
    for found in explained(name, double=True, **METHOD):
        assert (found.scores[: SPECIAL[name]] == 0).all()
        assert (found.scores >= 0).all()


def test_swin_is_read_on_its_last_grid_with_the_windows_put_back() -> None:
    model = double("swin")
    images = CASES["swin"].inputs()["pixel_values"].double()
    for row, found in enumerate(explained("swin", double=True, **METHOD)):
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


@pytest.mark.parametrize(("name", "number"), [("vit", 0), ("swin", 1)])
def test_a_layer_by_number_is_the_input_of_that_attention(name: str, number: int) -> None:
    """Swin's second attention is given windows, rolled and cut; the block's own norm has the patches in order."""
    block = [n for n, _ in model_of(name).named_modules() if n.endswith("layernorm_before")][number]
    numbered, named = (explained(name, **METHOD, layer=layer) for layer in (number, block))
    for one, other in zip(numbered, named, strict=True):
        close(one.scores, other.scores)


def test_without_a_layer_it_is_the_last_attention() -> None:
    for first, last in zip(explained("vit", **METHOD, layer=-1), explained("vit", **METHOD), strict=True):
        assert np.array_equal(first.scores, last.scores)


def test_the_patch_embedding_has_its_channels_first() -> None:
    name = next(n for n, m in model_of("vit").named_modules() if isinstance(m, torch.nn.Conv2d))
    for found in explained("vit", **METHOD, layer=name):
        assert found.scores.any()


def test_a_layer_whose_patches_carry_no_gradient_is_refused_and_the_right_one_named() -> None:
    last = [n for n, m in model_of("vit").named_modules() if type(m).__name__ == "ViTLayer"][-1]
    for name in (last, "vit.layernorm"):
        with pytest.raises(BadInput, match=r"carry no gradient.*layer=None, the input of .*1\.attention"):
            explained("vit", **METHOD, layer=name)


def test_a_model_that_pools_its_patches_may_be_read_at_the_end() -> None:
    last = [n for n, m in model_of("beit").named_modules() if type(m).__name__ == "BeitLayer"][-1]
    for found in explained("beit", **METHOD, layer=last):
        assert found.scores.any()


@pytest.mark.parametrize("name", ["vit", "deit_distilled", "beit", "dinov2_registers", "swin"])
def test_a_batch_is_its_rows_and_all_kernels_agree(name: str) -> None:
    batch_is_its_rows(name, **METHOD)
    fused, eager = (
        wf.explain(CASES[name].build(kind), CASES[name].inputs(), target=TARGET, **METHOD)
        for kind in CASES[name].implementations
    )
    for a, b in zip(fused, eager, strict=True):
        close(a.scores, b.scores)


def test_no_hook_is_left_behind() -> None:
    model = model_of("vit")
    explained("vit", **METHOD, layer="vit.embeddings")
    assert not any(m._forward_hooks for m in model.modules())
