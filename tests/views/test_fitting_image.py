"""What maps are drawn over: pictures in the proportions that the model saw, upright, in a folder that exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import whyformer as wf
from tests.support import folders
from tests.views import samples
from whyformer.errors import BadInput
from whyformer.results.types import Record, Site
from whyformer.views import heads_over_image, side_by_side, view_of
from whyformer.views.image_marks import to_pixels

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


@pytest.mark.parametrize("ending", ["html", "png", "json", "npz"])
def test_a_folder_that_is_not_there(tmp_path: Path, ending: str) -> None:
    with pytest.raises(BadInput, match=r"there is no folder '.*nowhere'\. Make it first"):
        samples.text().save(tmp_path / "nowhere" / f"x.{ending}")


def test_a_view_needs_its_folder_too(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no folder"):
        view_of(samples.text()).save(tmp_path / "nowhere" / "x.html")


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
