"""Image tokens inside a text, and detectors: which pixels belong to a unit, and what happens without them."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whyformer as wf
from tests.methods.properties import close
from tests.models import CASES, UNUSUAL, model_of, run
from tests.models.case import CLASSES, randn, seeded
from tests.models.hf import hf as built
from tests.models.kinds import KINDS
from tests.models.multimodal import BLIP2, IMAGE_TOKEN
from tests.references import occlusion as twin
from tests.support import processors
from whyformer.cli._results import seen_by
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.views.image_marks import frames_of

ALL = CASES | UNUSUAL
NAMES, SIDE = ["llava", "qwen2_vl"], 8  # pixels along one image token
WORD = 5


def picture(name: str, row: int) -> Tensor:
    return randn(3, 32, 32, seed=row) if name == "llava" else randn(3, 16, 24, seed=row)


def inputs_of(name: str) -> dict[str, Tensor]:
    inputs: Any = dict(ALL[name].inputs())
    pictures = [picture(name, row) for row in range(2)]
    packed = [twin.qwen_patches(p, 4, 2, 2) for p in pictures]
    return inputs | {"pixel_values": torch.stack(pictures) if name == "llava" else torch.cat(packed)}


def score_of(name: str, row: int, target: int) -> Any:
    """The last token's logit in float64, one input without padding."""
    model = ALL[name].build("eager").double()

    def score(ids: Tensor, pixels: Tensor) -> float:
        one: dict[str, Tensor] = {"input_ids": ids[None], "pixel_values": pixels.double()[None]}
        if name != "llava":
            one["pixel_values"] = twin.qwen_patches(pixels.double(), 4, 2, 2)
            one["image_grid_thw"] = torch.tensor([[1, 4, 6]])
            one["mm_token_type_ids"] = (ids[None] == IMAGE_TOKEN).int()
        return float(run(model, one).logits[0, -1, target])

    return score


@pytest.mark.parametrize("name", NAMES)
def test_occlusion_is_that_of_the_reference(name: str) -> None:
    """Words are replaced by a word, image tokens by the mean colour of their square of pixels."""
    inputs = inputs_of(name)
    found = wf.explain(model_of(name), inputs, method="occlusion", target=7, replace=WORD)
    for row, explanation in enumerate(found):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()]
        expected = twin.occlusion_of_image_tokens(
            score_of(name, row, 7), ids, picture(name, row), IMAGE_TOKEN, WORD, SIDE
        )
        np.testing.assert_allclose(explanation.scores, expected, rtol=0, atol=1e-5)
        image = np.array(explanation.units.stream) == "image"
        assert np.abs(explanation.scores[image]).min() > 1e-6 and image.sum() == len(explanation.heatmap().ravel())
        assert (explanation.cost.forwards, explanation.cost.backwards) == (len(ids) + 1, 0)


def test_each_stream_takes_the_replacement_that_it_has() -> None:
    inputs, wanted = {k: v[:1] for k, v in inputs_of("llava").items()}, ("zero", "blur", 5)
    by = {r: wf.explain(model_of("llava"), inputs, method="occlusion", target=7, replace=r)[0] for r in wanted}
    image = np.array(by["zero"].units.stream) == "image"
    assert np.array_equal(by["zero"].scores[~image], by["blur"].scores[~image])
    assert not np.allclose(by["zero"].scores[image], by["blur"].scores[image])
    assert not np.allclose(by["zero"].scores[image], by[5].scores[image])
    assert not np.allclose(by["zero"].scores[~image], by[5].scores[~image])


@pytest.mark.parametrize("reader", ["llama", "t5"])
def test_queries_that_read_the_image_are_not_taken_away(reader: str) -> None:
    """BLIP-2, also with an encoder-decoder that writes the answer: patches, words and written words are."""
    t5 = {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 100}
    model = built("Blip2ForConditionalGeneration", **BLIP2 | ({"text_config": t5} if reader == "t5" else {}))("eager")
    inputs: Any = {k: v[:1] for k, v in CASES["blip2"].inputs().items()}
    if reader == "t5":
        inputs["decoder_input_ids"] = torch.tensor([[0, 7, 8]])
    (one,) = wf.explain(model, inputs, method="occlusion", target=7, replace=WORD)

    def score(**changed: Tensor) -> float:
        with torch.no_grad():
            return float(model(**inputs | changed).logits[0, -1, 7])

    expected = [0.0]  # the image's [CLS]
    for top in range(0, 32, 8):
        for left in range(0, 32, 8):
            pixels = inputs["pixel_values"].clone()
            pixels[..., top : top + 8, left : left + 8] = pixels.mean((2, 3), keepdim=True)
            expected.append(score() - score(pixel_values=pixels))
    for name in ("input_ids", "decoder_input_ids"):
        for position in range(inputs[name].shape[1] if name in inputs else 0):
            ids = inputs[name].clone()
            if ids[0, position] != IMAGE_TOKEN:
                ids[0, position] = WORD
            expected.append(score() - score(**{name: ids}))
    np.testing.assert_allclose(one.scores, expected, rtol=0, atol=1e-5)
    assert np.abs(one.scores[1:17]).min() > 1e-6


