"""Raw inputs as people have them (strings, pairs, files, slow tokenizers, odd images), and those that are refused."""

from __future__ import annotations

from base64 import b64decode
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import whyformer as wf
from tests.models import CASES, model_of
from tests.support import folders, processors
from tests.tables import models as tables
from whyformer.errors import BadInput, MissingProcessor, ModelFailed, UnknownName
from whyformer.files import open_image
from whyformer.inputs.media import tiles_of


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def test_one_string_gives_one_explanation_and_a_list_a_list(tmp_path: Path) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    one = wf.explain(model, "the movies was boring .", processor=tokenizer)
    many = wf.explain(model, ["the movies was boring .", "i like it"], processor=tokenizer)
    assert isinstance(one, wf.Explanation)
    assert [type(e) for e in many] == [wf.Explanation] * 2
    np.testing.assert_allclose(one.scores, many[0].scores, atol=1e-5)
    assert one.method == "two_ended"
    assert one.units.labels == ("[CLS]", "the", "movie", "##s", "was", "boring", ".", "[SEP]")
    assert one.units.special == (True, *[False] * 6, True)
    assert one.units.word == (-1, 0, 1, 1, 2, 3, 4, -1)
    assert one.units.text == "the movies was boring ."
    assert one.units.spans[2] == (4, 9) and one.units.spans[3] == (9, 10)
    assert [w for w, _ in one.words()] == ["the", "movies", "was", "boring", "."]
    assert one.words()[1][1] == pytest.approx(float(one.scores[2] + one.scores[3]))
    assert one.readout == "first position"
    assert one.prediction.label in {"negative", "positive"}
    assert set(one.units.stream) == {"text"}


def test_a_column_of_texts_is_a_list_of_them(tmp_path: Path) -> None:
    explainer = wf.Explainer(folders.bert(), folders.tokenizer(tmp_path))
    texts = ["the movies was boring .", "i like it"]
    listed = explainer.explain(texts)
    for column in (pd.Series(texts), pd.Series(texts, dtype="category"), np.array(texts)):
        for one, other in zip(explainer.explain(column), listed, strict=True):
            assert one.units.labels == other.units.labels
            np.testing.assert_array_equal(one.scores, other.scores)
            assert repr(one) == repr(other)
    assert "str_" not in repr(explainer.explain(np.str_(texts[0])))


def test_a_pair_of_texts(tmp_path: Path) -> None:
    found = wf.explain(folders.bert(), ("the movie was good", "i hate it"), processor=folders.tokenizer(tmp_path))
    assert found.units.labels.count("[SEP]") == 2
    assert found.units.word == (-1, 0, 1, 2, 3, -1, 4, 5, 6, -1)


def test_an_unknown_word_is_a_word_and_no_special_token(tmp_path: Path) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    found = wf.explain(model, "the zeppelin was good", processor=tokenizer, method="occlusion")
    assert found.units.labels[2] == "[UNK]"
    assert found.units.special == (True, *[False] * 4, True)
    assert found.scores[2] != 0
    assert "zeppelin" in [word for word, _ in found.words()]


def test_slow_tokenizers_without_offsets(tmp_path: Path) -> None:
    slow = folders.tokenizer(tmp_path, slow=True)
    found = wf.explain(folders.bert(), "the movies was boring", processor=slow)
    assert not slow.is_fast
    assert [w for w, _ in found.words()] == ["the", "movies", "was", "boring"]


def test_a_tokenizer_without_padding_token(tmp_path: Path) -> None:
    tokenizer = folders.tokenizer(tmp_path)
    tokenizer.pad_token = None
    texts = ["the movie was boring .", "i like it"]
    together = wf.explain(folders.bert(), texts, processor=tokenizer)
    alone = wf.explain(folders.bert(), texts[1], processor=tokenizer)
    assert tokenizer.pad_token is None
    np.testing.assert_allclose(together[1].scores, alone.scores, atol=1e-5)


def test_long_text_is_cut_and_says_so(tmp_path: Path) -> None:
    found = wf.explain(folders.bert(), "the movie was so boring and bad " * 5, processor=folders.tokenizer(tmp_path))
    assert len(found.units) == 16
    assert "37 tokens" in found.warnings[0] and "16" in found.warnings[0]


def test_targets(tmp_path: Path) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    explainer = wf.Explainer(model, tokenizer)
    by_label = explainer.explain("i like it", target="POSITIVE")
    by_index = explainer.explain("i like it", target=1)
    assert np.array_equal(by_label.scores, by_index.scores)
    contrast = explainer.explain("i like it", target=("positive", "negative"), method="input_x_gradient")
    logits = model(**tokenizer("i like it", return_tensors="pt")).logits[0].detach()
    assert contrast.value == pytest.approx(float(logits[1] - logits[0]), abs=1e-5)
    assert str(contrast.target) == "positive rather than negative"
    each = explainer.explain(["i like it", "i hate it"], target=[0, 1])
    assert [e.target.index for e in each] == [0, 1]
    assert explainer.explain("i like it").target == explainer.explain("i like it").prediction


