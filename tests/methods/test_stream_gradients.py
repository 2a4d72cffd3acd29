"""Gradients at the input of models with several streams: every stream at once, one path, scores for all units."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.methods.properties import near as close
from tests.models import CASES, UNUSUAL, model_of, run
from tests.models.case import alone
from tests.references import stream_gradients as twin
from tests.references.eager_attention import one_input
from tests.test_stream_contracts import target_of
from whyformer.errors import BadInput, NotOffered, UnknownName

ALL = CASES | UNUSUAL
FEW = {"smooth_grad": {"samples": 3}, "integrated_gradients": {"steps": 3}}
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def explained(name: str, method: str, inputs: Any = None, **how: Any) -> list[wf.Explanation]:
    given = ALL[name].inputs() if inputs is None else inputs
    return wf.explain(model_of(name), given, method=method, target=target_of(name), **FEW.get(method, {}) | how)


@cache
def plain(name: str, method: str) -> list[wf.Explanation]:
    """Of the case's own inputs, once for all tests that compare something else with it."""
    return explained(name, method)


# Twins: float64, hooks on the embedding modules, one input, squares of pixels by hand

WORDS = {
    "lxmert": {"text": "lxmert.embeddings.word_embeddings"},
    "clip": {"text": "text_model.embeddings.token_embedding"},
    "t5": {"source": "encoder.embed_tokens", "target": "decoder.embed_tokens"},
    "blip_vqa": {
        "text": "text_encoder.embeddings.word_embeddings",
        "target": "text_decoder.bert.embeddings.word_embeddings",
    },
    "llava": {"text": "model.language_model.embed_tokens"},
}
FLOATS = {"lxmert": {"image": "visual_feats"}, "clip": {"image": "pixel_values"}, "t5": {}}
FLOATS |= {"blip_vqa": {"image": "pixel_values"}, "llava": {"image": "pixel_values"}}


def reference(name: str, row: int) -> twin.Model:
    model, one = ALL[name].build("eager").double(), one_input(ALL[name].inputs(), row)

    if name == "t5":  # both stacks call one module before transformers 5
        model.decoder.embed_tokens = deepcopy(model.decoder.embed_tokens)

    def score(given: dict[str, Tensor]) -> Tensor:
        if name == "blip_vqa":
            image = model.vision_model(pixel_values=given["pixel_values"]).last_hidden_state
            question = model.text_encoder(given["input_ids"], encoder_hidden_states=image).last_hidden_state
            return model.text_decoder(given["decoder_input_ids"], encoder_hidden_states=question).logits[0, -1, 1]
        output = run(model, given)
        if name == "lxmert":
            return output.question_answering_score[0, 1]
        return output.logits_per_image[0, 0] if name == "clip" else output.logits[0, -1, 1]

    words = {stream: model.get_submodule(path) for stream, path in WORDS[name].items()}
    return twin.Model(score, one, words, FLOATS[name])


def per_unit(name: str, ids: Tensor, values: dict[str, Tensor], reduce: Any) -> list[float]:
    """In the order in which the streams are laid end to end."""
    vectors = {s: twin.over_vectors(v, reduce) for s, v in values.items() if v.ndim == 2}
    patches = [twin.over_squares(v, 8, reduce) for v in values.values() if v.ndim == 3]
    if name == "llava":
        image = iter(patches[0])
        return [next(image) if int(i) == 99 else v for i, v in zip(ids, vectors["text"], strict=True)]
    order = {"lxmert": ["text", "image"], "t5": ["source", "target"], "clip": ["text"], "blip_vqa": ["text", "target"]}
    front = [0.0, *patches[0]] if patches else []  # [CLS] holds no pixels
    return [*front, *(v for stream in order[name] for v in vectors[stream])]


