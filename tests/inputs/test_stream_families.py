"""Every family with several streams takes raw inputs with its processor, ready tensors, and batches of either."""

from __future__ import annotations

import wave
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import near as close
from tests.models import CASES, UNUSUAL, model_of, run
from tests.models.case import softmax_outputs
from tests.models.hf import hf
from tests.models.text_image_table import SWIN
from tests.references import windows as twin
from tests.support import processors
from tests.support.processors import picture, tokenizer
from tests.support.released import BEFORE_FIVE
from whyformer.errors import BadInput, MissingProcessor, NotOffered
from whyformer.inputs.media import row_of
from whyformer.inputs.vision_language import VisionLanguageRead

pytest.importorskip("PIL.Image")


@dataclass(frozen=True)
class Family:
    """``raw``: two inputs of different length or size; ``streams``: what the units of each are of."""

    processor: Callable[[], Any]
    raw: tuple[Any, Any]
    streams: set[str]
    target: Any = 1
    each: int | None = None  # explanations per input, where there are several: tokens of an answer, detections


def regions(count: int, **sizes: int) -> dict[str, Any]:
    numbers = np.random.default_rng(count)
    return {name: numbers.random((count, size)).astype(np.float32) for name, size in sizes.items()}


NOISE = np.random.default_rng(0).normal(size=200).astype(np.float32)
SOUND = np.random.default_rng(0).normal(size=16000).astype(np.float32)
TEXT = ("what is this", "a cat on the mat")
SHOWN = (picture(), TEXT[0]), (picture(60, 40), TEXT[1])
BOTH, SOURCE = {"text", "image"}, {"source", "target"}
FAMILIES = {
    "clip": Family(processors.clip, SHOWN, BOTH, 0),
    "siglip": Family(processors.siglip, SHOWN, BOTH | {"queries"}, 0),
    "vilt": Family(processors.vilt, SHOWN, BOTH),
    "blip_retrieval": Family(processors.blip, SHOWN, BOTH),
    "blip_caption": Family(processors.blip, SHOWN, BOTH),
    "blip_vqa": Family(processors.blip, tuple((shown, "a cat") for shown in SHOWN), BOTH | {"target"}, None, each=3),
    "llava": Family(processors.llava, SHOWN, BOTH),
    "llava_next": Family(processors.llava_next, SHOWN, BOTH),
    "blip2": Family(processors.blip2, SHOWN, BOTH | {"queries"}),
    "qwen2_vl": Family(processors.Qwen, SHOWN, BOTH),
    "qwen2_5_vl": Family(processors.Qwen, SHOWN, BOTH),
    "lxmert": Family(tokenizer, tuple((regions(6, visual_feats=16, visual_pos=4), text) for text in TEXT), BOTH),
    "visual_bert": Family(
        tokenizer, ((regions(6, visual_embeds=16), TEXT[0]), (regions(4, visual_embeds=16), TEXT[1])), BOTH
    ),
    "detr": Family(processors.detr, (picture(), picture(60, 40)), {"image", "queries"}, (1, 0)),
    "t5": Family(tokenizer, tuple((text, "a cat") for text in TEXT), SOURCE, None, each=3),
    "bart": Family(tokenizer, tuple((text, "a cat") for text in TEXT), SOURCE, None, each=3),
    "marian": Family(tokenizer, tuple((text, "a cat") for text in TEXT), SOURCE, None, each=3),
    "t5_cls": Family(tokenizer, TEXT, SOURCE),
    "bart_cls": Family(tokenizer, TEXT, SOURCE),
    "whisper": Family(processors.whisper, ((SOUND, "a cat"), (SOUND[:9000], "a cat")), SOURCE, None, each=3),
    "wav2vec2": Family(processors.wav2vec2, (NOISE, NOISE[:150]), {"audio"}),
    "swin": Family(processors.vit, (picture(), picture(60, 40)), {"image"}),
    "beit": Family(processors.vit, (picture(), picture(60, 40)), {"image"}),
    "dinov2_registers": Family(processors.vit, (picture(), picture(60, 40)), {"image"}),
}


@cache
def explainer(name: str) -> wf.Explainer:
    return wf.Explainer(model_of(name), FAMILIES[name].processor())


@cache
def together(name: str) -> list[Any]:
    """Both inputs of a family, explained at once."""
    return explainer(name).explain(list(FAMILIES[name].raw), target=FAMILIES[name].target)


