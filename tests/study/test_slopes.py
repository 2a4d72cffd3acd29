"""Gradients of attention, and of the input, are the slope of the score, or they are refused; where they begin."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import whyformer as wf
from tests.models.case import randn, seeded
from tests.test_contracts import QUICK
from whyformer.errors import CaptureError, NotOffered, WhyformerError
from whyformer.run import Run

IDS = {"input_ids": torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])}
PICTURES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Attend(torch.autograd.Function):
    """Attention with a backward of its own, which is right."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attention = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        ctx.save_for_backward(q, k, v, attention)
        return attention @ v

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (slope,), (q, k, v, attention) = gradients, ctx.saved_tensors
        at_map = slope @ v.transpose(-1, -2)
        at_scores = attention * (at_map - (at_map * attention).sum(-1, keepdim=True)) / 2
        return at_scores @ k, at_scores.transpose(-1, -2) @ q, attention.transpose(-1, -2) @ slope


class Reversed(torch.autograd.Function):
    """As in domain adaptation: the gradient turned around."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -gradients[0]


class Layers(nn.Module):
    """Three layers of attention, some of which autograd does not see as they are."""

    def __init__(self, how: str, at: tuple[int, ...] = ()) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.at = how, at
        self.embed, self.head, self.norm = nn.Embedding(20, 16), nn.Linear(16, 3), nn.LayerNorm(16)
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(3))

    def block(self, x: Tensor, number: int) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv[number](x).chunk(3, -1))
        hidden = number in self.at
        if self.how == "function" and hidden:
            out = Attend.apply(q, k, v)  # type: ignore[no-untyped-call]
        else:
            out = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        if hidden and self.how in {"detach", "reversed"}:
            out = out.detach() if self.how == "detach" else Reversed.apply(out)  # type: ignore[no-untyped-call]
        x = x.detach() if hidden and self.how == "residual" else x
        joined: Tensor = self.norm(x + out.transpose(1, 2).flatten(2))
        return joined

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for number in range(3):
            if self.how == "checkpoint" and number in self.at:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # it warns of inputs without gradients
                    x = checkpoint(self.block, x, number, use_reentrant=True)
            else:
                x = self.block(x, number)
        logits: Tensor = self.head(x[:, 0])
        return logits


PLACES = [(0,), (1,), (0, 1)]
HIDDEN = ["function", "checkpoint", "detach"]
OF_MAPS = ["generic_attention", "grad_sam", "transformer_attribution"]


# Every pair of a method, a way to hide a map, and a place.
@pytest.mark.parametrize(
    ("method", "how", "at"),
    [(OF_MAPS[(i + j) % 3], how, at) for i, how in enumerate(HIDDEN) for j, at in enumerate(PLACES)],
)
def test_a_map_without_a_path_to_the_score_is_refused(method: str, how: str, at: tuple[int, ...]) -> None:
    with pytest.raises(WhyformerError, match="checkpoint"):
        wf.explain(Layers(how, at).eval(), IDS, method=method, target=0)


NOT_AT_THE_INPUT = "gradient at the input is not the slope"


@pytest.mark.parametrize(
    ("method", "how", "at", "words"),
    [
        ("generic_attention", "reversed", (2,), "not the slope of the score"),
        ("attn_lrp", "function", (0,), "Changed gradient rules do not hold there"),
        ("cp_lrp", "function", (0, 1), "Changed gradient rules do not hold there"),
        ("attn_lrp", "checkpoint", (0, 1), "Changed gradient rules do not hold there"),
        ("cp_lrp", "checkpoint", (1,), "Changed gradient rules do not hold there"),
        *((method, "reversed", (1,), NOT_AT_THE_INPUT) for method in ("saliency", "smooth_grad")),
        *((method, "checkpoint", (1,), "use_reentrant=False") for method in ("saliency", "integrated_gradients")),
    ],
)
def test_what_a_part_is_missing_from_is_refused(method: str, how: str, at: tuple[int, ...], words: str) -> None:
    with pytest.raises((CaptureError, NotOffered), match=words):
        wf.explain(Layers(how, at).eval(), IDS, method=method, target=0)


def test_other_verbs_are_held_to_it() -> None:
    model, pictures = Layers("function", (0,)).eval(), {"pixel_values": PICTURES}
    for kind, words, call in (
        (CaptureError, "autograd has no path", lambda: wf.Explainer(model).record(IDS, grad=True, target=0)),
        (CaptureError, "autograd has no path", lambda: wf.head_importance(model, IDS, kind="gradient", target=0)),
        (
            NotOffered,
            NOT_AT_THE_INPUT,
            lambda: wf.explain(Pixels("half").eval(), pictures, method="grad_cam", target=0),
        ),
        (NotOffered, NOT_AT_THE_INPUT, lambda: wf.head_importance(Cycles(2).eval(), IDS, kind="relevance", target=0)),
    ):
        with pytest.raises(kind, match=words):
            call()


@pytest.mark.parametrize("method", ["generic_attention", "input_x_gradient", "attn_lrp", "transformer_attribution"])
def test_a_slope_is_measured_once_per_model(method: str) -> None:
    explainer = wf.Explainer(Layers("").eval())
    first, second = (explainer.explain(IDS, method=method, target=0)[0].cost for _ in range(2))
    assert first.setup_forwards > second.setup_forwards == 0
    assert (first.forwards, first.backwards) == (second.forwards, second.backwards)
    if method == "generic_attention":
        plain = wf.Explainer(Layers("").eval()).explain(IDS, method="attention_rollout", target=0)[0].cost
        assert first.setup_forwards == plain.setup_forwards, (
            "a slope of each input; and the share of the head's gradient"
        )
    if method == "input_x_gradient":  # which attn_lrp is held to as well
        assert explainer.explain(IDS, method="attn_lrp", target=0)[0].cost.setup_forwards == 0


@pytest.mark.parametrize("how", ["function", "detach", "checkpoint"])
def test_methods_that_need_no_such_gradient_say_what_they_say_without(how: str) -> None:
    for method in ("attention_rollout", "occlusion", *["input_x_gradient"] * (how == "function")):
        plain, hidden = (wf.explain(Layers(h, (0, 1)).eval(), IDS, method=method, target=0) for h in ("", how))
        for one, other in zip(plain, hidden, strict=True):
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


INPUT_METHODS = ["input_x_gradient", "integrated_gradients", "saliency", "smooth_grad", "attn_lrp", "cp_lrp"]


class Pixels(nn.Module):
    """Patches of a picture through attention; ``cut``: what is detached, half of it or what adds up to nothing."""

    def __init__(self, cut: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.patches, self.head = cut, nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        if self.cut == "half":
            x = torch.cat([x[..., :8].detach(), x[..., 8:]], -1)
        if self.cut == "nothing":
            largest = x.amax(-1, keepdim=True).detach()
            x = (x - largest) + largest
        logits: Tensor = self.head(self.layer(x).mean(1))
        return logits


@pytest.mark.parametrize("method", INPUT_METHODS)
def test_pixels_are_held_to_it_and_a_detached_constant_is_none(method: str) -> None:
    pictures = {"pixel_values": PICTURES}
    with pytest.raises(NotOffered, match=NOT_AT_THE_INPUT):
        wf.explain(Pixels("half").eval(), pictures, method=method, target=0)
    how = {"method": method, "target": 0, **QUICK.get(method, {})}
    plain, shifted = (wf.explain(Pixels(cut).eval(), pictures, **how) for cut in ("", "nothing"))
    if method in INPUT_METHODS[:-2]:  # rules see the two sums
        for one, other in zip(plain, shifted, strict=True):
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)


def test_a_warning_names_a_function_that_has_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reversed, "backward", staticmethod(lambda ctx, *gradients: gradients[0]))  # as it should be
    (explanation, _) = wf.explain(Layers("reversed", (1,)).eval(), IDS, method="attn_lrp", target=0)
    assert any("Reversed" in warning for warning in explanation.warnings)


class Cycles(Layers):
    """As HRM does: layers that run several times, of which the early ones run under no_grad."""

    def __init__(self, cut: int) -> None:
        super().__init__("")
        self.early = cut
        with torch.no_grad():
            self.head.weight.mul_(3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        state = torch.zeros_like(x)
        for cycle in range(3):
            with torch.no_grad() if cycle < self.early else nullcontext():
                state = self.block(self.norm(state + x), cycle)  # no product of what carries a gradient comes first
        logits: Tensor = self.head((state + x)[:, 0])
        return logits


BY_GRADIENT = sorted(
    name for name, m in wf.list_methods().items() if m.needs & {"attention_gradients", "input_gradients"}
)


@pytest.mark.parametrize("method", [name for name in BY_GRADIENT if name != "grad_cam"])
def test_every_method_that_differentiates_refuses_layers_without_gradients(method: str) -> None:
    with pytest.raises(WhyformerError, match=r"slope|autograd has no path") as refused:
        wf.explain(Cycles(2).eval(), IDS, method=method, target=0)
    assert not any(name in str(refused.value).split("Use ")[-1] for name in BY_GRADIENT)
    assert wf.explain(Cycles(0).eval(), IDS, method=method, target=0, **QUICK.get(method, {}))


def test_relevance_at_tokens_is_held_to_the_slope_at_the_input() -> None:
    """A residual that is detached changes no gradient of a map."""
    model = Layers("residual", (0,)).eval()
    assert wf.explain(model, IDS, method="transformer_attribution", target=0)
    with pytest.raises(NotOffered, match=NOT_AT_THE_INPUT):
        wf.explain(model, IDS, method="transformer_attribution", variant="lrp", target=0)


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp"])
def test_relevance_that_goes_to_detached_tensors_is_measured(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where no slope was measured."""
    monkeypatch.setattr(Run, "require_input_slopes", lambda self: None)
    cut, whole = (wf.explain(Cycles(early).eval(), IDS, method=method, target=0) for early in (2, 0))
    assert all(any("went to tensors" in warning for warning in e.warnings) for e in cut)
    assert not any("went to tensors" in warning for e in whole for warning in e.warnings)
    alone = wf.explain(Cycles(2).eval(), {"input_ids": IDS["input_ids"][:1]}, method=method, target=0)[0]
    assert alone.warnings == cut[0].warnings


