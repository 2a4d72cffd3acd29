"""Videos in the prompts of vision-language models. (SmolVLM and InternVL take the frames of a video as images.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import whyformer as wf
from tests.inputs.test_vision_language import (
    CLOSE,
    TARGET,
    WORD,
    generic_attention,
    logit,
    mean_colour,
    pieces,
    words_x_gradient,
)
from tests.models.vision_language import FRAMES, IMAGE_TOKEN, RECURRENT, VIDEO_TOKEN, vision_language_model, with_video
from tests.support import processors
from tests.support.released import images_in_prompts
from whyformer.inputs import media

pytestmark = images_in_prompts

NAMES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "gemma4"]


def as_images(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.replace("video_", "image_").removesuffix("_videos"): t for n, t in inputs.items() if "video" in n}


def plain(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """The inputs of a plain forward. Gemma 4's (transformers 5.22) does not pass on how many frames each video has."""
    if "num_frames_per_video" not in inputs:
        return inputs
    names = ("pixel_values_videos", "video_position_ids", "num_frames_per_video")
    rest = {name: tensor for name, tensor in inputs.items() if name not in names}
    features = model.model.get_video_features(*(inputs[name] for name in names))
    return rest | {"mm_encoder_outputs": {"video": features}}


def masked(name: str, inputs: dict[str, Tensor], images: int) -> list[dict[str, Tensor]]:
    """The changed tensors of each unit: a word replaced, or a piece of an image or frame in its mean colour."""
    frames = as_images(inputs)
    kinds = {VIDEO_TOKEN: ("pixel_values_videos", iter(pieces(name, frames)), mean_colour(name, frames, FRAMES))}
    if images:
        kinds[IMAGE_TOKEN] = ("pixel_values", iter(pieces(name, inputs)), mean_colour(name, inputs, images))
    changed = []
    for position, token in enumerate(inputs["input_ids"][0].tolist()):
        if token in kinds:
            tensor, masks, colour = kinds[token]
            changed.append({tensor: torch.where(next(masks), colour, inputs[tensor])})
        else:
            ids = inputs["input_ids"].clone()
            ids[0, position] = WORD
            changed.append({"input_ids": ids})
    return changed


@pytest.mark.parametrize(("name", "images"), [*((name, 0) for name in NAMES), ("qwen2_5_vl", 1), ("qwen3_vl", 2)])
def test_frames_are_explained_with_the_words(name: str, images: int) -> None:
    """Against the language model's own maps, plain gradients, and one plain forward per masked unit."""
    model, inputs = vision_language_model(name), with_video(name, images)
    ids = inputs["input_ids"][0]
    video, words = ids == VIDEO_TOKEN, (ids != VIDEO_TOKEN) & (ids != IMAGE_TOKEN)
    with torch.no_grad():
        whole = float(logit(model, plain(model, inputs)))
        expected = [whole - float(logit(model, plain(model, inputs | c))) for c in masked(name, inputs, images)]
    (occluded,) = wf.explain(model, inputs, method="occlusion", target=TARGET, replace=WORD)
    np.testing.assert_allclose(occluded.scores, expected, **CLOSE)
    assert occluded.value == pytest.approx(whole, abs=1e-5)
    labels = np.array(occluded.units.labels)[video.numpy()]
    assert labels[0] == "frame 1 patch 1,1" and labels[-1] == f"frame {FRAMES} patch 2,3"
    if name not in RECURRENT:
        (generic,) = wf.explain(model, inputs, method="generic_attention", target=TARGET)
        np.testing.assert_allclose(generic.scores, generic_attention(name, plain(model, inputs)), **CLOSE)
    (gradient,) = wf.explain(model, inputs, method="input_x_gradient", target=TARGET)
    for tensor, held, masks in (
        ("pixel_values_videos", video, pieces(name, as_images(inputs))),
        *([("pixel_values", ids == IMAGE_TOKEN, pieces(name, inputs))] if images else []),
    ):
        numbers = inputs[tensor].clone().requires_grad_()
        (slope,) = torch.autograd.grad(logit(model, plain(model, inputs | {tensor: numbers})), numbers)
        shares = [float((numbers.detach() * slope)[mask].sum()) for mask in masks]
        np.testing.assert_allclose(gradient.scores[held.numpy()], shares, rtol=0, atol=1e-4)
    expected_words = words_x_gradient(model, plain(model, inputs))[words]
    np.testing.assert_allclose(gradient.scores[words.numpy()], expected_words, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "images"), [*((name, 0) for name in NAMES if name != "gemma4"), ("qwen3_vl", 2)])
