"""Texts of several lengths: a batch gives what single calls give, also where the model itself minds padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded
from tests.models.kinds import KINDS
from tests.support import folders

TEXTS = ["the movie was so good .", "i like it", "boring"]
SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 1}


class LastOfAll(nn.Module):
    """A head that reads the last position, padding or not."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, 16)
        self.block = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 1)
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.head(self.block(self.words(input_ids), src_key_padding_mask=padding_mask)[:, -1])


def tokens(folder: Path, side: str) -> Any:
    tokenizer = folders.tokenizer(folder)
    tokenizer.padding_side = side
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def same_alone(model: nn.Module, tokenizer: Any, **how: Any) -> None:
    together = wf.explain(model, TEXTS, processor=tokenizer, **how)
    for text, found in zip(TEXTS, together, strict=True):
        alone = wf.explain(model, text, processor=tokenizer, **how)
        assert (found.target.index, found.units.labels) == (alone.target.index, alone.units.labels)
        assert found.value == pytest.approx(alone.value, abs=1e-5)
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)


@pytest.mark.parametrize("method", ["generic_attention", "occlusion"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_that_count_padding(tmp_path: Path, side: str, method: str) -> None:
    tokenizer = tokens(tmp_path, side)
    model = seeded(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(tokenizer), **SIZES)))
    same_alone(model, tokenizer, method=method)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_head_that_reads_the_last_position_whatever_it_is(tmp_path: Path, side: str) -> None:
    tokenizer = tokens(tmp_path, side)
    same_alone(seeded(lambda: LastOfAll(len(tokenizer))), tokenizer, method="generic_attention")


@pytest.mark.parametrize("method", ["generic_attention", "integrated_gradients"])
def test_a_classifier_that_was_not_told_its_padding(tmp_path: Path, method: str) -> None:
    tokenizer = tokens(tmp_path, "right")
    config = hf.GPT2Config(vocab_size=len(tokenizer), num_labels=3, **SIZES)
    model = seeded(lambda: hf.GPT2ForSequenceClassification(config))
    assert model.config.pad_token_id is None
    same_alone(model, tokenizer, method=method)
    tensors = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    by_hand = wf.explain(model, tensors, method="generic_attention")
    for text, found in zip(TEXTS, by_hand, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
        assert found.value == pytest.approx(float(logits[found.target.index]), abs=1e-5)
    assert model.config.pad_token_id is None, "and it still was not told"


class Masked(LastOfAll):
    """Cannot do without its mask."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(self.block(self.words(ids), src_key_padding_mask=~mask)[:, 0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_mask_that_is_required_is_passed_also_where_nothing_is_hidden(tmp_path: Path) -> None:
    tokenizer = tokens(tmp_path, "right")
    same_alone(seeded(lambda: Masked(len(tokenizer))), tokenizer, method="generic_attention")


def test_types_that_an_encoder_decoder_does_not_know(tmp_path: Path) -> None:
    tokenizer = tokens(tmp_path, "right")
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    model = seeded(lambda: hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=len(tokenizer), **sizes)))
    assert wf.explain(model, "i like it", processor=tokenizer, method="raw_attention")


@pytest.mark.parametrize("name", ["layoutlm", "layoutlmv3"])
def test_boxes_of_words_go_with_their_tokens(name: str) -> None:
    case = KINDS[name].case
    model, inputs = case.build(case.implementations[0]), case.inputs()
    assert isinstance(inputs, dict)
    count = int(inputs["attention_mask"][1].sum())
    modality, batch, _ = wf.Explainer(model).prepare(inputs)
    trimmed = modality.trimmed(batch.select([1])).tensors
    assert {k: tuple(v.shape[:2]) for k, v in trimmed.items()} == dict.fromkeys(inputs, (1, count))
    explanation = wf.explain(model, inputs, method="occlusion", replace="delete", target=0)[1]
    with torch.no_grad():
        alone = {k: v[1:, :count] for k, v in inputs.items()}
        for gone in range(count):
            rest = [i for i in range(count) if i != gone]
            drop = model(**alone).logits[0, 0] - model(**{k: v[:, rest] for k, v in alone.items()}).logits[0, 0]
            if not explanation.units.special[gone]:
                assert explanation.scores[gone] == pytest.approx(float(drop), abs=1e-5)
