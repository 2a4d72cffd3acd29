"""A text model whose heads do exactly what they are told, to test what is said about them."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from tests.models.case import seeded

VOCAB, WIDTH = 60, 8
CLS, SEP, PAD = 1, 2, 0
SHARP = 40.0

ENCODER_HEADS = ("previous", "next", "last", "largest_id")
CAUSAL_HEADS = ("previous", "duplicate", "induction", "first")


class Patterned(nn.Module):
    """One layer; each head's scores are written down, not learned. Ids and mask in, logits out."""

    def __init__(self, heads: tuple[str, ...], causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.table = nn.Embedding(VOCAB, WIDTH * len(heads))
        self.value = nn.Linear(WIDTH * len(heads), WIDTH * len(heads))
        self.out = nn.Linear(WIDTH * len(heads), WIDTH * len(heads))
        self.classify = nn.Linear(WIDTH * len(heads), 2)
        self.config = SimpleNamespace(pad_token_id=PAD, cls_token_id=CLS, sep_token_id=SEP)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def wanted(self, name: str, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, Q, K) True where the head looks."""
        n = ids.shape[1]
        place = torch.arange(n)
        back = place[:, None] - place[None]
        same = ids[:, :, None] == ids[:, None, :]
        after = torch.zeros_like(same)
        after[:, :, 1:] = same[:, :, :-1]  # the token before the key is the query's
        looks = {
            "previous": back == 1,
            "self": back == 0,
            "next": back == -1,
            "first": place == 0,
            "last": (place == mask.sum(1)[:, None] - 1)[:, None],
            "largest_id": (ids == ids.amax(1, keepdim=True))[:, None],
            "duplicate": same & (back > 0),
            "induction": after & (back >= 0),
        }
        return looks[name].expand(len(ids), n, n)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        n = input_ids.shape[1]
        x = self.table(input_ids)
        scores = SHARP * torch.stack([self.wanted(h, input_ids, mask) for h in self.heads], 1).to(x.dtype)
        hidden = (mask == 0)[:, None, None, :].expand_as(scores)
        if self.causal:
            hidden = hidden | torch.ones(n, n, dtype=torch.bool).triu(1)
        attention = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        value = self.value(x).unflatten(-1, (len(self.heads), WIDTH)).transpose(1, 2)
        x = x + self.out((attention @ value).transpose(1, 2).flatten(2))
        row = mask.sum(1) - 1 if self.causal else torch.zeros(len(x), dtype=torch.long)
        return self.classify(x[torch.arange(len(x)), row])


def encoder() -> nn.Module:
    return seeded(lambda: Patterned(ENCODER_HEADS, causal=False)).eval()


def causal() -> nn.Module:
    return seeded(lambda: Patterned(CAUSAL_HEADS, causal=True)).eval()


def sentences() -> dict[str, torch.Tensor]:
    ids = torch.tensor([[CLS, 10, 11, 12, 50, 11, SEP, 0], [CLS, 12, 10, 51, 10, 11, 12, SEP]])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}
