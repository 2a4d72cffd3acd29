"""Image tokens in a language model are followed into the vision layers; BLIP's answer into question and image."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.methods.properties import near as close
from tests.models import CASES, UNUSUAL, model_of
from tests.models.case import run, softmax_outputs
from tests.references import generic_attention_streams as twin
from whyformer.errors import BadInput, NotOffered, PartlyCaptured
from whyformer.study.schedule import Link

ALL = CASES | UNUSUAL


def alone(name: str, row: int) -> dict[str, Tensor]:
    """One input, its padding cut off; Qwen's patches are taken out of the row they are packed in."""
    inputs: Any = ALL[name].inputs()
    real = inputs["attention_mask"][row].bool()
    one = {k: v[row : row + 1] for k, v in inputs.items()}
    if "image_grid_thw" in inputs:
        one["pixel_values"] = inputs["pixel_values"][24 * row : 24 * row + 24]
    return {k: v[:, real] if v.ndim == 2 and v.shape[1] == len(real) else v for k, v in one.items()}


def layers(name: str, row: int, target: int, logits: Any) -> list[twin.Layer]:
    """(attention, gradient) of every softmax of an eager float64 model, one input."""
    model = ALL[name].build("eager").double()
    one = {k: v.double() if v.is_floating_point() else v for k, v in alone(name, row).items()}
    with softmax_outputs() as maps:
        score = logits(model, one)[target]
    gradients = torch.autograd.grad(score, maps, allow_unused=True)
    pairs = zip(maps, gradients, strict=True)
    return [(m[0].detach().numpy(), (torch.zeros_like(m) if g is None else g)[0].numpy()) for m, g in pairs]


def last_logits(model: nn.Module, one: dict[str, Tensor]) -> Tensor:
    return run(model, one).logits[0, -1]


# Image tokens in a language model


def placed(text: Any, image: Any, tokens: int, group: int, skipped: int) -> Any:
    """The readout row: text tokens as they are; image token k gets what its patches get by way of all image tokens."""
    row = text[-1].copy()
    patches = np.zeros(len(image))
    for k in range(tokens):
        for j in range(group):
            patches += row[2 + k] * image[skipped + k * group + j] / group
    row[2 : 2 + tokens] = patches[skipped:].reshape(tokens, group).sum(1)
    return row


@pytest.mark.parametrize(("name", "tokens", "group", "skipped"), [("llava", 16, 1, 1), ("qwen2_vl", 6, 4, 0)])
def test_the_vision_layers_are_followed(name: str, tokens: int, group: int, skipped: int) -> None:
    found = {
        m: wf.explain(model_of(name), ALL[name].inputs(), method=m, target=7)
        for m in ("generic_attention", "attention_rollout")
    }
    for row in range(2):
        each = layers(name, row, 7, last_logits)
        image, text = twin.one_stream(each[:2]), twin.one_stream(each[2:])
        explanation = found["generic_attention"][row]
        close(explanation.scores, placed(text, image, tokens, group, skipped))
        half = [(np.eye(a.shape[-1]) + a.mean(0)) / 2 for a, _ in each]
        rolled = [half[1] @ half[0], half[3] @ half[2]]
        close(found["attention_rollout"][row].scores, placed(rolled[1], rolled[0], tokens, group, skipped))
        assert [explanation.units.stream.count(s) for s in ("image", "text")] == [tokens, (10, 7)[row]]
        assert explanation.heatmap().shape == {"llava": (4, 4), "qwen2_vl": (2, 3)}[name]
        assert any("become no token" in w for w in explanation.warnings) == bool(skipped)
        (single,) = wf.explain(model_of(name), alone(name, row), target=7)
        close(explanation.scores, single.scores)


