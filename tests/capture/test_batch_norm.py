"""Gradients behind batch norm, of one picture and of several."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import randn, seeded


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


def test_one_picture_has_the_gradient_that_it_has_among_others():
    model, pixels = seeded(Normed), randn(2, 3, 32, 32, seed=1)
    with torch.no_grad():
        model.norm.running_var.uniform_(0.5, 2, generator=torch.Generator().manual_seed(0))
    explainer = wf.Explainer(model)
    options = {"method": "input_x_gradient", "target": 1, "progress": False}
    among, alone = (
        explainer.explain({"pixel_values": pixels}, **options)[0],
        [
            explainer.explain({"pixel_values": pixels[:1]}, **options)[0],
            wf.explain(model, {"pixel_values": pixels[:1]}, **options)[0],
        ],
    )
    leaf = pixels.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)  # of two at once torch's own is right
    expected = (leaf * gradient).detach()[0].sum(0).reshape(4, 8, 4, 8).sum((1, 3)).flatten()
    for result in (among, *alone):
        torch.testing.assert_close(torch.tensor(result.scores), expected, rtol=1e-4, atol=1e-5)