@pytest.mark.parametrize("name", WORDS)
def test_the_references_say_the_same(name: str) -> None:
    found = {m: plain(name, m) for m in ("saliency", "input_x_gradient")}
    baseline = dict.fromkeys(WORDS[name], 7) | dict.fromkeys(FLOATS[name], "mean")
    found["integrated_gradients"] = explained(name, "integrated_gradients", steps=5, baseline=baseline)
    for row in range(2):
        model = reference(name, row)
        ids, numbers = model.inputs["input_ids"][0], model.numbers()
        gradients = model.gradients(numbers)
        products = {s: n * gradients[s] for s, n in numbers.items()}
        close(found["saliency"][row].scores, per_unit(name, ids, gradients, lambda x: (x**2).sum().sqrt()))
        close(found["input_x_gradient"][row].scores, per_unit(name, ids, products, torch.sum))
        start = {}
        for stream, n in numbers.items():
            if stream in WORDS[name]:
                start[stream] = model.words[stream].weight[7].detach().expand_as(n).clone()
                if name == "llava":
                    start[stream][ids == 99] = n[ids == 99]
            else:
                start[stream] = (n.mean(0) if n.ndim == 2 else n.mean((1, 2), keepdim=True)).expand_as(n)
        shares = twin.integrated_gradients(model, start, 5)
        close(found["integrated_gradients"][row].scores, per_unit(name, ids, shares, torch.sum))
        close(found["integrated_gradients"][row].base, float(model.at(start).detach()))


# Completeness over all streams together


# Where streams meet in different ways; the references hold the other models to their own numbers.
@pytest.mark.parametrize(("name", "steps"), [("llava", 64), ("whisper", 64)])
def test_scores_of_all_streams_add_up_to_the_change(name: str, steps: int) -> None:
    """The word is any but padding: that one's vector is zero here, where a norm without bias has no slope."""
    first = {k: v[:1] for k, v in ALL[name].inputs().items()}  # type: ignore[union-attr]
    (one,) = explained(name, "integrated_gradients", first, steps=steps, baseline=7)
    assert one.base is not None and abs(one.value - one.base) > 1e-2
    close(one.scores.sum(), one.value - one.base, 1e-3)
    assert one.checks["completeness_error"] < 1e-4
    for stream in dict.fromkeys(one.units.stream):
        assert np.abs(one.scores[np.array(one.units.stream) == stream]).max() > 1e-4


# What every method promises is in tests/test_stream_contracts.py


@pytest.mark.parametrize(
    ("name", "method"),
    [("visual_bert", "integrated_gradients"), ("t5", "smooth_grad"), ("bart_cls", "input_x_gradient")],
)
def test_neither_batch_nor_padding_changes_a_score(name: str, method: str) -> None:
    """The references are fed one input without padding, too, by the other models and methods."""
    for row, together in enumerate(plain(name, method)):
        close(together.scores, explained(name, method, alone(ALL[name].inputs(), row))[0].scores)


# Two streams of the same words


class Twice(nn.Module):
    """The source counts once and the target three times, so that it shows which is which."""

    def __init__(self, looked_up: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 16) if looked_up else nn.Linear(20, 16)
        self.inner = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        if isinstance(self.words, nn.Linear):  # words that never pass an embedding lookup
            src, tgt = (nn.functional.one_hot(ids, 20).float() for ids in (src, tgt))
        return self.head(self.inner(self.words(src), 3 * self.words(tgt))[:, -1])


def test_streams_of_equal_words_are_told_apart() -> None:
    model, ids = Twice().eval(), torch.tensor([[3, 4, 5, 6]])
    (one,) = wf.explain(model, {"src": ids, "tgt": ids}, method="saliency", target=1)
    with torch.enable_grad():
        source, target = (model.words(ids).detach().requires_grad_() for _ in range(2))
        value = model.head(model.inner(source, 3 * target)[:, -1])[0, 1]
        gradients = torch.autograd.grad(value, (source, target))
    expected = torch.cat([g[0].norm(dim=1) for g in gradients])
    close(one.scores, expected.numpy())


@pytest.mark.usefixtures("advised")
def test_words_that_are_never_looked_up_are_refused() -> None:
    ids = torch.tensor([[3, 4, 5, 6]])
    with pytest.raises(NotOffered, match=r"word embedding of the 'source' stream was not found.*occlusion"):
        wf.explain(Twice(looked_up=False).eval(), {"src": ids, "tgt": ids}, method="saliency", target=1)


