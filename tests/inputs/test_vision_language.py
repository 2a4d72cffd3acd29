"""Vision-language models are language models: prompts, answers and chats, without and with images."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.hf import hf
from tests.models.vision_language import (
    DENSE,
    IMAGE_TOKEN,
    LLAVA,
    NAMES,
    PACKED,
    RECURRENT,
    prompt,
    vision_language_model,
    with_images,
)
from tests.support import processors
from tests.support.released import images_in_prompts
from whyformer.views.marks import Heat

TARGET, WORD = 7, 5
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-5}


def logit(model: nn.Module, inputs: dict[str, Tensor], target: int = TARGET, **options: Any) -> Tensor:
    return model(**inputs, **options).logits[0, -1, target]


def generic_attention(name: str, inputs: dict[str, Tensor]) -> Tensor:
    """R ← R + mean_h (∇A ∘ A)⁺ R over the language model's own maps, read at the last token."""
    output = vision_language_model(name, "eager")(**inputs, output_attentions=True)
    maps = list(output.attentions)
    slopes = torch.autograd.grad(output.logits[0, -1, TARGET], maps)
    relevance = torch.eye(maps[0].shape[-1])
    for attention, slope in zip(maps, slopes, strict=True):
        relevance = relevance + (attention * slope).clamp(min=0)[0].mean(0).detach() @ relevance
    return relevance[-1]


