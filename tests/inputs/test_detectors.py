"""Detectors whose queries are tokens among the patches (YOLOS), or are picked anew for each picture (RT-DETR)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import randn, seeded
from whyformer.views.image_marks import frames_of

CLASSES = 3


def yolos() -> nn.Module:
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = hf.YolosConfig(image_size=[32, 32], patch_size=8, num_detection_tokens=5, num_labels=CLASSES, **size)
    return seeded(lambda: hf.YolosForObjectDetection(config)).eval()


def rt_detr() -> nn.Module:
    backbone = hf.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 32], depths=[1, 1, 1, 1], out_features=["stage2", "stage3", "stage4"]
    )
    size: dict[str, Any] = {"encoder_hidden_dim": 32, "encoder_layers": 1, "encoder_ffn_dim": 64, "decoder_layers": 2}
    size |= {"d_model": 32, "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    size |= {"encoder_in_channels": [16, 32, 32], "decoder_in_channels": [32, 32, 32], "num_denoising": 0}
    config = hf.RTDetrConfig(
        backbone_config=backbone, num_queries=8, num_labels=CLASSES, anchor_image_size=None, **size
    )
    return seeded(lambda: hf.RTDetrForObjectDetection(config)).eval()


SMALL, LARGE = {"pixel_values": randn(1, 3, 32, 32)}, {"pixel_values": 3 * randn(1, 3, 64, 64, seed=1)}


# YOLOS


def test_a_detection_says_how_likely_it_is_and_that_it_may_be_nothing() -> None:
    """DETR and YOLOS have one class more, for no object; RT-DETR asks of each class by itself."""
    model = yolos()
    said = wf.explain(model, SMALL, method="attention_rollout", target=(3, 1))[0].prediction
    with torch.no_grad():
        likely = model(**SMALL).logits[0, 3].softmax(0)
    known = {said.index: said.probability} | {c.index: c.probability for c in said.next or ()}
    assert list(known.values()) == sorted(known.values(), reverse=True) and len(known) == CLASSES + 1
    np.testing.assert_allclose([known[i] for i in range(CLASSES + 1)], likely.numpy(), atol=1e-5)
    assert {said.index: said.label, **{c.index: c.label for c in said.next or ()}}[CLASSES] == "no object"
    alone = rt_detr()
    said = wf.explain(alone, LARGE, method="saliency", target=(2, 1))[0].prediction
    with torch.no_grad():
        likely = alone(**LARGE).logits[0, 2].sigmoid()
    assert said.probability == pytest.approx(float(likely.max()), abs=1e-4) and len(said.next or ()) == CLASSES - 1
    assert "no object" not in {c.label for c in said.next or ()}


def test_the_box_of_a_detection_token_is_drawn() -> None:
    model = yolos()
    result = wf.explain(model, SMALL, method="attention_rollout", target=(3, 1))[0]
    units = result.units
    assert units.labels[0] == "[CLS]" and units.labels[-2:] == ("[detection token 3]", "[detection token 4]")
    assert units.stream == (*["image"] * 17, *["queries"] * 5)
    assert units.special == (True, *[False] * 16, *[True] * 5)
    with torch.no_grad():
        x, y, width, height = model(**SMALL).pred_boxes[0, 3].tolist()
    (frame,) = frames_of(result)
    edges = np.clip([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 0, 1)
    np.testing.assert_allclose(frame.box, edges, atol=1e-5)


def test_every_detection_token_is_read_at_its_own_row() -> None:
    """What was found for the first one must not be kept for the others."""
    model = yolos()
    with torch.no_grad():
        eager = yolos()
        eager.set_attn_implementation("eager")
        last = eager(**SMALL, output_attentions=True).attentions[-1][0].mean(0)
    for query in (0, 2, 4):
        result = wf.explain(model, SMALL, method="raw_attention", target=(query, 1))[0]
        np.testing.assert_allclose(result.scores, last[17 + query], atol=1e-5)
    (each,) = wf.explain(model, SMALL, method="raw_attention", target=0.0)
    assert len(each) == 5
    for query, result in enumerate(each):
        np.testing.assert_allclose(result.scores, last[17 + query], atol=1e-5)


@pytest.mark.parametrize("make", [yolos, rt_detr])
def test_gradients_at_the_pixels(make: Any) -> None:
    model, inputs = make(), SMALL if make is yolos else LARGE
    result = wf.explain(model, inputs, method="input_x_gradient", target=(2, 1))[0]
    # Two of the same: what torch says of a single one behind batch norm is wrong on the CPU (capture/functions.py).
    pixels = inputs["pixel_values"].repeat(2, 1, 1, 1).requires_grad_()
    (slope,) = torch.autograd.grad(model(pixel_values=pixels).logits[0, 2, 1], pixels)
    rows, columns = result.units.grid
    shares = (pixels * slope)[0].detach().sum(0).reshape(rows, pixels.shape[2] // rows, columns, -1).sum((1, 3))
    np.testing.assert_allclose(result.heatmap(), shares.numpy(), rtol=1e-3, atol=1e-7)
    specials = [s for s, special in zip(result.scores, result.units.special, strict=True) if special]
    assert not np.any(specials)


# RT-DETR


def overlap(a: Tensor, b: Tensor) -> float:
    """Generalised intersection over union, written out for two boxes given by centre and sides."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = a.tolist(), b.tolist()
    wide = min(ax + aw / 2, bx + bw / 2) - max(ax - aw / 2, bx - bw / 2)
    high = min(ay + ah / 2, by + bh / 2) - max(ay - ah / 2, by - bh / 2)
    shared = max(wide, 0.0) * max(high, 0.0)
    union = aw * ah + bw * bh - shared
    around = (max(ax + aw / 2, bx + bw / 2) - min(ax - aw / 2, bx - bw / 2)) * (
        max(ay + ah / 2, by + bh / 2) - min(ay - ah / 2, by - bh / 2)
    )
    return shared / union - (around - union) / around


def most_alike(reference: Any, query: int, output: Any) -> int:
    likeness = []
    for other in range(output.logits.shape[1]):
        a, b = reference.logits[0, query].sigmoid(), output.logits[0, other].sigmoid()
        cosine = float(a @ b / a.norm() / b.norm())
        likeness.append((1 + overlap(reference.pred_boxes[0, query], output.pred_boxes[0, other])) / 2 * cosine)
    return int(np.argmax(likeness))


def test_a_changed_picture_is_asked_about_the_same_object() -> None:
    model, query = rt_detr(), 2
    result = wf.explain(model, LARGE, method="occlusion", target=(query, 1))[0]
    pixels, others = LARGE["pixel_values"], []
    with torch.no_grad():
        whole = model(**LARGE)
        assert result.value == pytest.approx(float(whole.logits[0, query, 1]), abs=1e-5)
        for i, score in enumerate(result.scores):
            row, column = divmod(i, 2)
            changed = pixels.clone()
            changed[..., 32 * row : 32 * row + 32, 32 * column : 32 * column + 32] = pixels.mean((2, 3), keepdim=True)
            output = model(pixel_values=changed)
            others.append(most_alike(whole, query, output))
            expected = float(whole.logits[0, query, 1] - output.logits[0, others[-1], 1])
            assert score == pytest.approx(expected, abs=1e-5)
    assert set(others) != {query}  # by number, other objects would have been compared
    assert any("picks its queries anew" in warning for warning in result.warnings)


def test_queries_that_are_the_same_for_every_picture_are_asked_by_number() -> None:
    result = wf.explain(yolos(), SMALL, method="occlusion", target=(2, 1))[0]
    assert not any("anew" in warning for warning in result.warnings)