@pytest.mark.usefixtures("advised")
def test_a_backward_of_the_models_own_that_fails_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwilling(ctx: Any, *gradients: Any) -> Any:  # as Reformer is outside training
        raise AssertionError("If you want to train, put the model into training mode.")

    model = Layers("reversed", (1,)).eval()
    monkeypatch.setattr(Reversed, "backward", staticmethod(unwilling))
    with pytest.raises(
        NotOffered, match=r"(?s)brings along.*AssertionError: If you want to train, .* mode\. There are no.*occlusion"
    ):
        wf.explain(model, IDS, method="input_x_gradient", progress=False)


# Ties are no hidden functions: where equal values meet a maximum or a kink, gradients are held to slopes beside.


TIES = "values are exactly equal"
CHEATS = ["reversed", "detach"]


def cheated(x: Tensor, how: str) -> Tensor:
    if how == "reversed":
        return Reversed.apply(x)  # type: ignore[no-untyped-call, no-any-return]
    seen = x.shape[-1] // 4
    return torch.cat([x[..., seen:].detach(), x[..., :seen]], -1) if how == "detach" else x


class Loudest(nn.Module):
    """Patches of a picture without places: those of a plain one are all alike, and the largest of them is read."""

    def __init__(self, cheat: str = "", own: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cheat, self.own = cheat, own
        self.patches, self.head = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 3)
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        for number, layer in enumerate(self.qkv):
            q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in layer(x).chunk(3, -1))
            if self.own:
                out = nn.functional.scaled_dot_product_attention(q, k, v)
            else:
                out = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
            out = out.transpose(1, 2).flatten(2)
            x = x + (cheated(out, self.cheat) if number else out)
        logits: Tensor = self.head(x.max(1).values)
        return logits