def test_image_files(tmp_path: Path) -> None:
    picture = Image.fromarray(pixels(40, 40, 3)).convert("P")
    picture.save(tmp_path / "a.png")
    explainer = wf.Explainer(folders.vit(), folders.image_processor())
    by_image = explainer.explain(picture, target="dog")
    for path in (tmp_path / "a.png", str(tmp_path / "a.png")):
        assert np.array_equal(explainer.explain(path, target="dog").scores, by_image.scores)


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("deit", ("[CLS]", "[DIST]")),
        ("dinov2_registers", ("[CLS]", "[REG1]", "[REG2]", "[REG3]", "[REG4]")),
        ("timm_fused", ("[CLS]",)),
    ],
)
def test_tokens_that_the_model_adds_are_named_and_special(name: str, added: tuple[str, ...]) -> None:
    case = CASES[name]
    found = wf.explain(case.build(case.implementations[0]), case.inputs(), method="attention_rollout")[0]
    assert found.units.labels[: len(added)] == added
    assert found.units.special == (*[True] * len(added), *[False] * 16)
    assert found.units.grid == (4, 4)


def test_numerical_columns_that_bypass_attention_are_not_scored_as_zero() -> None:
    case = CASES["lucidrains_tab_transformer"]
    found = wf.explain(case.build(None), case.inputs(), method="attention_rollout")[0]
    assert all(label.startswith("x_categ") for label in found.units.labels)


def test_batch_as_large_as_the_heads_is_told_apart_by_the_probe(tmp_path: Path) -> None:
    """Four inputs, four heads, eager attention: the layout was learned from a single input."""
    texts = ["i like it", "the movie was so boring .", "good", "she hate the book"]
    together = wf.explain(folders.bert("eager"), texts, processor=folders.tokenizer(tmp_path), target=1)
    for text, found in zip(texts, together, strict=True):
        alone = wf.explain(folders.bert("eager"), text, processor=folders.tokenizer(tmp_path), target=1)
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)


# Inputs that mean nothing: each is refused, and the message says what is wrong and what to pass instead.

NOISE = np.random.default_rng(0).standard_normal(400).astype(np.float32)
IDS = torch.tensor([[2, 6, 7, 8, 3]])
PIXELS = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
ROWS = {"numerical": torch.full((1, 3), torch.nan), "categorical": torch.zeros(1, 2, dtype=torch.long)}


@cache
def door(kind: str) -> Any:
    """What takes inputs of one kind."""
    if kind == "sound":
        return wf.Explainer(model_of("wav2vec2"), processors.wav2vec2()).explain
    if kind == "table":
        return wf.Explainer(tables.HomeMade("first"), tables.table()).record
    if kind == "image":
        return wf.Explainer(folders.vit(), folders.image_processor()).explain
    with TemporaryDirectory() as folder:
        return wf.Explainer(folders.bert(), folders.tokenizer(Path(folder))).explain


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        ("text", ["i like it", "so good", ""], r"^inputs\[2\]: "),
        ("text", ["i like it", None, 3], r"^inputs\[1\]: "),
        ("text", [("i like it", "so good"), ("a", "b", "c")], r"^inputs\[1\]: "),
        ("text", pd.Series(["i like it", " "]), r"^inputs\[1\]: "),
        ("text", ["", ""], "^the text is empty"),  # all fail alike: no place is named
        ("text", pd.Series(["i like it", None]), r"1 of 2 texts are missing.*inputs\[1\].*dropna"),
        ("text", np.array(["i like it", float("nan")], dtype=object), "1 of 2 texts are missing"),
        ("text", {"i like it", "the movies"}, "a set, which has no order"),
        ("text", {"text": "i like it"}, "a dict with the keys .text."),
        ("text", {"input_ids": [[2, 6, 3]]}, r'\(.input_ids.\), and none of them is a tensor: .*return_tensors="pt"'),
        ("text", {"input_ids": IDS.numpy()}, "none of them is a tensor"),
        ("text", (text for text in ["i like it"]), r"a generator, which can be read only once: pass list"),
        ("text", ("i like it", "so good", "bad"), "Pass several texts as a list"),
        ("text", IDS[:, :0], "is empty"),
        ("text", {"input_ids": IDS.float()}, "token ids are whole"),
        ("text", {"input_ids": IDS.bool()}, "True and False"),
        ("text", {"input_ids": -IDS}, "0 or more"),
        ("text", {"input_ids": IDS, "attention_mask": torch.ones(1, 3)}, "one number per token"),
        ("text", {"input_ids": IDS, "attention_mask": torch.zeros(1, 5)}, "masks every position of input 0"),
        ("text", {"input_ids": IDS, "attention_mask": torch.full((1, 5), torch.nan)}, "NaN"),
        ("image", [Image.new("RGB", (40, 40)), "nofile.png"], r"^inputs\[1\]: .*nofile.png"),
        ("image", Image.new("RGB", (0, 5)), "0×5 pixels"),
        ("image", Path(__file__).parent, "is a folder: name an image in it"),
        ("image", "https://example.org/cat.png", "^'https://example.org/cat.png' is an address"),
        ("image", map(str, ["cat.png"]), "a map, which can be read only once"),
        ("image", PIXELS[:, :, :0], "is empty"),
        ("image", PIXELS > 0.5, "True and False"),
        ("image", PIXELS * torch.nan, "NaN or infinity in input 0"),
        ("image", PIXELS * torch.inf, "NaN or infinity"),
        ("image", {"pixel_values": PIXELS.long()}, r"whole numbers.*permute\(1, 2, 0\)"),
        ("image", {"pixel_values": PIXELS[0]}, r"pixels\[None\]"),
        ("sound", NOISE > 0, "real numbers"),
        ("sound", NOISE.astype(complex), "real numbers"),
        ("sound", NOISE * np.nan, "NaN"),
        ("sound", (NOISE, 16000, 1), "pair"),
        ("sound", (NOISE, "16000"), "samples a second"),
        ("table", ROWS, "numerical holds NaN"),
        ("table", iter([{"age": 1}]), "a list_iterator, which can be read only once"),
    ],
)
def test_what_is_no_input(kind: str, wrong: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        door(kind)(wrong)


def test_a_single_output_has_one_number() -> None:
    single = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(8 * IDS.shape[1], 1))
    with pytest.raises(UnknownName, match=r"unknown target 1\. Known: 0\."):
        wf.explain(single, IDS, target=1, method="saliency")