# Options


def test_each_stream_can_have_its_own_baseline() -> None:
    zeros = torch.zeros(6, 16)
    by_name = explained("lxmert", "integrated_gradients", baseline={"text": 7, "image": "zero"})[0]
    by_tensor = explained("lxmert", "integrated_gradients", baseline={"text": 7, "image": zeros})[0]
    by_word = explained("lxmert", "integrated_gradients", baseline=7)[0]  # the image has no such word: its default
    close(by_tensor.scores, by_name.scores)
    close(by_word.scores, by_name.scores)
    mean = explained("lxmert", "integrated_gradients", baseline="mean")[0]
    text = np.array(mean.units.stream) == "text"
    assert not np.allclose(mean.scores, by_name.scores)
    assert not np.allclose(mean.scores[text], 0)


REFUSED: list[tuple[str, str, dict[str, Any], type[Exception], str]] = [
    ("lxmert", "integrated_gradients", {"baseline": {"sound": 1}}, UnknownName, "unknown stream 'sound'.*text, image"),
    ("lxmert", "integrated_gradients", {"baseline": "blur"}, UnknownName, "'blur'.*'text': …, 'image': …"),
    ("lxmert", "integrated_gradients", {"baseline": torch.zeros(16)}, BadInput, "cannot be the baseline of several"),
    ("lxmert", "integrated_gradients", {"baseline": {"image": torch.zeros(5, 16)}}, BadInput, r"shape \(5, 16\)"),
    ("lxmert", "integrated_gradients", {"baseline": 100}, BadInput, "the model has 0 to 99"),
    ("bert", "integrated_gradients", {"baseline": {"text": 7}}, BadInput, "single input"),
    ("detr", "integrated_gradients", {"keep_special": True}, NotOffered, "keep_special is for tokens"),
    ("lxmert", "saliency", {"at": "embeddings"}, NotOffered, "one of its own.*at='input'"),
    ("lxmert", "saliency", {"patch_smoothing": 1.0}, NotOffered, "patch_smoothing"),
]


@pytest.mark.parametrize(("name", "method", "options", "error", "words"), REFUSED)
def test_options_that_do_not_fit_the_streams(
    name: str, method: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        explained(name, method, **options)


def test_special_words_can_be_kept() -> None:
    ids = ALL["t5"].inputs()["input_ids"]  # type: ignore[call-overload]
    kept = [int(ids[0, 0]), int(ids[0, 3])]
    one = explained("t5", "integrated_gradients", keep_special=kept, baseline=7)[0]
    own = one.scores[: ids.shape[1]]
    assert own[0] == own[3] == 0 and (own != 0).sum() >= 6


def test_text_and_image_laid_end_to_end_have_both_places() -> None:
    """VisualBERT joins them before its first block; a word as baseline would leave the image what it is."""
    inside = explained("visual_bert", "saliency", at="embeddings")[0]
    outside = explained("visual_bert", "saliency")[0]
    assert inside.scores.shape == outside.scores.shape and not np.allclose(inside.scores, outside.scores)
    with pytest.raises(NotOffered, match=r"also takes an image.*baseline='zero'"):
        explained("visual_bert", "integrated_gradients", at="embeddings", baseline=7)
    zero = explained("visual_bert", "integrated_gradients", at="embeddings", baseline="zero")[0]
    assert np.abs(zero.scores[np.array(zero.units.stream) == "image"]).min() > 0


def test_pixels_are_smoothed_against_the_patch_grid() -> None:
    plain, smooth = (explained("clip", "input_x_gradient", patch_smoothing=s)[0] for s in (0.0, 1.0))
    image = np.array(plain.units.stream) == "image"
    close(plain.scores[~image], smooth.scores[~image])
    close(plain.scores[image].sum(), smooth.scores[image].sum(), 1e-4)
    assert np.ptp(smooth.scores[image]) < np.ptp(plain.scores[image])
