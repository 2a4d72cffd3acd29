"""A model that was studied is not followed again; one that then does something else is."""

from __future__ import annotations

import copy
import threading
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
IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])


class Reader(nn.Module):
    """Layers of attention over tokens; the first token of a text may decide how they are computed."""

    layers = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)
        self.qkv = nn.ModuleList([nn.Linear(16, 48) for _ in range(3)])
        with torch.no_grad():
            for weights in self.parameters():
                weights.mul_(3)

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        return attend(q, k, v)

    def depth(self, first: int) -> int:
        return self.layers

    def row(self, first: int) -> int:
        return 0

    def forward(self, input_ids: Tensor) -> Tensor:
        x, first = self.words(input_ids), int(input_ids[0, 0])
        for number in range(self.depth(first)):
            q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv[number](x).chunk(3, -1))
            x = x + self.attention(number, q, k, v, first).transpose(1, 2).flatten(2)
        return self.head(x[:, self.row(first)])


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


def scores(model: nn.Module, method: str = "generic_attention", inputs: Any = IDS, target: Any = 1) -> list[Any]:
    inputs = {"input_ids": inputs} if isinstance(inputs, Tensor) else inputs
    return [e.scores for e in wf.explain(model, inputs, method=method, target=target)]


class Eager(Reader):
    """Attention written out, with batch and heads in one axis; or torch's own, for comparison."""

    def __init__(self, by: str = "bmm") -> None:
        super().__init__()
        self.by = by

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        if self.by == "torch's own":
            return attend(q, k, v)
        return self.folded(*(t.reshape(-1, *t.shape[2:]) for t in (q, k, v)), first).view(q.shape)

    def folded(self, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        scores = torch.bmm(q, k.transpose(1, 2)) / 2
        if self.by == "bmm":
            return torch.bmm(scores.softmax(-1), v)
        if self.by == "einsum":
            return torch.einsum("hqk,hkd->hqd", scores.softmax(-1), v)
        return torch.bmm(v.transpose(1, 2), scores.transpose(1, 2).softmax(1)).transpose(1, 2)


@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention"])
@pytest.mark.parametrize("by", ["torch's own", "bmm", "einsum", "values first"])
def test_attention_is_followed_once(by: str, method: str, followed: list[str]) -> None:
    model = Eager(by)
    first = scores(model, method)
    followed.clear()
    assert np.array_equal(scores(model, method), first)
    assert not followed
    longer = torch.arange(1, 19).reshape(3, 6)  # other sizes, of the batch and of the texts
    planned = scores(model, method, longer)
    assert not followed
    fresh = scores(Eager(by), method, longer)
    assert followed and np.array_equal(planned, fresh)


@pytest.mark.parametrize("name", ["t5", "detr"])  # what the heads of Swin and LXMERT read is looked at on each input
def test_streams_are_followed_once(name: str, followed: list[str]) -> None:
    case = CASES[name]
    model, target = case.build(case.implementations[-1]), {"detr": (2, 1)}.get(name, 1)
    first = scores(model, inputs=case.inputs(), target=target)
    followed.clear()
    again = scores(model, inputs=case.inputs(), target=target)
    assert not followed
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one, other)


