"""A model that was studied is not followed again; one that then does something else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from whyformer.capture.trail import Trail


class Changeable(nn.Module):
    """Two layers of attention by torch's own function, or written out, or with one layer left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 16)
        self.qkv = nn.ModuleList([nn.Linear(16, 48) for _ in range(2)])
        self.head = nn.Linear(16, 3)
        self.written_out = False
        self.layers = 2

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        for layer in list(self.qkv)[: self.layers]:
            q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in layer(x).chunk(3, -1))
            if self.written_out:
                out = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
            else:
                out = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + out.transpose(1, 2).flatten(2)
        return self.head(x[:, 0])


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that were followed."""
    names: list[str] = []
    follow = Trail.follow

    def watched(self: Trail, name: str, *args: Any) -> None:
        names.append(name)
        follow(self, name, *args)

    monkeypatch.setattr(Trail, "follow", watched)
    return names


IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])


def scores(model: nn.Module, method: str) -> np.ndarray[Any, Any]:
    return np.stack([e.scores for e in wf.explain(model, {"input_ids": IDS}, method=method, target=1)])


@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention", "grad_sam"])
def test_nothing_is_followed_once_the_model_is_known(method: str, followed: list[str]) -> None:
    model = Changeable()
    first = scores(model, method)
    followed.clear()
    assert np.array_equal(scores(model, method), first)
    assert not followed


@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention"])
@pytest.mark.parametrize("change", [{"written_out": True}, {"layers": 1}])
def test_a_model_that_does_something_else_is_followed_again(method: str, change: dict[str, Any]) -> None:
    known, new = Changeable(), Changeable()
    scores(known, method)
    for name, value in change.items():
        setattr(known, name, value)
        setattr(new, name, value)
    np.testing.assert_allclose(scores(known, method), scores(new, method), atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "vit", "llama", "gpt2"])
def test_maps_without_following_are_the_maps_with_it(name: str) -> None:
    case = CASES[name]
    model, inputs = case.build(case.implementations[0]), case.inputs()
    explainer = wf.Explainer(model)
    study = explainer.study(inputs)
    planned = [e.scores for e in explainer.explain(inputs, method="generic_attention", target=1)]
    study.__dict__["fused_paths"] = ()
    study.plans.plans.clear()
    again = [e.scores for e in explainer.explain(inputs, method="generic_attention", target=1)]
    for one, other in zip(planned, again, strict=True):
        assert np.array_equal(one, other)
