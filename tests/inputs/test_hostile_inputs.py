"""Objects that are well-formed Python and no input: each is refused in our words, at every door."""

from __future__ import annotations

import copy
import datetime
import decimal
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import whyformer as wf
from tests.support import folders
from tests.tables import models as tables
from whyformer.errors import BadInput, ModelFailed, UnknownName

HALF = "\ud83d"  # the first half of an emoji
IDS = torch.tensor([[2, 6, 7, 8, 3]])

pytestmark = pytest.mark.filterwarnings("ignore:.*(prototype|beta state|deprecated).*:UserWarning")


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    return folders.bert()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return folders.tokenizer(tmp_path_factory.mktemp("tokenizer"))


class Raising:
    """An object of the user's own whose methods raise."""

    def _raises(self, *args: Any) -> Any:
        raise RuntimeError("not today")

    __len__ = __iter__ = __getitem__ = __bool__ = __eq__ = __hash__ = __repr__ = __str__ = __float__ = _raises


# Texts


DOORS: dict[str, Callable[..., Any]] = {
    "explain": lambda model, how: wf.explain(model, f"i like {HALF} it", **how),
    "second of a pair": lambda model, how: wf.explain(model, [("i like it", HALF)], **how),
    "compare": lambda model, how: wf.compare(model, ["i like it", HALF], method=["random"], **how),
    "head_importance": lambda model, how: wf.head_importance(model, [HALF], **how),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_text_with_half_a_character(bert: nn.Module, tokenizer: Any, door: str) -> None:
    with pytest.raises(BadInput, match=r"half a character.*replace") as error:
        DOORS[door](bert, {"processor": tokenizer})
    str(error.value).encode()  # the message itself can be printed


def test_a_tokenizer_that_raises(bert: nn.Module) -> None:
    class Broken:
        convert_ids_to_tokens = None

        def __call__(self, *texts: str, **how: Any) -> Any:
            raise KeyError("vocabulary")

    with pytest.raises(BadInput, match=r"Broken could not encode the input \(KeyError: 'vocabulary'\)"):
        wf.explain(bert, "i like it", processor=Broken())


# Tensors


def _fake(tensor: Tensor) -> Tensor:
    with FakeTensorMode():
        return torch.empty(tensor.shape, dtype=tensor.dtype)


KINDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "meta": (lambda t: t.to("meta"), "without data"),
    "fake": (_fake, "without data"),
    "sparse": (lambda t: t.to_sparse(), r"layout sparse_coo.*to_dense"),
    "quantized": (lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.quint8), "quantized.*dequantize"),
    "nested": (lambda t: torch.nested.nested_tensor([t[0].float()]), "nested.*to_padded_tensor"),
    "complex": (lambda t: t.to(torch.complex64), "complex.*real"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [lambda t: t, lambda t: {"input_ids": IDS, "attention_mask": t}], ids=["ids", "mask"])
def test_tensors_without_ordinary_numbers(bert: nn.Module, kind: str, given: Callable[[Tensor], Any]) -> None:
    make, words = KINDS[kind]
    for verb in (wf.explain, wf.head_importance):
        with pytest.raises(BadInput, match=words):
            verb(bert, given(make(torch.ones_like(IDS))))


def test_floats_of_every_width_are_the_same_numbers() -> None:
    model = folders.vit()
    pixels = torch.randint(0, 2, (1, 3, 32, 32), generator=torch.Generator().manual_seed(0)).float()
    expected = wf.explain(model, pixels, method="saliency")[0].scores
    for dtype in (torch.float64, torch.float8_e4m3fn):
        np.testing.assert_array_equal(wf.explain(model, pixels.to(dtype), method="saliency")[0].scores, expected)


class Returning(nn.Module):
    """A model with another output."""

    def __init__(self, model: nn.Module, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.model, self.change, self.config = model, change, model.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return self.change(self.model(input_ids, attention_mask=attention_mask).logits)


@pytest.mark.parametrize("kind", ["meta", "sparse", "no classes", "bool", "uint8"])
@pytest.mark.parametrize("inside", [lambda t: t, lambda t: {"logits": t}], ids=["alone", "in a dict"])
def test_models_that_return_no_ordinary_numbers(bert: nn.Module, kind: str, inside: Callable[[Tensor], Any]) -> None:
    others: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
        "no classes": (lambda t: t[:, :0], "without a single logit"),
        "bool": (lambda t: t > 0, "torch.bool"),
        "uint8": (lambda t: t.to(torch.uint8), "torch.uint8"),
    }
    make, words = (KINDS | others)[kind]
    model = Returning(bert, lambda logits: inside(make(logits.detach())))
    for method in ("generic_attention", "occlusion", "saliency"):
        with pytest.raises(BadInput, match=f"the model's output.*{words}"):
            wf.explain(model, IDS, method=method)


