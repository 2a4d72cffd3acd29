"""Models of texts: padding in a batch, subclasses, whether a model looks ahead."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import whyformer as wf
from tests.models import CASES
from tests.models.case import seeded
from tests.models.kinds import KINDS
from tests.support import folders
from tests.support.processors import tokenizer
from whyformer import Explainer
from whyformer.errors import NotOffered
from whyformer.inputs.families import says_tokens, task_of
from whyformer.inputs.language import ENOUGH, is_causal
from whyformer.loan.borrow import borrowed

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


# What a model is: a subclass is taken for what its parent is, a causal model is found by running it.


def renamed(model: nn.Module, name: str) -> nn.Module:
    """The same model under a class of one's own."""
    model.__class__ = type(name, (type(model),), {})
    return model


def test_a_subclass_gives_what_its_parent_gives_and_the_nearest_name_that_says_it_decides() -> None:
    case, model = CASES["gpt2"], renamed(CASES["gpt2"].build(None), "MyLM")
    plain = wf.explain(case.build(None), case.inputs(), method="generic_attention", target=1)
    assert says_tokens(model) and task_of(model) == "GPT2LMHeadModel"
    for own, parent in zip(wf.explain(model, case.inputs(), method="generic_attention", target=1), plain, strict=True):
        assert own.target == parent.target
        np.testing.assert_array_equal(own.scores, parent.scores)
    assert not says_tokens(renamed(model, "MyForSequenceClassification"))
    assert task_of(nn.Linear(1, 1)) == ""


def test_a_subclass_that_chooses_the_position_itself() -> None:
    model = CASES["llama"].build(None)

    class Last(type(model)):  # type: ignore[misc]
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            logits: Tensor = super().forward(input_ids, attention_mask=attention_mask).logits
            return logits[:, -1]

    ids = torch.tensor([[5, 6, 7, 8]])
    plain = wf.explain(model, {"input_ids": ids}, target=3, method="occlusion", replace=4)[0]
    model.__class__ = Last
    own = wf.explain(model, {"input_ids": ids}, target=3, method="occlusion", replace=4)[0]
    np.testing.assert_allclose(own.scores, plain.scores, atol=1e-6)


def test_a_model_without_a_head_is_told_where_to_get_one() -> None:
    with pytest.raises(NotOffered, match=r"BertModel has no head.*AutoModelForSequenceClassification"):
        wf.explain(CASES["bert"].build("sdpa").bert, "a cat on the mat", processor=tokenizer())


# Whether a model looks ahead is tried on the beginning of a long text


CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=40, n_positions=128)


class Ahead(GPT2LMHeadModel):
    """What comes ``later`` tokens later is part of what is said."""

    later = 0

    def forward(self, input_ids: Tensor, **how: object) -> object:  # type: ignore[override]
        how.pop("logits_to_keep", None)
        out = super().forward(input_ids, **how)  # type: ignore[arg-type]
        out.logits = out.logits + 0.1 * out.logits.roll(-self.later, 1)
        return out


@pytest.mark.parametrize("length", [8, 3 * ENOUGH])
@pytest.mark.parametrize("later", [0, 1, 3, ENOUGH - 1])  # 0: the model does not look ahead
def test_a_long_text_tells_what_a_short_one_tells(later: int, length: int) -> None:
    torch.manual_seed(0)
    model, rows = (Ahead if later else GPT2LMHeadModel)(copy.deepcopy(CONFIG)).eval(), []
    model.later = later
    model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    modality, batch, _ = Explainer(model).prepare({"input_ids": torch.randint(1, 40, (1, length))})
    with borrowed(model):
        assert is_causal(modality, batch) is (later == 0)
    assert [tuple(shape) for shape in rows] == [(2, min(length, ENOUGH))]
