"""Models of texts and their tokenizers: padding in a batch, subclasses, whether a model looks ahead, characters."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tokenizers.implementations import BertWordPieceTokenizer
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.models.case import seeded
from tests.models.hf import ENCODER
from tests.models.kinds import KINDS
from tests.support import folders
from tests.support.processors import PLACES, in_bytes, pair_tokenizer, tokenizer
from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.checkpoint import as_processor, processed
from whyformer.inputs.families import says_tokens, task_of
from whyformer.inputs.tokens import ENOUGH, is_causal
from whyformer.loan.borrow import borrowed
from whyformer.views.text_marks import scale_for, token_run

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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_that_count_padding_and_a_head_that_reads_the_last_one(tmp_path: Path, side: str) -> None:
    tokenizer = tokens(tmp_path, side)
    model = seeded(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(tokenizer), **SIZES)))
    for method in ("generic_attention", "occlusion"):
        same_alone(model, tokenizer, method=method)
    same_alone(seeded(lambda: LastOfAll(len(tokenizer))), tokenizer, method="generic_attention")


class PriceOfAll(nn.Module):
    """Pools padding, too, and adds 500: 1e-3 of its output is more than any word does."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = hf.BertModel(hf.BertConfig(**(ENCODER | {"vocab_size": size})))
        self.head = nn.Linear(self.inner.config.hidden_size, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.inner(input_ids, attention_mask=attention_mask).last_hidden_state.mean(1)) / 10 + 500


@pytest.mark.parametrize("method", ["generic_attention", "occlusion"])
def test_a_number_far_from_zero_hides_no_padding(tmp_path: Path, method: str) -> None:
    tokenizer = tokens(tmp_path, "right")
    model = seeded(lambda: PriceOfAll(len(tokenizer)))
    together = wf.explain(model, TEXTS, processor=tokenizer, method=method)
    for text, found in zip(TEXTS, together, strict=True):
        alone = wf.explain(model, text, processor=tokenizer, method=method)
        np.testing.assert_allclose(found.scores, alone.scores, atol=2e-4)


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
    trimmed = modality.read.trimmed(batch.select([1])).tensors
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


CONFIG = hf.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=40, n_positions=128)


class Ahead(hf.GPT2LMHeadModel):
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
    model, rows = (Ahead if later else hf.GPT2LMHeadModel)(copy.deepcopy(CONFIG)).eval(), []
    model.later = later
    model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    modality, batch, _ = wf.Explainer(model).prepare({"input_ids": torch.randint(1, 40, (1, length))})
    with borrowed(model):
        assert is_causal(modality.mean, batch) is (later == 0)
    assert [tuple(shape) for shape in rows] == [(2, min(length, ENOUGH))]


# Tokenizers


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


@pytest.mark.parametrize(("text", "pieces"), [("مرحبا بك", ("▁", "مرحبا", "▁", "بك")), ("好 day", ("▁", "好", "▁day"))])
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


def test_a_space_at_the_end_is_of_the_last_word() -> None:
    result = explained(unigram("▁", "▁good"), "good ")
    assert result.words() == [("good", pytest.approx(float(result.scores[:2].sum())))]


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


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_long_text_is_cut_where_the_tokenizer_cuts_it(side: str) -> None:
    """The warning names the part that is gone: the units are the rest."""
    reads = copy.deepcopy(pair_tokenizer())
    reads.truncation_side, reads.model_max_length = side, 8
    words = "one two three four five six seven eight nine ten"
    found = wf.explain(bert(), words, processor=reads, target=1)
    assert found.units.text is not None and found.units.spans is not None
    read = found.units.text[found.units.spans[1][0] : found.units.spans[-2][1]]
    assert (read.startswith("one"), read.endswith("ten")) == (side == "right", side == "left")
    assert f"the {'beginning' if side == 'left' else 'end'} was cut off" in found.warnings[0]
    pair = wf.explain(bert(), (words, "one"), processor=reads, target=1)
    assert f"{'beginning' if side == 'left' else 'end'} of the longer text, or of both, was cut off" in pair.warnings[0]


# Tokenizers of transformers: what their Python class adds to the tokenizer library counts.


def test_a_text_is_encoded_as_the_tokenizer_does(tmp_path: Path) -> None:
    plain = tokens(tmp_path, "right")

    class Shouting(type(plain)):  # type: ignore[misc]
        def _encode_plus(self, text: Any, *others: Any, **options: Any) -> Any:
            return super()._encode_plus(f"{text} !", *others, **options)

    changed = copy.deepcopy(plain)
    changed.__class__ = Shouting
    shortened = copy.deepcopy(plain)
    shortened.backend_tokenizer.enable_truncation(3)
    options = {"truncation": False, "verbose": False}
    texts = (("i like it",), ("i", "it"), ("i", ""), ("",))
    for encoder, text, added in itertools.product((plain, changed, shortened), texts, (True, False)):
        ours = processed(copy.deepcopy(encoder), *text, add_special_tokens=added, **options)
        theirs = encoder(*text, add_special_tokens=added, **options)
        assert dict(ours) == dict(theirs)
        assert ours.encodings[0].offsets == theirs.encodings[0].offsets
