"""Units at their positions: models that read the input in another order than it is given, or put tokens around it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.models.case import randint, randn, seeded
from tests.references.shap import shap
from tests.support.released import images_in_prompts
from whyformer.errors import BadInput, NotOverUnits, PartlyCaptured

WIDTH, TARGET, OTHER = 16, 1, 7
IDS = randint(8, 40, 2, 6, seed=3)
PIXELS = randn(2, 3, 12, 16, seed=4)  # three rows of four patches
OTHER_ORDERS = ["by column", "mirrored", "unfolded by column", "overlapping by column"]


class Layers(nn.Module):
    """Two layers over whatever is put in, and a head on one position."""

    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        self.fused, self.head = fused, nn.Linear(WIDTH, 3)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x: Tensor, read: int = 0) -> Tensor:
        for project, norm in zip(self.qkv, self.norms, strict=True):
            q, k, v = project(norm(x)).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            if self.fused:
                out = F.scaled_dot_product_attention(q, k, v)
            else:
                out = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
            x = x + out.transpose(1, 2).flatten(2)
        return self.head(x[:, read])


class Words(nn.Module):
    """order: what happens to the text on its way; cls: where a learned token stands among the words."""

    def __init__(self, order: str = "", cls: int | None = None) -> None:
        super().__init__()
        self.order, self.at = order, cls
        self.words, self.places = nn.Embedding(50, WIDTH), nn.Parameter(torch.zeros(12, WIDTH))
        self.cls, self.layers = nn.Parameter(torch.zeros(1, 1, WIDTH)), Layers()

    def forward(self, input_ids: Tensor) -> Tensor:
        ids = {"flipped": input_ids.flip(1), "rolled": input_ids.roll(1, 1)}.get(self.order, input_ids)
        x = self.words(ids)
        if self.at is not None:
            x = torch.cat([x[:, : self.at], self.cls.expand(len(x), -1, -1), x[:, self.at :]], 1)
        return self.layers(x + self.places[: x.shape[1]], self.at or 0)


class Patches(nn.Module):
    def __init__(self, order: str, fused: bool) -> None:
        super().__init__()
        self.order, self.cut = order, nn.Conv2d(3, WIDTH, 4, 4)
        self.wide, self.flat = nn.Conv2d(3, WIDTH, 6, 4, 1), nn.Linear(48, WIDTH)
        self.cls, self.places = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(13, WIDTH))
        self.layers = Layers(fused)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(len(pixel_values), -1, -1), self.tokens(pixel_values)], 1)
        return self.layers(x + self.places)

    def tokens(self, pixels: Tensor) -> Tensor:
        if self.order.startswith("unfolded"):
            cells = pixels.unflatten(3, (4, 4)).unflatten(2, (3, 4))  # B C rows 4 columns 4
            order = (0, 4, 2, 1, 3, 5) if self.order.endswith("by column") else (0, 2, 4, 1, 3, 5)
            return self.flat(cells.permute(order).flatten(3).flatten(1, 2))
        embed = self.wide if self.order.startswith("overlapping") else self.cut
        cells = embed(pixels.flip(3) if self.order == "mirrored" else pixels)
        if self.order.endswith("by column"):
            cells = cells.transpose(2, 3)
        return cells.flatten(2).transpose(1, 2)


@pytest.mark.parametrize("method", ["raw_attention", "generic_attention"])
@pytest.mark.parametrize("how", [{"order": "flipped"}, {"order": "rolled"}, {"cls": 2}], ids=str)
def test_a_text_in_another_order_is_refused(how: dict[str, Any], method: str) -> None:
    model = seeded(lambda: Words(**how))
    with pytest.raises(NotOverUnits, match="reorders the input"):
        wf.explain(model, {"input_ids": IDS}, method=method, target=TARGET)
    left_out = wf.explain(model, {"input_ids": IDS}, method="occlusion", target=TARGET, replace=OTHER)
    for one, ids in zip(left_out, IDS, strict=True):
        np.testing.assert_allclose(one.scores[:6], drops(model, ids, OTHER), atol=1e-5)


@pytest.mark.parametrize("name", ["clip", pytest.param("llava", marks=images_in_prompts)])
def test_patches_in_another_order_are_refused_among_several_streams(name: str) -> None:
    case = CASES[name]
    plain = case.build(case.implementations[0])
    assert len(wf.explain(plain, case.inputs(), method="generic_attention")) == 2
    model = case.build(case.implementations[0])
    (cut,) = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    cut.register_forward_hook(lambda module, args, cells: cells.transpose(2, 3))
    for method in ("generic_attention", *["attn_lrp"] * (name == "llava")):
        with pytest.raises(NotOverUnits, match="a change of the patch in row"):
            wf.explain(model, case.inputs(), method=method)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("order", ["", "unfolded", "overlapping", *OTHER_ORDERS])
def test_patches_in_another_order_are_refused(order: str, fused: bool) -> None:
    """Row by row they are not."""
    model = seeded(lambda: Patches(order, fused))
    if order not in OTHER_ORDERS:
        assert wf.explain(model, {"pixel_values": PIXELS}, method="raw_attention")[0].units.grid == (3, 4)
        return
    with pytest.raises(NotOverUnits, match="a change of the patch in row"):
        wf.explain(model, {"pixel_values": PIXELS}, method="raw_attention", target=TARGET)


class Columns(nn.Module):
    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.order, self.layers = list(order), Layers()
        self.weights, self.kinds = nn.Parameter(torch.zeros(3, WIDTH)), nn.Embedding(8, WIDTH)

    def forward(self, x_num: Tensor, x_cat: Tensor) -> Tensor:
        columns = [*(x_num[..., None] * self.weights).unbind(1), *self.kinds(x_cat).unbind(1)]
        return self.layers(torch.stack([columns[i] for i in self.order], 1))


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 4, 0, 1, 2), (0, 3, 4, 1, 2), (0, 2, 1, 3, 4)], ids=str)
def test_columns_in_another_order_are_refused_unless_they_are_described(order: tuple[int, ...]) -> None:
    """Where two of one tensor trade places; where tensors stand is found, and by a description also each column."""
    model = seeded(lambda: Columns(order))
    numbers, codes = randn(2, 3, seed=5), torch.tensor([[1, 3], [2, 0]])
    if order != (0, 2, 1, 3, 4):
        (one, _) = wf.explain(model, (numbers, codes), method="raw_attention", target=TARGET)
        names = [*(f"x_num[{i}]" for i in range(3)), *(f"x_cat[{i}]" for i in range(2))]
        assert one.units.labels == tuple(names[i] for i in order)
    else:
        with pytest.raises(NotOverUnits, match="the position of each column is detected"):
            wf.explain(model, (numbers, codes), method="raw_attention", target=TARGET)
        one = None
    table = wf.Table(numerical=list("abc"), categorical={"d": list(range(8)), "e": list(range(8))})
    ready = {"numerical": numbers, "categorical": codes}
    (named, _) = wf.explain(model, ready, processor=table, method="raw_attention", target=TARGET)
    with pytest.raises(BadInput, match="'numerical' and 'categorical', in a dict"):
        wf.explain(model, (numbers, codes), processor=table, method="raw_attention")
    assert named.units.labels == tuple("abcde"[i] for i in order)
    assert one is None or np.array_equal(one.scores, named.scores)


def test_colours_that_come_last_are_refused() -> None:
    with pytest.raises(BadInput, match="3 channels last"):
        wf.explain(seeded(lambda: Patches("", True)), {"pixel_values": PIXELS.permute(0, 2, 3, 1)}, method="saliency")


# A token of the model's own around the words is none of them.


@torch.no_grad()
def drops(model: nn.Module, ids: Tensor, other: int) -> np.ndarray:
    return (model(ids[None])[0, TARGET] - model(ids.repeat(6, 1).fill_diagonal_(other))[:, TARGET]).numpy()


@pytest.mark.parametrize("cls", [0, 6])
def test_words_beside_a_token_of_the_models_own(cls: int) -> None:
    model = seeded(lambda: Words(cls=cls))
    span = slice(1, 7) if cls == 0 else slice(0, 6)
    how = {"target": TARGET, "replace": OTHER}
    found = wf.explain(model, {"input_ids": IDS}, method=["occlusion", "shap", "two_ended"], **how)
    for number, ids in enumerate(IDS):
        left_out, shares, ends = (found[name][number] for name in ("occlusion", "shap", "two_ended"))
        assert left_out.units.labels[span] == tuple(map(str, ids.tolist()))
        np.testing.assert_allclose(left_out.scores[span], drops(model, ids, OTHER), atol=1e-5)

        @torch.no_grad()
        def value(present: frozenset[int], ids: Tensor = ids) -> float:
            there = torch.tensor([i in present for i in range(6)])
            return float(model(torch.where(there, ids, OTHER)[None])[0, TARGET])

        np.testing.assert_allclose(shares.scores[span], shap(value, 6), atol=1e-5)
        alone = [value(frozenset({i})) - value(frozenset()) for i in range(6)]
        np.testing.assert_allclose(ends.scores[span], (drops(model, ids, OTHER) + alone) / 2, atol=1e-5)
        assert all(one.scores[0 if cls == 0 else 6] == 0 for one in (left_out, shares, ends))
    free = wf.explain(model, {"input_ids": IDS}, method="shap", keep_special=False, **how)
    np.testing.assert_allclose(free[0].scores, found["shap"][0].scores, atol=1e-6)


# Keys that are no positions, and products that are no attention


class WithMemory(nn.Module):
    """nn.MultiheadAttention with keys of its own, or a codebook that every position looks up in."""

    def __init__(self, codes: int = 0, **how: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 3)
        self.places = nn.Parameter(torch.zeros(12, WIDTH))
        self.codes = nn.Parameter(torch.zeros(codes, WIDTH))
        self.attentions = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2, batch_first=True, **how) for _ in range(2))

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places[: input_ids.shape[1]]
        for attention in self.attentions:
            x = x + attention(x, x, x)[0]
            if len(self.codes):
                x = x + (x @ self.codes.T).softmax(-1) @ self.codes
        return self.head(x[:, 0])


@pytest.mark.parametrize(("how", "memory"), [("add_bias_kv", "full"), ("add_zero_attn", "fold")])
def test_keys_of_the_models_own_are_refused(how: str, memory: str) -> None:
    model, inputs = seeded(lambda: WithMemory(**{how: True})), {"input_ids": IDS}
    for method in ("attention_rollout", "grad_sam"):
        with pytest.raises(NotOverUnits, match="attention over 7 keys from 6 positions"):
            wf.explain(model, inputs, method=method, target=TARGET, memory=memory)
    found = wf.explain(model, inputs, method=["occlusion", "input_x_gradient"], target=TARGET, replace=OTHER)
    np.testing.assert_allclose(found["occlusion"][1].scores, drops(model, IDS[1], OTHER), atol=1e-5)
    assert len(found["input_x_gradient"][1].scores) == 6


def test_a_codebook_leaves_methods_alone_that_need_no_map() -> None:
    model = seeded(lambda: WithMemory(codes=6))  # as many as there are words
    with pytest.raises(PartlyCaptured, match="could not be matched with the value tensors"):
        wf.explain(model, {"input_ids": IDS}, method="attention_rollout", target=TARGET)
    (one, _) = wf.explain(model, {"input_ids": IDS}, method="occlusion", target=TARGET, replace=OTHER)
    np.testing.assert_allclose(one.scores, drops(model, IDS[0], OTHER), atol=1e-5)


class Mixed(nn.Module):
    """Vectors go through a recurrent layer, a short convolution, or from one step to another, before the attention."""

    def __init__(self, texts: bool, by: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(30, 16) if texts else nn.Linear(3, 16)
        self.by, self.recurrent, self.one = by, nn.GRU(16, 16, batch_first=True), nn.Linear(16, 16)
        self.neighbours = nn.Conv1d(16, 16, 3, padding=1)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def encoded(self, x: Tensor) -> Tensor:
        states = self.embed(x)
        states = states.sum(2) if states.ndim == 4 else states  # several words at each step
        self.entered = states
        if self.by == "recurrent":
            states = self.recurrent(states)[0]
        elif self.by == "neighbours":
            states = states + self.neighbours(states.transpose(1, 2)).transpose(1, 2)
        else:
            states = torch.cat([states[:, :1] + self.one(states[:, 5:6]), states[:, 1:]], 1)
        return self.layer(states)[:, 0]


class OneSeries(Mixed):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoded(x))


class TwoTexts(Mixed):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(self.encoded(a) * self.encoded(b))


@pytest.mark.parametrize("by", ["recurrent", "neighbours", "one"])
def test_steps_that_are_mixed_before_the_attention_are_said_to_be(by: str) -> None:
    model = OneSeries(texts=False, by=by).eval()
    by_attention = wf.explain(model, {"x": torch.randn(1, 9, 3)}, method="attention_rollout", target=0)[0]
    assert any("mixed before the first attention" in w for w in by_attention.warnings) == (by != "neighbours")
    masked = wf.explain(model, {"x": torch.randn(1, 9, 3)}, method="occlusion", target=0)[0]
    assert not any("mixed before" in w for w in masked.warnings)


@pytest.mark.parametrize("by", ["recurrent", "neighbours"])
def test_gradients_are_taken_where_steps_are_not_mixed_yet(by: str) -> None:
    model = OneSeries(texts=True, by=by).eval()
    ids = torch.randint(1, 30, (1, 7, 2))  # two words at each step
    scores = wf.explain(model, {"x": ids}, method="input_x_gradient", target=0, scalar="logit")[0].scores
    (slope,) = torch.autograd.grad(model(ids)[0, 0], [model.entered])
    np.testing.assert_allclose(scores, (slope * model.entered)[0].sum(1).detach(), atol=1e-5)


def test_words_that_are_mixed_before_the_attention_of_one_of_two_texts_are_refused() -> None:
    inputs = {"a": torch.randint(1, 30, (1, 5)), "b": torch.randint(1, 30, (1, 6))}
    with pytest.raises(PartlyCaptured, match="mixed before the first attention"):
        wf.explain(TwoTexts(texts=True, by="recurrent").eval(), inputs, method="attention_rollout", target=0)


class TwoSeries(nn.Module):
    """Steps of one series ask as many steps of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, WIDTH), nn.Linear(3, WIDTH)
        self.attention, self.head = nn.MultiheadAttention(WIDTH, 2, batch_first=True), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor, constant: bool = False) -> Tensor:
        queries, values = self.first(x), self.second(y)
        asking, asked = (queries.detach(), values.detach()) if constant else (queries, values)
        return self.head((queries + self.attention(asking, asked, values)[0]).mean(1))


