"""Pictures of different sizes in one batch of a detector: each map lies on its own picture."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.methods.properties import close
from whyformer.cli._results import seen_by

QUERY, LABEL = 2, 1
SIZES = [(45, 90), (60, 50)]  # become 24×48 and 28×24: 3×6 and 4×3 patches of 8×8 in a tensor of 28×48, 4×6


@cache
def detector() -> nn.Module:
    from transformers import DetrConfig, DetrForObjectDetection

    backbone = {
        "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
        "layer_type": "basic", "out_features": ["stage2"],
    }  # fmt: skip
    config = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=32,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32,
        decoder_ffn_dim=32, num_queries=6, num_labels=4,
    )  # fmt: skip
    torch.manual_seed(0)
    return DetrForObjectDetection(config).eval()


@cache
def processor() -> Any:
    from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

    return DetrImageProcessorPil(size={"shortest_edge": 24, "longest_edge": 50})


def pictures() -> list[Any]:
    from PIL import Image

    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 255, (*size, 3)).astype(np.uint8)) for size in SIZES]


def explained(images: Any, method: str, **options: Any) -> Any:
    return wf.explain(detector(), images, processor=processor(), target=(QUERY, LABEL), method=method, **options)


@pytest.mark.parametrize("method", ["saliency", "occlusion", "generic_attention"])
def test_the_patches_are_those_of_the_picture_by_itself(method: str) -> None:
    together = explained(pictures(), method)
    for own, image, grid, size in zip(together, pictures(), [(3, 6), (4, 3)], [(24, 48), (28, 24)], strict=True):
        alone = explained(image, method)
        assert own.units.grid == alone.units.grid == grid
        assert own.units.image_size == alone.units.image_size == size
        assert own.heatmap().shape == grid
        assert np.corrcoef(own.heatmap().ravel(), alone.heatmap().ravel())[0, 1] > 0.5


def test_padding_that_the_model_attends_to_is_shown_beside_the_map() -> None:
    """DETR's mask of patches lets the fourth row through, whose pixels are all padding."""
    (own, _) = explained(pictures(), "raw_attention")
    padding = [i for i, label in enumerate(own.units.labels) if label.startswith("[padding")]
    assert [own.units.labels[i] for i in padding] == [f"[padding 3,{j}]" for j in range(6)]
    assert all(own.units.special[i] for i in padding)
    assert (own.scores[padding] > 0).all()
    images = [i for i, stream in enumerate(own.units.stream) if stream == "image"]
    close(own.scores[images].sum(), 1.0)


def test_gradients_are_summed_over_the_patches_of_the_picture() -> None:
    encoded = processor()(pictures(), return_tensors="pt")
    pixels = encoded["pixel_values"].requires_grad_()
    detector()(pixels, encoded["pixel_mask"]).logits[:, QUERY, LABEL].sum().backward()
    assert pixels.grad is not None
    for row, own in enumerate(explained(pictures(), "saliency", norm="sum")):
        (rows, columns), (height, width) = own.units.grid, own.units.image_size
        flat = pixels.grad[row].sum(0)[:height, :width]
        expected = np.zeros((rows, columns))
        for i in range(height):
            for j in range(width):
                expected[i * rows // height, j * columns // width] += float(flat[i, j])
        np.testing.assert_allclose(own.heatmap(), expected, atol=1e-6)


def test_vit_cx_masks_the_picture_and_leaves_its_padding() -> None:
    one, other = explained(pictures(), "vit_cx"), explained(pictures()[::-1], "vit_cx")
    for own, same in zip(one, other[::-1], strict=True):
        assert own.detail.shape == own.units.image_size
        np.testing.assert_allclose(own.scores, same.scores, rtol=1e-4)
        np.testing.assert_allclose(own.detail.sum(), own.heatmap().sum(), rtol=1e-4)


@pytest.mark.parametrize("order", [1, -1])
def test_grad_cam_lies_on_each_picture(order: int) -> None:
    """Against features and gradients of the padded batch, cut to the picture by hand."""
    images = pictures()[::order]
    encoded, read = processor()(images, return_tensors="pt"), []
    hook = detector().model.encoder.register_forward_hook(lambda m, a, out: read.append(out[0]))
    scores = detector()(encoded["pixel_values"], encoded["pixel_mask"]).logits[:, QUERY, LABEL]
    hook.remove()
    (gradient,) = torch.autograd.grad(scores.sum(), read[0])
    maps = torch.einsum("bd,bpd->bp", gradient.mean(1), read[0]).clamp(min=0).view(2, 4, 6).detach().numpy()
    for row, own in enumerate(explained(images, "grad_cam")):
        rows, columns = own.units.grid
        close(own.heatmap(), maps[row, :rows, :columns])


def test_the_command_line_draws_over_the_pictures_without_their_padding() -> None:
    seen = seen_by(wf.Explainer(detector(), processor()), pictures())
    assert [image.shape for image in seen] == [(24, 48, 3), (28, 24, 3)]
