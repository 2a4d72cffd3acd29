"""Heat maps, pictures and single pixels; bars that are longer than their scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.views import samples
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.results.types import Explanation
from whyformer.views import side_by_side, view_of
from whyformer.views.image_marks import (
    canvas_size,
    heat,
    painted,
    painted_heads,
    pixel_map,
    png,
    resized,
    shrunk,
    to_pixels,
    unnormalized,
)
from whyformer.views.marks import HeadColours, Heat, Scale
from whyformer.views.terminal.terminal_page import text
from whyformer.views.view import Page, Panel, View


@pytest.mark.parametrize("size", [(7, 9), (48, 64), (3, 4), (2, 2)])
def test_bilinear_is_torchs(size: tuple[int, int]) -> None:
    found = samples.image().heatmap(size)
    grid = torch.from_numpy(samples.image().scores[1:].reshape(samples.GRID))
    expected = F.interpolate(grid[None, None], size, mode="bilinear", align_corners=False)[0, 0]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    assert samples.image().heatmap().shape == samples.GRID and samples.image().heatmap().max() == 1.0  # not [CLS]
    repeated = np.kron(samples.image().heatmap(), np.ones((2, 2), np.float32))
    np.testing.assert_array_equal(samples.image().heatmap((6, 8), "nearest"), repeated)


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


def test_pictures_of_every_kind(tmp_path: Path) -> None:
    pixels = samples.picture()
    path = tmp_path / "x.png"
    path.write_bytes(png(pixels))
    tensor, opaque = torch.from_numpy(pixels / 255).permute(2, 0, 1), np.full((48, 64, 1), 255, np.uint8)
    four = np.concatenate([pixels, opaque], 2)
    for image in (pixels, pixels / 255, Image.fromarray(pixels), str(path), path, tensor, four):
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


SIZE = (48, 64)  # what samples.image() was made of, in patches of 16 × 16


def detailed(*, signed: bool = True, detail: np.ndarray | None = None, **changes: object) -> Explanation:
    drawn = np.random.default_rng(0).normal(size=(3, *SIZE)).astype(np.float32)
    return samples.image(signed=signed, detail=drawn if detail is None else detail, **changes)


def fine(view: View) -> list[Heat]:
    return [m for p in view.panels for m in p.marks if isinstance(m, Heat) and m.fine]


def test_pixels_are_added_up_over_colours_or_are_norms() -> None:
    signed = detailed()
    np.testing.assert_allclose(pixel_map(signed), signed.detail.sum(0), atol=1e-5)
    plain = detailed(signed=False)
    np.testing.assert_allclose(pixel_map(plain), np.sqrt((plain.detail**2).sum(0)), atol=1e-5)
    for norm, reduced in (("l1", np.abs(plain.detail).sum(0)), ("max", np.abs(plain.detail).max(0))):
        np.testing.assert_allclose(pixel_map(plain.replace(options={"norm": norm})), reduced, atol=1e-5)
    one = np.arange(48 * 64, dtype=np.float32).reshape(SIZE)
    np.testing.assert_array_equal(pixel_map(detailed(detail=one)), one)
    padded = np.pad(plain.detail, ((0, 0), (0, 16), (0, 8)))
    np.testing.assert_allclose(pixel_map(detailed(signed=False, detail=padded)), pixel_map(plain), atol=1e-5)


def test_the_map_of_pixels_is_drawn_when_asked_for(tmp_path: Path) -> None:
    explanation = detailed()
    assert not fine(view_of(explanation))
    view = view_of(explanation, detail=True)
    whole, close = fine(view)
    np.testing.assert_allclose(whole.values_RC, explanation.detail.sum(0), atol=1e-5)
    reach = np.percentile(np.abs(explanation.detail.sum(0)), 99)
    assert whole.scale.signed and whole.scale.high == pytest.approx(reach) == -whole.scale.low
    assert "checkerboard" in view.caption
    # The strongest of 3 × 4 patches is the first or last one: all rows, and four columns of patches.
    assert close.values_RC.shape == SIZE and [f.label for f in whole.frames] == ["enlarged"]
    assert "per pixel" in text(view._page()) and "enlarged: patches 0,0 to 2,3" in [p.title for p in view.panels]
    for name in ("x.html", "x.png"):
        assert (
            explanation.save(tmp_path / name, detail=True).stat().st_size
            > 1.2 * explanation.save(tmp_path / name).stat().st_size
        )


def test_every_pixel_is_as_wide_as_any_other() -> None:
    values = np.zeros((224, 224))
    values[:, ::2] = 1
    heat = Heat(values, Scale(0, 1), interpolation="nearest", size=(224, 224), fine=True)
    for longest in (320, 384):
        drawn = painted(heat, canvas_size(heat, longest))[0, :, 0].astype(int)
        widths = np.diff(np.flatnonzero(np.diff(drawn) != 0))
        assert set(widths.tolist()) == {len(drawn) // 224}
    blurred = text(Page("", (View("", (Panel((heat,)),)),)), 80)
    assert "█" not in blurred and "▒" in blurred  # shrunk by means: picking would show one of the two


def test_side_by_side_has_pixels_where_a_method_has_them() -> None:
    first, second = detailed(method="saliency"), samples.image("generic_attention")
    (only,) = fine(side_by_side([first, second], detail=True))
    np.testing.assert_allclose(only.values_RC, pixel_map(first))
    with pytest.raises(NotOffered, match="none of generic_attention, grad_sam has"):
        side_by_side([second, samples.image("grad_sam")], detail=True)


@pytest.mark.parametrize("detail", [None, np.zeros((13, 96), np.float32), np.zeros((3, 8, 8), np.float32)])
def test_no_pixels_no_map(detail: np.ndarray | None) -> None:
    with pytest.raises(NotOffered, match="single pixels"):
        samples.image(detail=detail).show(detail=True)
    with pytest.raises(NotOffered, match="single pixels"):
        samples.text().show(detail=True)


# Bars beyond the scale


def test_striped_bars_are_explained_in_every_backend() -> None:
    explanation = samples.text()  # [CLS] has 1.25, the words at most 0.3
    told = "The striped bar of [CLS] goes on beyond the scale of the others: read its number."
    view = view_of(explanation, specials=True)
    assert told in view.to_html() and 'class="wf-bar wf-beyond"' in view.to_html()
    words = " ".join(t.get_text() for t in view.plot().axes[0].texts)
    assert told in words and any(p.get_hatch() for p in view.plot().axes[0].patches)
    calm = view_of(samples.text(scores=np.full(12, 0.1)), specials=True)
    assert "»" not in text(calm._page())
    assert "beyond" not in samples.still(calm.to_html()).split("</style>")[1] and "beyond" not in text(calm._page())
