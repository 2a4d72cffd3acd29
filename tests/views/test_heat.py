"""Heat maps: resizing, colours over pictures, reading pictures, PNG."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.views import samples
from whyformer.errors import BadInput, UnknownName
from whyformer.views.image_marks import heat, painted, painted_heads, png, resized, shrunk, to_pixels, unnormalized
from whyformer.views.marks import HeadColours


@pytest.mark.parametrize("size", [(7, 9), (48, 64), (3, 4), (2, 2)])
def test_bilinear_is_torchs(size: tuple[int, int]) -> None:
    found = samples.image().heatmap(size)
    grid = torch.from_numpy(samples.image().scores[1:].reshape(samples.GRID))
    expected = F.interpolate(grid[None, None], size, mode="bilinear", align_corners=False)[0, 0]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


def test_nearest_repeats_patches() -> None:
    found = samples.image().heatmap((6, 8), "nearest")
    np.testing.assert_array_equal(found, np.kron(samples.image().heatmap(), np.ones((2, 2), np.float32)))


def test_heatmap_leaves_special_tokens_out() -> None:
    assert samples.image().heatmap().shape == samples.GRID
    assert samples.image().heatmap().max() == 1.0


def test_heatmap_refuses() -> None:
    with pytest.raises(BadInput, match="no patch grid"):
        samples.text().heatmap()
    with pytest.raises(UnknownName, match="bilinear"):
        samples.image().heatmap((4, 4), "cubic")
    with pytest.raises(BadInput, match="height, width"):
        samples.image().heatmap((0, 4))


def test_strong_patches_cover_the_picture_and_weak_ones_show_it() -> None:
    image = np.full((48, 64, 3), 128, np.uint8)
    drawn = painted(heat(samples.image(), image=image, interpolation="nearest"), (48, 64)).astype(int)
    change = np.abs(drawn - 128).sum(-1)
    assert change[-1, -1] > 2 * change[0, 0]
    signed = painted(heat(samples.image("occlusion", signed=True), image=image), (48, 64)).astype(int)
    assert signed[0, 0, 0] > signed[0, 0, 2]  # orange
    assert signed[-1, -1, 2] > signed[-1, -1, 0]  # blue


def test_heads_keep_their_colours() -> None:
    maps = (np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)[::-1].copy())
    drawn = painted_heads(HeadColours(maps, ("a", "b"), (0, 1)), (2, 2))
    assert (drawn[0, 0] == drawn[1, 1]).all()
    assert (drawn[0, 1] == drawn[1, 0]).all()
    assert (drawn[0, 0] != drawn[0, 1]).any()
    flat = painted_heads(HeadColours((np.ones((2, 2)),), ("a",), (0,)), (4, 4))
    assert (flat == 245).all()


def test_png_is_read_back() -> None:
    pixels = samples.picture()
    with Image.open(io.BytesIO(png(pixels))) as image:
        np.testing.assert_array_equal(np.asarray(image), pixels)


def test_pictures_of_every_kind(tmp_path: Path) -> None:
    pixels = samples.picture()
    path = tmp_path / "x.png"
    path.write_bytes(png(pixels))
    for image in (
        pixels,
        pixels / 255,
        Image.fromarray(pixels),
        str(path),
        path,
        torch.from_numpy(pixels / 255).permute(2, 0, 1),
        np.concatenate([pixels, np.full((48, 64, 1), 255, np.uint8)], 2),
    ):
        np.testing.assert_array_equal(to_pixels(image), pixels)
    assert to_pixels(pixels[..., 0]).shape == (48, 64, 3)
    normalised = to_pixels((pixels / 255 - 0.5) / 0.2)
    assert normalised.min() == 0
    assert normalised.max() == 255
    with pytest.raises(BadInput, match="shape"):
        to_pixels(np.zeros((2, 3, 4, 5)))
    path.write_text("no image")
    with pytest.raises(BadInput, match="cannot be read"):
        to_pixels(path)


def test_a_models_input_becomes_a_picture_again() -> None:
    pixels = samples.picture()
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    tensor = ((pixels / 255 - mean) / std).transpose(2, 0, 1).astype(np.float32)
    np.testing.assert_array_equal(unnormalized(tensor, mean, std), pixels)


def test_shrinking_keeps_the_mean() -> None:
    values = np.arange(64.0).reshape(8, 8)
    assert shrunk(values, 4).shape == (4, 4)
    assert shrunk(values, 4).mean() == values.mean()
    assert shrunk(values, 10) is values
    assert resized(values, None) is values
