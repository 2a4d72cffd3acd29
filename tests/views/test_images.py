"""Heat over pictures as the model saw them, upright, with the boxes of a detector; pixels; bars beyond a scale."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps

import whyformer as wf
from tests.models import CASES
from tests.support import folders, processors
from tests.views import samples
from whyformer.errors import BadInput, NotOffered
from whyformer.results.types import Explanation, Record, Site, Target
from whyformer.views import heads_over_image, side_by_side, view_of
from whyformer.views import image_marks as images
from whyformer.views.header import facts
from whyformer.views.image_marks import box_words, canvas_size, frames_of, painted, pixel_map, shrunk, to_pixels
from whyformer.views.marks import Frame, HeadColours, Heat, MarkSettings, Scale
from whyformer.views.terminal.terminal_page import text
from whyformer.views.view import Page, Panel, View

ORIENTATION = 0x0112  # of EXIF


def test_proportions_may_differ_by_rounding_and_another_shape_is_refused_with_what_to_pass(tmp_path: Path) -> None:
    for size in ((96, 128), (50, 64), (47, 64)):  # the model saw 48 × 64: 3 × 4 patches
        assert view_of(samples.image(), image=np.full((*size, 3), 200, np.uint8)).panels[1].title == "scores"
    record = Record((Site("layer", "self", ("", ""), samples.attention(keys=13, queries=13)),), torch.zeros(1, 3))
    for draw in (
        lambda image: samples.image().save(tmp_path / "x.html", image=image),
        lambda image: side_by_side([samples.image(), samples.image()], image=image),
        lambda image: heads_over_image(record, samples.image(), image),
    ):
        with pytest.raises(BadInput, match=r"model saw 48 × 64.*pixel_values.*resize\(\(64, 48\)\)"):
            draw(np.full((48, 24, 3), 200, np.uint8))
    assert not (tmp_path / "x.html").exists()


def test_a_photo_is_drawn_and_explained_upright(tmp_path: Path) -> None:
    """A file holds the photo lying on its side, as a phone does."""
    path, upright, exif = tmp_path / "phone.png", Image.fromarray(samples.picture()), Image.Exif()
    exif[ORIENTATION] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    explainer = wf.Explainer(folders.vit(), folders.image_processor())
    expected = explainer.explain(upright)
    with Image.open(path) as photo:
        given = [path, str(path), photo, photo.convert("RGB"), ImageOps.exif_transpose(photo)]
        for image in given:
            np.testing.assert_array_equal(to_pixels(image), np.asarray(upright))
            np.testing.assert_array_equal(explainer.explain(image).scores, expected.scores)
    broken = Image.fromarray(samples.picture())
    broken.info["exif"] = b"Exif\0\0garbage"
    np.testing.assert_array_equal(to_pixels(broken), samples.picture())


def test_an_explanation_comes_with_what_the_model_saw_and_is_drawn_over_it_or_the_whole_where_it_was_squeezed(
    tmp_path: Path,
) -> None:
    wide = Image.fromarray(np.kron(np.eye(2, 6, dtype=np.uint8)[..., None] * 200, np.ones((32, 32, 3), np.uint8)))
    sides = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    crop, squeeze = processors.pil("clip", "CLIP", **sides), folders.image_processor()
    for processor, shape in ((crop, (32, 32)), (squeeze, (64, 192))):
        found = wf.explain(folders.vit(), wide, processor=processor)
        assert found.picture is not None and found.picture.startswith("data:image/jpeg;base64,")
        again = wf.load(found.save(tmp_path / "x.json"))
        view = view_of(again)
        assert view.panels[0].title == "input" and again.units.image_size == (32, 32)
        assert view.panels[0].marks[0].image.shape[:2] == view.explained.image.shape[:2] == shape
        with pytest.raises(BadInput, match="other proportions"):
            view_of(again, image=wide.resize((32, 96)))
    view_of(again, image=wide.resize((96, 32)))
    cropped, seen = (
        wf.explain(folders.vit(), wide, processor=crop),
        crop(images=wide, return_tensors="pt")["pixel_values"],
    )
    with pytest.raises(BadInput, match="64 pixels high and 192 wide"):
        view_of(cropped, image=wide)
    view_of(cropped, image=seen[0])  # the way out that the message names
    assert wf.explain(folders.vit(), {"pixel_values": seen})[0].picture is None  # which colours they were is not known


def test_a_picture_in_a_file_that_is_none_is_left_out() -> None:
    for odd in ("data:image/jpeg;base64,AAAA", "https://example.org/x.jpg", "/etc/hosts", "data:image/svg+xml,<svg/>"):
        view = view_of(samples.image(picture=odd))
        assert view.explained.image is None and odd not in view.to_html()


@cache
def model() -> Any:
    made = CASES["detr"].build("sdpa")
    made.config.id2label = {0: "cat", 1: "<dog>", 2: "tree"}
    return made


@cache
def found() -> Any:
    return wf.explain(model(), CASES["detr"].inputs(), target=(2, 1))


def predicted(inputs: dict[str, Any], row: int, query: int) -> list[float]:
    with torch.no_grad():
        x, y, width, height = model()(**inputs).pred_boxes[row, query].tolist()
    return [max(0, x - width / 2), max(0, y - height / 2), min(1, x + width / 2), min(1, y + height / 2)]


def test_the_box_is_the_one_that_the_model_predicts() -> None:
    inputs: Any = CASES["detr"].inputs()
    for row, explanation in enumerate(found()):
        (frame,) = frames_of(explanation)
        np.testing.assert_allclose(frame.box, predicted(inputs, row, 2), atol=1e-6)
        assert frame.label == "<dog>"
        assert ("detected", box_words(frame)) in [(f.name, f.value) for f in facts(explanation)]
        other = explanation.replace(target=Target(0, "cat", position=4))
        np.testing.assert_allclose(frames_of(other)[0].box, predicted(inputs, row, 4), atol=1e-6)
    lxmert = CASES["lxmert"]  # its boxes are inputs
    others = [wf.explain(lxmert.build("eager"), lxmert.inputs(), target=0)[0]]
    others += [found()[0].replace(target=target) for target in (Target(1), Target(1, position=99))]
    assert [frames_of(other) for other in others] == [()] * 3


def test_raw_images_of_different_sizes_have_their_own_boxes() -> None:
    """Boxes are shares of the picture itself, without what it was padded with."""
    pictures = [processors.picture(), processors.picture(60, 40)]
    processor = processors.detr()
    both = wf.explain(model(), pictures, processor=processor, target=(1, 0))
    encoded = processor(images=pictures, return_tensors="pt")
    for row, (explanation, given) in enumerate(zip(both, pictures, strict=True)):
        np.testing.assert_allclose(frames_of(explanation)[0].box, predicted(dict(encoded), row, 1), atol=1e-5)
        shown = view_of(explanation).explained.image  # without what it was padded with, either
        assert shown is not None and shown.shape[1] / shown.shape[0] == pytest.approx(
            given.width / given.height, rel=0.1
        )


def test_pages_and_figures_draw_the_box_and_its_name(tmp_path: Path) -> None:
    one = found()[0]
    (frame,) = frames_of(wf.load(one.save(tmp_path / "x.npz")))  # files keep it
    html = one.to_html(image=np.zeros((16, 40, 3), np.uint8))
    assert html.count("&lt;dog&gt;</text>") == 3 and "<dog>" not in html
    left, top, right, bottom = frame.box
    drawn = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="none" stroke="#fff"', html
    )
    expected = [left * 320, top * 128, (right - left) * 320, (bottom - top) * 128]
    np.testing.assert_allclose(np.array(drawn, float), [expected] * 3, atol=0.06)
    axes = view_of(one).plot().axes[0]
    white = [p for p in axes.patches if p.get_facecolor()[3] == 0 and p.get_edgecolor()[:3] == (1, 1, 1)]
    maps = [image.get_extent() for image in axes.images][:2]  # smooth and per patch
    for rectangle, (x, right, bottom, y) in zip(white, maps, strict=True):
        corners = np.array(rectangle.get_bbox()).ravel()
        shares = (corners - [x, y, x, y]) / [right - x, bottom - y, right - x, bottom - y]
        np.testing.assert_allclose(shares, frame.box, atol=1e-6)
    assert [t.get_text() for t in axes.texts].count("<dog>") == 2


def test_a_terminal_paints_it_into_the_picture() -> None:
    frame = Frame((0.25, 0.5, 0.75, 1.0), "cat")
    painted = images.framed(np.full((9, 9, 3), 100, np.uint8), (frame,))
    white = (painted == 255).all(-1)
    expected = np.zeros((9, 9), bool)
    expected[[4, 8], 2:7] = True
    expected[4:9, [2, 6]] = True
    assert np.array_equal(white, expected)
    assert (painted[5, 3:6] == 0).all() and (painted[0] == 100).all()
    assert box_words(frame) == "25–75 % of the width, 50–100 % of the height, from the top left"


def test_a_page_begins_with_all_objects_of_an_image_and_says_how_many_are_drawn() -> None:
    pictures = [processors.picture(), processors.picture(60, 40)]
    every: Any = wf.explain(model(), pictures, processor=processors.detr(), target=0.01)
    counts = [len(each) for each in every]
    page = every.view()
    assert page.title == f"{sum(counts)} explanations of 2 inputs" and min(counts) > 1
    first = page.views[0]
    assert first.title == f"{counts[0]} detections" and len(page.views) == sum(counts) + 2
    frames = first.panels[0].marks[0].frames
    assert [f.box for f in frames] == [frames_of(e)[0].box for e in every[0]]
    assert [f.label for f in frames] == [f"{e.target} {e.target.position}" for e in every[0]]
    assert [row[0] for row in first.panels[1].marks[0].rows] == [str(e.target.position) for e in every[0]]
    assert page.views[1].title.startswith(f"{every[0][0].target}, query {every[0][0].target.position}: image")
    assert every[0].view().views[0].title == f"{counts[0]} detections"
    apart: Any = wf.explain(model(), pictures, processor=processors.detr(), target=(1, 0))
    assert "detections" not in apart.view().views[0].title  # of two images


# Heat maps and pixels


def test_bilinear_is_torchs() -> None:
    grid = torch.from_numpy(samples.image().scores[1:].reshape(samples.GRID))
    for size in ((7, 9), (2, 2)):
        expected = F.interpolate(grid[None, None], size, mode="bilinear", align_corners=False)[0, 0]
        np.testing.assert_allclose(samples.image().heatmap(size), expected.numpy(), atol=1e-6)
    assert samples.image().heatmap().shape == samples.GRID and samples.image().heatmap().max() == 1.0  # not [CLS]
    repeated = np.kron(samples.image().heatmap(), np.ones((2, 2), np.float32))
    np.testing.assert_array_equal(samples.image().heatmap((6, 8), "nearest"), repeated)
    for made, how, words in (
        (samples.text(), (), "no patch grid"),
        (samples.image(), ((4, 4), "cubic"), "bilinear"),
        (samples.image(), ((0, 4),), "height, width"),
    ):
        with pytest.raises(BadInput, match=words):
            made.heatmap(*how)


def test_strong_patches_cover_the_picture_and_heads_keep_their_colours() -> None:
    image = np.full((48, 64, 3), 128, np.uint8)
    drawn = painted(images.heat(samples.image(), MarkSettings(image=image), interpolation="nearest"), (48, 64)).astype(
        int
    )
    change = np.abs(drawn - 128).sum(-1)
    assert change[-1, -1] > 2 * change[0, 0]
    signed = painted(images.heat(samples.image("occlusion", signed=True), MarkSettings(image=image)), (48, 64)).astype(
        int
    )
    assert signed[0, 0, 0] > signed[0, 0, 2]  # orange
    assert signed[-1, -1, 2] > signed[-1, -1, 0]  # blue
    maps = (np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)[::-1].copy())
    drawn = images.painted_heads(HeadColours(maps, ("a", "b"), (0, 1)), (2, 2))
    assert (drawn == drawn[::-1, ::-1]).all() and (drawn[0, 0] != drawn[0, 1]).any()
    flat = images.painted_heads(HeadColours((np.ones((2, 2)),), ("a",), (0,)), (4, 4))
    assert (flat == 245).all()


def test_pictures_of_every_kind(tmp_path: Path) -> None:
    pixels = samples.picture()
    path = tmp_path / "x.png"
    path.write_bytes(images.png(pixels))
    tensor, opaque = torch.from_numpy(pixels / 255).permute(2, 0, 1), np.full((48, 64, 1), 255, np.uint8)
    four = np.concatenate([pixels, opaque], 2)
    for image in (pixels, pixels / 255, Image.fromarray(pixels), str(path), path, tensor, four):
        np.testing.assert_array_equal(to_pixels(image), pixels)
    assert to_pixels(pixels[..., 0]).shape == (48, 64, 3)
    values = np.arange(64.0).reshape(8, 8)
    assert shrunk(values, 4).shape == (4, 4) and shrunk(values, 4).mean() == values.mean()
    assert shrunk(values, 10) is values and images.resized(values, None) is values
    normalised = to_pixels((pixels / 255 - 0.5) / 0.2)
    assert (normalised.min(), normalised.max()) == (0, 255)
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    seen = ((pixels / 255 - mean) / std).transpose(2, 0, 1).astype(np.float32)
    np.testing.assert_array_equal(images.unnormalized(seen, mean, std), pixels)
    with pytest.raises(BadInput, match="shape"):
        to_pixels(np.zeros((2, 3, 4, 5)))
    path.write_text("no image")
    with pytest.raises(BadInput, match="cannot be read"):
        to_pixels(path)


SIZE = (48, 64)  # what samples.image() was made of, in patches of 16 × 16


def detailed(*, signed: bool = True, detail: np.ndarray | None = None, **changes: object) -> Explanation:
    drawn = np.random.default_rng(0).normal(size=(3, *SIZE)).astype(np.float32)
    return samples.image(signed=signed, detail=drawn if detail is None else detail, **changes)


def fine(view: View) -> list[Heat]:
    return [m for m in view.marks if isinstance(m, Heat) and m.fine]


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
    assert "per pixel" in text(view._page()) and "enlarged: patches 1,1 to 3,4" in [p.title for p in view.panels]
    assert explanation.save(tmp_path / "x.png", detail=True).stat().st_size > 10_000
    first, second = detailed(method="saliency"), samples.image("generic_attention")
    (only,) = fine(side_by_side([first, second], detail=True))  # of the method that has them
    np.testing.assert_allclose(only.values_RC, pixel_map(first))
    with pytest.raises(NotOffered, match="none of generic_attention, grad_sam has"):
        side_by_side([second, samples.image("grad_sam")], detail=True)


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


@pytest.mark.parametrize("detail", [None, np.zeros((13, 96), np.float32), np.zeros((3, 8, 8), np.float32)])
def test_no_pixels_no_map(detail: np.ndarray | None) -> None:
    with pytest.raises(NotOffered, match="single pixels"):
        samples.image(detail=detail).show(detail=True)


# Bars beyond the scale


def test_striped_bars_are_explained_in_every_backend() -> None:
    explanation = samples.text()  # [CLS] has 1.25, the words at most 0.3
    told = "The striped bar of [CLS] is longer than the scale: read its number."
    view = view_of(explanation, specials=True)
    assert told in view.to_html() and 'class="wf-bar wf-beyond"' in view.to_html()
    words = " ".join(t.get_text() for t in view.plot().axes[0].texts)
    assert told in words and any(p.get_hatch() for p in view.plot().axes[0].patches)
    calm = view_of(samples.text(scores=np.full(12, 0.1)), specials=True)
    assert "»" not in text(calm._page())
    assert "beyond" not in samples.still(calm.to_html()).split("</style>")[1] and "beyond" not in text(calm._page())
