"""The patch grid: maps whose answer is known, and smoothing that keeps sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.methods.properties import close, explained
from whyformer.engines.gradient.feature_maps import grid_artefact, smoothed
from whyformer.errors import BadInput, NotOffered, UnknownName

PIXEL_METHODS = {
    "saliency": {},
    "input_x_gradient": {},
    "smooth_grad": {"samples": 3},
    "integrated_gradients": {"steps": 4},
}


def ringed(border: float, inside: float, patch: int = 4, patches: int = 3) -> np.ndarray:
    """One value on the ring of every patch, another inside."""
    one = np.full((patch, patch), inside)
    one[[0, -1], :] = one[:, [0, -1]] = border
    return np.tile(one, (patches, patches))


def test_energy_on_the_ring_of_every_patch() -> None:
    assert grid_artefact(ringed(3.0, 1.0), 4) == pytest.approx(9)
    assert grid_artefact(ringed(1.0, 2.0), 4) == pytest.approx(1 / 4)
    channels = np.stack([ringed(3.0, 1.0), ringed(1.0, 1.0)])
    assert grid_artefact(channels, 4) == pytest.approx((9 + 1) / (1 + 1)), "energy adds up over the channels"
    oblong = np.full((4, 6), 2.0)
    oblong[1:3, 1:5] = 1.0
    assert grid_artefact(torch.from_numpy(np.tile(oblong, (2, 2))), (4, 6)) == pytest.approx(4)


def test_steps_across_borders() -> None:
    """0, 1, 2, 3 in every patch: inside the steps are 1, across a border 3."""
    line = np.tile(np.arange(4.0), 5)
    columns = np.tile(line, (20, 1))
    across, inside = 9 * 4 / (4 + 4), 1 * 15 / (15 + 15)  # the other axis has as many pairs, without any step
    assert grid_artefact(columns, 4, of="steps") == pytest.approx(across / inside)
    assert grid_artefact(columns + columns.T, 4, of="steps") == pytest.approx(9)


@pytest.mark.parametrize("of", ["values", "steps"])
def test_no_grid(of: str) -> None:
    noise = np.random.default_rng(0).normal(size=(3, 64, 64))
    assert grid_artefact(noise, 8, of) == pytest.approx(1, abs=0.1)
    assert grid_artefact(np.zeros((8, 8)), 4, of) == 1
    assert grid_artefact(np.full((8, 8), 2.0), 4, of) == 1
    assert grid_artefact(noise, 64, of="steps") == 1, "one patch has no border to cross"
    patches = np.kron(noise[0, :3, :3], np.ones((4, 4)))
    assert grid_artefact(ringed(1.0, 0.0) if of == "values" else patches, 4, of) == float("inf"), "nothing but grid"


def test_smoothing_keeps_sums_and_takes_the_grid_away() -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(2, 3, 24, 32, generator=draw, dtype=torch.float64)
    spread = smoothed(values, (2.0, 3.0))
    torch.testing.assert_close(spread.sum((2, 3)), values.sum((2, 3)))
    grid = torch.from_numpy(ringed(1.0, 0.0, 8, 6))[None, None]
    assert grid_artefact(smoothed(grid, (4.0, 4.0)), 8) == pytest.approx(1, abs=0.05)
    assert torch.equal(smoothed(values, (0.0, 0.0)), values)


def test_one_pixel_becomes_a_bump() -> None:
    values = torch.zeros(1, 1, 31, 31, dtype=torch.float64)
    values[0, 0, 15, 15] = 1
    spread = smoothed(values, (2.0, 2.0))[0, 0]
    bump = np.exp(-((np.arange(31) - 15) ** 2) / 8)
    expected = np.outer(bump, bump) / bump.sum() ** 2
    np.testing.assert_allclose(spread.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("method", PIXEL_METHODS)
def test_pixel_methods_can_be_smoothed(method: str) -> None:
    """Off by default; on, ``detail`` is the smoothed map and ``scores`` are made from it."""
    how = {"method": method, **PIXEL_METHODS[method]}
    for plain, smooth in zip(explained("vit", **how), explained("vit", **how, patch_smoothing=0.5), strict=True):
        want = smoothed(torch.from_numpy(plain.detail)[None].double(), (4.0, 4.0))[0].numpy()
        close(smooth.detail, want, 1e-4)
        if method in ("input_x_gradient", "integrated_gradients"):
            close(smooth.scores[1:], want.sum(0).reshape(4, 8, 4, 8).sum((1, 3)).ravel(), 1e-4)
            assert smooth.scores.sum() == pytest.approx(plain.scores.sum(), abs=1e-4)
        else:
            energy = (want**2).sum(0).reshape(4, 8, 4, 8).sum((1, 3)).ravel()
            close(smooth.scores[1:], np.sqrt(energy), 1e-4)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: grid_artefact(np.zeros((4, 4)), 2, of="corners"), UnknownName, "corners"),
        (lambda: grid_artefact(np.zeros(4), 2), BadInput, "height and width"),
        (lambda: explained("bert", method="saliency", patch_smoothing=0.5), NotOffered, "pixels"),
        (lambda: explained("vit", method="saliency", patch_smoothing=0.5, at="embeddings"), NotOffered, "pixels"),
        (lambda: explained("vit", method="saliency", patch_smoothing=-1), BadInput, "patch_smoothing=-1"),
    ],
)
def test_refusals(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
