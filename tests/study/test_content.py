"""Models that sort their positions or leave out layers by content: every result is that of its input alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded
from whyformer.capture.roles import first_values
from whyformer.errors import CaptureError, NotOverUnits

SERIES = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(3))  # inputs, steps, variables


class Sorted(nn.Module):
    """Attention over the variables of a series, in an order that depends on the content, and a convolution over it."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.series, self.head, self.mixes = nn.Linear(5, 8), nn.Linear(8, 3), mixes
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.mix = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.series(x.transpose(1, 2))
        h = self.layer(h.gather(1, h.sum(2).argsort(1)[:, :, None].expand_as(h)))
        if self.mixes:
            h = h + torch.relu(self.mix(h.transpose(1, 2))).transpose(1, 2)
        return self.head(h[:, 0] + h.mean(1))


class Leaving(nn.Module):
    """A layer that is left out where the numbers of all inputs together are small, before any attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        if h.abs().mean() > 0.45:
            h = self.layer(h)
        return self.head(h.mean(1))


@pytest.mark.parametrize("build", [lambda: Sorted(True), lambda: Sorted(False), Leaving])
@pytest.mark.parametrize("method", ["auto", "occlusion", "attn_lrp"])
def test_what_depends_on_content_is_that_of_each_input_alone(build: Any, method: str) -> None:
    model = seeded(build)
    alone = [wf.explain(copy.deepcopy(model), {"x": one[None]}, method=method)[0] for one in SERIES]
    with torch.no_grad():
        np.testing.assert_allclose([e.value for e in alone], [float(model(one[None]).max()) for one in SERIES], 1e-4)
    for found, expected in zip(wf.explain(model, {"x": SERIES}, method=method), alone, strict=True):
        assert found.units.labels == expected.units.labels
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


class LastOfAll(nn.Module):
    """The head reads the last position, padding or not; places are few, so inputs cannot be made longer."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.embed, self.place, self.head = nn.Embedding(20, 8), nn.Parameter(torch.randn(places, 8)), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.embed(ids) + self.place[: ids.shape[1]]
        return self.head(self.layer(h, src_key_padding_mask=attention_mask == 0)[:, -1])


