"""Facts for a deeper decoder: "Anna kite . Ben drum . … Ben" is continued by what was said of Ben.

The fact that is asked for is said once or twice; said twice, either sentence is enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from bench.known_truth.task import SMALL, Array, Change, Inputs, Planted, long, whole_word_tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[BOS]")
NAMES = tuple("Anna Ben Clara David Emma Felix Greta Henry Ida Jonas Klara Leo".split())
THINGS = tuple("kite drum lamp coin book ring rope bell boat hat shoe cup".split())
VOCABULARY = (*SPECIAL, *NAMES, *THINGS, ".")
ID = {word: i for i, word in enumerate(VOCABULARY)}
STOP = ID["."]
FIRST_NAME, FIRST_THING = ID[NAMES[0]], ID[THINGS[0]]
SENTENCES, WORDS = 8, 3  # per story, and per sentence
# In stories of training, which are longer, so that most of their facts come again. Of two or three people there is
# soon something to learn from looking back; of eight, guessing any thing that was named is nearly as good.
PEOPLE = (2, 3, 4, 6, 8)
LONGER = 15


@dataclass(frozen=True)
class Stories:
    """Who is spoken of in each sentence and what they have; which person is asked for."""

    name_IS: Array
    thing_IS: Array
    asked_I: Array

    @property
    def about_IS(self) -> Array:
        """True for the sentences about the one who is asked for."""
        about: Array = self.name_IS == self.asked_I[:, None]
        return about

    @property
    def label_I(self) -> Array:
        label: Array = FIRST_THING + (self.thing_IS * self.about_IS).max(1)
        return label

    def tokens(self) -> Array:
        """(I, 1 + S·W) [BOS] and the sentences."""
        count, sentences = self.name_IS.shape
        words = np.full((count, sentences, WORDS), STOP)
        words[:, :, 0], words[:, :, 1] = FIRST_NAME + self.name_IS, FIRST_THING + self.thing_IS
        return np.concatenate([np.full((count, 1), ID["[BOS]"]), words.reshape(count, -1)], 1)

    def written(self) -> Inputs:
        return {"input_ids": long(np.concatenate([self.tokens(), FIRST_NAME + self.asked_I[:, None]], 1))}


def distinct(rng: np.random.Generator, count: int, many: int, of: int) -> Array:
    return rng.random((count, of)).argsort(1)[:, :many]


def draw(rng: np.random.Generator, count: int) -> Stories:
    """Eight sentences, of which one or two are about the one who is asked for, the others about seven or six more."""
    names, things = distinct(rng, count, SENTENCES, len(NAMES)), distinct(rng, count, SENTENCES, len(THINGS))
    twice = rng.random(count) < 0.5
    names[twice, 1], things[twice, 1] = names[twice, 0], things[twice, 0]
    asked = names[:, 0].copy()
    order = rng.random((count, SENTENCES)).argsort(1)
    return Stories(np.take_along_axis(names, order, 1), np.take_along_axis(things, order, 1), asked)


def with_others(rng: np.random.Generator, stories: Stories) -> Stories:
    """The sentences about others drawn anew; of two sentences with the fact, one more is about somebody else."""
    count, rows = len(stories.asked_I), np.arange(len(stories.asked_I))
    chosen = (stories.about_IS * rng.random(stories.about_IS.shape)).argmax(1)
    thing = stories.label_I - FIRST_THING
    fresh = []
    for taken, size in ((stories.asked_I, len(NAMES)), (thing, len(THINGS))):
        order = rng.random((count, size))
        order[rows, taken] = 2.0  # comes last, so that it is not drawn
        fresh.append(order.argsort(1)[:, :SENTENCES])
    names, things = fresh
    names[rows, chosen], things[rows, chosen] = stories.asked_I, thing
    return Stories(names, things, stories.asked_I)


@dataclass(frozen=True)
class Facts:
    """A Llama of six layers."""

    layers: int = 6
    name: str = "facts"
    modality: str = "causal text"
    steps: int = 6000
    rate: float = 3e-3

    def model(self) -> nn.Module:
        """Words begin as large as what six layers add to them, which drowned them out otherwise: with embeddings of 0.1
        the model still guessed after 600 steps of 32 stories, with these it looks back after some 400."""
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=len(VOCABULARY),
            num_key_value_heads=4,
            max_position_embeddings=64,
            pad_token_id=ID["[PAD]"],
            bos_token_id=ID["[BOS]"],
            eos_token_id=None,
            **SMALL | {"num_hidden_layers": self.layers},
        )
        model: Any = LlamaForCausalLM(config)
        nn.init.normal_(model.get_input_embeddings().weight, std=1.0)
        return model

    def processor(self) -> Any:
        return whole_word_tokenizer(VOCABULARY, "[BOS] $A", pad_token="[PAD]", unk_token="[UNK]", bos_token="[BOS]")

    def batch(self, rng: np.random.Generator, count: int) -> tuple[Inputs, Tensor]:
        """What people have is asked for wherever they come up again. Some words are hidden behind [UNK], so that it is
        nothing new to methods that take words away, and what has only been hidden is not asked for."""
        many = int(rng.choice(PEOPLE))
        people, things = distinct(rng, count, many, len(NAMES)), distinct(rng, count, many, len(THINGS))
        speaks_of = rng.integers(0, many, (count, LONGER))
        taken = [np.take_along_axis(values, speaks_of, 1) for values in (people, things)]
        ids = Stories(taken[0], taken[1], people[:, 0]).tokens()
        hidden = rng.random((count, LONGER, WORDS)) < rng.choice([0.0, 0.0, 0.1, 0.3], (count, 1, 1))
        whole = ~hidden[:, :, :2].any(2)
        same = (speaks_of[:, :, None] == speaks_of[:, None, :]) & np.tri(LONGER, k=-1, dtype=bool)
        known = (same & whole[:, None, :]).any(2) & ~hidden[:, :, 0]
        labels = np.full_like(ids, -100)
        labels[:, 2::WORDS] = np.where(known, ids[:, 2::WORDS], -100)
        # Hidden things are still asked for: the label stands one place later than the words that it follows.
        shown = np.where(np.concatenate([np.zeros((count, 1), bool), hidden.reshape(count, -1)], 1), ID["[UNK]"], ids)
        return {"input_ids": long(shown[:, :-1])}, long(labels[:, 1:])

    def held_out(self, rng: np.random.Generator, count: int) -> Planted:
        stories = draw(rng, count)
        about, everywhere = stories.about_IS, np.ones(count, bool)
        cause = np.zeros((count, SENTENCES, WORDS), bool)
        cause[:, :, :2] = about[:, :, None]
        counted = np.ones((count, SENTENCES, WORDS), bool)
        counted[:, :, 2] = ~about  # "." of these sentences is neither
        asked = np.zeros((count, 1), bool)  # the question itself is neither
        unused = distinct(rng, count, len(THINGS), len(THINGS))
        free = ~(unused[:, :, None] == stories.thing_IS[:, None]).any(2)
        other = unused[np.arange(count), free.argmax(1)]
        changed = replace(stories, thing_IS=np.where(about, other[:, None], stories.thing_IS))
        return Planted(
            inputs=stories.written(),
            asked_I=stories.label_I,
            cause_IU=np.concatenate([cause.reshape(count, -1), asked], 1),
            counted_IU=np.concatenate([counted.reshape(count, -1), asked], 1),
            changes={"thing": Change(changed.written(), everywhere)},
            rest_redrawn=with_others(rng, stories).written(),
        )

    def logits(self, model: nn.Module, inputs: Inputs) -> Tensor:
        return model(**inputs, use_cache=False).logits[:, -1]

    def loss(self, model: nn.Module, inputs: Inputs, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(**inputs, use_cache=False).logits.flatten(0, 1), labels.flatten())
