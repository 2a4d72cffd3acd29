"""Tokenizers: which characters a token is, words that nobody knows, tokenizers of the tokenizers library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tokenizers.implementations import BertWordPieceTokenizer
from torch import nn

import whyformer as wf
from tests.models.case import seeded
from tests.models.hf import ENCODER
from tests.support import folders
from tests.support.processors import PLACES, in_bytes, pair_tokenizer
from whyformer.errors import BadInput
from whyformer.inputs.checkpoint import as_processor
from whyformer.views.text_marks import scale_for, token_run


def unigram(*pieces: str) -> Any:
    """As SentencePiece cuts texts: a ``▁`` of its own in front, and one for each space."""
    vocabulary = [("<pad>", 0.0), ("<unk>", -20.0), ("</s>", 0.0), *((p, -2.0 - len(p) / 100) for p in pieces)]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=1))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def explained(tokenizer: Any, text: str, **how: Any) -> wf.Explanation:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = hf.BertConfig(vocab_size=300, max_position_embeddings=64, num_labels=2, **size)
    model = seeded(lambda: hf.BertForSequenceClassification(config)).eval()
    return wf.explain(model, text, processor=tokenizer, **how)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("مرحبا بك", ("▁", "مرحبا", "▁", "بك")),
        ("好 day", ("▁", "好", "▁day")),
    ],
)
def test_a_mark_before_the_text_has_none_of_its_characters(text: str, pieces: tuple[str, ...]) -> None:
    result = explained(unigram(*dict.fromkeys(pieces)), text)
    assert result.units.labels == (*pieces, "</s>")
    assert result.units.spans is not None and result.units.spans[0] == (0, 0)
    # What the picture paints over a piece is what the list says of it.
    listed = dict(zip(result.units.labels, result.scores.tolist(), strict=True))
    painted = [(p.text, p.score) for p in token_run(result).pieces if p.score is not None]
    assert painted == [(p.strip("▁"), pytest.approx(listed[p])) for p in pieces if p != "▁"]
    assert "".join(p.text for p in token_run(result).pieces) == text
    # A word has its mark's score, too, and is written as it stands in the text.
    words = dict(result.words())
    assert list(words) == text.split() or list(words) == [text]
    assert sum(words.values()) == pytest.approx(float(result.scores[:-1].sum()), rel=1e-5)


def test_a_space_at_the_end_is_called_something() -> None:
    result = explained(unigram("▁", "▁good"), "good ")
    assert [word for word, _ in result.words()] == ["good", "▁"]


def test_a_character_of_several_tokens_has_their_sum() -> None:
    result = explained(in_bytes(), "a世")
    assert len(result.units) == 4 and result.units.spans == ((0, 1), (1, 2), (1, 2), (1, 2))
    painted = [(p.text, p.score) for p in token_run(result).pieces]
    assert painted == [("a", pytest.approx(result.scores[0])), ("世", pytest.approx(result.scores[1:].sum()))]
    assert scale_for(result).high >= float(np.float32(result.scores[1:].sum())) - 1e-6


def test_words_that_the_tokenizer_does_not_know_are_said(tmp_path: Any) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    strange, known = wf.explain(model, ["съешь ещё этих булок", "the movies was boring ."], processor=tokenizer)
    assert any("4 of 4 tokens are [UNK]" in warning for warning in strange.warnings)
    assert not any("[UNK]" in warning for warning in known.warnings)


# A tokenizers.Tokenizer as processor


TEXT = "anna lives in paris and works . bob lives in rome ."
CORPUS = ["the cat sat on the mat.", "the dog sat on the log.", "cats and dogs are animals, and so on."]


def bert() -> nn.Module:
    return seeded(lambda: hf.BertForSequenceClassification(hf.BertConfig(**ENCODER)))


def gpt2() -> nn.Module:
    config = hf.GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return seeded(lambda: hf.GPT2LMHeadModel(config))


def places() -> Any:
    """Made from its parts: special tokens are known to the template and to the settings alone."""
    rust = Tokenizer(models.WordLevel({word: i for i, word in enumerate(PLACES)}, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    rust.add_special_tokens(["[MASK]"])
    return rust


def byte_pairs() -> Any:
    """Trained on a few lines, as people train their own."""
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|endoftext|>", "<pad>", "<|tool|>"], initial_alphabet=alphabet
    )
    rust.train_from_iterator(CORPUS, trainer)
    rust.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", rust.token_to_id("<|endoftext|>"))]
    )
    return rust


PAIR = ("where is anna", TEXT)


@pytest.mark.parametrize(("inputs", "units"), [([PAIR, TEXT], "token"), ([TEXT, "anna ."], "sentence")])
def test_it_explains_as_the_same_tokenizer_of_transformers(inputs: list[Any], units: str) -> None:
    rust, model = places(), bert()
    rust.enable_padding(pad_id=0, pad_token="[PAD]", direction="left")
    before = rust.to_str()
    expected = wf.explain(model, inputs, processor=pair_tokenizer(), target=1, units=units)
    explained = wf.explain(model, inputs, processor=rust, target=1, units=units)
    for one, other in zip(explained, expected, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-6)
        assert one.units == other.units
        assert [word for word, _ in one.words()] == [word for word, _ in other.words()]
    assert rust.to_str() == before


def test_special_tokens_are_those_of_template_settings_and_spelling() -> None:
    rust = places()
    rust.enable_padding(pad_id=0, pad_token="[PAD]")
    rust.enable_truncation(8)
    wrapped = as_processor(rust, bert())
    names = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
    assert {name: getattr(wrapped, f"{name}_token") for name in names} == names
    assert (wrapped.bos_token, wrapped.eos_token, wrapped.model_max_length) == (None, None, 8)
    trained = as_processor(byte_pairs(), gpt2())
    assert (trained.bos_token, trained.eos_token, trained.pad_token) == ("<|endoftext|>", "<|endoftext|>", "<pad>")
    assert trained.mask_token is None and trained.unk_token is None
    assert trained.convert_tokens_to_ids("<|tool|>") in trained.all_special_ids
    vocabulary = {word: i for i, word in enumerate("[UNK] [CLS] [SEP] [PAD] [MASK] a b".split())}
    assert as_processor(BertWordPieceTokenizer(vocabulary), bert()).mask_token_id == 4
    with pytest.raises(BadInput, match="a WordLevel of the tokenizers library, a part of a tokenizer"):
        wf.Explainer(bert(), Tokenizer(models.WordLevel({"a": 0}, "a")).model)


def test_padding_with_a_token_that_the_vocabulary_lacks() -> None:
    """tokenizers switches padding on with [PAD] whether or not there is one; no id is added for it."""
    rust = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.enable_padding()
    wrapped = as_processor(rust, bert())
    assert wrapped.pad_token is None and len(wrapped) == 3
    short, long = wf.explain(bert(), ["a b", "b a a b"], processor=rust, target=1)
    assert short.units.labels == ("a", "b") and not any(short.units.special)
    np.testing.assert_allclose(short.scores, wf.explain(bert(), "a b", processor=rust, target=1).scores, rtol=1e-4)
    assert len(long.scores) == 4


def test_a_language_model_is_given_no_token_types() -> None:
    """GPT-2 looks types up among its words, so that a row of zeros would change what it predicts."""
    model, rust = gpt2(), byte_pairs()
    rust.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A $B:1 <|endoftext|>:1",
        special_tokens=[("<|endoftext|>", rust.token_to_id("<|endoftext|>"))],
    )  # fmt: skip
    ids = torch.tensor([rust.encode("the cat sat").ids])
    explained = wf.explain(model, "the cat sat", processor=rust, target=7)
    assert explained.value == pytest.approx(model(ids).logits[0, -1, 7].item(), rel=1e-4)
    assert list(explained.units.labels) == rust.encode("the cat sat").tokens
    assert explained.units.special[0] and not any(explained.units.special[1:])
    answer = wf.explain(model, ("the cat", " sat"), processor=rust, span=True, method="occlusion")
    assert answer.target.label.strip() == "sat"