@pytest.mark.parametrize("places", [5, 9])
@pytest.mark.parametrize("method", ["occlusion", "generic_attention"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_head_that_reads_padding_is_refused_whatever_came_before(
    places: int, method: str, order: tuple[int, int]
) -> None:
    model, ids = seeded(lambda: LastOfAll(places)), torch.tensor([[14, 8, 19, 14, 11], [10, 8, 5, 0, 0]])
    for row in order:
        one = {"ids": ids[row : row + 1], "attention_mask": (ids[row : row + 1] > 0).long()}
        if row:
            with pytest.raises(CaptureError, match="is padding here"):
                wf.explain(model, one, method=method)
        else:
            assert wf.explain(model, one, method=method)[0].scores.any()


class SortedIds(nn.Module):
    """Ids of words and floats beside them: the words are sorted by their vectors, and mixed where mixing is asked."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.embed, self.beside, self.head = nn.Embedding(20, 8), nn.Linear(2, 8), nn.Linear(8, 3)
        self.mix = nn.Conv1d(8, 8, 3, padding=1) if mixes else nn.Identity()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, feats: Tensor, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        h = h.gather(1, h.sum(2).argsort(1)[..., None].expand_as(h))
        h = self.layer(h + self.mix(h.transpose(1, 2)).transpose(1, 2))
        return self.head(h[:, 0] + self.beside(feats))


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (lambda: Sorted(False), {"x": SERIES}),
        (lambda: SortedIds(True), {"feats": torch.zeros(1, 2), "ids": torch.tensor([[11, 4, 16, 13, 8, 14, 15]])}),
        (lambda: SortedIds(False), {"feats": torch.zeros(1, 2), "ids": torch.tensor([[11, 4, 16, 13, 8, 14, 15]])}),
    ],
)
def test_attention_over_rows_that_are_sorted_by_content_is_refused(build: Any, inputs: dict[str, Tensor]) -> None:
    model = seeded(build)
    for row in range(len(next(iter(inputs.values())))):
        with pytest.raises(CaptureError, match=r"sorts|reorders|exchange"):
            wf.explain(copy.deepcopy(model), {k: v[row : row + 1] for k, v in inputs.items()}, method="alti")


def test_attention_that_some_inputs_leave_out_is_an_error_of_ours() -> None:
    """It was a KeyError where a changed unit led around the attention."""
    with pytest.raises(CaptureError, match="for some inputs only"):
        first_values(lambda: torch.zeros(1), {})


class OfTwoTexts(nn.Module):
    """One text asks another; the head reads its last position, or the first one where the text holds token 45."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(50, 16), nn.Embedding(50, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True) for _ in range(2))
        self.cross, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        h, other = self.layers[0](self.first(a)), self.layers[1](self.second(b))
        h = h + self.cross(h, other, other)[0]
        return self.head(torch.where((a == 45).any(1)[:, None], h[:, 0], h[:, -1]))


class Gated(OfTwoTexts):
    """A layer reads both texts; some inputs add what one position holds to all, before a query reads them."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        h = self.layers[0](torch.cat([self.first(a), self.second(b)], 1))
        h = h + torch.relu(h[:, 3:4, :1]) * h[:, :1]
        return self.head(self.cross(self.head.weight.flatten()[:16].expand(len(h), 1, -1), h, h)[0][:, 0])


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention", "raw_attention", None])
def test_the_rows_of_several_streams_are_found_in_each_input(method: str | None, first: int) -> None:
    model, other = seeded(OfTwoTexts if method else Gated), 1 - first
    a, b = torch.tensor([[7, 12, 30, 44, 3], [7, 12, 30, 45, 3]]), torch.tensor([[3, 4, 5, 6]] * 2)
    ask: Any = {"method": method, "target": 0}
    (alone,) = wf.explain(copy.deepcopy(model), {"a": a[other:][:1], "b": b[:1]}, **ask)
    explainer = wf.Explainer(model)
    explainer.explain({"a": a[first:][:1], "b": b[:1]}, **ask)
    after = explainer.explain({"a": a[other:][:1], "b": b[:1]}, **ask)[0]
    order = [first, other]
    together = wf.explain(copy.deepcopy(model), {"a": a[order], "b": b}, **ask)
    for found in (after, together[1]):
        np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-4, atol=1e-6)


class ForInference(torch.autograd.Function):
    """Whose backward pass raises."""

    raised: Any = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ForInference.raised


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 3)
        self.layers, self.fails = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), False

    def forward(self, input_ids: Tensor) -> Tensor:
        last = self.layers(self.embed(input_ids))[:, -1]
        return self.head(ForInference.apply(last) if self.fails else last)


@pytest.mark.parametrize("memory", ["full", "fold"])
@pytest.mark.parametrize("error", [RuntimeError("no derivative"), NotImplementedError(), ValueError("of no use")])
def test_a_head_whose_backward_pass_raises_is_read_without_it_and_said_to_be(error: Any, memory: Any) -> None:
    ForInference.raised = error
    inputs, ask = {"input_ids": torch.tensor([[7, 12, 30, 44, 3, 8]])}, {"method": "attention_rollout", "target": 0}
    model = seeded(Last)
    (expected,) = wf.explain(model, inputs, memory=memory, **ask)
    assert not expected.warnings
    model.fails = True
    (found,) = wf.explain(copy.deepcopy(model), inputs, memory=memory, **ask)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
    assert found.readout == "last position" and "not compared on each input" in found.warnings[0]
    (masked,) = wf.explain(copy.deepcopy(model), inputs, method="occlusion", target=0)
    assert np.isfinite(masked.scores).all()


class InWindows(nn.Module):
    """Attention in windows of four, of the patches of a picture or of the steps of a series.

    After a picture's windows comes a layer over all of it, of torch's own attention with weights. The head of a picture
    reads the mean of all tokens, or the first one where the picture is dark.
    """

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.steps, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(5, 8), nn.Linear(8, 3)
        self.inside, self.over_all = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            w = self.steps(x).view(-1, 4, 8)
            return self.head((w + self.inside(w, w, w)[0]).view(len(x), -1, 8).mean(1))
        h = self.patches(x).permute(0, 2, 3, 1)
        w = h.view(-1, 2, 2, 2, 2, 8).transpose(2, 3).reshape(-1, 4, 8)
        w = self.inside(w, w, w, need_weights=False)[0].view(-1, 2, 2, 2, 2, 8)
        h = (h + w.transpose(2, 3).reshape(h.shape)).flatten(1, 2)
        h = h + self.over_all(h, h, h)[0]
        return self.head(torch.where(x.mean((1, 2, 3))[:, None] < 0, h[:, 0], h.mean(1)))


PICTURE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).abs()


@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention", "raw_attention"])
def test_which_tokens_of_windows_the_head_reads_is_looked_at_in_each_picture(method: str) -> None:
    explainer, ask = wf.Explainer(seeded(InWindows)), {"method": method, "target": 0}
    (found,) = explainer.explain(PICTURE, **ask)
    assert len(found.scores) == 16 and found.readout == "mean over all positions"
    for pictures in (-PICTURE, torch.cat([PICTURE, -PICTURE])):
        with pytest.raises(NotOverUnits, match="reads 1 of the 16 tokens"):
            explainer.explain(pictures, **ask)


def test_windows_of_a_series_are_not_taken_for_heads() -> None:
    model, series = seeded(InWindows), torch.randn(1, 8, 5, generator=torch.Generator().manual_seed(0))
    with pytest.raises(NotOverUnits, match="one part of the input at a time"):
        wf.explain(model, series, method="attention_rollout", target=0)
    assert len(wf.explain(model, series, method="occlusion", target=0)[0].scores) == 8