def test_relevance_reaches_every_frame_and_answers_are_those_of_generation(name: str, images: int) -> None:
    model, inputs = vision_language_model(name), with_video(name, images)
    told: Any = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": None}
    (steps,) = wf.explain(model, inputs, method="cp_lrp", generate=told)
    with torch.no_grad():
        own = model.generate(**inputs, **told, output_logits=True, return_dict_in_generate=True)
    assert [step.target.index for step in steps] == own.sequences[0, -2:].tolist()
    for step, logits in zip(steps, own.logits, strict=True):
        assert step.value == pytest.approx(float(logits[0, step.target.index]), abs=1e-4)
    assert np.abs(steps[0].scores).min() > 0
    if name not in {"qwen2_vl", "qwen2_5_vl"}:  # biases take a share there
        assert steps[0].checks["conservation_error"] <= 1e-4 * np.abs(steps[0].scores).sum()


def test_the_time_between_frames_counts() -> None:
    """Qwen2.5-VL: seconds set the positions of the frames."""
    model, inputs = vision_language_model("qwen2_5_vl"), with_video("qwen2_5_vl")
    slow = inputs | {"second_per_grid_ts": torch.tensor([5.0])}
    two = {n: torch.cat([inputs[n], slow[n]]) for n in inputs}
    alone = [wf.explain(model, one, method="attn_lrp", target=TARGET)[0] for one in (inputs, slow)]
    together = wf.explain(model, two, method="attn_lrp", target=TARGET)
    assert np.abs(alone[0].scores - alone[1].scores).max() > 1e-3
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, **CLOSE)


# As users give them

QUESTION = "what is this"


@pytest.fixture(scope="module")
def explainer() -> wf.Explainer:
    return wf.Explainer(vision_language_model("qwen2_vl"), processors.QwenVideos())


def test_a_video_in_several_forms(explainer: wf.Explainer, tmp_path: Path) -> None:
    clip = np.random.default_rng(0).integers(0, 255, (4, 16, 24, 3), np.uint8)
    frames = [Image.fromarray(frame) for frame in clip]
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for frame, path in zip(frames, paths, strict=True):
        frame.save(path)
    forms: Any = [{"videos": [clip]}, {"video": clip}, {"video": frames}, {"videos": [frames]}, {"video": paths}]
    found = [explainer.explain({"text": QUESTION, **form}, target=TARGET) for form in forms]
    assert all(np.array_equal(found[0].scores, other.scores) for other in found)
    assert found[0].units.grid == (4, 3) and found[0].picture and "frame 2 patch 2,3" in found[0].units.labels
    tensors = explainer.processor(
        [f"<|vision_start|><|video_pad|><|vision_end|>\n{QUESTION}"], [[clip]], return_tensors="pt"
    )
    (adopted,) = explainer.explain(tensors, target=TARGET)
    np.testing.assert_allclose(found[0].scores, adopted.scores, **CLOSE)
    with torch.no_grad():
        assert found[0].value == pytest.approx(float(logit(explainer.model, tensors)), abs=1e-5)
    pair = explainer.explain({"text": QUESTION, "videos": [clip, clip[:2]]}, target=TARGET)
    assert pair.units.stream.count("image") == 18


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"videos": ["http://a.b/c.mp4"]}, "no video file at .* Nothing is downloaded"),
        ({"videos": [7]}, "list of its frames"),
        ({"video": [np.zeros((8, 8, 3), np.uint8), np.zeros((16, 8, 3), np.uint8)]}, "several sizes"),
    ],
)
def test_what_is_no_video_says_what_to_give(explainer: wf.Explainer, given: Any, words: str) -> None:
    with pytest.raises(wf.errors.BadInput, match=words):
        explainer.explain({"text": QUESTION, **given}, target=TARGET)


def test_models_without_videos_say_to_pass_images(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = np.zeros((2, 32, 32, 3), np.uint8)
    given: Any = {"text": QUESTION, "video": clip}
    with pytest.raises(wf.errors.BadInput, match=r"LlavaProcessor takes no videos. Pass frames .* as images"):
        wf.explain(vision_language_model("llava"), given, processor=processors.llava())
    with pytest.raises(wf.errors.BadInput, match=r"takes no pixel_values_videos. Pass frames .* as images"):
        tensors = {n: with_video("qwen2_vl")[n] for n in ("input_ids", "pixel_values_videos")}
        wf.explain(vision_language_model("llava"), tensors, target=TARGET)
    monkeypatch.setattr(media, "place_ids", lambda config: {"image": IMAGE_TOKEN})  # as of MiniCPM-V's config
    with pytest.raises(wf.errors.NotOffered, match=r"no video_token_id, .* Pass frames of the video as images"):
        wf.explain(vision_language_model("qwen2_vl"), with_video("qwen2_vl"), target=TARGET)
