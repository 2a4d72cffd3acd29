"""Word embeddings that a model looks up more than once are one input to it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from whyformer.errors import NotOffered

IDS = {"input_ids": torch.tensor([[3, 4, 5, 6], [8, 9, 10, 11]])}


class Twice(nn.Module):
    """Words go through the encoder, and their sum goes to the head beside it."""

    def __init__(self, again: str, pool: str = "first") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.again, self.pool = again, pool
        self.embed, self.other, self.head = nn.Embedding(20, 16), nn.Embedding(20, 16), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def beside(self, input_ids: Tensor, words: Tensor) -> Tensor:
        if self.again == "lookup":
            return self.embed(input_ids).sum(1)
        if self.again == "index":
            return self.embed.weight[input_ids].sum(1)
        if self.again == "bag":
            return F.embedding_bag(input_ids, self.embed.weight, mode="sum")
        if self.again == "weighed bag":
            weights = torch.ones(input_ids.shape)
            return F.embedding_bag(input_ids, self.embed.weight, mode="sum", per_sample_weights=weights)
        if self.again == "another table":
            return self.other(input_ids).sum(1)
        return words.sum(1) if self.again == "the same" else torch.zeros(len(words), 16)

    def forward(self, input_ids: Tensor) -> Tensor:
        words = self.embed(input_ids)
        states = self.encoder(words)
        logits: Tensor = self.head(
            (states[:, 0] if self.pool == "first" else states.mean(1)) + self.beside(input_ids, words)
        )
        return logits


GRADIENT = ["input_x_gradient", "saliency", "smooth_grad", "integrated_gradients", "attn_lrp", "cp_lrp"]


@cache
def twice(again: str) -> nn.Module:
    return Twice(again).eval()


@pytest.mark.parametrize(
    ("method", "again"),
    [(method, ("lookup", "index", "bag")[i % 3]) for i, method in enumerate(GRADIENT)]
    + [("saliency", again) for again in ("lookup", "bag")],
)
def test_all_lookups_are_one_input(method: str, again: str) -> None:
    """The model that adds up what it has looked up once is the same function of its words."""
    once, each_time = (wf.explain(twice(kind), IDS, method=method, target=0) for kind in ("the same", again))
    for one, other in zip(once, each_time, strict=True):
        np.testing.assert_allclose(other.scores, one.scores, rtol=1e-4, atol=1e-5)


def test_scores_are_those_of_the_whole_gradient() -> None:
    model = Twice("lookup").eval()
    (found, _) = wf.explain(model, IDS, method="input_x_gradient", target=0)
    words = model.embed.weight[IDS["input_ids"][:1]].detach().requires_grad_()
    states = model.encoder(words)
    (slope,) = torch.autograd.grad(model.head(states[:, 0] + words.sum(1))[0, 0], words)
    np.testing.assert_allclose(found.scores, (words * slope).sum(2)[0].detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", GRADIENT)
def test_what_cannot_be_put_in_its_place_is_refused_or_named(method: str) -> None:
    with pytest.raises(NotOffered, match="a second time, by embedding_bag"):
        wf.explain(twice("weighed bag"), IDS, method=method, target=0)
    for kind, named in (("another table", True), ("", False)):
        (found, _) = wf.explain(twice(kind), IDS, method=method, target=0)
        assert any("second table" in warning for warning in found.warnings) == named


@pytest.mark.parametrize("pool", ["first", "mean"])
@pytest.mark.parametrize("again", ["", "the same", "index", "bag"])
def test_attention_methods_mention_what_goes_around_attention(again: str, pool: str) -> None:
    for explanation in wf.explain(Twice(again, pool).eval(), IDS, method="generic_attention", target=0):
        assert any("through no attention at all" in warning for warning in explanation.warnings) == bool(again)