def test_without_a_picture_that_can_be_cut_up_it_is_refused() -> None:
    """More image tokens than pieces of the picture: LLaVA with the [CLS] of its vision tower kept."""
    model = CASES["llava"].build("sdpa")
    model.config.vision_feature_select_strategy = "full"
    inputs: Any = dict(CASES["llava"].inputs())
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    inputs["input_ids"] = torch.cat([ids[:, :3], ids[:, 2:]], 1)
    inputs["attention_mask"] = torch.cat([mask[:, :3], mask[:, 2:]], 1)
    with pytest.raises(NotOffered, match=r"17 image tokens.*no grid of pieces.*generic_attention"):
        wf.explain(model, inputs, method="occlusion", target=7)
    assert wf.explain(model, inputs, method="generic_attention", target=7)


def test_bad_replacements_are_refused() -> None:
    inputs = inputs_of("llava")
    with pytest.raises(BadInput, match="holds the place of an image"):
        wf.explain(model_of("llava"), inputs, method="occlusion", target=7, replace=IMAGE_TOKEN)
    with pytest.raises(UnknownName, match=r"smear.*mean, zero, blur"):
        wf.explain(model_of("llava"), inputs, method="occlusion", target=7, replace="smear")


def test_images_that_were_padded_are_occluded_as_they_are_alone() -> None:
    """ViLT pads smaller images of a batch: neither the squares nor the mean colour may take that in."""
    pytest.importorskip("PIL.Image")
    raw = [(processors.picture(), "what is this"), (processors.picture(60, 40), "a cat")]
    explainer = wf.Explainer(CASES["vilt"].build("eager"), processors.vilt())
    for given, together in zip(raw, explainer.explain(raw, method="occlusion", target=1), strict=True):
        alone = explainer.explain(given, method="occlusion", target=1)
        assert alone.units.image_size == together.units.image_size
        np.testing.assert_allclose(together.scores, alone.scores, rtol=0, atol=1e-5)
        assert np.abs(alone.heatmap()).min() > 1e-5


# Detectors: queries among the patches (YOLOS) or picked for each picture (RT-DETR), padded pictures (DETR).

yolos = partial(KINDS["yolos"].case.build, None)


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
    # The seed: with transformers 4 and 5, objects change places where a piece of the picture is masked.
    return seeded(lambda: hf.RTDetrForObjectDetection(config), seed=3).eval()


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
    """Generalised intersection over union of two boxes, given by centre and sides."""
    low, high = (torch.stack([box[:2] + side * box[2:] for box in (a, b)]) for side in (-0.5, 0.5))
    shared = (high.amin(0) - low.amax(0)).clamp(min=0).prod()
    around = (high.amax(0) - low.amin(0)).prod()
    union = a[2:].prod() + b[2:].prod() - shared
    return float(shared / union - (around - union) / around)


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
    assert any("selects its queries" in warning for warning in result.warnings)
    same = wf.explain(yolos(), SMALL, method="occlusion", target=(2, 1))[0]  # its queries are those of every picture
    assert not any("anew" in warning for warning in same.warnings)


# Pictures of different sizes in one batch: each map lies on its own picture


QUERY, LABEL = 2, 1
SIZES = [(45, 90), (60, 50)]  # become 24×48 and 28×24: 3×6 and 4×3 patches of 8×8 in a tensor of 28×48, 4×6


@cache
def detector() -> nn.Module:
    backbone = {
        "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
        "layer_type": "basic", "out_features": ["stage2"],
    }  # fmt: skip
    config = hf.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=32,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32,
        decoder_ffn_dim=32, num_queries=6, num_labels=4,
    )  # fmt: skip
    torch.manual_seed(0)
    return hf.DetrForObjectDetection(config).eval()


@cache
def processor() -> Any:
    return processors.pil("detr", "Detr", size={"shortest_edge": 24, "longest_edge": 50})


def pictures() -> list[Any]:
    return [processors.picture(*size) for size in SIZES]


def explained(images: Any, method: str, **options: Any) -> Any:
    return wf.explain(detector(), images, processor=processor(), target=(QUERY, LABEL), method=method, **options)


def test_the_patches_are_those_of_the_picture_by_itself() -> None:
    together = explained(pictures(), "generic_attention")
    for own, image, grid, size in zip(together, pictures(), [(3, 6), (4, 3)], [(24, 48), (28, 24)], strict=True):
        alone = explained(image, "generic_attention")
        assert own.units.grid == alone.units.grid == grid == own.heatmap().shape
        assert own.units.image_size == alone.units.image_size == size
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


def test_grad_cam_lies_on_each_picture() -> None:
    """Against features and gradients of the padded batch, cut to the picture by hand."""
    images = pictures()
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