PLAIN = {"pixel_values": torch.ones(1, 3, 16, 16)}


@pytest.mark.parametrize("own", [False, True], ids=["written out", "torch's kernel"])
def test_maps_of_a_plain_picture_under_a_maximum(own: bool) -> None:
    """What autograd does not see is found among ties, too."""
    for method in ("generic_attention", "grad_sam"):
        assert np.isfinite(wf.explain(Loudest(own=own).eval(), PLAIN, method=method, target=1)[0].scores).all()
    for cheat in CHEATS:
        with pytest.raises(CaptureError, match="not the slope of the score"):
            wf.explain(Loudest(cheat, own).eval(), PLAIN, method="generic_attention", target=1)


def test_pixels_of_a_plain_picture_under_a_maximum() -> None:
    """Without ties one pass measures the slope; the second measurement is made in doubt alone."""
    noise = {"pixel_values": PICTURES[:1]}
    tied, again, plain = (
        wf.explain(Loudest().eval(), inputs, method="saliency", target=1)[0] for inputs in (PLAIN, PLAIN, noise)
    )
    assert [any(TIES in w for w in one.warnings) for one in (tied, plain)] == [True, False]
    assert tied.cost.forwards == tied.cost.backwards == 1
    assert plain.cost.setup_forwards < tied.cost.setup_forwards
    np.testing.assert_array_equal(tied.scores, again.scores)
    for cheat in CHEATS:
        with pytest.raises(NotOffered, match=NOT_AT_THE_INPUT):
            wf.explain(Loudest(cheat).eval(), PLAIN, method="saliency", target=1)


# Where gradients begin: word embeddings that are looked up more than once are one input.


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
            "the first": lambda: self.embed(ids[:, 0]),
            "another order": lambda: self.embed(ids.roll(1, 1))[:, 0],
            "a constant": lambda: self.embed(ids.new_tensor([1])),
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
    for kind in ("the first", "another order"):
        with pytest.raises(NotOffered, match="a second time, by looking up a part of the input ids, or other ids"):
            wf.explain(twice(kind), IDS, method=method, target=0)
    for kind, named in (("another table", True), ("a constant", False), ("", False)):
        (found, _) = wf.explain(twice(kind), IDS, method=method, target=0)
        assert any("second table" in warning for warning in found.warnings) == named


@pytest.mark.parametrize("pool", ["first", "mean"])
@pytest.mark.parametrize("again", ["", "the same", "index", "bag"])
def test_attention_methods_mention_what_goes_around_attention(again: str, pool: str) -> None:
    for explanation in wf.explain(Twice(again, pool).eval(), IDS, method="generic_attention", target=0):
        assert any("through no attention" in warning for warning in explanation.warnings) == bool(again)


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