def words_x_gradient(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    vectors: list[Tensor] = []

    def enter(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        vectors.append(out.detach().requires_grad_())
        return vectors[-1].clone()

    hook = model.get_input_embeddings().register_forward_hook(enter)
    try:
        (slope,) = torch.autograd.grad(logit(model, inputs), vectors)
    finally:
        hook.remove()
    return (vectors[0].detach() * slope)[0].sum(-1)


# Without an image


@pytest.mark.parametrize("name", NAMES)
def test_a_text_prompt_is_that_of_a_language_model(name: str) -> None:
    model, inputs = vision_language_model(name), prompt(name)
    methods = ["attn_lrp", "cp_lrp", "occlusion", "input_x_gradient", *["generic_attention"] * (name not in RECURRENT)]
    explained = {m: wf.explain(model, inputs, method=m, target=TARGET)[0] for m in methods if m != "occlusion"}
    explained["occlusion"] = wf.explain(model, inputs, method="occlusion", target=TARGET, replace=WORD)[0]
    with torch.no_grad():
        whole = float(logit(model, inputs))
        others = []
        for position in range(7):
            ids = inputs["input_ids"].clone()
            ids[0, position] = WORD
            others.append(whole - float(logit(model, inputs | {"input_ids": ids})))
    np.testing.assert_allclose(explained["occlusion"].scores, others, **CLOSE)
    np.testing.assert_allclose(explained["input_x_gradient"].scores, words_x_gradient(model, inputs), **CLOSE)
    if name not in RECURRENT:
        np.testing.assert_allclose(explained["generic_attention"].scores, generic_attention(name, inputs), **CLOSE)
    assert explained["attn_lrp"].value == pytest.approx(whole, abs=1e-5)
    if not any("bias" in n for n, p in model.named_parameters() if "language_model" in n and p.any()):
        assert explained["cp_lrp"].checks["conservation_error"] <= 1e-4 * np.abs(explained["cp_lrp"].scores).sum()


def test_relevance_is_that_of_the_language_model_inside() -> None:
    model = vision_language_model("llava")
    inside = hf("LlamaForCausalLM", **{k: v for k, v in LLAVA["text_config"].items() if k != "model_type"})("sdpa")
    inside.model.load_state_dict(model.model.language_model.state_dict())
    inside.lm_head.load_state_dict(model.lm_head.state_dict())
    for method in ("attn_lrp", "value_norms", "integrated_gradients"):
        one, other = (wf.explain(m, prompt(), method=method, target=TARGET)[0] for m in (model, inside))
        np.testing.assert_allclose(one.scores, other.scores, **CLOSE)
    assert wf.explain(model, prompt())[0].method == wf.explain(inside, prompt())[0].method


@pytest.mark.parametrize("name", ["llava", "paligemma"])
def test_prompt_and_answer_are_two_texts(name: str) -> None:
    """PaliGemma looks ahead in its prompt: no pass is shared by the tokens of an answer."""
    model, tokenizer = vision_language_model(name), processors.tokenizer(eos=2)
    steps = wf.explain(model, ("a cat on the", "mat dog"), processor=tokenizer, method="attn_lrp")
    assert [step.target.label for step in steps] == ["mat", "dog"]
    ids = tokenizer("a cat on the", add_special_tokens=False)["input_ids"]
    for step, said in zip(steps, ([], ["mat"]), strict=True):
        so_far = {"input_ids": torch.tensor([ids + tokenizer.convert_tokens_to_ids(said)])}
        (alone,) = wf.explain(model, so_far, method="attn_lrp", target=step.target.index)
        np.testing.assert_allclose(step.scores, alone.scores, **CLOSE)
    assert len(wf.explain(model, "a cat on the", processor=tokenizer, method="occlusion", generate=2)) == 2
    if name == "paligemma":
        with pytest.raises(wf.errors.NotOffered, match="looks ahead"):
            wf.explain(model, ("a cat", "mat dog"), processor=tokenizer, span=True)


class Template:
    """A processor that holds the template, which reads lists of parts alone, as SmolVLM's does."""

    chat_template = (
        "{% for m in messages %}{{ m.role }} : {% for part in m.content %}{% if part.type == 'image' %}<image>"
        "{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %} {% endfor %}"
        "{% if add_generation_prompt %}dog :{% endif %}"
    )

    def __init__(self) -> None:
        self.tokenizer = processors.tokenizer()


@pytest.mark.parametrize("content", ["what is this", [{"type": "text", "text": "what is this"}]])
def test_messages_go_through_the_processors_template(content: Any) -> None:
    chat: Any = [{"role": "user", "content": content}]
    explained = wf.explain(vision_language_model("llava"), chat, processor=Template(), method="attn_lrp")
    assert explained.units.text == "user : what is this dog :"
    roles = dict(zip(explained.units.labels, explained.units.role, strict=True))
    assert {roles[word] for word in ("what", "is", "this")} == {"user"} and roles["dog"] == "template"


# With images


def pieces(name: str, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Per image token, in the order of the text, the numbers of the images that it stands for, as a mask of them."""
    pixels, masks = inputs["pixel_values"], []
    if name in PACKED:  # four neighbouring patches follow one another
        for first in range(0, len(pixels), 4):
            mask = torch.zeros_like(pixels, dtype=torch.bool)
            mask[first : first + 4] = True
            masks.append(mask)
        return masks
    if name == "gemma4":
        for image, (row, column) in product(range(len(pixels)), product(range(2), range(3))):
            mask = torch.zeros_like(pixels, dtype=torch.bool)
            x, y = inputs["image_position_ids"][image].T
            mask[image, (x // 2 == column) & (y // 2 == row)] = True
            masks.append(mask)
        return masks
    count, side = pixels.flatten(0, -4).shape[0], int(DENSE[name] ** 0.5)
    size = 32 // side
    for image, row, column in product(range(count), range(side), range(side)):
        mask = torch.zeros_like(pixels, dtype=torch.bool).flatten(0, -4)
        mask[image, :, row * size : (row + 1) * size, column * size : (column + 1) * size] = True
        masks.append(mask.view_as(pixels))
    return masks


def mean_colour(name: str, inputs: dict[str, Tensor], images: int) -> Tensor:
    """The images, each in its mean colour."""
    pixels = inputs["pixel_values"]
    if name in PACKED:  # 3 channels × 2 frames × 4 × 4
        by_image = pixels.view(images, 24, 3, 2, 16)
        return by_image.mean((1, 4), keepdim=True).expand_as(by_image).reshape(pixels.shape)
    if name == "gemma4":
        by_colour = pixels.unflatten(-1, (16, 3))
        return by_colour.mean((1, 2), keepdim=True).expand_as(by_colour).flatten(-2)
    return pixels.mean((-2, -1), keepdim=True).expand_as(pixels)


@images_in_prompts
@pytest.mark.parametrize(("name", "images"), [(name, 1 + number % 2) for number, name in enumerate(NAMES)])
def test_images_are_explained_with_the_words(name: str, images: int) -> None:
    """Against the language model's own maps, plain gradients, and one plain forward per masked unit."""
    model, inputs = vision_language_model(name), with_images(name, images)
    held = (inputs["input_ids"][0] == IMAGE_TOKEN).numpy()
    masks, colour = pieces(name, inputs), mean_colour(name, inputs, images)
    with torch.no_grad():
        whole, expected = float(logit(model, inputs)), []
        numbers = iter(masks)
        for position in range(len(held)):
            ids = inputs["input_ids"].clone()
            if held[position]:
                changed = {"pixel_values": torch.where(next(numbers), colour, inputs["pixel_values"])}
            else:
                ids[0, position] = WORD
                changed = {"input_ids": ids}
            expected.append(whole - float(logit(model, inputs | changed)))
    (occluded,) = wf.explain(model, inputs, method="occlusion", target=TARGET, replace=WORD)
    np.testing.assert_allclose(occluded.scores, expected, **CLOSE)
    assert np.array_equal(np.array(occluded.units.stream) == "image", held) and occluded.value == pytest.approx(
        whole, abs=1e-5
    )
    if name in RECURRENT:
        with pytest.raises(wf.errors.PartlyCaptured):
            wf.explain(model, inputs, method="generic_attention", target=TARGET)
    else:
        (generic,) = wf.explain(model, inputs, method="generic_attention", target=TARGET)
        np.testing.assert_allclose(generic.scores, generic_attention(name, inputs), **CLOSE)
    pixels = inputs["pixel_values"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(logit(model, inputs | {"pixel_values": pixels}), pixels)
    shares = [float((pixels.detach() * slope)[mask].sum()) for mask in masks]
    (gradient,) = wf.explain(model, inputs, method="input_x_gradient", target=TARGET)
    np.testing.assert_allclose(gradient.scores[held], shares, rtol=0, atol=1e-4)
    words = words_x_gradient(model, inputs)
    np.testing.assert_allclose(gradient.scores[~held], words[~torch.from_numpy(held)], rtol=0, atol=1e-4)


@images_in_prompts
@pytest.mark.parametrize("name", NAMES)
def test_relevance_reaches_words_and_image_tokens_and_is_conserved(name: str) -> None:
    """cp_lrp: exactly, on language models without biases, also where features are added to later layers (Qwen3-VL)."""
    model, inputs = vision_language_model(name), with_images(name)
    held = (inputs["input_ids"][0] == IMAGE_TOKEN).numpy()
    found = {m: wf.explain(model, inputs, method=m, target=TARGET)[0] for m in ("attn_lrp", "cp_lrp")}
    for explained in found.values():
        assert np.abs(explained.scores[held]).min() > 0 and np.abs(explained.scores[~held]).min() > 0
    if name not in {"qwen2_vl", "qwen2_5_vl", "internvl"}:  # biases take a share there
        assert found["cp_lrp"].checks["conservation_error"] <= 1e-4 * np.abs(found["cp_lrp"].scores).sum()


@images_in_prompts
@pytest.mark.parametrize("name", NAMES)
def test_a_token_stands_for_the_piece_of_the_image_that_changes_it_most(name: str) -> None:
    model, inputs = vision_language_model(name), with_images(name)
    known = {n: t for n, t in inputs.items() if n.startswith(("pixel", "image"))}

    @torch.no_grad()
    def features(pixels: Tensor) -> Tensor:
        found = model.get_image_features(**known | {"pixel_values": pixels}).pooler_output
        return torch.cat(list(found)).flatten(0, -2)

    before = features(inputs["pixel_values"])
    for number, mask in enumerate(pieces(name, inputs)):
        after = features(torch.where(mask, -3 * inputs["pixel_values"], inputs["pixel_values"]))
        assert int((after - before).norm(dim=-1).argmax()) == number


@images_in_prompts
@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "smolvlm", "paligemma", "gemma3", "gemma4"])
def test_tokens_that_are_generated_have_the_logits_of_generation(name: str) -> None:
    model, inputs = vision_language_model(name), with_images(name)
    told: Any = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    (steps,) = wf.explain(model, inputs, method="attn_lrp", generate=told)
    with torch.no_grad():
        own = model.generate(**inputs, **told, output_logits=True, return_dict_in_generate=True)
    assert [step.target.index for step in steps] == own.sequences[0, -3:].tolist()
    for step, logits in zip(steps, own.logits, strict=True):
        assert step.value == pytest.approx(float(logits[0, step.target.index]), abs=1e-4)
    ids = own.sequences[:, :-1]
    if name == "llava":  # one pass served all three tokens: the last of them is explained alone
        alone = inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        (last,) = wf.explain(model, alone, method="attn_lrp", target=steps[-1].target.index)
        np.testing.assert_allclose(steps[-1].scores, last.scores, **CLOSE)


# As users give them

QUESTION = "what is this"


@pytest.fixture(scope="module")
def explainer() -> wf.Explainer:
    processor = processors.llava()
    processor.chat_template = Template.chat_template
    return wf.Explainer(vision_language_model("llava"), processor)


@images_in_prompts
def test_an_image_and_a_text_in_several_forms(explainer: wf.Explainer) -> None:
    image = processors.picture()
    forms: Any = [(image, QUESTION), (QUESTION, image), ([image], QUESTION), {"text": QUESTION, "images": [image]}]
    found = [explainer.explain(form, target=TARGET) for form in forms]
    assert all(np.array_equal(found[0].scores, other.scores) for other in found)
    assert found[0].units.grid == (4, 4) and found[0].heatmap().shape == (4, 4) and found[0].picture
    assert [w for w, s in zip(found[0].units.labels, found[0].units.stream, strict=True) if s == "text"] == [
        *QUESTION.split(),
        "[EOS]",
    ]
    chat: Any = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": QUESTION}]}]
    asked = explainer.explain(chat, target=TARGET)
    assert asked.units.text == "user : <image>what is this dog :" and asked.units.stream.count("image") == 16
    assert set(asked.units.role) == {"user", "template", "image"}
    said = explainer.explain([*chat, {"role": "assistant", "content": "a cat"}])
    assert [step.target.label for step in said] == ["a", "cat"]


def test_where_images_come_as_pixels_alone_a_newer_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whyformer.inputs.vision_language.FEATURES", "what transformers 4 does not have")
    given: Any = {"text": QUESTION, "images": [processors.picture()] * 2}
    with pytest.raises(wf.errors.BadInput, match=r"need transformers 5: install it, or pass one image"):
        wf.explain(vision_language_model("llava"), given, processor=processors.llava())


@images_in_prompts
def test_images_of_several_inputs_are_kept_apart(explainer: wf.Explainer) -> None:
    images = [processors.picture(), processors.picture(30, 50)]
    raw: Any = [(images[0], QUESTION), {"text": "a <image> cat <image> on", "images": images}, (images[1], "a cat")]
    together = explainer.explain(raw, target=TARGET, method="generic_attention")
    for one, other in zip(raw, together, strict=True):
        alone = explainer.explain(one, target=TARGET, method="generic_attention")
        np.testing.assert_allclose(alone.scores, other.scores, **CLOSE)
        assert alone.units.labels == other.units.labels
    assert together[1].units.grid == (8, 4) and "image 2 patch 4,4" in together[1].units.labels


@images_in_prompts
def test_a_whole_answer_and_two_answers_against_each_other(explainer: wf.Explainer) -> None:
    prompt: Any = (processors.picture(), QUESTION)
    spans = {a: explainer.explain((prompt, a), span=True, method="attn_lrp") for a in ("a cat", "two birds")}
    steps = explainer.explain((prompt, "a cat"), scalar="log_odds", method="occlusion")
    likely = sum(-np.log1p(np.exp(-step.value)) for step in steps)
    assert spans["a cat"].value == pytest.approx(likely, abs=1e-4)
    both = explainer.explain(prompt, target=("a cat", "two birds"), method="attn_lrp")
    first, second = (one.scores[: len(both.scores)] for one in spans.values())
    np.testing.assert_allclose(both.scores, first - second, **CLOSE)


@images_in_prompts
def test_words_and_regions_are_units(explainer: wf.Explainer) -> None:
    image = processors.picture()
    mask = np.zeros((10, 10), bool)
    mask[5:] = True
    regions: Any = {"text": "sentence", "image": [(0, 0, 0.5, 0.5), mask]}
    tokens = explainer.explain((image, QUESTION), target=TARGET, method="attn_lrp")
    joined = explainer.explain((image, QUESTION), target=TARGET, method="attn_lrp", units=regions)
    heat = tokens.heatmap()
    assert joined.units.labels == ("region 1", "region 2", QUESTION, "[EOS]")
    words = tokens.scores[[s == "text" for s in tokens.units.stream]]
    expected = [heat[:2, :2].sum(), heat[2:].sum(), words[:-1].sum(), words[-1]]
    np.testing.assert_allclose(joined.scores, expected, **CLOSE)
    assert joined.units.boxes is not None and joined.units.boxes[1] == (0, 0.5, 1, 1)
    by_word = explainer.explain((image, QUESTION), target=TARGET, method="attn_lrp", units="word")
    assert by_word.units.grid == (4, 4) and np.array_equal(by_word.heatmap(), heat)

    inputs = explainer.processor(images=image, text=f"<image>\n{QUESTION}", return_tensors="pt")
    changed = inputs["pixel_values"].clone()
    changed[:, :, 16:] = inputs["pixel_values"].mean((2, 3), keepdim=True)
    with torch.no_grad():
        scores = [
            float(logit(explainer.model, {**inputs, "pixel_values": p})) for p in (inputs["pixel_values"], changed)
        ]
    away = explainer.explain((image, QUESTION), target=TARGET, method="occlusion", units=regions)
    assert away.scores[1] == pytest.approx(scores[0] - scores[1], abs=1e-5)


@images_in_prompts
@pytest.mark.parametrize(
    ("raw", "how", "words"),
    [
        ("picture", {}, r"takes a text, \(image, text\)"),
        ("pair", {"units": {"image": [(0, 0, 50, 50)]}}, "shares of the image"),
        ("pair", {"units": {"picture": []}}, '"text": …, "image"'),
        ("url", {}, "Nothing is downloaded"),
        ("key", {}, "'picture', and takes answer, image"),
        ("missing", {}, "the file does not exist"),
    ],
)
def test_what_cannot_be_read_says_what_to_give(explainer: wf.Explainer, raw: str, how: Any, words: str) -> None:
    image = processors.picture()
    address: Any = [{"role": "user", "content": [{"type": "image_url", "url": "http://a.b/c.png"}]}]
    given: Any = {
        "picture": image,
        "pair": (image, QUESTION),
        "url": address,
        "key": {"text": QUESTION, "picture": image},
        "missing": ("no_such_file.png", QUESTION),
    }[raw]
    with pytest.raises(wf.errors.BadInput, match=words):
        explainer.explain(given, **how)


@images_in_prompts
def test_the_image_is_drawn_under_each_token_of_an_answer(explainer: wf.Explainer, tmp_path: Path) -> None:
    prompt: Any = (processors.picture(), QUESTION)
    answer = explainer.explain((prompt, "a cat on"), method="attn_lrp")
    view = answer.view()
    seen = [panel for panel in view.panels if isinstance(panel.marks[0], Heat)]
    assert [panel.title for panel in seen] == ["image: a", "image: cat", "image: on"]
    for panel, step in zip(seen, answer, strict=True):
        (heat,) = panel.marks
        assert isinstance(heat, Heat) and heat.image is not None and heat.scale == seen[0].marks[0].scale
        np.testing.assert_allclose(
            heat.values_RC / heat.values_RC.sum(), step.heatmap() / step.heatmap().sum(), rtol=1e-4
        )
    assert "<image>" in answer.save(tmp_path / "answer.html").read_text().replace("&lt;", "<").replace("&gt;", ">")
    dialogue: Any = view.panels[0].marks[0]
    words = [piece.text for part in dialogue.reading.parts for passage in part.passages for piece in passage.pieces]
    assert [word for word in words if word.strip()] == ["<image>", *QUESTION.split(), "a", "cat"]
    away = explainer.explain(prompt, target=TARGET, method="attn_lrp", units={"image": [(0, 0, 0.5, 0.5)]})
    assert any(panel.title == "boxes (image)" for panel in away.view().panels)


@images_in_prompts
def test_images_are_cited_beside_texts(explainer: wf.Explainer) -> None:
    documents: Any = {"photo": processors.picture(), "note": "a cat on the mat. two birds."}
    model, processor = explainer.model, explainer.processor
    cited = wf.cite(model, "what is this", documents, processor=processor, answer="a cat.")
    assert [source.text for source in cited.sources] == ["[image]", "a cat on the mat.", "two birds."]
    assert cited.document_scores[0] == pytest.approx([cited.scores[0, 0], cited.scores[0, 1:].sum()])
    assert not np.isnan(cited.document_drops).any() and abs(cited.document_drops[0, 0]) > 1e-4
    with pytest.raises(wf.errors.BadInput, match="takes none: give texts"):
        wf.cite(model, "what is this", documents, processor=processor.tokenizer, answer="a cat.")
