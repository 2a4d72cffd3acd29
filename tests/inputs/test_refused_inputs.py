"""Inputs that mean nothing: each is refused, and the message says what is wrong and what to pass instead."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import whyformer as wf
from tests.models import model_of
from tests.support import folders, processors
from tests.tables import models as tables
from whyformer.errors import BadInput, MissingProcessor, ModelFailed
from whyformer.files.image_file import open_image

NOISE = np.random.default_rng(0).standard_normal(400).astype(np.float32)
IDS = torch.tensor([[2, 6, 7, 8, 3]])
PIXELS = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def image() -> wf.Explainer:
    return wf.Explainer(folders.vit(), folders.image_processor())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["i like it", "so good", ""], r"^inputs\[2\]: "),
        (["", "i like it"], r"^inputs\[0\]: "),
        (["i like it", None, 3], r"^inputs\[1\]: "),
        ([("i like it", "so good"), ("a", "b", "c")], r"^inputs\[1\]: "),
        (pd.Series(["i like it", " "]), r"^inputs\[1\]: "),
        (["", ""], "^the text is empty"),  # all fail alike: no place is named
        (pd.Series(["i like it", None]), r"1 of 2 texts are missing.*inputs\[1\].*dropna"),
        (pd.Series(["i like it", pd.NA], dtype="string"), "1 of 2 texts are missing"),
        (np.array(["i like it", float("nan")], dtype=object), "1 of 2 texts are missing"),
        ({"i like it", "the movies"}, "a set, which has no order"),
        ({"text": "i like it"}, "a dict with the keys .text."),
        ({"input_ids": [[2, 6, 3]]}, "no tensor in it"),
        (IDS[:, :0], "holds nothing"),
        ({"input_ids": IDS.float()}, "token ids are whole"),
        ({"input_ids": IDS.to(torch.complex64)}, "complex"),
        ({"input_ids": IDS.bool()}, "True and False"),
        ({"input_ids": -IDS}, "0 or more"),
        ({"input_ids": IDS, "attention_mask": torch.ones(1, 3)}, "one number per token"),
        ({"input_ids": IDS, "attention_mask": torch.zeros(1, 5)}, "hides every position of input 0"),
        ({"input_ids": IDS, "attention_mask": torch.full((1, 5), torch.nan)}, "NaN"),
    ],
)
def test_texts(text: wf.Explainer, wrong: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        text.explain(wrong, method="occlusion")


def test_texts_without_their_tokenizer(text: wf.Explainer) -> None:
    with pytest.raises(MissingProcessor, match=r"^text needs"):
        wf.explain(text.model, ["i like it", "so good"])


def test_a_column_of_categories_is_a_list_of_texts(text: wf.Explainer) -> None:
    column = pd.Series(["i like it", "so good"], dtype="category")
    assert [e.units.text for e in text.explain(column)] == ["i like it", "so good"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([Image.new("RGB", (40, 40)), "nofile.png"], r"^inputs\[1\]: .*nofile.png"),
        (Image.new("RGB", (0, 5)), "0×5 pixels"),
        ([Image.new("RGB", (5, 0))], "5×0 pixels"),
        (PIXELS[:, :, :0], "holds nothing"),
        (PIXELS.to(torch.complex64), "complex"),
        (PIXELS > 0.5, "True and False"),
        (PIXELS * torch.nan, "NaN or infinity in input 0"),
        (PIXELS * torch.inf, "NaN or infinity"),
        ({"pixel_values": PIXELS.long()}, "whole numbers"),
    ],
)
def test_pictures(image: wf.Explainer, wrong: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        image.explain(wrong, method="occlusion")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (NOISE > 0, "real numbers"),
        (NOISE.astype(complex), "real numbers"),
        (NOISE * np.nan, "NaN"),
        ((NOISE, 16000, 1), "pair"),
        ((NOISE, "16000"), "samples a second"),
    ],
)
def test_sounds(wrong: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        wf.explain(model_of("wav2vec2"), wrong, processor=processors.wav2vec2())


@pytest.mark.parametrize("value", [np.datetime64("2024-01-01"), datetime.date(2024, 1, 1), np.timedelta64(3, "D"), 1j])
def test_dates_are_no_numbers(value: Any) -> None:
    row = tables.rows(1)[0] | {"age": value}
    with pytest.raises(BadInput, match=r"'age' holds .* numbers are expected"):
        wf.explain(tables.HomeMade("first"), row, processor=tables.table())


def test_ready_tensors_of_a_table() -> None:
    numbers, codes = torch.full((1, 3), torch.nan), torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(BadInput, match="numerical holds NaN"):
        wf.Explainer(tables.HomeMade("first"), tables.table()).record({"numerical": numbers, "categorical": codes})


def test_a_mask_that_is_added_may_hide_by_minus_infinity() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 2)
            self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, input_ids: Tensor, attention_bias: Tensor) -> Tensor:
            x = self.embed(input_ids)
            y, _ = self.attend(x, x, x, attn_mask=attention_bias[0], need_weights=True)
            return self.head((x + y).mean(1))

    bias = torch.zeros(1, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    assert wf.explain(Added(), {"input_ids": IDS, "attention_bias": bias}, method="raw_attention")


class Broken(nn.Module):
    """Fails on more than four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        if input_ids.shape[1] > 4:
            raise KeyError("five")
        return self.head(self.embed(input_ids).mean(1))


@pytest.mark.parametrize("method", ["generic_attention", "occlusion", "saliency"])
def test_errors_of_the_model_are_the_models(method: str) -> None:
    """Whose code raised, on which input, what to try; the cause stays attached."""
    with pytest.raises(
        ModelFailed, match=r"Broken raised KeyError: 'five' .*forward.*input_ids \(1, 5\).*model\("
    ) as error:
        wf.explain(Broken(), {"input_ids": IDS}, method=method)
    assert isinstance(error.value.__cause__, KeyError)


# Pictures that cannot be read, and what to pass instead


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