def flat(found: Any) -> list[wf.Explanation]:
    return [e for one in found for e in (one if isinstance(one, list) else [one])]


def test_every_family_is_here() -> None:
    several = {n for n, c in (CASES | UNUSUAL).items() if c.units in {"several", "windows"}}
    assert several - set(FAMILIES) == {"nn_transformer"}  # takes ids, has no processor


@pytest.mark.parametrize("name", FAMILIES)
def test_raw_inputs_alone_and_together(name: str) -> None:
    family = FAMILIES[name]
    assert len(together(name)) == 2
    for raw, found in zip(family.raw, together(name), strict=True):
        alone = explainer(name).explain(raw, target=family.target)
        assert isinstance(alone, wf.Explanation) == (family.each is None)
        first, second = flat([alone]), flat([found])
        assert len(first) == len(second) == (family.each or 1)
        for one, other in zip(first, second, strict=True):
            if name == "detr":  # a frozen batch normalisation lets padding into the border of the smaller image
                assert one.units.grid == other.units.grid
            else:
                close(one.scores, other.scores)
            assert set(one.units.stream) == family.streams
            assert one.units.labels == other.units.labels


def native(batch: Any) -> dict[str, torch.Tensor]:
    """Images of all inputs end to end, as the model takes them."""
    if BEFORE_FIVE:  # patches of images, padded to the most of them
        counts, patches = batch.tensors["image_grid_thw"].prod(1), batch.tensors["pixel_values"]
        return batch.tensors | {"pixel_values": torch.cat([p[:n] for p, n in zip(patches, counts, strict=True)])}
    rows = [row_of(batch.tensors, row, facts) for row, facts in enumerate(batch.encodings)]
    return batch.tensors | {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("name", FAMILIES)
def test_ready_tensors_give_the_same(name: str) -> None:
    """What the processor makes, passed as the model's own tensors without a processor."""
    family = FAMILIES[name]
    modality, batch, _ = explainer(name).prepare(list(family.raw))
    batch, target = modality.mean.expanded(batch, family.target)
    packed = isinstance(modality.read, VisionLanguageRead) or "image_grid_thw" in batch.tensors
    tensors = native(batch) if packed else batch.tensors
    expected = flat(together(name))
    bare = wf.Explainer(explainer(name).model)
    if family.each and "decoder_attention_mask" not in tensors:  # Whisper has no mask for what is written: one length
        rows = [i for i, e in enumerate(expected) if len(e.units) == len(expected[-1].units)]
        tensors = {k: v[rows] for k, v in tensors.items()}
        target, expected = [target[i] for i in rows], [expected[i] for i in rows]
    found = bare.explain(tensors, target=family.target if name == "detr" else target)
    for one, other in zip(found, expected, strict=True):
        close(one.scores, other.scores)
        assert one.target.index == other.target.index


@pytest.mark.parametrize("name", ["clip", "detr", "t5", "whisper", "wav2vec2", "llava"])
def test_raw_inputs_without_a_processor_say_what_is_missing(name: str) -> None:
    with pytest.raises(MissingProcessor, match="processor"):
        wf.Explainer(explainer(name).model).explain(FAMILIES[name].raw[0])


def test_an_image_for_a_model_of_regions_says_what_to_give() -> None:
    with pytest.raises(BadInput, match="which a detector makes"):
        explainer("lxmert").explain((picture(), "what is this"))


# Sound


def wav(path: Path, samples: Any, rate: int = 16000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 3000).astype(np.int16).tobytes())
    return path


def test_sound_as_an_array_with_its_rate_and_as_a_file(tmp_path: Path) -> None:
    path, heard = wav(tmp_path / "clip.wav", NOISE), explainer("wav2vec2")
    rounded = (NOISE * 3000).astype(np.int16).astype(np.float32) / 32768
    expected = heard.explain(rounded)
    assert expected.units.labels[1].endswith("s")
    for raw in (path, str(path), (rounded, 16000), (rounded.tolist(), 16000)):
        close(heard.explain(raw).scores, expected.scores)
    with pytest.raises(BadInput, match="resample"):
        heard.explain(wav(tmp_path / "slow.wav", NOISE, 8000))
    with pytest.raises(BadInput, match="no sound"):
        heard.explain(str(tmp_path / "none.wav"))
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(BadInput, match=r"cannot be read as \.wav"):
        heard.explain(path)


