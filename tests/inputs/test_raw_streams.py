"""Raw inputs, tensors and batches of models with several streams, windows, sound; and two texts compared."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import near as close
from tests.models import CASES, model_of, run
from tests.models.case import seeded, softmax_outputs
from tests.references import windows as twin
from whyformer.errors import BadInput, MissingProcessor, NotOffered

Image = pytest.importorskip("PIL.Image")
WORDS = "[PAD] [BOS] [EOS] [UNK] [MASK] a cat on the mat dog photo of what is this two birds".split()


@cache
def tokenizer(eos: int = 2) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: eos if word == "[EOS]" else i for i, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="$A [EOS]", special_tokens=[("[EOS]", eos)])
    names = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=16, **names)


def picture(height: int = 40, width: int = 60) -> Any:
    pixels = np.random.default_rng(height).integers(0, 255, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


# Image and text


@cache
def clip_processor() -> Any:
    from transformers import CLIPProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return CLIPProcessor(images, tokenizer(99))


def test_an_image_with_a_caption() -> None:
    one = wf.explain(model_of("clip"), (picture(), "a photo of a cat"), processor=clip_processor())
    assert isinstance(one, wf.Explanation)
    assert one.units.labels[-6:] == ("a", "photo", "of", "a", "cat", "[EOS]")
    assert [w for w, _ in one.words()] == ["a", "photo", "of", "a", "cat"]
    assert one.heatmap().shape == (4, 4)
    assert one.target.label == "similarity"
    both = wf.explain(
        model_of("clip"), [(picture(), "a photo of a cat"), (picture(), "a dog")], processor=clip_processor()
    )
    close(both[0].scores, one.scores)
    close(both[1].scores, wf.explain(model_of("clip"), (picture(), "a dog"), processor=clip_processor()).scores)
    with pytest.raises(MissingProcessor, match="AutoProcessor"):
        wf.explain(model_of("clip"), (picture(), "a cat"))


# Encoder-decoders


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_each_generated_token_is_explained(name: str) -> None:
    model, source = model_of(name), "what is this"
    steps = wf.explain(model, source, processor=tokenizer())
    encoded = tokenizer()(source, return_tensors="pt")
    with torch.no_grad():
        written = model.generate(
            input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], max_new_tokens=32, num_beams=1,
            do_sample=False,
        )[0].tolist()  # fmt: skip
    assert [s.target.index for s in steps] == written[1 : len(steps) + 1]
    for number in (0, 3):
        assert steps[number].units.stream == ("source",) * 4 + ("target",) * (number + 1)
        given = {
            "input_ids": encoded["input_ids"],
            "attention_mask": encoded["attention_mask"],
            "decoder_input_ids": torch.tensor([written[: number + 1]]),
        }
        close(steps[number].scores, wf.explain(model, given, target=written[number + 1])[0].scores)
    several = wf.explain(model, [source, "a cat on the mat"], processor=tokenizer())
    close(several[0][2].scores, steps[2].scores)
    fresh = CASES[name].build("sdpa")  # studied on the shortest prefix: the last token is read all the same
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


# Detection


def test_detections_in_raw_images_of_different_sizes() -> None:
    from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

    processor = DetrImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64})
    pictures = [picture(), picture(60, 40)]
    both = wf.explain(model_of("detr"), pictures, processor=processor, target=(1, 0))
    assert [e.units.grid for e in both] == [(4, 6), (6, 4)]
    alone = wf.explain(model_of("detr"), pictures[0], processor=processor, target=(1, 0))
    assert alone.heatmap().shape == (4, 6)


# Sound


def test_frames_of_a_clip() -> None:
    from transformers import Wav2Vec2FeatureExtractor

    processor = Wav2Vec2FeatureExtractor(return_attention_mask=True)
    noise = np.random.default_rng(0).normal(size=200).astype(np.float32)
    both = wf.explain(model_of("wav2vec2"), [noise, noise[:150]], processor=processor)
    assert [len(e.units) for e in both] == [12, 9]
    assert both[0].units.labels[1].endswith("s")
    one = wf.explain(model_of("wav2vec2"), noise, processor=processor)
    close(one.scores, both[0].scores)
    with pytest.raises(BadInput, match="resample"):
        wf.explain(model_of("wav2vec2"), (noise, 8000), processor=processor)


# Two texts


@cache
def encoder() -> Any:
    from transformers import BertConfig, BertModel

    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return seeded(lambda: BertModel(BertConfig(vocab_size=100, **size)))


def test_which_words_make_two_texts_close() -> None:
    pairs = [("a cat on the mat", "two birds"), ("a dog", "what is this")]
    found = wf.explain(encoder(), pairs, processor=tokenizer())
    for pair, explanation in zip(pairs, found, strict=True):
        alone = wf.explain(encoder(), pair, processor=tokenizer())
        close(alone.scores, explanation.scores)
        assert explanation.scalar == "cosine" and explanation.target.label == "similarity"
        sizes = [explanation.units.stream.count(s) for s in ("a", "b")]
        assert sizes == [len(text.split()) + 1 for text in pair]
        assert explanation.matrix["a", "b"].shape == tuple(sizes)
        close(explanation.matrix["a", "b"].sum(), explanation.value)  # what pairs of tokens add, adds up
    vectors = []
    for text in pairs[0]:
        encoded = tokenizer()(text, return_tensors="pt")
        with torch.no_grad():
            vectors.append(encoder()(input_ids=encoded["input_ids"]).last_hidden_state[0].mean(0))
    close(found[0].value, float(torch.nn.functional.cosine_similarity(*vectors, dim=0)))
    with pytest.raises(BadInput, match="cosine"):
        wf.explain(encoder(), pairs[0], processor=tokenizer(), scalar="probability")


# Windows


def test_swin_maps_are_laid_out_over_the_image() -> None:
    """An 8 × 8 grid in windows of 4 × 4, the second block shifted by two; merged to 4 × 4, one window."""
    case = CASES["swin"]
    model = case.build("eager").double()
    inputs: Any = {k: v.double() for k, v in case.inputs().items()}
    found = {m: wf.explain(model_of("swin"), case.inputs(), method=m, target=1) for m in ("generic_attention",
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