def test_texts_without_their_tokenizer() -> None:
    with pytest.raises(MissingProcessor, match=r"^text needs"):
        wf.explain(folders.bert(), ["i like it", "so good"])


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
    def forward(self, input_ids: Tensor) -> Tensor:
        raise KeyError("five")


@pytest.mark.parametrize("method", ["generic_attention", "occlusion", "saliency"])
def test_errors_of_the_model_are_the_models(method: str) -> None:
    """Whose code raised, on which input, what to try; the cause stays attached."""
    words = r"Broken raised KeyError: 'five' .*forward.*input_ids \(1, 5\).*model\("
    with pytest.raises(ModelFailed, match=words) as error:
        wf.explain(Broken(), {"input_ids": IDS}, method=method)
    assert isinstance(error.value.__cause__, KeyError)


# Pictures that cannot be read, and what to pass instead


def explained(image: object) -> object:
    return wf.explain(folders.vit(), image, processor=folders.image_processor())


@pytest.mark.parametrize(
    ("array", "trouble"),
    [
        (pixels(3, 32, 32), r"is 3 × 32 × 32, .*array\.transpose\(1, 2, 0\).*'pixel_values': torch\.from_numpy"),
        (pixels(1, 32, 32), r"transpose\(1, 2, 0\)"),
        (pixels(32, 32, 2), r"is 32 × 32 × 2: an image is height × width × 3"),
        (pixels(0, 32, 3), "is 0 × 32 × 3"),
        (pixels(2, 2, 32, 32, 3), "is 2 × 2 × 32 × 32 × 3: .*several of one size are inputs × height × width × 3"),
        (np.zeros(32), "is 32: an image is"),
        (pixels(32, 32, 3).astype(np.int64), r"int64 numbers from 0 to 255: .*array\.astype\('uint8'\)"),
        (pixels(32, 32) > 9, r"bool numbers from 0 to 1: .*array\.astype\('float32'\)"),
        ((pixels(32, 32, 3) / 255).round().astype(np.uint8), r"contains only 0 and 1, .* pass floats from 0 to 1"),
        (pixels(32, 32).astype(np.uint16), r"uint16 numbers from 0 to 255: .*astype\('uint8'\)"),
        (pixels(32, 32).astype(np.uint16) * 257, "uint16 numbers from 0 to 65535: .*array / 65535"),
        (pixels(32, 32).astype(object), "object numbers: pixels are"),
        (pixels(32, 32, 3).astype(np.float32), r"floats from 0 to 255, .*array / 255"),
        (pixels(32, 32, 3) / 255 - 0.5, r"floats from -0\.5 to 0\.5, .*normalised for a model"),
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
        pixels(20, 30),
        pixels(20, 30, 1),
        pixels(20, 30, 4),
        pixels(20, 30, 3) / 255,
        (pixels(20, 30) / 255).astype(np.float32),
        pixels(3, 30, 3),  # three rows of three colours: colours are last
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_an_array_is_the_picture_that_it_shows(array: np.ndarray) -> None:
    shades = array if array.dtype == np.uint8 else np.rint(array.astype(float) * 255).astype(np.uint8)
    expected = Image.fromarray(shades[..., 0] if shades.shape[2:] == (1,) else shades).convert("RGB")
    assert np.array_equal(np.asarray(open_image(array)), np.asarray(expected))


def test_arrays_are_explained_as_pictures_are() -> None:
    arrays = np.stack([pixels(20, 30, 3, seed=seed) for seed in (1, 2)])
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

    model, array, processor = Wrapped(), pixels(20, 30, 3), folders.image_processor()
    expected = wf.explain(folders.vit(), array, processor=processor)
    for given in (array, Image.fromarray(array)):
        np.testing.assert_allclose(wf.explain(model, given, processor=processor).scores, expected.scores, atol=1e-6)
    with pytest.raises(BadInput, match="tensors"):  # without a processor, who knows what an array is?
        wf.explain(model, array)


def test_pixels_of_another_size_than_the_model_takes() -> None:
    given = torch.zeros(1, 3, 48, 40)
    with pytest.raises(BadInput, match=r"pixel_values of 48×40 pixels do not fit.*'interpolate_pos_encoding': True"):
        wf.explain(folders.vit(), {"pixel_values": given})
    (found,) = wf.explain(folders.vit(), {"pixel_values": given, "interpolate_pos_encoding": True})
    assert found.units.image_size == (48, 40)


def test_pictures_of_16_bits_have_their_greys(tmp_path: Path) -> None:
    """Pillow would cut every number off at 255: white nearly everywhere."""
    numbers = (np.arange(32 * 32).reshape(32, 32) * 64).astype(np.uint16)
    path = tmp_path / "scan.tif"
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
        with pytest.raises(BadInput, match=r"from -1 to 3, and it is not known which of them is black.*fromarray"):
            explained(image)
    image, black, white = Image.open(path), -1, 3  # and now as it advises
    array = np.asarray(image)
    scaled = Image.fromarray(((array - black) / (white - black) * 255).clip(0, 255).astype("uint8"))
    assert isinstance(explained(scaled), wf.Explanation)


@pytest.mark.parametrize(("side", "patch"), [(16, 6), (18, 4), (16, 4)])
def test_the_rest_that_no_patch_covers_belongs_to_none(side: int, patch: int) -> None:
    """A convolution of patches drops the last rows and columns of pixels: 384 is not a multiple of 14."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = ViTForImageClassification(ViTConfig(image_size=side, patch_size=patch, num_labels=3, **sizes)).eval()
    count, images = side // patch, torch.rand(1, 3, side, side)
    given = images.clone().requires_grad_()
    logits = model(given).logits[0]
    (slope,) = torch.autograd.grad(logits[2], given)
    covered = (given * slope).detach()[0].sum(0)[: count * patch, : count * patch]
    products = covered.reshape(count, patch, count, patch).sum((1, 3)).flatten()
    drops = []
    for square in range(count**2):
        top, left = (patch * place for place in divmod(square, count))
        without = images.clone()
        without[..., top : top + patch, left : left + patch] = 0
        with torch.no_grad():
            drops.append(float(logits[2] - model(without).logits[0, 2]))
    inputs = {"pixel_values": images}
    for method, options, expected in (("input_x_gradient", {}, products), ("occlusion", {"replace": "zero"}, drops)):
        found = wf.explain(model, inputs, method=method, target=2, **options)[0]
        assert found.units.image_size == (count * patch, count * patch)
        np.testing.assert_allclose(found.scores[1:], expected, atol=1e-5)


def test_the_picture_is_what_the_patches_cover() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = ViTForImageClassification(ViTConfig(image_size=40, patch_size=16, num_labels=2, **sizes)).eval()
    processor = processors.pil("vit", "ViT", size={"height": 40, "width": 40})
    found = wf.explain(model, Image.fromarray(pixels(80, 80, 3)), processor=processor, method="attention_rollout")
    assert found.units.image_size == (32, 32) and found.units.picture_size is None
    head, _, code = found.picture.partition(",")
    with Image.open(BytesIO(b64decode(code))) as drawn:
        assert head.startswith("data:image/jpeg") and drawn.size == (32, 32)


def test_a_tile_of_a_prompt_ends_with_its_last_patch() -> None:
    config = SimpleNamespace(vision_config=SimpleNamespace(patch_size=4))
    (tile,) = tiles_of({"pixel_values": torch.zeros(1, 3, 10, 10)}, config, {"image": 4})
    assert tile.grid == (2, 2) and tile.where_FCHW.shape == (1, 3, 8, 8)
    assert tile.where_FCHW[0, 0, :2, -1].tolist() == [7, 17]