# Answers of the model itself


def test_blip_answers_are_explained_token_by_token() -> None:
    steps = explainer("blip_vqa").explain((picture(), "what is this"))
    given = processors.blip()(images=picture(), text="what is this", return_tensors="pt")
    written = explainer("blip_vqa").model.generate(**given, max_new_tokens=32)[0].tolist()
    assert [s.target.index for s in steps] == written[1 : len(steps) + 1]
    asked = explainer("blip_vqa").explain(((picture(), "what is this"), "a cat"), target="cat")
    assert asked.target.label == "cat" and asked.units.stream.count("target") == 2


def test_the_place_of_the_image_can_be_given() -> None:
    one, other = (
        explainer("llava").explain((picture(), text), target=7) for text in ("what is this", "<image>\nwhat is this")
    )
    close(one.scores, other.scores)
    after = explainer("llava").explain((picture(), "what is <image> this"), target=7)
    assert after.units.stream[:2] == ("text", "text")


# Two texts


class Sentences(torch.nn.Module):
    """What a SentenceTransformer looks like from outside: called with one dict, its tokenizer at hand."""

    def __init__(self, encoder: torch.nn.Module, pooling: str) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        self.tokenizer = tokenizer()

    def tokenize(self, texts: list[str]) -> Any:
        return self.tokenizer(texts, padding=True, return_tensors="pt")

    def forward(self, input: dict[str, Any], **options: Any) -> dict[str, Any]:
        hidden = self.encoder(**input).last_hidden_state
        mask = input["attention_mask"][..., None].to(hidden.dtype)
        pooled = hidden[:, 0] if self.pooling == "first" else (hidden * mask).sum(1) / mask.sum(1)
        return {**input, "token_embeddings": hidden, "sentence_embedding": pooled}

    def encode(self, texts: list[str]) -> Any:
        return self(self.tokenize(texts))["sentence_embedding"]


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_sentence_transformer(pooling: str) -> None:
    encoder = CASES["bert"].build("sdpa").bert
    model = Sentences(encoder, pooling).eval()
    pairs = [TEXT, ("two birds", "a dog on the mat")]
    found = wf.explain(model, pairs)
    for pair, explanation in zip(pairs, found, strict=True):
        with torch.no_grad():
            expected = torch.nn.functional.cosine_similarity(*(model.encode([t])[0] for t in pair), dim=0)
        close(explanation.value, float(expected))
        close(explanation.scores, wf.explain(model, pair).scores)
        assert set(explanation.units.stream) == {"a", "b"}
        if pooling == "mean":
            close(explanation.matrix["a", "b"].sum(), explanation.value)
        else:
            assert ("a", "b") not in explanation.matrix


def test_two_texts_without_a_pooling_of_the_models_own() -> None:
    """The mean over tokens is compared; what pairs of tokens add, adds up to the cosine."""
    encoder = CASES["bert"].build("sdpa").bert
    sides = {s: tokenizer()(t, return_tensors="pt") for s, t in zip("ab", TEXT, strict=True)}
    with torch.no_grad():
        vectors = [encoder(**side).last_hidden_state[0].mean(0) for side in sides.values()]
    (raw,) = wf.explain(encoder, [TEXT], processor=tokenizer())
    close(raw.value, float(torch.nn.functional.cosine_similarity(*vectors, dim=0)))
    close(raw.matrix["a", "b"].sum(), raw.value)
    assert (raw.scalar, raw.target.label) == ("cosine", "similarity")
    assert [raw.units.stream.count(s) for s in "ab"] == [len(text.split()) + 1 for text in TEXT]
    tensors = {f"{s}_{k}": v for s, side in sides.items() for k, v in side.items()}
    close(wf.explain(encoder, tensors)[0].scores, raw.scores)
    with pytest.raises(NotOffered, match="cosine"):
        wf.explain(encoder, TEXT, processor=tokenizer(), scalar="probability")


# Encoder-decoders