# Configs


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"a": "b"}, "key 'a', which is no class number"),
        ({None: "x"}, "key None"),
        ({float("nan"): "x"}, "key nan"),
        (["a", "b"], "not a dict"),
        (3, "id2label of the model is 3"),
    ],
)
def test_names_of_classes_without_numbers(bert: nn.Module, names: Any, words: str) -> None:
    model = copy.deepcopy(bert)
    object.__setattr__(model.config, "id2label", names)
    with pytest.raises(BadInput, match=words):
        wf.explain(model, IDS)


@pytest.mark.parametrize(
    "entry", [{"max_position_embeddings": "many"}, {"vocab_size": [3]}, {"pad_token_id": [0]}, {"pad_token_id": "x"}]
)
def test_other_entries_of_a_wrong_kind_are_not_read(bert: nn.Module, entry: dict[str, Any]) -> None:
    model = copy.deepcopy(bert)
    for name, value in entry.items():
        object.__setattr__(model.config, name, value)
    # With a mask: without one, transformers 4 looks for padding itself, and fails.
    given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    scores = [wf.explain(each, given, method="generic_attention")[0].scores for each in (model, bert)]
    np.testing.assert_array_equal(*scores)


# Pictures


def test_pictures_that_cannot_be_read_any_more(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    Image.fromarray(noise).save(path)
    closed, unread = Image.open(path), Image.open(path)
    closed.close()
    assert unread.fp is not None
    unread.fp.close()
    path.with_name("cut.png").write_bytes(path.read_bytes()[:2000])
    cut = Image.open(path.with_name("cut.png"))
    for image in (closed, unread, cut):
        with pytest.raises(BadInput, match=r"the image cannot be read .*Open it again"):
            wf.explain(folders.vit(), image, processor=folders.image_processor())
    cut.close()


# Cells of a table


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (pd.NA, "no value"),
        (pd.NaT, "no value"),
        (np.ma.masked, "no value"),
        (decimal.Decimal("sNaN"), "no value"),
        (10**400, "numbers that a float can hold"),
        (Fraction(10**400, 3), "numbers that a float can hold"),
        (1e300, "too large for torch.float32"),
        (b"3", "holds bytes"),
        (np.complex64(1j), "holds complex64"),
        (np.void(b"3"), "holds void"),
        (range(3), "holds <range>"),
        (np.datetime64("2024-01-01"), "holds datetime64.*numbers are expected"),
        (datetime.date(2024, 1, 1), "holds date,.*numbers are expected"),
        ([[3]], "numbers that a float can hold"),
        (Raising(), r"cannot be read \(RuntimeError: not today\)"),
    ],
)
def test_cells_that_are_no_numbers(value: Any, words: str) -> None:
    rows = tables.rows(2)
    model = tables.HomeMade("first")
    with pytest.raises(BadInput, match=words):
        wf.explain(model, [{**rows[0], "age": value}, rows[1]], processor=tables.table())


@pytest.mark.parametrize("value", [pd.NA, Raising(), HALF, [1], np.ma.masked])
def test_cells_that_are_no_category(value: Any) -> None:
    rows = tables.rows(2)
    with pytest.raises(BadInput, match="'work'"):
        wf.explain(tables.HomeMade("first"), [{**rows[0], "work": value}, rows[1]], processor=tables.table())


def test_numbers_of_other_libraries_are_numbers() -> None:
    row, model, table = tables.rows(1)[0], tables.HomeMade("first"), tables.table()
    plain = wf.explain(model, {**row, "age": 30}, processor=table).scores
    for value in (np.int8(30), np.float32(30), decimal.Decimal(30), Fraction(60, 2), np.array(30)):
        np.testing.assert_array_equal(wf.explain(model, {**row, "age": value}, processor=table).scores, plain)


def test_a_table_whose_own_functions_raise() -> None:
    def preprocess(numbers: Any) -> Any:
        raise KeyError("scaler")

    table = tables.table(preprocess=preprocess)
    with pytest.raises(BadInput, match=r"preprocess of the Table failed .*scaler"):
        wf.explain(tables.HomeMade("first"), tables.rows(1)[0], processor=table)


# Objects whose own methods raise


def test_objects_that_raise_where_they_are_read(bert: nn.Module, tokenizer: Any) -> None:
    for inputs in (Raising(), [Raising()], {"input_ids": Raising()}):
        with pytest.raises(BadInput):
            wf.explain(bert, inputs, processor=tokenizer)
    with pytest.raises(BadInput):
        wf.explain(Raising(), "i like it", processor=tokenizer)
    with pytest.raises(UnknownName, match="<Raising>"):
        raise UnknownName("label", Raising(), ["a"])


def test_the_line_of_a_failed_forward_is_the_models_own() -> None:
    """Not that of torch's linear layer, nor of what watches it."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x).mean(1)

    with pytest.raises(ModelFailed, match=rf"\(in {Path(__file__).name}, line \d+, forward\)"):
        wf.explain(Wide().eval(), {"x": torch.ones(1, 5, 4)}, method="occlusion")