class Fickle(Eager):
    """Attends by another function when a text begins with token 3: nothing about the model tells."""

    def folded(self, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        return attend(q, k, v) if first == 3 else super().folded(q, k, v, first)


def test_a_mismatch_is_followed_and_learned(followed: list[str]) -> None:
    model, plain, other = Fickle(), IDS + 1, IDS
    expected = {id(ids): scores(Fickle(), inputs=ids) for ids in (plain, other)}

    def require(ids: Tensor) -> None:
        followed.clear()
        np.testing.assert_allclose(scores(model, inputs=ids), expected[id(ids)], atol=1e-6)

    require(plain)
    require(plain)
    assert not followed
    require(other)
    assert followed, "the plan was another"
    require(other)
    assert not followed, "it was learned"
    for _ in range(GIVEN_UP):  # back and forth: in the end nothing is planned any more, and nothing is run twice
        require(plain)
        require(other)
    (first, _) = wf.explain(model, {"input_ids": plain}, method="generic_attention", target=1)
    assert first.cost.forwards == 1


class Turning(Reader):
    """Attention written out one way for short texts and another way for long ones, with the same calls."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.gate = way, nn.Linear(16, 64)

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        size, long = q.shape[2], q.shape[2] > 4
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        if self.way == "einsum":
            weights = (scores.transpose(2, 3).softmax(2) if long else scores.softmax(3)).contiguous()
            return torch.einsum("bhkq,bhkd->bhqd" if long else "bhqk,bhkd->bhqd", weights, v)
        weights = scores.softmax(3)
        if self.way == "constant":
            return (torch.full_like(weights, 1 / size) if long else weights) @ v
        gate = self.gate(q.transpose(1, 2).flatten(2)).unflatten(-1, (4, 16)).transpose(1, 2)[..., :size].sigmoid()
        return weights @ (gate @ v) if long else gate @ (weights @ v)


@pytest.mark.parametrize("way", ["einsum", "gate", "constant"])
@pytest.mark.parametrize("method", ["raw_attention", "generic_attention"])
def test_the_same_calls_with_other_operands_are_off_the_plan(method: str, way: str) -> None:
    short, long = IDS[:1, :4], IDS[:1]

    def said(model: nn.Module, ids: Tensor) -> Any:
        try:
            return scores(model, method, ids)[0]
        except wf.errors.WhyformerError as refusal:
            return type(refusal)

    warm = Turning(way)
    for _ in range(3):
        said(warm, short)
    expected = said(Turning(way), long)
    if isinstance(expected, type):
        assert said(warm, long) is expected
    else:
        np.testing.assert_allclose(said(warm, long), expected, atol=1e-5)


class HeadsFirst(Reader):
    """Heads stand in front of the inputs: with as many inputs as heads the two look alike."""

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        return attend(*(t.transpose(0, 1) for t in (q, k, v))).transpose(0, 1)


@pytest.mark.parametrize("memory", ["full", "fold"])
@pytest.mark.parametrize("method", ["raw_attention", "generic_attention"])
def test_as_many_inputs_as_heads_are_told_apart(method: str, memory: str) -> None:
    ids = torch.arange(20).view(4, 5)
    alone = [scores(HeadsFirst(), method, row[None])[0] for row in ids]
    try:
        together = wf.explain(HeadsFirst(), {"input_ids": ids}, method=method, target=1, memory=memory)
    except wf.errors.NotOffered as refusal:
        assert memory == "fold" and "whole map" in str(refusal)
        return
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.scores, other, atol=1e-5)


# Models that do something else with some inputs


class Odd(Reader):
    """Does ``what`` with a text that begins with token 7, or with every other one."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def depth(self, first: int) -> int:
        return {"deeper": 3, "outside the graph": 3, "shallower": 1}.get(self.what, 2) if first == 7 else 2

    def row(self, first: int) -> int:
        return 3 if first == 7 and self.what == "another row" else 0

    def attention(self, number: int, q: Tensor, k: Tensor, v: Tensor, first: int) -> Tensor:
        if self.what == "skipping" and number and first != 7:
            return v.relu()
        if self.what == "outside the graph" and number == 2:
            with torch.no_grad():
                weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
            return weights @ v
        if self.what == "masked" and first == 7:
            return attend(q, k, v, attn_mask=torch.ones(5, 5, dtype=torch.bool).tril())
        if self.what == "written out" and first == 7 and number:
            return (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        if self.what == "on three axes" and first == 7 and number:  # torch writes such a call out
            return attend(q[0], k[0], v[0])[None]
        return attend(q, k, v)


PLAIN, ODD = torch.tensor([[3, 4, 5, 6, 9]]), torch.tensor([[7, 4, 5, 6, 9]])


@pytest.mark.parametrize(
    "what",
    ["deeper", "shallower", "written out", "skipping", "on three axes", "outside the graph", "masked", "another row"],
)
def test_what_an_input_does_to_the_model_is_noticed(what: str) -> None:
    known = Odd(what)
    before = scores(known, inputs=PLAIN)
    scores(known, inputs=PLAIN)
    np.testing.assert_allclose(scores(known, inputs=ODD), scores(Odd(what), inputs=ODD), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scores(known, inputs=PLAIN), before, rtol=1e-5, atol=1e-6)


class Named(Reader):
    """Says where its words are looked up, as models of transformers do; a first token of 8 changes how."""

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def read(self, ids: Tensor) -> Tensor:
        return self.words(ids)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.read(input_ids)
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv[0](x).chunk(3, -1))
        return self.head((x + attend(q, k, v).transpose(1, 2).flatten(2))[:, 0])


class Direct(Named):
    def read(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.words.weight) if int(ids[0, 0]) == 8 else self.words(ids)


class Twice(Named):
    def read(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.words(ids) if int(ids[0, 0]) == 8 else self.words(ids)


class Besides(Named):
    """Calls the module once, and reads its weight without it for some inputs."""

    def read(self, ids: Tensor) -> Tensor:
        x: Tensor = self.words(ids)
        return x + self.others(ids, self.words.weight) if int(ids[0, 0]) == 8 else x

    def others(self, ids: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.embedding(ids, weight)


class ByIndex(Besides):
    def others(self, ids: Tensor, weight: Tensor) -> Tensor:
        return weight[ids]


class Bag(Besides):
    def others(self, ids: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.embedding_bag(ids, weight, mode="sum")[:, None]


@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients", "attn_lrp"])
@pytest.mark.parametrize("kind", [Named, Direct, Twice, Besides, ByIndex, Bag])
def test_words_that_are_looked_up_in_another_way_are_found(kind: type[Named], method: str) -> None:
    explainer, texts = wf.Explainer(kind()), [IDS[:1], IDS[:1], IDS[1:], IDS[:1]]
    for ids in texts:
        (found,) = explainer.explain((ids,), method=method, target=1)
        (alone,) = wf.explain(kind(), (ids,), method=method, target=1)
        np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-5, atol=1e-6)
        assert (found.cost.forwards, found.cost.backwards) == (alone.cost.forwards, alone.cost.backwards)


@pytest.mark.parametrize("method", ["input_x_gradient", "saliency"])
def test_later_gradients_respect_hooks_of_others_and_leave_parameters_as_they_are(method: str) -> None:
    model, kinds = Named(), set[type]()
    model.words.register_forward_hook(lambda module, args, out: out * 2)
    model.head.register_forward_hook(lambda *_: kinds.add(type(model.words.weight)))
    explainer = wf.Explainer(model)
    first, later = (explainer.explain((IDS,), method=method, target=1) for _ in range(2))
    for one, other in zip(first, later, strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.detail, other.detail)
    assert kinds == {nn.Parameter}


def test_other_threads_get_the_words_of_their_own_inputs_meanwhile() -> None:
    model, plain, seen = Named().eval(), list[Tensor](), list[Tensor]()

    def run_beside(*_: Any) -> None:
        thread = threading.Thread(target=lambda: seen.append(model.words(IDS)))
        thread.start()
        thread.join()

    plain.append(model.words(IDS).detach())
    explainer = wf.Explainer(model)
    explainer.explain((IDS,), method="integrated_gradients", target=1)
    model.head.register_forward_hook(run_beside)
    for _ in range(2):
        explainer.explain((IDS,), method="integrated_gradients", target=1, steps=4)
    assert len(seen) > 2
    assert all(torch.equal(words, plain[0]) and not words.requires_grad for words in seen)


class Chosen(Named):
    """Calls the same functions for every input; a first token of 8 decides what the last of them reads."""

    def __init__(self, read_by: str) -> None:
        super().__init__()
        self.read_by = read_by

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv[0](x).chunk(3, -1))
        x = x + attend(q, k, v).transpose(1, 2).flatten(2)
        other = int(input_ids[0, 0]) == 8
        if self.read_by == "swapped product":
            factors = x[:, 0].sigmoid(), x.mean(1)
            return self.head(torch.mul(*(factors[::-1] if other else factors)))
        gate = (torch.full(x.shape, 0.7), x.sigmoid())[other]
        return self.head((x * gate if self.read_by == "product" else x + nn.functional.gelu(gate))[:, 0])


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp"])
@pytest.mark.parametrize("read_by", ["product", "activation", "swapped product"])
@pytest.mark.parametrize("order", [(0, 0, 1, 0), (1, 1, 0, 1)])
def test_a_planned_function_of_other_tensors_is_found(order: tuple[int, ...], read_by: str, method: str) -> None:
    torch.manual_seed(0)
    model = Chosen(read_by)
    explainer = wf.Explainer(model)
    for row in order:
        (found,) = explainer.explain((IDS[row : row + 1],), method=method, target=1)
        (alone,) = wf.explain(copy.deepcopy(model), (IDS[row : row + 1],), method=method, target=1)
        np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-5, atol=1e-6)
