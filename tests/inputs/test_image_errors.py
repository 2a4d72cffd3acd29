"""Pictures that cannot be read, and what to pass instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import whyformer as wf
from tests.support import folders
from whyformer.errors import BadInput
from whyformer.files.image_file import open_image


def explained(image: object) -> object:
    return wf.explain(folders.vit(), image, processor=folders.image_processor())


def picture(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize(
    ("array", "trouble"),
    [
        (picture(3, 32, 32), r"is 3 × 32 × 32, .*array\.transpose\(1, 2, 0\).*'pixel_values': torch\.from_numpy"),
        (picture(1, 32, 32), r"transpose\(1, 2, 0\)"),
        (picture(32, 32, 2), r"is 32 × 32 × 2: a picture is height × width × 3"),
        (picture(0, 32, 3), "is 0 × 32 × 3"),
        (picture(2, 2, 32, 32, 3), "is 2 × 2 × 32 × 32 × 3: .*several of one size are inputs × height × width × 3"),
        (np.zeros(32), "is 32: a picture is"),
        (picture(32, 32, 3).astype(np.int64), r"int64 numbers from 0 to 255: .*array\.astype\('uint8'\)"),
        (picture(32, 32) > 9, "bool numbers from 0 to 1"),
        ((picture(32, 32, 3) / 255).round().astype(np.uint8), r"no number but 0 and 1, .* pass floats from 0 to 1"),
        (picture(32, 32).astype(np.uint16), "uint16 numbers"),
        (picture(32, 32).astype(object), "object numbers: pixels are"),
        (picture(32, 32, 3).astype(np.float32), r"floats from 0 to 255, .*array / 255"),
        (picture(32, 32, 3) / 255 - 0.5, r"floats from -0\.5 to 0\.5, .*no picture any more"),
        (np.full((32, 32, 3), np.nan), "NaN or infinity"),
        ({}, r"got dict\.$"),
    ],
)
def test_an_array_that_is_no_picture(array: object, trouble: str) -> None:
    for given in (array, [array]) if isinstance(array, np.ndarray) else ([array],):
        with pytest.raises(BadInput, match=trouble):
            explained(given)


@pytest.mark.parametrize(
    "array",
    [
        picture(20, 30, 3),
        picture(20, 30),
        picture(20, 30, 1),
        picture(20, 30, 4),
        picture(20, 30, 3) / 255,
        (picture(20, 30) / 255).astype(np.float32),
        (picture(20, 30, 1) / 255).astype(np.float16),
        picture(3, 30, 3),  # three rows of three colours: colours are last
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_an_array_is_the_picture_that_it_shows(array: np.ndarray) -> None:
    shades = array if array.dtype == np.uint8 else np.rint(array.astype(float) * 255).astype(np.uint8)
    if array.dtype == np.float16:
        assert np.abs(np.asarray(open_image(array), int) - shades).max() <= 1
        return
    expected = Image.fromarray(shades[..., 0] if shades.shape[2:] == (1,) else shades).convert("RGB")
    assert np.array_equal(np.asarray(open_image(array)), np.asarray(expected))


def test_arrays_are_explained_as_pictures_are() -> None:
    arrays = np.stack([picture(20, 30, 3, seed=seed) for seed in (1, 2)])
    expected = explained([Image.fromarray(array) for array in arrays])
    single = explained(arrays[0])
    assert isinstance(single, wf.Explanation)
    np.testing.assert_allclose(single.scores, expected[0].scores, atol=1e-6)  # type: ignore[index]
    for several in (explained(list(arrays)), explained(arrays), explained(arrays / 255)):
        for one, other in zip(several, expected, strict=True):  # type: ignore[call-overload]
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)
            assert one.picture == other.picture


def test_a_model_whose_arguments_do_not_say_picture() -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = folders.vit()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(pixel_values=x).logits

    model, array, processor = Wrapped(), picture(20, 30, 3), folders.image_processor()
    expected = wf.explain(folders.vit(), array, processor=processor)
    for given in (array, Image.fromarray(array)):
        np.testing.assert_allclose(wf.explain(model, given, processor=processor).scores, expected.scores, atol=1e-6)
    with pytest.raises(BadInput, match="tensors"):  # without a processor, who knows what an array is?
        wf.explain(model, array)


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
