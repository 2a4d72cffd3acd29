"""A model that was studied is not followed again; one that then does something else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from whyformer.capture.site import GIVEN_UP
from whyformer.capture.trail import Trail

attend = nn.functional.scaled_dot_product_attention


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
    study.__dict__["torch_own"] = ()
    study.plans.plans.clear()
    again = [e.scores for e in explainer.explain(inputs, method="generic_attention", target=1)]
    for one, other in zip(planned, again, strict=True):
        assert np.array_equal(one, other)


# Models whose attention is not torch's own function


class Eager(nn.Module):
    """Attention written out, with batch and heads in one axis."""

    def __init__(self, by: str = "bmm") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 16)
        self.qkv = nn.ModuleList([nn.Linear(16, 48) for _ in range(2)])
        self.head = nn.Linear(16, 3)
        self.by = by

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.bmm(q, k.transpose(1, 2)) / 2
        if self.by == "bmm":
            return torch.bmm(scores.softmax(-1), v)
        if self.by == "einsum":
            return torch.einsum("hqk,hkd->hqd", scores.softmax(-1), v)
        return torch.bmm(v.transpose(1, 2), scores.transpose(1, 2).softmax(1)).transpose(1, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        rows, length = input_ids.shape
        for layer in self.qkv:
            parts = (t.view(rows, length, 4, 4).transpose(1, 2) for t in layer(x).chunk(3, -1))
            out = self.attended(*(t.reshape(rows * 4, length, 4) for t in parts))
            x = x + out.view(rows, 4, length, 4).transpose(1, 2).flatten(2)
        return self.head(x[:, 0])


class Torchs(nn.Module):
    """nn.MultiheadAttention, which gives its weights back and so leaves its fused kernel alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList([nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(2)])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=True)[0]
        return self.head(x[:, 0])


OTHERS = {
    "bmm": lambda: Eager("bmm"),
    "einsum": lambda: Eager("einsum"),
    "values first": lambda: Eager("transposed"),
    "MultiheadAttention": Torchs,
}


@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention"])
@pytest.mark.parametrize("name", OTHERS)
def test_written_out_attention_is_followed_once(name: str, method: str, followed: list[str]) -> None:
    model = OTHERS[name]().eval()
    first = scores(model, method)
    followed.clear()
    assert np.array_equal(scores(model, method), first)
    assert not followed
    longer = {"input_ids": torch.arange(1, 19).reshape(3, 6)}  # other sizes, of the batch and of the texts
    planned = [e.scores for e in wf.explain(model, longer, method=method, target=1)]
    assert not followed
    fresh = [e.scores for e in wf.explain(OTHERS[name]().eval(), longer, method=method, target=1)]
    assert followed and np.array_equal(planned, fresh)


@pytest.mark.parametrize("name", ["t5", "lxmert", "swin", "detr"])
def test_streams_and_windows_are_followed_once(name: str, followed: list[str]) -> None:
    case = CASES[name]
    model, inputs = case.build(case.implementations[-1]), case.inputs()
    target = {"detr": (2, 1)}.get(name, 1)
    first = [e.scores for e in wf.explain(model, inputs, method="generic_attention", target=target)]
    followed.clear()
    again = [e.scores for e in wf.explain(model, inputs, method="generic_attention", target=target)]
    assert not followed
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one, other)


class Fickle(Eager):
    """Attends by another function when a text begins with token 3: nothing about the model tells."""

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.differs:
            return nn.functional.scaled_dot_product_attention(q, k, v)
        return super().attended(q, k, v)

    def forward(self, input_ids: Tensor) -> Tensor:
        object.__setattr__(self, "differs", bool(input_ids[0, 0] == 3))
        return super().forward(input_ids)


