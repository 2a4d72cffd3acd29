"""A copy task for decoders: "k1 v1 k2 v2 … ? k2" is continued by v2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from bench.known_truth.task import SMALL, Array, Change, Inputs, Planted, alone, highest, long, whole_word_tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[BOS]")
KEYS = tuple(f"k{i}" for i in range(12))
VALUES = tuple(f"v{i}" for i in range(12))
VOCABULARY = (*SPECIAL, *KEYS, *VALUES, "?")
ID = {word: i for i, word in enumerate(VOCABULARY)}
FIRST_KEY, FIRST_VALUE, QUESTION = ID["k0"], ID["v0"], ID["?"]
PAIRS = 6
QUESTIONS = 6  # per list, in training


@dataclass(frozen=True)
class Lists:
    """Pairs of a key and a value, no key and no value twice, and which of the keys is asked for."""

    key_IP: Array
    value_IP: Array
    asked_I: Array

    @property
    def label_I(self) -> Array:
        """(I,) the token that must come next."""
        return FIRST_VALUE + self.value_IP[np.arange(len(self.asked_I)), self.asked_I]


def distinct(rng: np.random.Generator, count: int, many: int, of: int) -> Array:
    return rng.random((count, of)).argsort(1)[:, :many]


def draw(rng: np.random.Generator, count: int) -> Lists:
    keys, values = distinct(rng, count, PAIRS, len(KEYS)), distinct(rng, count, PAIRS, len(VALUES))
    return Lists(keys, values, rng.integers(0, PAIRS, count))


def pairs(lists: Lists) -> Array:
    """(I, 2P) keys and values in turn."""
    together = np.stack([FIRST_KEY + lists.key_IP, FIRST_VALUE + lists.value_IP], 2)
    return together.reshape(len(together), -1)


def written(lists: Lists, key_I: Array | None = None) -> Inputs:
    """[BOS] pairs ? key. ``key_I``: the key that is asked for, where it is not the one of the list's own question."""
    count = len(lists.asked_I)
    asked = lists.key_IP[np.arange(count), lists.asked_I] if key_I is None else key_I
    front, mark = np.full((count, 1), ID["[BOS]"]), np.full((count, 1), QUESTION)
    return {"input_ids": long(np.concatenate([front, pairs(lists), mark, FIRST_KEY + asked[:, None]], 1))}


def _swapped(values_IP: Array, a_I: Array, b_I: Array) -> Array:
    rows, result = np.arange(len(values_IP)), values_IP.copy()
    result[rows, a_I], result[rows, b_I] = values_IP[rows, b_I], values_IP[rows, a_I]
    return result


def _redrawn(rng: np.random.Generator, lists: Lists) -> Lists:
    """The pairs that are not asked for drawn anew, without the key and value of the one that is."""
    count = len(lists.asked_I)
    rows = np.arange(count)
    fresh = []
    for old, size in ((lists.key_IP, len(KEYS)), (lists.value_IP, len(VALUES))):
        order = rng.random((count, size))
        kept = old[rows, lists.asked_I]
        order[rows, kept] = 2.0  # comes last, so that it is not drawn
        new = order.argsort(1)[:, :PAIRS]
        new[rows, lists.asked_I] = kept
        fresh.append(new)
    return Lists(fresh[0], fresh[1], lists.asked_I)


def language_model(vocabulary: tuple[str, ...], layers: int = 2) -> nn.Module:
    """A small Llama over whole words."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(vocabulary),
        num_key_value_heads=4,
        max_position_embeddings=64,
        pad_token_id=vocabulary.index("[PAD]"),
        bos_token_id=vocabulary.index("[BOS]"),
        eos_token_id=None,
        **SMALL | {"num_hidden_layers": layers},
    )
    return LlamaForCausalLM(config)


@dataclass(frozen=True)
class Copying:
    """A Llama of two layers."""

    name: str = "copying"
    modality: str = "causal text"
    steps: int = 3000
    rate: float = 3e-3

    def model(self) -> nn.Module:
        return language_model(VOCABULARY)

    def processor(self) -> Any:
        return whole_word_tokenizer(VOCABULARY, "[BOS] $A", pad_token="[PAD]", unk_token="[UNK]", bos_token="[BOS]")

    def batch(self, rng: np.random.Generator, count: int) -> tuple[Inputs, Tensor]:
        """Several questions follow each other, which teaches more per step.

        Now and then a pair is hidden behind [UNK], so that it is nothing new to methods that take tokens away.
        """
        lists = draw(rng, count)
        order = rng.integers(0, PAIRS, (count, QUESTIONS))
        rows = np.arange(count)[:, None]
        shown = pairs(lists)
        hidden = np.repeat(rng.random((count, PAIRS)) < 0.1, 2, axis=1)
        shown = np.where(hidden, ID["[UNK]"], shown)
        asked, answer = FIRST_KEY + lists.key_IP[rows, order], FIRST_VALUE + lists.value_IP[rows, order]
        questions = np.stack([np.full_like(asked, QUESTION), asked, answer], 2).reshape(count, -1)
        ids = np.concatenate([np.full((count, 1), ID["[BOS]"]), shown, questions], 1)
        labels = np.full_like(ids, -100)
        labels[:, 1 + 2 * PAIRS + 1 :: 3] = np.where(hidden[:, ::2][rows, order], -100, answer)
        return {"input_ids": long(ids)}, long(labels)

    def held_out(self, rng: np.random.Generator, count: int) -> Planted:
        lists = draw(rng, count)
        rows, everywhere = np.arange(count), np.ones(count, bool)
        cause = np.zeros((count, 2 * PAIRS + 2), bool)
        cause[rows, 2 * lists.asked_I] = cause[rows, 2 * lists.asked_I + 1] = True
        counted = np.ones_like(cause)
        counted[:, -2:] = False  # the question itself is neither
        other = (lists.asked_I + rng.integers(1, PAIRS, count)) % PAIRS
        fresh = lists.value_IP.copy()
        unused = distinct(rng, count, len(VALUES), len(VALUES))
        free = ~(unused[:, :, None] == lists.value_IP[:, None]).any(2)
        fresh[rows, lists.asked_I] = unused[rows, free.argmax(1)]
        asked_key = lists.key_IP[rows, lists.asked_I]
        return Planted(
            inputs=written(lists),
            asked_I=lists.label_I,
            cause_IU=cause,
            counted_IU=counted,
            group_I=alone(count),
            changes={
                "value": Change(written(replace(lists, value_IP=fresh)), everywhere),
                "key": Change(
                    written(replace(lists, key_IP=_swapped(lists.key_IP, lists.asked_I, other)), asked_key), everywhere
                ),
            },
            rest_redrawn=written(_redrawn(rng, lists)),
        )

    def logits(self, model: nn.Module, inputs: Inputs) -> Tensor:
        return model(**inputs, use_cache=False).logits[:, -1]

    def loss(self, model: nn.Module, inputs: Inputs, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(**inputs, use_cache=False).logits.flatten(0, 1), labels.flatten())

    def said(self, logits_IC: Tensor, asked_I: Tensor) -> Tensor:
        return highest(logits_IC, asked_I)
