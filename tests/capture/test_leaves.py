"""Where gradients begin: word embeddings looked up more than once are one input; one picture behind batch norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import randn, seeded
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

    def beside(self, ids: Tensor, words: Tensor) -> Tensor:
        bag = partial(F.embedding_bag, ids, self.embed.weight, mode="sum")
        kinds: dict[str, Callable[[], Tensor]] = {
            "": lambda: torch.zeros(len(words), 16),
            "the same": lambda: words.sum(1),
            "lookup": lambda: self.embed(ids).sum(1),
            "index": lambda: self.embed.weight[ids].sum(1),
            "bag": bag,
            "weighed bag": lambda: bag(per_sample_weights=torch.ones(ids.shape)),
            "another table": lambda: self.other(ids).sum(1),
        }
        return kinds[self.again]()

    def forward(self, input_ids: Tensor) -> Tensor:
        words = self.embed(input_ids)
        states = self.encoder(words)
        pooled = states[:, 0] if self.pool == "first" else states.mean(1)
        return self.head(pooled + self.beside(input_ids, words))


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


@pytest.mark.parametrize("method", ["saliency", "attn_lrp"])
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


class Normed(nn.Module):
    """Pixels as tokens, laid out by a convolution and batch norm in front of attention (CvT, LeViT)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 16, 8, 8), nn.BatchNorm2d(16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.norm(self.patches(pixel_values))
        return self.head(self.block(x.flatten(2).permute(0, 2, 1)).mean(1))


def test_one_picture_behind_batch_norm_has_the_gradient_that_it_has_among_others() -> None:
    model, pixels = seeded(Normed), randn(2, 3, 32, 32, seed=1)
    with torch.no_grad():
        model.norm.running_var.uniform_(0.5, 2, generator=torch.Generator().manual_seed(0))
    explainer = wf.Explainer(model)
    options = {"method": "input_x_gradient", "target": 1, "progress": False}
    shown = {"pixel_values": pixels}, {"pixel_values": pixels[:1]}
    leaf = pixels.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)  # of two at once torch's own is right
    expected = (leaf * gradient).detach()[0].sum(0).reshape(4, 8, 4, 8).sum((1, 3)).flatten()
    for result in (*(explainer.explain(x, **options)[0] for x in shown), wf.explain(model, shown[1], **options)[0]):
        torch.testing.assert_close(torch.tensor(result.scores), expected, rtol=1e-4, atol=1e-5)