def test_each_generated_token_is_explained() -> None:
    model, source = model_of("t5"), "what is this"
    steps = wf.explain(model, source, processor=tokenizer())
    encoded = tokenizer()(source, return_tensors="pt")
    asked = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
    with torch.no_grad():
        written = model.generate(**asked, max_new_tokens=32, num_beams=1, do_sample=False)[0].tolist()
    assert [s.target.index for s in steps] == written[1 : len(steps) + 1]
    for number in (0, 3):
        assert steps[number].units.stream == ("source",) * 4 + ("target",) * (number + 1)
        given = {"decoder_input_ids": torch.tensor([written[: number + 1]]), **asked}
        close(steps[number].scores, wf.explain(model, given, target=written[number + 1])[0].scores)
    several = wf.explain(model, [source, "a cat on the mat"], processor=tokenizer())
    close(several[0][2].scores, steps[2].scores)
    fresh = CASES["t5"].build("sdpa")  # studied on the shortest prefix: the last token is read all the same
    short = {"input_ids": encoded["input_ids"], "decoder_input_ids": torch.tensor([written[:1]])}
    assert wf.explain(fresh, short, target=1)[0].readout == "target: last position"
    close(wf.explain(fresh, source, processor=tokenizer())[2].scores, steps[2].scores)
    assert steps[2].scores[4:].argmax() == 2  # of the prefix, the token before the next one counts most: it is read


def test_a_given_answer_and_the_token_asked_for() -> None:
    steps = wf.explain(model_of("t5"), ("what is this", "a cat"), processor=tokenizer())
    assert [s.target.label for s in steps] == ["a", "cat", "[EOS]"]
    asked = wf.explain(model_of("t5"), ("what is this", "a cat"), processor=tokenizer(), target="cat")
    close(asked.scores, steps[1].scores)
    with pytest.raises(BadInput, match="not among the tokens"):
        wf.explain(model_of("t5"), ("what is this", "a cat"), processor=tokenizer(), target="dog")


def test_a_classifier_with_a_decoder() -> None:
    found = wf.explain(model_of("bart_cls"), "a cat on the mat", processor=tokenizer(), target=1)
    assert found.units.labels == ("a", "cat", "on", "the", "mat", "[EOS]", "[EOS]", "a", "cat", "on", "the", "mat")
    assert set(found.units.stream) == {"source", "target"}
    with pytest.raises(NotOffered, match="decoder is fed the source"):
        wf.explain(model_of("bart_cls"), "a cat", processor=tokenizer(), method="occlusion")


# Windows


@pytest.mark.parametrize("family", ["Swin", "DonutSwin"])
def test_swin_maps_are_laid_out_over_the_image(family: str) -> None:
    """An 8 × 8 grid in windows of 4 × 4, the second block shifted by two; merged to 4 × 4, one window.

    Donut's scores have an axis for the windows of an image while the mask of the shifted ones is added.
    """
    case = replace(CASES["swin"], build=hf(f"{family}ForImageClassification", **SWIN))
    model = case.build("eager").double()
    inputs: Any = {k: v.double() for k, v in case.inputs().items()}
    found = {m: wf.explain(case.build(None), case.inputs(), method=m, target=1) for m in ("generic_attention",
             "attention_rollout", "raw_attention", "attention_gradcam")}  # fmt: skip
    for row in range(2):
        with softmax_outputs() as maps:
            logits = case.logits(run(model, {k: v[row : row + 1] for k, v in inputs.items()}))
        gradients = torch.autograd.grad(logits[0, 1], maps)
        layouts = [(8, 4, 0), (8, 4, 2), (4, 4, 0)]
        plain, weighted = [], []
        for attention, gradient, layout in zip(maps, gradients, layouts, strict=True):
            plain.append(twin.whole(attention.detach().mean(1).numpy(), *layout))
            weighted.append(twin.whole((attention * gradient).clamp(min=0).mean(1).detach().numpy(), *layout))
        merge = twin.merging(8)

        def chained(layers: list[Any], merge: Any = merge) -> Any:
            return layers[2] @ merge @ layers[1] @ layers[0]

        relevance = chained([np.eye(len(a)) + a for a in weighted])
        close(found["generic_attention"][row].matrix, relevance)
        close(found["generic_attention"][row].scores, relevance.mean(0))
        close(found["attention_rollout"][row].matrix, chained([(np.eye(len(a)) + a) / 2 for a in plain]))
        close(found["raw_attention"][row].scores, (plain[2] @ merge).mean(0))
        weight = gradients[2].mean((0, 2, 3))
        cam = (weight[:, None, None] * maps[2][0]).mean(0).clamp(min=0).detach().numpy()
        close(found["attention_gradcam"][row].scores, (cam @ merge).mean(0))
        assert found["generic_attention"][row].heatmap().shape == (8, 8)
