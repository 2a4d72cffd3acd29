"""Pictures, tables, language models over sentences, and models that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.models import CASES, model_of
from tests.models.hf import ENCODER, hf
from tests.support import language
from whyformer.demo.census import adult_rows
from whyformer.errors import BadInput, NotOffered

SENTENCES = ["the cat sat .", "he ran home .", "paris is big .", "the dog was red .", "she said no .", "it was blue ."]


def prompts(count: int) -> list[str]:
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(SENTENCES, size=4, replace=False)) + " who ran ?" for _ in range(count)]


def test_language_models_over_sentences() -> None:
    model, tokenizer = language.model("llama"), language.tokenizer()
    learned = wf.learn(model, prompts(32), tokenizer, units="sentence", forwards=600, progress=False)
    assert learned.kind == "language" and learned.units == "sentence"
    one = wf.explain(model, prompts(1)[0], tokenizer, method=learned, units="sentence")
    assert len(one.scores) == 5 and one.scores.any()
    with pytest.raises(BadInput, match="units='sentence'"):
        wf.explain(model, prompts(1)[0], tokenizer, method=learned)


def test_pictures() -> None:
    config = {k: v for k, v in ENCODER.items() if k != "vocab_size"} | {"num_hidden_layers": 2}
    model = hf("ViTForImageClassification", **config, image_size=16, patch_size=8)(None)
    pixels = torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    learned = wf.learn(model, {"pixel_values": pixels}, forwards=600, progress=False)
    one = wf.explain(model, {"pixel_values": pixels[:2]}, method=learned)[1]
    assert one.units.grid == (2, 2) and one.scores.any()
    assert learned.certificate is not None and learned.certificate.inputs == 10


def test_tables() -> None:
    model, table = wf.demo.load_adult()
    rows = adult_rows()[:32]
    learned = wf.learn(model, rows, table, forwards=500, progress=False)
    one = wf.explain(model, rows[0], table, method=learned)
    assert learned.kind == "table" and one.scores.any() and len(one.scores) == len(one.units)


@pytest.mark.parametrize("name", ["swin", "clip", "detr"])
def test_models_of_several_streams_and_windows_are_not_offered(name: str) -> None:
    inputs = {key: torch.cat([value] * 16) for key, value in CASES[name].inputs().items()}
    with pytest.raises(NotOffered, match="cannot be learned"):
        wf.learn(model_of(name), inputs, progress=False)
