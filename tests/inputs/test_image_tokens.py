"""Image tokens inside a text: which pixels each stands for, and what happens without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whyformer as wf
from tests.models import CASES, UNUSUAL, model_of, run
from tests.models.case import randn
from tests.models.hf import hf
from tests.models.vision_language import BLIP2, IMAGE_TOKEN
from tests.references import occlusion as twin
from tests.support import processors
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.inputs.image_tokens import frames_of, patches_of

ALL = CASES | UNUSUAL
SIDE = {"llava": 8, "qwen2_vl": 8, "qwen2_5_vl": 8}  # pixels along one image token
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


@pytest.mark.parametrize("name", SIDE)
def test_occlusion_is_that_of_the_reference(name: str) -> None:
    """Words are replaced by a word, image tokens by the mean colour of their square of pixels."""
    inputs = inputs_of(name)
    found = wf.explain(model_of(name), inputs, method="occlusion", target=7, replace=WORD)
    for row, explanation in enumerate(found):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()]
        expected = twin.occlusion_of_image_tokens(
            score_of(name, row, 7), ids, picture(name, row), IMAGE_TOKEN, WORD, SIDE[name]
        )
        np.testing.assert_allclose(explanation.scores, expected, rtol=0, atol=1e-5)
        image = np.array(explanation.units.stream) == "image"
        assert np.abs(explanation.scores[image]).min() > 1e-6 and image.sum() == len(explanation.heatmap().ravel())
        assert (explanation.cost.forwards, explanation.cost.backwards) == (len(ids) + 1, 0)


@pytest.mark.parametrize("name", SIDE)
def test_each_stream_takes_the_replacement_that_it_has(name: str) -> None:
    inputs = {k: v[:1] for k, v in inputs_of(name).items() if k != "pixel_values"}
    inputs["pixel_values"] = inputs_of(name)["pixel_values"][: 1 if name == "llava" else 24]
    by = {
        r: wf.explain(model_of(name), inputs, method="occlusion", target=7, replace=r)[0] for r in ("zero", "blur", 5)
    }
    image = np.array(by["zero"].units.stream) == "image"
    assert np.array_equal(by["zero"].scores[~image], by["blur"].scores[~image])
    assert not np.allclose(by["zero"].scores[image], by["blur"].scores[image])
    assert not np.allclose(by["zero"].scores[image], by[5].scores[image])
    assert not np.allclose(by["zero"].scores[~image], by[5].scores[~image])


@pytest.mark.parametrize("reader", ["llama", "t5"])
def test_queries_that_read_the_image_are_not_taken_away(reader: str) -> None:
    """BLIP-2, also with an encoder-decoder that writes the answer: patches, words and written words are."""
    t5 = {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 100}
    model = hf("Blip2ForConditionalGeneration", **BLIP2 | ({"text_config": t5} if reader == "t5" else {}))("eager")
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


def test_packed_patches_are_the_picture_again() -> None:
    config, image = model_of("qwen2_vl").config, picture("qwen2_vl", 0)
    patches = twin.qwen_patches(image, 4, 2, 2)
    frames = frames_of(config, patches, torch.tensor([1, 4, 6]))
    assert torch.equal(frames, torch.stack([image, image]))
    assert torch.equal(patches_of(config, frames), patches)


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


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_shapley_values_of_words_and_pieces_of_the_picture_add_up(name: str) -> None:
    for one in wf.explain(model_of(name), inputs_of(name), method="shap", target=7, replace=WORD, evaluations=40):
        assert one.base is not None
        np.testing.assert_allclose(one.scores.sum(), one.value - one.base, atol=1e-4)
        assert np.abs(one.scores[np.array(one.units.stream) == "image"]).max() > 1e-3


def test_variants_come_in_parts() -> None:
    explainer = wf.Explainer(model_of("qwen2_vl"))
    whole = explainer.explain(inputs_of("qwen2_vl"), method="occlusion", target=7, replace=WORD)
    parts = explainer.explain(inputs_of("qwen2_vl"), method="occlusion", target=7, replace=WORD, batch_size=3)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, rtol=0, atol=1e-5)
