"""A pass that nothing watches: its attentions are those that a watched one shows, or it is watched after all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from whyformer.capture import lineage
from whyformer.capture.intercept import Intercept

F = nn.functional
Array = np.ndarray[Any, Any]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Functions of the model that were watched in passes with gradients."""
    names: list[str] = []
    seen = Intercept.__torch_function__

    def noted(self: Intercept, func: Any, *args: Any) -> Any:
        names.append(getattr(func, "__name__", ""))
        return seen(self, func, *args)

    monkeypatch.setattr(Intercept, "__torch_function__", noted)
    return names


class Reader(nn.Module):
    """Two layers over tokens; what stands first among them decides how they are read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 16)
        self.qkv = nn.ModuleList([nn.Linear(16, 48) for _ in range(3)])
        self.head = nn.Linear(16, 3)
        with torch.no_grad():
            for weights in self.parameters():
                weights.mul_(3)

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, how: int) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    def depth(self, how: int) -> int:
        return 2

    def row(self, how: int) -> int:
        return 0

    def forward(self, input_ids: Tensor) -> Tensor:
        x, how = self.words(input_ids), int(input_ids[0, 0])
        for number in range(self.depth(how)):
            q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv[number](x).chunk(3, -1))
            x = x + self.attention(number, q, k, v, how).transpose(1, 2).flatten(2)
        return self.head(x[:, self.row(how)])


class Deeper(Reader):
    def depth(self, how: int) -> int:
        return 3 if how == 7 else 2


class Shallower(Reader):
    def depth(self, how: int) -> int:
        return 1 if how == 7 else 2


class WrittenOut(Reader):
    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, how: int) -> Tensor:
        if how == 7 and number:
            return (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v)


class Skipping(Reader):
    """As many nodes on both ways, one of them a kernel on one."""

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, how: int) -> Tensor:
        return v.relu() if number and how != 7 else F.scaled_dot_product_attention(q, k, v)


class OnThreeAxes(Reader):
    """Torch writes such a call out."""

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, how: int) -> Tensor:
        if how == 7 and number:
            return F.scaled_dot_product_attention(q[0], k[0], v[0])[None]
        return F.scaled_dot_product_attention(q, k, v)


class OutsideTheGraph(Reader):
    """One layer more, whose map has no history."""

    def depth(self, how: int) -> int:
        return 3 if how == 7 else 2

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, how: int) -> Tensor:
        if number < 2:
            return F.scaled_dot_product_attention(q, k, v)
        with torch.no_grad():
            weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        return weights @ v


class Masked(Reader):
    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, how: int) -> Tensor:
        mask = torch.ones(5, 5, dtype=torch.bool).tril() if how == 7 else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Turned(Reader):
    """The same nodes, and another way through them."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x, turned = self.words(input_ids), int(input_ids[0, 0]) == 7
        for number in range(2):
            q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv[number](x).chunk(3, -1))
            said = self.attention(number, q, k, v, 0).transpose(1, 2).flatten(2)
            x = said + x if turned else x + said
        return self.head(x[:, 0])


class Elsewhere(Reader):
    def row(self, how: int) -> int:
        return 3 if how == 7 else 0


PLAIN, ODD = torch.tensor([[3, 4, 5, 6, 9]]), torch.tensor([[7, 4, 5, 6, 9]])


def scores(model: nn.Module, ids: Tensor, method: str = "generic_attention") -> Array:
    (result,) = wf.explain(model, {"input_ids": ids}, method=method, target=1)
    array: Array = result.scores
    return array


