"""Which characters a token is, in texts of SentencePiece and byte-level tokenizers; words that nobody knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformers as hf

import whyformer as wf
from tests.models.case import seeded
from tests.support import folders
from whyformer.inputs.text import characters_of
from whyformer.views.text_marks import scale_for, token_run


def unigram(*pieces: str) -> Any:
    """As SentencePiece cuts texts: a ``▁`` of its own in front, and one for each space."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = [("<pad>", 0.0), ("<unk>", -20.0), ("</s>", 0.0), *((p, -2.0 - len(p) / 100) for p in pieces)]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=1))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def bytes_of_each_letter() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, pad_token=letters[0])


def explained(tokenizer: Any, text: str, **how: Any) -> wf.Explanation:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = hf.BertConfig(vocab_size=300, max_position_embeddings=64, num_labels=2, **size)
    model = seeded(lambda: hf.BertForSequenceClassification(config)).eval()
    return wf.explain(model, text, processor=tokenizer, **how)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("你好世界", ("▁", "你好", "世界")),
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


def test_all_characters_at_once_are_those_of_each_token() -> None:
    tokenizer = unigram("a", "b", "▁a", "▁b", "ab", "▁")
    for texts in (("ab a",), (" b  a ",), ("",), ("a b", "b ab"), ("ab c 好",)):
        for how in ({}, {"add_special_tokens": False}, {"truncation": True, "max_length": 3}):
            encoding = tokenizer(*texts, **how)
            one_by_one = [encoding.token_to_chars(i) for i in range(len(encoding["input_ids"]))]
            assert characters_of(encoding, len(one_by_one)) == one_by_one


def test_a_space_at_the_end_is_called_something() -> None:
    result = explained(unigram("▁", "▁good"), "good ")
    assert [word for word, _ in result.words()] == ["good", "▁"]


def test_a_character_of_several_tokens_has_their_sum() -> None:
    result = explained(bytes_of_each_letter(), "a世")
    assert len(result.units) == 4 and result.units.spans == ((0, 1), (1, 2), (1, 2), (1, 2))
    painted = [(p.text, p.score) for p in token_run(result).pieces]
    assert painted == [("a", pytest.approx(result.scores[0])), ("世", pytest.approx(result.scores[1:].sum()))]
    assert scale_for(result).high >= float(np.float32(result.scores[1:].sum())) - 1e-6


def test_words_that_the_tokenizer_does_not_know_are_said(tmp_path: Any) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    strange, known = wf.explain(model, ["съешь ещё этих булок", "the movies was boring ."], processor=tokenizer)
    assert any("4 of 4 tokens are [UNK]" in warning for warning in strange.warnings)
    assert not any("[UNK]" in warning for warning in known.warnings)
