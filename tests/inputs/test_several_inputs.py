"""Several raw inputs at once: which of them cannot be used, and columns of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import whyformer as wf
from tests.inputs.test_raw_inputs import picture
from tests.support import folders
from tests.test_errors import refused
from whyformer import errors


@pytest.fixture
def text(tmp_path: Path) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path))


@pytest.mark.parametrize(
    ("inputs", "place"),
    [
        (["i like it", "so good", ""], 2),
        (["", "i like it"], 0),
        (["i like it", None, 3], 1),
        ([("i like it", "so good"), ("a", "b", "c")], 1),
        (pd.Series(["i like it", " "]), 1),
    ],
)
def test_a_bad_one_among_several_is_named_by_its_place(text: wf.Explainer, inputs: Any, place: int) -> None:
    with refused(errors.BadInput, rf"^inputs\[{place}\]: "):
        text.explain(inputs)


def test_a_bad_picture_among_several() -> None:
    explainer = wf.Explainer(folders.vit(), folders.image_processor())
    with refused(errors.BadInput, r"^inputs\[1\]: ", "nofile.png"):
        explainer.explain([picture(), "nofile.png"])


def test_where_all_fail_alike_no_place_is_named(text: wf.Explainer) -> None:
    with refused(errors.BadInput, "^the text is empty"):
        text.explain(["", ""])
    with refused(errors.MissingProcessor, "^text needs"):
        wf.explain(text.model, ["i like it", "so good"])


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["i like it", None]),
        pd.Series(["i like it", pd.NA], dtype="string"),
        np.array(["i like it", float("nan")], dtype=object),
    ],
)
def test_a_missing_value_in_a_column_is_called_so(text: wf.Explainer, column: Any) -> None:
    with refused(errors.BadInput, "1 of 2 texts are missing", r"inputs\[1\]", "dropna"):
        text.explain(column)


def test_a_column_of_categories_is_a_list_of_texts(text: wf.Explainer) -> None:
    column = pd.Series(["i like it", "so good"], dtype="category")
    assert [e.units.text for e in text.explain(column)] == ["i like it", "so good"]