def test_images_of_different_sizes_in_one_batch() -> None:
    inputs = ALL["qwen2_vl"].inputs()
    assert isinstance(inputs, dict)
    ids = inputs["input_ids"].clone()
    ids[1, 6:8] = 50  # four image tokens are left
    wide = {
        **inputs,
        "input_ids": ids,
        "mm_token_type_ids": (ids == 99).int(),
        "image_grid_thw": torch.tensor([[1, 4, 6], [1, 4, 4]]),
        "pixel_values": inputs["pixel_values"][:40],
    }
    found = wf.explain(model_of("qwen2_vl"), wide, target=7)
    assert [e.units.grid for e in found] == [(2, 3), (2, 2)]
    one = {k: v[1:] for k, v in wide.items()} | {"pixel_values": inputs["pixel_values"][24:40]}
    close(found[1].scores, wf.explain(model_of("qwen2_vl"), one, target=7)[0].scores)
    with pytest.raises(BadInput, match="one image each"):
        wf.explain(model_of("qwen2_vl"), wide | {"image_grid_thw": wide["image_grid_thw"][:1]}, target=7)
    with pytest.raises(BadInput, match="speaks of 40 patches"):
        wf.explain(model_of("qwen2_vl"), wide | {"pixel_values": wide["pixel_values"][1:]}, target=7)


def test_queries_between_image_and_text() -> None:
    """BLIP-2: queries read the image, and what they found starts five tokens of the text (rules 5-11, then a link)."""
    found = {
        m: wf.explain(model_of("blip2"), ALL["blip2"].inputs(), method=m, target=7)
        for m in ("generic_attention", "attention_rollout")
    }
    for row in range(2):
        each = layers("blip2", row, 7, last_logits)
        asked = twin.encoder_decoder(each[:2], [tuple(each[2:4]), tuple(each[4:6])], "image", "queries")
        tokens = each[-1][0].shape[-1]
        place = np.zeros((tokens, 5))
        place[range(2, 7), range(5)] = 1
        own = np.diag(1 - place.sum(1))
        rows = {"text": own, "queries": place @ asked["queries", "queries"], "image": place @ asked["queries", "image"]}
        for layer in each[6:]:
            rows = {stream: r + twin.cam(layer) @ r for stream, r in rows.items()}
        one = found["generic_attention"][row]
        close(one.scores, np.concatenate([rows["image"][-1], rows["text"][-1] + place @ rows["queries"][-1]]))
        assert [one.units.stream.count(s) for s in ("image", "queries", "text")] == [17, 5, (10, 7)[row]]
        assert one.units.labels[19:24] == tuple(f"[query {i}]" for i in range(5)) and all(one.units.special[19:24])
        assert one.heatmap().shape == (4, 4) and not one.warnings
        half = [(np.eye(a.shape[-1]) + a.mean(0)) / 2 if i not in {3, 5} else None for i, (a, _) in enumerate(each)]
        image, text = half[1] @ half[0], half[7] @ half[6]
        queries = half[4] @ half[2]
        crossed = queries.T @ each[5][0].mean(0) @ image
        starts = text @ place
        expected = [(starts @ crossed)[-1], (text @ own)[-1] + place @ (starts @ queries)[-1]]
        close(found["attention_rollout"][row].scores, np.concatenate(expected))


@pytest.mark.parametrize(("name", "tokens", "grid"), [("llava_next", 52, None), ("qwen2_5_vl", 6, (2, 3))])
def test_vision_layers_of_tiles_or_windows_are_not_followed_and_a_warning_says_so(
    name: str, tokens: int, grid: tuple[int, int] | None
) -> None:
    """LLaVA-Next reads the whole image and its tiles; Qwen 2.5 looks at it through windows."""
    for row, explanation in enumerate(wf.explain(model_of(name), ALL[name].inputs(), target=7)):
        assert any("image layers are not followed" in w for w in explanation.warnings)
        close(explanation.scores, twin.one_stream(layers(name, row, 7, last_logits)[-2:])[-1])
        assert explanation.units.stream.count("image") == tokens and explanation.units.grid == grid


