"""What maps are drawn over: pictures as the model saw them, upright, with the boxes of a detector."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import whyformer as wf
from tests.models import CASES
from tests.support import folders, processors
from tests.views import samples
from whyformer.errors import BadInput
from whyformer.results.types import Record, Site, Target
from whyformer.views import heads_over_image, side_by_side, view_of
from whyformer.views.header import facts
from whyformer.views.image_marks import framed, frames_of, gradient_space, to_pixels
from whyformer.views.marks import Frame

ORIENTATION = 0x0112  # of EXIF


def blank(height: int, width: int) -> np.ndarray[Any, Any]:
    return np.full((height, width, 3), 200, np.uint8)


@pytest.mark.parametrize("size", [(48, 64), (96, 128), (480, 641), (50, 64), (47, 64)])  # seen: 48×64, 3×4 patches
def test_proportions_may_differ_by_rounding(size: tuple[int, int]) -> None:
    assert view_of(samples.image(), image=blank(*size)).panels[1].title == "scores"


@pytest.mark.parametrize("size", [(64, 48), (48, 192), (48, 24)])
def test_another_shape_is_refused_with_what_to_pass(size: tuple[int, int], tmp_path: Path) -> None:
    record = Record((Site("layer", "self", ("", ""), samples.attention(keys=13, queries=13)),), torch.zeros(1, 3))
    draw = [
        lambda image: samples.image().save(tmp_path / "x.html", image=image),
        lambda image: side_by_side([samples.image(), samples.image()], image=image),
        lambda image: heads_over_image(record, samples.image(), image),
    ]
    for over in draw:
        with pytest.raises(BadInput, match=r"model saw 48 × 64.*pixel_values.*resize\(\(64, 48\)\)"):
            over(blank(*size))
    assert not (tmp_path / "x.html").exists()


def test_what_the_processor_made_can_be_drawn_over(tmp_path: Path) -> None:
    """The way out that the message names."""
    from transformers import CLIPImageProcessor

    crop = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 96, 3)).astype(np.uint8))
    found = wf.explain(folders.vit(), wide, processor=crop)
    with pytest.raises(BadInput, match="32 pixels high and 96 wide"):
        found.save(tmp_path / "x.png", image=wide)
    found.save(tmp_path / "x.png", image=crop(images=wide, return_tensors="pt")["pixel_values"][0])


def test_a_picture_that_the_processor_squeezes_is_drawn_over_as_it_is(tmp_path: Path) -> None:
    from transformers import ViTImageProcessor

    squeeze = ViTImageProcessor(size={"height": 32, "width": 32})
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 96, 3)).astype(np.uint8))
    found = wf.explain(folders.vit(), wide, processor=squeeze)
    for explanation in (found, wf.load(found.save(tmp_path / "x.json"))):
        assert explanation.units.image_size == (32, 32)
        for image in (wide, wide.resize((32, 32)), wide.resize((192, 64))):
            view_of(explanation, image=image)
        with pytest.raises(BadInput, match="other proportions"):
            view_of(explanation, image=wide.resize((32, 96)))


def turned(path: Path) -> Image.Image:
    """The photo as it should be seen; the file holds it lying on its side, as a phone does."""
    upright = Image.fromarray(samples.picture())
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    return upright


def test_a_photo_is_drawn_and_explained_upright(tmp_path: Path) -> None:
    path = tmp_path / "phone.png"
    upright = turned(path)
    explainer = wf.Explainer(folders.vit(), folders.image_processor())
    expected = explainer.explain(upright)
    with Image.open(path) as photo:
        given = [path, str(path), photo, photo.convert("RGB"), ImageOps.exif_transpose(photo)]
        for image in given:
            np.testing.assert_array_equal(to_pixels(image), np.asarray(upright))
            np.testing.assert_array_equal(explainer.explain(image).scores, expected.scores)


def test_broken_exif_data_is_passed_over() -> None:
    image = Image.fromarray(samples.picture())
    image.info["exif"] = b"Exif\0\0garbage"
    np.testing.assert_array_equal(to_pixels(image), samples.picture())


def test_an_explanation_of_an_image_comes_with_it(tmp_path: Path) -> None:
    wide = Image.fromarray(np.kron(np.eye(2, 6, dtype=np.uint8)[..., None] * 200, np.ones((32, 32, 3), np.uint8)))
    crop, squeeze = folders.image_processor(), folders.image_processor()
    crop.do_center_crop, crop.size, crop.crop_size = True, {"shortest_edge": 32}, {"height": 32, "width": 32}
    for processor, shape in ((crop, (32, 32)), (squeeze, (64, 192))):
        found = wf.explain(folders.vit(), wide, processor=processor)
        assert found.picture is not None and found.picture.startswith("data:image/jpeg;base64,")
        view = view_of(wf.load(found.save(tmp_path / "x.json")))
        assert view.panels[0].title == "input"
        assert view.panels[0].marks[0].image.shape[:2] == shape
        assert view.explained.image.shape[:2] == shape
    seen = crop(images=wide, return_tensors="pt")["pixel_values"]
    assert wf.explain(folders.vit(), {"pixel_values": seen})[0].picture is None  # which colours they were is not known


def test_a_picture_in_a_file_that_is_none_is_left_out() -> None:
    for odd in ("data:image/jpeg;base64,AAAA", "https://example.org/x.jpg", "/etc/hosts", "data:image/svg+xml,<svg/>"):
        view = view_of(samples.image(picture=odd))
        assert view.explained.image is None and odd not in view.to_html()


SIZE = {"shortest_edge": 32, "longest_edge": 64}


@cache
def model() -> Any:
    made = CASES["detr"].build("sdpa")
    made.config.id2label = {0: "cat", 1: "<dog>", 2: "tree"}
    return made


@cache
def found() -> list[wf.Explanation]:
    both: list[wf.Explanation] = wf.explain(model(), CASES["detr"].inputs(), target=(2, 1))
    return both


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
        assert ("detected", gradient_space(frame)) in [(f.name, f.value) for f in facts(explanation)]
        other = explanation.replace(target=Target(0, "cat", position=4))
        np.testing.assert_allclose(frames_of(other)[0].box, predicted(inputs, row, 4), atol=1e-6)


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


def test_everything_else_has_no_frame() -> None:
    for name in ("vit", "lxmert", "siglip"):
        one = wf.explain(CASES[name].build(CASES[name].implementations[0]), CASES[name].inputs(), target=0)[0]
        assert frames_of(one) == ()
    assert frames_of(found()[0].replace(target=Target(1))) == ()
    assert frames_of(found()[0].replace(target=Target(1, position=99))) == ()


def test_html_draws_the_box_and_its_name() -> None:
    html = found()[0].to_html(image=np.zeros((16, 40, 3), np.uint8))
    (frame,) = frames_of(found()[0])
    assert html.count("&lt;dog&gt;</text>") == 3 and "<dog>" not in html
    left, top, right, bottom = frame.box
    drawn = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="none" stroke="#fff"', html
    )
    expected = [left * 320, top * 128, (right - left) * 320, (bottom - top) * 128]
    for rectangle in drawn:
        np.testing.assert_allclose([float(v) for v in rectangle], expected, atol=0.06)
    assert len(drawn) == 3


def test_figures_show_it() -> None:
    from matplotlib.patches import Rectangle

    one = found()[0]
    figure = view_of(one).plot()
    empty = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_facecolor()[3] == 0]
    white = [p for p in empty if p.get_edgecolor()[:3] == (1, 1, 1)]
    assert len(white) == 2  # smooth and per patch
    (frame,) = frames_of(one)
    maps = [image.get_extent() for image in figure.axes[0].images][: len(white)]
    for rectangle, (x, right, bottom, y) in zip(white, maps, strict=True):
        corners = np.array(rectangle.get_bbox()).ravel()
        shares = (corners - [x, y, x, y]) / [right - x, bottom - y, right - x, bottom - y]
        np.testing.assert_allclose(shares, frame.box, atol=1e-6)
    assert [t.get_text() for t in figure.axes[0].texts].count("<dog>") == 2


def test_a_terminal_paints_it_into_the_picture() -> None:
    frame = Frame((0.25, 0.5, 0.75, 1.0), "cat")
    painted = framed(np.full((9, 9, 3), 100, np.uint8), (frame,))
    white = (painted == 255).all(-1)
    expected = np.zeros((9, 9), bool)
    expected[[4, 8], 2:7] = True
    expected[4:9, [2, 6]] = True
    assert np.array_equal(white, expected)
    assert (painted[5, 3:6] == 0).all() and (painted[0] == 100).all()
    assert gradient_space(frame) == "25–75 % across, 50–100 % down"


def test_saved_explanations_keep_their_box(tmp_path: Path) -> None:
    for name in ("x.json", "x.npz"):
        again = wf.load(found()[0].save(tmp_path / name))
        assert frames_of(again) == frames_of(found()[0])


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
    alone: Any = wf.explain(model(), pictures[0], processor=processors.detr(), target=0.01)
    assert alone.view().views[0].title == f"{counts[0]} detections"
    apart: Any = wf.explain(model(), pictures, processor=processors.detr(), target=(1, 0))
    assert "detections" not in apart.view().views[0].title  # of two images
