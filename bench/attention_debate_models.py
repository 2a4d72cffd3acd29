"""Small classifiers whose last attention over the words can be looked at, replaced and imposed.

T word · H head. Every model encodes the words, weighs them, and decides from the weighted sum; the weights are what the
debate on attention as explanation is about.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 128
HEADS = 4


@dataclass(frozen=True)
class Words:
    """A batch of sentences: ids, which of them are words, and how many (on the CPU: nobody waits for the device)."""

    ids_BT: Tensor
    real_BT: Tensor
    lengths_B: Tensor


class Debated(nn.Module):
    """A classifier with one attention over its words, whose weights may be given from outside."""

    @abstractmethod
    def encode(self, words: Words) -> Tensor:
        """(B, 1 + T, D) a state that asks, and one per word."""

    @abstractmethod
    def weigh(self, states: Tensor, real_BT: Tensor) -> Tensor:
        """(B, H, T) attention."""

    @abstractmethod
    def decide(self, states: Tensor, attention_BHT: Tensor) -> Tensor:
        """(B, 2) logits."""

    def forward(self, words: Words, imposed_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits, and the attention as it would be shown: the mean over heads."""
        states = self.encode(words)
        attention = self.weigh(states, words.real_BT) if imposed_BT is None else imposed_BT[:, None]
        return self.decide(states, attention), attention.mean(1)


class Additive(nn.Module):
    """v·tanh(W h): the attention of Bahdanau et al. 2015 without a query, as in Jain & Wallace's classifiers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.score = nn.Linear(width, width // 2), nn.Linear(width // 2, 1, bias=False)

    def forward(self, states_BTD: Tensor, real_BT: Tensor) -> Tensor:
        scores = self.score(self.inner(states_BTD).tanh())[..., 0]
        return scores.masked_fill(~real_BT, -torch.inf).softmax(-1)[:, None]


class BiLSTM(Debated):
    """Embedding, one bidirectional LSTM, additive attention, a linear decision (Jain & Wallace 2019)."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.attention = Additive(2 * WIDTH)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(2 * WIDTH, 2)

    def encode(self, words: Words) -> Tensor:
        embedded = self.drop(self.embedding(words.ids_BT))
        packed = nn.utils.rnn.pack_padded_sequence(embedded, words.lengths_B, batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=words.ids_BT.shape[1]
        )
        return F.pad(states, (0, 0, 1, 0))  # nobody asks: the attention has no query

    def weigh(self, states: Tensor, real_BT: Tensor) -> Tensor:
        weights: Tensor = self.attention(states[:, 1:], real_BT)
        return weights

    def decide(self, states: Tensor, attention_BHT: Tensor) -> Tensor:
        context = torch.bmm(attention_BHT, states[:, 1:])[:, 0]
        logits: Tensor = self.head(self.drop(context))
        return logits


class TokenMLP(Debated):
    """The diagnostic of Wiegreffe & Pinter 2019: words are seen one by one, without context, weighted from outside."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH, padding_idx=0)
        self.project = nn.Linear(WIDTH, 2 * WIDTH)
        self.attention = Additive(2 * WIDTH)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(2 * WIDTH, 2)

    def encode(self, words: Words) -> Tensor:
        return F.pad(self.project(self.drop(self.embedding(words.ids_BT))).tanh(), (0, 0, 1, 0))

    weigh = BiLSTM.weigh
    decide = BiLSTM.decide


class Block(nn.Module):
    """One pre-norm transformer block; ``asking`` positions ask, ``heard`` ones are heard."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.2), nn.Linear(2 * WIDTH, WIDTH))
        self.drop = nn.Dropout(0.2)

    def heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def attention(self, states: Tensor, real: Tensor, asking: slice, heard: slice) -> Tensor:
        """(B, H, Q, K)"""
        normed = self.norm_1(states)
        query, key = self.heads(self.query(normed[:, asking])), self.heads(self.key(normed[:, heard]))
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        return scores.masked_fill(~real[:, None, None], -torch.inf).softmax(-1)

    def apply_attention(self, states: Tensor, attention_BHQK: Tensor, asking: slice, heard: slice) -> Tensor:
        """The states of those that asked, after the whole block."""
        value = self.heads(self.value(self.norm_1(states)[:, heard]))
        mixed = (attention_BHQK @ value).transpose(1, 2).flatten(2)
        after = states[:, asking] + self.drop(self.out(mixed))
        result: Tensor = after + self.drop(self.mlp(self.norm_2(after)))
        return result


class Transformer(Debated):
    """[CLS] and the words through two blocks; in a third, [CLS] alone asks, and hears the words."""

    def __init__(self, vocabulary: int, longest: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH, padding_idx=0)
        self.position, self.cls = nn.Embedding(longest, WIDTH), nn.Parameter(torch.randn(WIDTH) * 0.02)
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.normal_(self.position.weight, std=0.02)
        self.blocks, self.last = nn.ModuleList(Block() for _ in range(2)), Block()
        self.drop, self.norm, self.head = nn.Dropout(0.3), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)

    def encode(self, words: Words) -> Tensor:
        size, length = words.ids_BT.shape
        places = self.position(torch.arange(length, device=words.ids_BT.device))
        embedded = self.drop(self.embedding(words.ids_BT) + places)
        states = torch.cat([self.cls.expand(size, 1, -1), embedded], 1)
        real, everyone = F.pad(words.real_BT, (1, 0), value=True), slice(None)
        for block in self.blocks:
            attention = block.attention(states, real, everyone, everyone)
            states = block.apply_attention(states, attention, everyone, everyone)
        return states

    def weigh(self, states: Tensor, real_BT: Tensor) -> Tensor:
        return self.last.attention(states, real_BT, slice(1), slice(1, None))[:, :, 0]

    def decide(self, states: Tensor, attention_BHT: Tensor) -> Tensor:
        attention = attention_BHT.expand(-1, HEADS, -1)[:, :, None]
        read = self.last.apply_attention(states, attention, slice(1), slice(1, None))[:, 0]
        logits: Tensor = self.head(self.drop(self.norm(read)))
        return logits
