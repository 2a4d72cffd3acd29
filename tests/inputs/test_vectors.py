"""Sequences of vectors, (B, N, D), for models that put a token of their own among them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf

METHODS = [
    "raw_attention", "generic_attention", "input_x_gradient", "saliency", "smooth_grad", "integrated_gradients",
    "occlusion", "attn_lrp",
]  # fmt: skip
VECTORS = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


class Summary(nn.Module):
    """A token of its own, in front or behind, reads the vectors; padding is hidden."""

    def __init__(self, behind: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.behind, self.own, self.head = behind, nn.Parameter(torch.randn(1, 1, 16)), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True) for _ in range(2))

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        own, shown = self.own.expand(len(features), -1, -1), torch.ones_like(mask[:, :1])
        x = torch.cat([features, own] if self.behind else [own, features], 1)
        hidden = ~torch.cat([mask, shown] if self.behind else [shown, mask], 1).bool()
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        logits: Tensor = self.head(x[:, -1 if self.behind else 0])
        return logits


def model(behind: bool) -> nn.Module:
    return Summary(behind).eval()


@pytest.mark.parametrize("method", METHODS)
def test_padding_is_no_unit_and_changes_nothing(method: str) -> None:
    together = wf.explain(model(behind=False), {"features": VECTORS, "mask": MASK}, method=method, target=0)
    for row, (explanation, count) in enumerate(zip(together, (3, 5), strict=True)):
        names = [f"features[{i}]" for i in range(count)]
        own = int(np.flatnonzero(explanation.units.special)[0])
        assert [label for i, label in enumerate(explanation.units.labels) if i != own] == names
        alone = {"features": VECTORS[row : row + 1, :count], "mask": MASK[row : row + 1, :count]}
        (one,) = wf.explain(model(behind=False), alone, method=method, target=0)
        np.testing.assert_allclose(explanation.scores, one.scores, atol=1e-5)


@pytest.mark.parametrize("behind", [False, True])
def test_integrated_gradients_start_at_the_vectors_and_leave_the_models_own_token(behind: bool) -> None:
    net = model(behind)
    nodes, weights = np.polynomial.legendre.leggauss(50)
    mask = MASK[1:]

    def gradient(vectors: Tensor) -> Tensor:
        leaf = vectors.clone().requires_grad_()
        return torch.autograd.grad(net(leaf, mask)[0, 0], leaf)[0]

    path = sum(w / 2 * gradient(VECTORS[1:] * float((t + 1) / 2)) for t, w in zip(nodes, weights, strict=True))
    expected = (VECTORS[1:] * path).sum(-1)[0]
    (explanation,) = wf.explain(net, {"features": VECTORS[1:], "mask": mask}, method="integrated_gradients", target=0)
    special = np.array(explanation.units.special)
    np.testing.assert_allclose(explanation.scores[~special], expected, atol=1e-4)
    assert explanation.scores[special] == 0
