"""Inputs that were taken without a word and mean nothing: each is refused, and the message says what is wrong."""

from __future__ import annotations

import datetime
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