def test_a_mismatch_is_followed_and_learned(followed: list[str]) -> None:
    model = Fickle().eval()
    plain, other = {"input_ids": IDS + 1}, {"input_ids": IDS}
    expected = {
        text: [e.scores for e in wf.explain(Fickle().eval(), {"input_ids": ids}, method="generic_attention", target=1)]
        for text, ids in (("plain", IDS + 1), ("other", IDS))
    }

    def found(inputs: dict[str, Tensor]) -> list[np.ndarray[Any, Any]]:
        followed.clear()
        return [e.scores for e in wf.explain(model, inputs, method="generic_attention", target=1)]

    found(plain)
    assert np.array_equal(found(plain), expected["plain"]) and not followed
    np.testing.assert_allclose(found(other), expected["other"], atol=1e-6)
    assert followed, "the plan was another"
    np.testing.assert_allclose(found(other), expected["other"], atol=1e-6)
    assert not followed, "it was learned"
    for _ in range(GIVEN_UP):  # back and forth: in the end nothing is planned any more, and nothing is run twice
        np.testing.assert_allclose(found(plain), expected["plain"], atol=1e-6)
        np.testing.assert_allclose(found(other), expected["other"], atol=1e-6)
    (first, _) = wf.explain(model, plain, method="generic_attention", target=1)
    assert first.cost.forwards == 1


def test_maps_that_were_written_over_are_not_taken_for_the_model_s() -> None:
    class Reused(Changeable):
        """Writes into its queries once attention has read them."""

        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.words(input_ids)
            for layer in self.qkv:
                q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2).clone() for t in layer(x).chunk(3, -1))
                x = x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
                q.zero_()
            return self.head(x[:, 0])

    found, expected = (scores(model.eval(), "attention_rollout") for model in (Reused(), Changeable()))
    np.testing.assert_allclose(found, expected, rtol=1e-6)  # maps that are computed together are rounded otherwise


class Turning(nn.Module):
    """Attention written out one way for short texts and another way for long ones, with the same calls."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.words, self.head, self.gate = nn.Embedding(20, 16), nn.Linear(16, 3), nn.Linear(16, 64)
        self.qkv = nn.ModuleList([nn.Linear(16, 48) for _ in range(2)])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        size, long = input_ids.shape[1], input_ids.shape[1] > 4
        for layer in self.qkv:
            q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in layer(x).chunk(3, -1))
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
            if self.how == "einsum":
                weights = (scores.transpose(2, 3).softmax(2) if long else scores.softmax(3)).contiguous()
                out = torch.einsum("bhkq,bhkd->bhqd" if long else "bhqk,bhkd->bhqd", weights, v)
            elif self.how == "gate":
                weights = scores.softmax(3)
                gate = self.gate(x).unflatten(-1, (4, 16)).transpose(1, 2)[..., :size].sigmoid()
                out = weights @ (gate @ v) if long else gate @ (weights @ v)
            else:
                weights = scores.softmax(3)
                out = (torch.full_like(weights, 1 / size) if long and x is not None else weights) @ v
            x = x + out.transpose(1, 2).flatten(2)
        return self.head(x[:, 0])


@pytest.mark.parametrize("how", ["einsum", "gate", "constant"])
@pytest.mark.parametrize("method", ["raw_attention", "generic_attention"])
def test_the_same_calls_with_other_operands_are_off_the_plan(method: str, how: str) -> None:
    short, long = IDS[:1, :4], IDS[:1]

    def said(explainer: wf.Explainer, ids: Tensor) -> Any:
        try:
            return explainer.explain({"input_ids": ids}, method=method, target=1)[0].scores
        except wf.errors.WhyformerError as refusal:
            return type(refusal)

    model = Turning(how).eval()
    warm = wf.Explainer(model)
    for _ in range(3):
        said(warm, short)
    fresh = Turning(how).eval()
    expected = said(wf.Explainer(fresh), long)
    if isinstance(expected, type):
        assert said(warm, long) is expected
    else:
        np.testing.assert_allclose(said(warm, long), expected, atol=1e-5)


def test_a_buffer_that_serves_several_layers_is_read_in_time() -> None:
    class Reused(Changeable):
        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.words(input_ids)
            buffer = torch.empty(len(x), 4, x.shape[1], 4)
            for layer in self.qkv:
                q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in layer(x).chunk(3, -1))
                buffer.data.copy_(k.detach())
                x = x + nn.functional.scaled_dot_product_attention(q, buffer, v).transpose(1, 2).flatten(2)
            return self.head(x[:, 0])

    class Plain(Changeable):
        pass

    np.testing.assert_allclose(scores(Reused(), "attention_rollout"), scores(Plain(), "attention_rollout"), atol=1e-6)


class HeadsFirst(Changeable):
    """Heads stand in front of the inputs: with as many inputs as heads the two look alike."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        for layer in self.qkv:
            q, k, v = (t.unflatten(-1, (4, 4)).permute(2, 0, 1, 3) for t in layer(x).chunk(3, -1))
            x = x + nn.functional.scaled_dot_product_attention(q, k, v).permute(1, 2, 0, 3).flatten(2)
        return self.head(x[:, 0])


