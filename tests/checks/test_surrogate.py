"""A copy fine-tuned on masked inputs: it minds absent parts less, the model stays as it was, and compare asks it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whyformer as wf
from whyformer.errors import BadInput, NotOffered

WIDTH = 8


class Nervous(nn.Module):
    """Says which sign the rows have, but shouts "other" as soon as one of them is missing (all zeros)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, batch_first=True, bias=False)
        self.read, self.missing = nn.Linear(2, 2, bias=False), nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            self.attention.in_proj_weight.copy_(torch.cat([torch.zeros(4, 2), torch.eye(2)]))
            self.attention.out_proj.weight.copy_(torch.eye(2))
            self.read.weight.copy_(torch.tensor([[2.0, 0], [-2.0, 0]]))
            self.missing.weight.copy_(torch.tensor([[-3.0], [3.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(x, x, x)
        gone = (x.abs().sum(-1) == 0).any(1).float()[:, None]
        return self.read(mixed[:, 0]) + self.missing(gone)


def rows(count: int, seed: int) -> torch.Tensor:
    """All are of class 0: positive signs, beside a number that says nothing."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.ones(count, WIDTH), torch.rand(count, WIDTH, generator=generator) + 0.5], -1)


def test_the_copy_learns_to_do_without_a_part_and_the_model_stays() -> None:
    model = Nervous().eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    surrogate = wf.masked_surrogate(model, {"x": rows(20, 0)}, beta=0.2, epochs=8, lr=0.1, seed=1)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters()) and not surrogate.model.training
    assert (surrogate.trained_on, surrogate.measured_on) == (16, 4)
    assert surrogate.before < 0.7 and surrogate.after == 1
    again = wf.masked_surrogate(model, {"x": rows(20, 0)}, beta=0.2, epochs=8, lr=0.1, seed=1)
    for one, other in zip(surrogate.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)

    # On the model itself a missing row turns the answer over, whichever it is; by the copy it does not.
    how: dict[str, Any] = {"methods": ["occlusion"], "metrics": {"f_fidelity_plus": {"beta": 0.2}}}
    itself = wf.compare(model, {"x": rows(3, 1)}, **how)
    by_copy = wf.compare(model, {"x": rows(3, 1)}, surrogate=surrogate.model, **how)
    falls, less = (np.mean(r.values["f_fidelity_plus"]["occlusion"]) for r in (itself, by_copy))
    assert falls > 0.5 and less < 0.2
    assert any("without its fine-tuning" in warning for warning in itself.warnings)
    assert not any("fine-tuning" in warning for warning in by_copy.warnings)
    assert itself["occlusion"].seconds > 0 and by_copy.values.keys() == itself.values.keys()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"inputs": {"x": rows(3, 0)}}, "too few"),
        ({"labels": [0, 1]}, "2 labels for 9 inputs"),
        ({"beta": 0.0}, "beta"),
        ({"lr": 1e30, "epochs": 9}, "infinity|labels"),
    ],
)
def test_mistakes_are_named(how: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, NotOffered), match=says):
        wf.masked_surrogate(Nervous().eval(), how.pop("inputs", {"x": rows(9, 0)}), **how)
