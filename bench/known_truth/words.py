"""Trigger words with negation: one word of praise or blame per sentence, and "not" in front of it turns it round.

Another "not" may stand anywhere else in the sentence, where it means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.known_truth.task import SMALL, Array, Change, Classifier, Inputs, Planted, long, whole_word_tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PRAISE = ("good", "great", "lovely", "superb")
BLAME = ("bad", "awful", "dull", "poor")
FILLERS = tuple(
    "the a film story actor scene plot music camera ending house river street garden window summer evening it was is "
    "we they saw heard and with about under over near long short old new blue green quiet early late".split()
)
VOCABULARY = (*SPECIAL, *PRAISE, *BLAME, "not", *FILLERS)
ID = {word: i for i, word in enumerate(VOCABULARY)}
PRAISE_IDS, BLAME_IDS = np.array([ID[w] for w in PRAISE]), np.array([ID[w] for w in BLAME])
FILLER_IDS, NOT = np.array([ID[w] for w in FILLERS]), ID["not"]
LONGEST, SHORTEST = 12, 6


@dataclass(frozen=True)
class Sentences:
    """Sentences before they are written down: fillers everywhere, and what is planted among them."""

    fillers_IW: Array
    length_I: Array
    place_I: Array  # of the trigger word; never the first word, so that one stands in front of it
    positive_I: Array  # is the trigger a word of praise?
    which_I: Array
    negated_I: Array

    @property
    def label_I(self) -> Array:
        return (self.positive_I ^ self.negated_I).astype(np.int64)

    def words_IW(self) -> Array:
        rows = np.arange(len(self.place_I))
        words = self.fillers_IW.copy()
        words[rows, self.place_I] = np.where(self.positive_I, PRAISE_IDS[self.which_I], BLAME_IDS[self.which_I])
        words[rows, self.place_I - 1] = np.where(self.negated_I, NOT, words[rows, self.place_I - 1])
        return words


def fillers(rng: np.random.Generator, length_I: Array, place_I: Array) -> Array:
    """(I, W) words that mean nothing; in half of the sentences one of them is a "not" that negates no trigger."""
    count = len(length_I)
    words = rng.choice(FILLER_IDS, (count, LONGEST))
    place = (rng.random(count) * length_I).astype(int)
    stray = (rng.random(count) < 0.5) & (place != place_I) & (place != place_I - 1)
    words[np.flatnonzero(stray), place[stray]] = NOT
    return words


def draw(rng: np.random.Generator, count: int) -> Sentences:
    length = rng.integers(SHORTEST, LONGEST + 1, count)
    place = 1 + (rng.random(count) * (length - 1)).astype(int)
    flags = rng.random((2, count)) < 0.5
    return Sentences(fillers(rng, length, place), length, place, flags[0], rng.integers(0, 4, count), flags[1])


def encoded(words_IW: Array, length_I: Array) -> Inputs:
    """[CLS] words [SEP], padded on the right."""
    count, longest = words_IW.shape
    ids = np.full((count, longest + 2), ID["[PAD]"])
    ids[:, 0] = ID["[CLS]"]
    inside = np.arange(longest) < length_I[:, None]
    ids[:, 1:-1] = np.where(inside, words_IW, ID["[PAD]"])
    ids[np.arange(count), length_I + 1] = ID["[SEP]"]
    return {"input_ids": long(ids), "attention_mask": long(np.arange(longest + 2) < length_I[:, None] + 2)}


def written(sentences: Sentences) -> Inputs:
    return encoded(sentences.words_IW(), sentences.length_I)


@dataclass(frozen=True)
class Words(Classifier):
    """A BERT that says whether a sentence with one trigger word, which may be negated, praises."""

    layers: int = 2
    name: str = "words"
    modality: str = "text"
    steps: int = 3000
    rate: float = 1e-3

    def model(self) -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=len(VOCABULARY),
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=ID["[PAD]"],
            num_labels=2,
            **SMALL | {"num_hidden_layers": self.layers},
        )
        return BertForSequenceClassification(config)

    def processor(self) -> Any:
        return whole_word_tokenizer(
            VOCABULARY,
            "[CLS] $A [SEP]",
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
        )

    def logits(self, model: nn.Module, inputs: Inputs) -> Tensor:
        return model(**inputs).logits

    def batch(self, rng: np.random.Generator, count: int) -> tuple[Inputs, Tensor]:
        """Some fillers are masked, so that a mask is nothing new to methods that take words away."""
        drawn = draw(rng, count)
        hidden = rng.random(drawn.fillers_IW.shape) < 0.1
        masked = np.where(hidden, ID["[MASK]"], drawn.fillers_IW)
        return written(replace(drawn, fillers_IW=masked)), torch.from_numpy(drawn.label_I)

    def held_out(self, rng: np.random.Generator, count: int) -> Planted:
        drawn = draw(rng, count)
        rows, everywhere = np.arange(count), np.ones(count, bool)
        cause = np.zeros((count, LONGEST), bool)
        cause[rows, drawn.place_I] = True
        cause[rows[drawn.negated_I], drawn.place_I[drawn.negated_I] - 1] = True
        counted = np.arange(LONGEST) < drawn.length_I[:, None]
        # That nothing negates the trigger matters too, and this is where it is seen: neither cause nor distractor.
        counted[rows[~drawn.negated_I], drawn.place_I[~drawn.negated_I] - 1] = False
        turned = replace(drawn, positive_I=~drawn.positive_I, which_I=rng.integers(0, 4, count))
        again = replace(drawn, fillers_IW=fillers(rng, drawn.length_I, drawn.place_I))
        return Planted(
            inputs=written(drawn),
            asked_I=drawn.label_I,
            cause_IU=cause,
            counted_IU=counted,
            changes={
                "trigger": Change(written(turned), everywhere),
                "negation": Change(written(replace(drawn, negated_I=~drawn.negated_I)), everywhere),
            },
            rest_redrawn=written(again),
        )
