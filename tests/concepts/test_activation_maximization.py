"""Activation maximisation: invariants, units, and what is measured about the picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.concepts import textures
from whyformer.concepts.activation_maximization import checkerboard, total_variation
from whyformer.demo import load_sentiment
from whyformer.errors import BadInput, UnknownName


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 8 * 8, 2)

    def forward(self, pixel_values: Tensor) -> Tensor:
        out: Tensor = self.head(pixel_values.flatten(1))
        return out


PLAIN = {"jitter": 0, "scale": 0, "l2": 0, "tv": 0, "bounded": False, "optimizer": "gradient"}


def test_plain_steps_follow_the_gradient() -> None:
    torch.manual_seed(0)
    model = Linear()
    found = wf.activation_maximization(model, 1, size=(8, 8), steps=20, fourier=True, **PLAIN)
    assert np.all(np.diff(found.history) >= 0) and found.value > found.start
    found = wf.activation_maximization(model, 0, size=(8, 8), steps=5, lr=0.1, fourier=False, **PLAIN)
    rise = 5 * 0.1 * float(model.head.weight[0].detach().square().sum())
    assert found.value - found.start == pytest.approx(rise, rel=1e-4)


def test_penalties_do_what_they_say() -> None:
    assert float(total_variation(torch.full((1, 3, 8, 8), 0.7))) == 0
    steps = torch.zeros(1, 3, 4, 4)
    steps[..., 2:] = 0.5  # one edge of four pixels, in three colours
    assert float(total_variation(steps)) == pytest.approx(3 * 4 * 0.5)
    model = Linear()
    how = {"size": (8, 8), "fourier": False, "steps": 200, "lr": 0.5}
    for weight in (0.1, 0.4):  # max w·x + b - λ‖x‖² is at x = w/2λ, and ‖x‖² is a sum
        found = wf.activation_maximization(model, 0, **{**PLAIN, **how, "l2": weight})
        w = model.head.weight[0].detach()
        best = float(w.square().sum()) / (2 * weight) + float(model.head.bias[0].detach())
        assert found.value == pytest.approx(best, rel=1e-3)
        assert found.penalties["l2·‖x‖²"] == pytest.approx(float(w.square().sum()) / (4 * weight), rel=1e-3)


def test_checkerboard_sees_the_grid() -> None:
    patches = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).repeat_interleave(8, 2)
    noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert checkerboard(patches.repeat_interleave(8, 3) + 0.01 * noise, (8, 8)) > 10
    assert checkerboard(noise, (8, 8)) == pytest.approx(1, abs=0.1)
    assert checkerboard(torch.ones(1, 3, 64, 64), (8, 8)) == 1


@pytest.mark.parametrize(
    "unit", ["zebra-like", ("neuron", 1, 5), ("token", "vit.layers.0.mlp.fc1", 3, 7), ("layer", 2)]
)
def test_units_rise_and_seeds_reproduce(unit: object) -> None:
    model = textures.model()
    hooks = [len(m._forward_hooks) for m in model.modules()]
    first, again = (wf.activation_maximization(model, unit, steps=12, seed=3) for _ in range(2))
    assert first.history == again.history and np.array_equal(first.image, again.image)
    assert first.value > first.start and first.image.shape == (64, 64, 3) and first.image.dtype == np.uint8
    assert np.isfinite(first.checkerboard) and not first.warnings
    assert [len(m._forward_hooks) for m in model.modules()] == hooks


def test_little_jitter_is_warned_about_and_pictures_are_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    found = wf.activation_maximization(textures.model(), 0, steps=3, jitter=1)
    assert any("half a patch" in w for w in found.warnings)
    assert found.save(tmp_path / "x.png").stat().st_size > 5000
    with pytest.raises(UnknownName):
        found.save(tmp_path / "x.gif")


def test_text_becomes_tokens(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = load_sentiment()
    found = wf.activation_maximization(model, "positive", processor=tokenizer, steps=20, length=5)
    assert len(found.tokens) == 5 and not set(found.tokens) & set(tokenizer.all_special_tokens)
    inner = tokenizer.convert_tokens_to_ids(list(found.tokens))
    ids = torch.tensor([[tokenizer.cls_token_id, *inner, tokenizer.sep_token_id]])
    with torch.no_grad():
        assert float(model(input_ids=ids).logits[0, 1]) == pytest.approx(found.value, abs=1e-4)
    assert found.history[-1] > found.history[0]
    assert found.save(tmp_path / "t.png").stat().st_size > 3000


@pytest.mark.parametrize(
    "change",
    [{"tv": -1}, {"unit": ("neuron", 1)}, {"jitter": float("nan")}, {"unit": ("neuron", 1, 9999)}, {"unit": None}],
)
def test_bad_options_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        wf.activation_maximization(textures.model(), **{"unit": 0, "steps": 2, **change})