@pytest.mark.parametrize("method", ["input_x_gradient", "cp_lrp"])
def test_each_of_two_equally_long_series_has_its_own_scores(method: str) -> None:
    model, inputs = seeded(TwoSeries), {"x": randn(1, 6, 3, seed=5), "y": randn(1, 6, 3, seed=6)}
    scores = wf.explain(model, inputs, method=method, target=0, scalar="logit")[0].scores
    x, y = (t.clone().requires_grad_() for t in inputs.values())
    value = model(x, y, constant=method == "cp_lrp")[0, 0]  # whose rule leaves attention weights as they are
    slopes = torch.autograd.grad(value, [x, y])
    expected = torch.cat([(t * slope)[0].sum(1) for t, slope in zip((x, y), slopes, strict=True)]).detach()
    np.testing.assert_allclose(scores, expected, atol=1e-5)


class Pooled(nn.Module):
    """A query of the model's own reads what a recurrent layer makes of a text, or of channels that come first."""

    def __init__(self, texts: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, WIDTH) if texts else nn.Conv1d(2, WIDTH, 4, 4)
        self.mix, self.query = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        states = self.mix(self.embed(x) if x.ndim == 2 else self.embed(x).mT)[0]
        return self.head(((self.query @ states.mT).softmax(-1) @ states)[:, 0])


def test_words_that_were_mixed_before_a_query_pools_them_are_said_to_be() -> None:
    pooled = wf.explain(seeded(partial(Pooled, True)), torch.randint(1, 30, (1, 6)), method="raw_attention", target=0)[
        0
    ]
    assert any("mixed before the first attention" in warning for warning in pooled.warnings)


def test_positions_that_are_no_steps_are_refused_where_a_query_pools_them() -> None:
    with pytest.raises(NotOverUnits, match="units were mixed"):
        wf.explain(seeded(partial(Pooled, False)), torch.randn(1, 2, 12), method="raw_attention", target=0)