@pytest.mark.parametrize("method", ["generic_attention", "grad_sam", "gradient_rollout", "attention_gradcam"])
def test_the_second_pass_is_not_watched_and_says_the_same(method: str, watched: list[str]) -> None:
    model = Reader()
    first = scores(model, PLAIN, method)
    watched.clear()
    assert np.array_equal(scores(model, PLAIN, method), first)
    assert "linear" not in watched


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "llama", "distilbert"])
def test_of_known_families_the_second_pass_is_not_watched(name: str, watched: list[str]) -> None:
    case = CASES[name]
    model = case.build("sdpa")
    tensors = {key: value[:1] for key, value in case.inputs().items()}
    if "attention_mask" in tensors:
        length = int(tensors["attention_mask"].sum())
        tensors = {key: value[:, :length] if value.ndim == 2 else value for key, value in tensors.items()}
    (first,) = wf.explain(model, tensors, method="generic_attention")
    watched.clear()
    (second,) = wf.explain(model, tensors, method="generic_attention")
    np.testing.assert_allclose(second.scores, first.scores, rtol=0, atol=1e-6 * np.abs(first.scores).max())
    assert "linear" not in watched and second.cost.forwards == 1 and second.cost.backwards == 1


@pytest.mark.parametrize(
    "build", [Deeper, Shallower, WrittenOut, Skipping, OnThreeAxes, OutsideTheGraph, Masked, Elsewhere, Turned]
)
def test_what_an_input_does_to_the_model_is_noticed(build: Callable[[], Reader]) -> None:
    known = build()
    before = scores(known, PLAIN)
    scores(known, PLAIN)
    np.testing.assert_allclose(scores(known, ODD), scores(build(), ODD), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scores(known, PLAIN), before, rtol=1e-5, atol=1e-6)


def test_a_route_finds_what_a_walk_through_the_whole_graph_finds() -> None:
    logits = CASES["bert"].build("sdpa")(**CASES["bert"].inputs()).logits
    _, nodes = lineage.graph_of(logits)
    route = lineage.route_to(logits.grad_fn, nodes)
    assert len(route) == len(nodes) > 1 and lineage.routed(logits.grad_fn, route) == nodes
    assert lineage.routed(logits.grad_fn, (*route, (0, 0, 0))) is None
    assert lineage.route_to(nodes[0], nodes[:2]) == ()  # what ran later is not behind it


@pytest.mark.parametrize("wrong", [lambda nodes: nodes[::-1], lambda nodes: [nodes[1], nodes[1]]])
def test_a_route_that_leads_elsewhere_is_noticed(
    wrong: Callable[[list[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch, watched: list[str]
) -> None:
    model, routed, taken = Reader(), lineage.routed, list[int]()
    first = scores(model, PLAIN)

    def misled(start: Any, route: Any) -> list[Any] | None:
        nodes = routed(start, route)
        taken.extend([] if nodes is None else [len(nodes)])
        return None if nodes is None else wrong(nodes)

    monkeypatch.setattr(lineage, "routed", misled)
    for _ in range(2):
        assert np.array_equal(scores(model, PLAIN), first)
    assert taken == [2]  # no other one was taken after it
    watched.clear()
    assert np.array_equal(scores(model, PLAIN), first) and "linear" not in watched


def test_a_frozen_model_stays_frozen(watched: list[str]) -> None:
    free, frozen = Reader(), Reader().requires_grad_(False)
    expected = scores(free, PLAIN)
    scores(frozen, PLAIN)
    watched.clear()
    assert np.array_equal(scores(frozen, PLAIN), expected)
    assert "linear" not in watched and not any(p.requires_grad for p in frozen.parameters())
    assert all(p.requires_grad for p in free.parameters()) and all(p.grad is None for p in free.parameters())


class Renewed(Reader):
    """Writes into its first weight, which a leaf of the graph would not bear."""

    def forward(self, input_ids: Tensor) -> Tensor:
        if not self.words.weight.requires_grad:
            self.words.weight.mul_(1.0)
        elif torch.is_grad_enabled():
            self.words.weight.mul_(1.0)
        return super().forward(input_ids)


def test_a_model_that_writes_into_its_first_weight_is_watched() -> None:
    model = Renewed().requires_grad_(False)
    first = scores(model, PLAIN)
    for _ in range(2):
        assert np.array_equal(scores(model, PLAIN), first)
    assert not any(p.requires_grad for p in model.parameters())