@pytest.mark.parametrize("memory", ["full", "fold"])
@pytest.mark.parametrize("method", ["raw_attention", "generic_attention"])
def test_as_many_inputs_as_heads_are_told_apart(method: str, memory: str) -> None:
    ids = torch.arange(20).view(4, 5)
    model = HeadsFirst().eval()
    alone = [wf.explain(HeadsFirst().eval(), {"input_ids": row[None]}, method=method, target=1)[0] for row in ids]
    try:
        together = wf.explain(model, {"input_ids": ids}, method=method, target=1, memory=memory)
    except wf.errors.NotOffered as refusal:
        assert memory == "fold" and "whole map" in str(refusal)
        return
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


# Models that do something else with some inputs


class Reader(nn.Module):
    """Two layers over tokens; the first token decides how they are read."""

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
        return attend(q, k, v)

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
        return attend(q, k, v)


class Skipping(Reader):
    """Its second layer has no attention, but for the odd text."""

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, how: int) -> Tensor:
        return v.relu() if number and how != 7 else attend(q, k, v)


class OnThreeAxes(Reader):
    """Torch writes such a call out."""

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, how: int) -> Tensor:
        if how == 7 and number:
            return attend(q[0], k[0], v[0])[None]
        return attend(q, k, v)


class OutsideTheGraph(Reader):
    """One layer more, whose map has no history."""

    def depth(self, how: int) -> int:
        return 3 if how == 7 else 2

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, how: int) -> Tensor:
        if number < 2:
            return attend(q, k, v)
        with torch.no_grad():
            weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        return weights @ v


class Masked(Reader):
    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, how: int) -> Tensor:
        mask = torch.ones(5, 5, dtype=torch.bool).tril() if how == 7 else None
        return attend(q, k, v, attn_mask=mask)


class Elsewhere(Reader):
    def row(self, how: int) -> int:
        return 3 if how == 7 else 0


PLAIN, ODD = torch.tensor([[3, 4, 5, 6, 9]]), torch.tensor([[7, 4, 5, 6, 9]])


@pytest.mark.parametrize(
    "build", [Deeper, Shallower, WrittenOut, Skipping, OnThreeAxes, OutsideTheGraph, Masked, Elsewhere]
)
def test_what_an_input_does_to_the_model_is_noticed(build: Callable[[], Reader]) -> None:
    def found(model: Reader, ids: Tensor) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = wf.explain(model, {"input_ids": ids}, method="generic_attention", target=1)[
            0
        ].scores
        return array

    known = build()
    before = found(known, PLAIN)
    found(known, PLAIN)
    np.testing.assert_allclose(found(known, ODD), found(build(), ODD), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found(known, PLAIN), before, rtol=1e-5, atol=1e-6)