@pytest.mark.usefixtures("advised")
@pytest.mark.parametrize("method", ["occlusion", "integrated_gradients"])
def test_tiles_are_not_taken_away(method: str) -> None:
    with pytest.raises(NotOffered, match=r"52 image tokens.*several views.*generic_attention"):
        wf.explain(model_of("llava_next"), ALL["llava_next"].inputs(), target=7, method=method)


def test_a_link_is_of_one_image() -> None:
    with pytest.raises(BadInput, match="one image"):
        Link("image", "text", torch.tensor([[0.5, 0.5]])).at(torch.tensor([[True, True]]))


# BLIP writes an answer about a question about an image


def test_the_answer_is_followed_into_question_and_image() -> None:
    """Rules 5-11 for three streams: the answer asks the question, which has asked the image."""
    name = "blip_vqa"
    found = wf.explain(model_of(name), ALL[name].inputs(), target=7)

    def logits(model: nn.Module, one: dict[str, Tensor]) -> Tensor:
        image = model.vision_model(pixel_values=one["pixel_values"]).last_hidden_state
        question = model.text_encoder(one["input_ids"], encoder_hidden_states=image).last_hidden_state
        return model.text_decoder(one["decoder_input_ids"], encoder_hidden_states=question).logits[0, -1]

    for row, explanation in enumerate(found):
        each = layers(name, row, 7, logits)
        asked = twin.encoder_decoder(each[:2], [tuple(each[2:4]), tuple(each[4:6])], "image", "text")
        r_qq, r_qi = asked["text", "text"], asked["text", "image"]
        r_aa, r_aq, r_ai = np.eye(3), np.zeros((3, len(r_qq))), np.zeros((3, 17))
        for own, cross in (each[6:8], each[8:10]):
            a, c = twin.cam(own), twin.cam(cross)
            r_aa, r_aq, r_ai = r_aa + a @ r_aa, r_aq + a @ r_aq, r_ai + a @ r_ai
            r_aq, r_ai = r_aq + twin.normalized(r_aa).T @ c @ twin.normalized(r_qq), r_ai + c @ r_qi
        for stream, expected in (("image", r_ai), ("text", r_aq), ("target", r_aa)):
            close(explanation.matrix["target", stream], expected)
            own = np.array(explanation.units.stream) == stream
            close(explanation.scores[own], expected[-1])
            assert expected[-1].max() > 0


# The leak audit


class Leaky(nn.Module):
    """An encoder-decoder whose source positions mix, or reach the target, outside attention."""

    def __init__(self, where: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.where = where
        self.inner = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(20, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        src, tgt = self.words(src), self.words(tgt)
        memory = self.inner.encoder(src)
        if self.where == "source":
            memory = memory + memory.roll(1, 1)
        if self.where == "target":
            tgt = tgt + memory.mean(1, keepdim=True)
        return self.head(self.inner.decoder(tgt, memory)[:, -1])


@pytest.mark.parametrize("where", ["nowhere", "source", "target"])
def test_leaks_inside_and_between_streams_are_found(where: str) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = {n: torch.randint(1, 20, (1, k), generator=generator) for n, k in (("src", 5), ("tgt", 4))}
    explainer = wf.Explainer(Leaky(where).eval())
    leak = explainer.audit(inputs)
    assert leak.found == (where != "nowhere") and leak.checked > 0
    refusal = pytest.raises(PartlyCaptured, match="outside the captured attention") if leak.found else nullcontext()
    with refusal:
        explainer.explain(inputs, method="attention_rollout")


def test_a_leak_between_windows_is_found() -> None:
    model = CASES["swin"].build("sdpa")
    block = model.swin.encoder.layers[0].blocks[1]
    handle = block.register_forward_hook(lambda m, args, out: (out[0] + out[0].mean(1, keepdim=True), *out[1:]))
    try:
        assert wf.Explainer(model).audit(CASES["swin"].inputs()).found
    finally:
        handle.remove()
