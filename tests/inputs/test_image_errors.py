"""Pictures that cannot be read, and what to pass instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import whyformer as wf
from tests.support import folders
from whyformer.errors import BadInput, ModelFailed
from whyformer.files.image_file import open_image


def explained(image: object) -> object:
    return wf.explain(folders.vit(), image, processor=folders.image_processor())


@pytest.mark.parametrize(
    ("array", "way_out"),
    [
        (np.zeros((32, 32, 3), np.uint8), r"got ndarray\. .*Image\.fromarray\(array\)"),
        (np.zeros((32, 32)), r"got ndarray\. .*Image\.fromarray\(\(array \* 255\)\.round\(\)\.astype\('uint8'\)\)"),
    ],
)
def test_an_array_is_to_become_an_image(array: np.ndarray, way_out: str) -> None:
    with pytest.raises(BadInput, match=way_out):
        explained([array])
    with pytest.raises(BadInput, match=r"got dict\.$"):
        explained([{}])


def test_a_folder_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"is a folder: name an image in it"):
        explained(tmp_path)
    with pytest.raises(BadInput, match="the file does not exist"):
        explained(tmp_path / "cat.jpg")


def test_pixels_of_another_size_than_the_model_takes() -> None:
    pixels = torch.zeros(1, 3, 48, 40)
    with pytest.raises(BadInput, match=r"pixel_values of 48×40 pixels do not fit.*'interpolate_pos_encoding': True"):
        wf.explain(folders.vit(), {"pixel_values": pixels})
    (found,) = wf.explain(folders.vit(), {"pixel_values": pixels, "interpolate_pos_encoding": True})
    assert found.units.image_size == (48, 40)


def test_an_image_without_its_batch_axis() -> None:
    for given in (torch.zeros(3, 32, 32), {"pixel_values": torch.zeros(3, 32, 32)}):
        with pytest.raises(BadInput, match=r"pixels\[None\]"):
            wf.explain(folders.vit(), given)


def test_other_errors_of_the_model_are_its_own() -> None:
    class Broken(torch.nn.Module):
        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            raise ValueError("something else")

    with pytest.raises(ModelFailed, match="Broken raised ValueError: something else") as error:
        wf.explain(Broken(), {"pixel_values": torch.zeros(1, 3, 8, 8)})
    assert isinstance(error.value.__cause__, ValueError)


def test_a_picture_of_an_array_is_explained() -> None:
    array = np.zeros((32, 32, 3), np.uint8)
    assert explained(Image.fromarray(array)).units.grid is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_pictures_of_16_bits_have_their_greys(tmp_path: Path, ending: str) -> None:
    """Pillow would cut every number off at 255: white nearly everywhere."""
    numbers = (np.arange(32 * 32).reshape(32, 32) * 64).astype(np.uint16)
    path = tmp_path / f"scan.{ending}"
    Image.fromarray(numbers).save(path)
    for image in (path, Image.open(path), Image.fromarray(numbers)):
        seen = np.asarray(open_image(image))
        assert seen.shape == (32, 32, 3)
        np.testing.assert_allclose(seen[..., 0], numbers / 257, atol=0.51)


def test_numbers_without_a_white_are_no_picture(tmp_path: Path) -> None:
    numbers = np.linspace(-1, 3, 32 * 32, dtype=np.float32).reshape(32, 32)
    path = tmp_path / "depth.tif"
    Image.fromarray(numbers).save(path)
    for image in (path, Image.fromarray(numbers)):
        with pytest.raises(BadInput, match=r"from -1 to 3, and which of them is black.*fromarray"):
            explained(image)
    image, black, white = Image.open(path), -1, 3  # and now as it advises
    array = np.asarray(image)
    scaled = Image.fromarray(((array - black) / (white - black) * 255).clip(0, 255).astype("uint8"))
    assert isinstance(explained(scaled), wf.Explanation)
