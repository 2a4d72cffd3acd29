"""Rows as people have them, and what is said when something is wrong with them: always by the column's name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.models.case import seeded
from tests.tables.models import CATEGORIES, LAYOUTS, NUMBERS, HomeMade, rows, shared, table, tensors
from whyformer.errors import BadInput, NotOffered, UnknownName

ROW = rows(1)[0]


@pytest.fixture(scope="module")
def explainer() -> wf.Explainer:
    return wf.Explainer(LAYOUTS["rtdl"].build(), table())


def test_every_way_to_give_rows_gives_the_same_scores(explainer: wf.Explainer) -> None:
    some = rows(3)
    frame = pd.DataFrame(some)
    expected = [e.scores for e in explainer.explain(some)]
    columns = {c: [r[c] for r in some] for c in ROW}
    ways: list[Any] = [
        frame,
        frame[frame.columns[::-1]],  # by name: the order of columns does not matter
        columns,
        [row for _, row in frame.iterrows()],
        np.array([[r[c] for c in ROW] for r in some], dtype=object),
        [[r[c] for c in ROW] for r in some],
        dict(zip(("numerical", "categorical"), (t.float() if t.is_floating_point() else t for t in tensors(some)),
                 strict=True)),
        frame.astype({"work": "category", "sex": "category"}),
        frame.assign(age=frame["age"].astype(object)),
    ]  # fmt: skip
    for way in ways:
        found = explainer.explain(way)
        assert isinstance(found, list) and len(found) == 3
        for one, scores in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.scores, scores, atol=1e-5)
    for single in (ROW, frame.iloc[0], np.array(list(ROW.values()), dtype=object)):
        found = explainer.explain(single)
        assert isinstance(found, wf.Explanation)
        np.testing.assert_allclose(found.scores, expected[0], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: {k: v for k, v in r.items() if k != "hours"}, "'hours' is missing"),
        (lambda r: {("Hours" if k == "hours" else k): v for k, v in r.items()}, "Is it 'Hours'"),
        (lambda r: r | {"country": "x"}, "'country' is not one the model knows"),
        (lambda r: r | {"work": "priwate"}, "'work'"),
        (lambda r: r | {"age": float("nan")}, "'age' has no value in row 0"),
        (lambda r: r | {"age": None}, "'age' has no value in row 0"),
        (lambda r: r | {"sex": None}, "'sex' has no value in row 0"),
        (lambda r: r | {"age": "old"}, "'age' holds 'old' in row 0"),
        (lambda r: r | {"age": float("inf")}, "'age' is infinite"),
        (lambda r: r | {"work": 3}, "'work'"),
    ],
)
def test_what_is_wrong_is_said_by_column(explainer: wf.Explainer, change: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        explainer.explain(change(ROW))
    with pytest.raises(BadInput, match=said.replace("row 0", "row 1")):
        explainer.explain([ROW, change(ROW)])


def test_an_unseen_category_names_close_ones(explainer: wf.Explainer) -> None:
    with pytest.raises(UnknownName, match=r"row 0 of column 'work': 'privat'\. Did you mean 'private'"):
        explainer.explain(ROW | {"work": "privat"})


def test_arrays_without_names(explainer: wf.Explainer) -> None:
    with pytest.raises(BadInput, match=r"4 columns were given without names and the table has 5.*age, hours, gain"):
        explainer.explain(np.zeros((2, 4)))
    swapped = np.array([["private", *list(ROW.values())[1:]]], dtype=object)  # a category where age should be
    with pytest.raises(BadInput, match="'age' holds 'private' in row 0"):
        explainer.explain(swapped)
    with pytest.raises(BadInput, match="no table"):
        explainer.explain(np.zeros((2, 5, 1)))
    with pytest.raises(BadInput, match="no rows"):
        explainer.explain(pd.DataFrame([ROW])[:0])
    with pytest.raises(BadInput, match="'hours' has 1 values and 'age' 2"):
        explainer.explain({k: [v] if k == "hours" else [v, v] for k, v in ROW.items()})
    with pytest.raises(BadInput, match="'numerical' has shape"):
        explainer.explain({"numerical": torch.zeros(1, 2), "categorical": torch.zeros(1, 2, dtype=torch.int64)})
    with pytest.raises(BadInput, match="ready tensors"):
        explainer.explain({"x": torch.zeros(1, 2)})


def test_the_target_column_may_stay_in_the_table() -> None:
    described = table(target="answer")
    found = wf.explain(shared("rtdl"), ROW | {"answer": "yes"}, processor=described)
    assert "answer" not in found.units.labels


def test_preprocessing_is_applied_and_checked() -> None:
    from sklearn.preprocessing import StandardScaler

    some = rows(6)
    numbers = np.array([[r[n] for n in NUMBERS] for r in some])
    scaler = StandardScaler().fit(numbers)
    by_hand = [r | dict(zip(NUMBERS, scaler.transform(numbers)[i].tolist(), strict=True)) for i, r in enumerate(some)]
    model = LAYOUTS["rtdl"].build()
    same = wf.Standardize(tuple(scaler.mean_), tuple(scaler.scale_))
    for preprocess in (scaler, scaler.transform, same):
        found = wf.explain(model, some, processor=table(preprocess=preprocess))
        for one, other in zip(found, wf.explain(model, by_hand, processor=table()), strict=True):
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        assert found[0].units.values[1] == f"{some[0]['age']:.6g}"  # shown as they were given
    with pytest.raises(BadInput, match="has to keep every column"):
        wf.explain(model, some, processor=table(preprocess=lambda x: x[:, :2]))
    with pytest.raises(BadInput, match=r"preprocess made .* of column 'age' in row 0"):
        wf.explain(model, some, processor=table(preprocess=lambda x: x * np.nan))


@pytest.mark.parametrize(
    ("mean", "std", "said"),
    [
        ((39.0,), (14.0,), r"mean has 1 for 3 numerical columns.*age, hours, gain"),
        ((1.0, 2.0), (1.0, 2.0), "mean has 2 for 3"),
        ((1.0, 2.0, 3.0), (1.0, 2.0), "std has 2 for 3"),
        (39.0, 14.0, "mean has a single number for 3"),
        ((1.0, 2.0, 3.0), (1.0, 0.0, 1.0), "column 'hours' has mean 2.0 and std 0.0.*use 1"),
        ((1.0, 2.0, float("nan")), (1.0, 1.0, 1.0), "column 'gain' has mean nan"),
    ],
)
def test_standardize_has_to_fit_the_numerical_columns(mean: Any, std: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        table(preprocess=wf.Standardize(mean, std))


def test_descriptions_that_contradict_themselves() -> None:
    for wrong, said in (
        ({"numerical": ["a"], "categorical": {"a": [1]}}, "'a' is described as numerical and as categorical"),
        ({"numerical": ["a", "a"]}, "'a' is named twice"),
        ({}, "needs columns"),
        ({"numerical": ["a"], "columns": ["a", "b"]}, "'b' is not both"),
        ({"categorical": {"a": []}}, "categories of column 'a'"),
        ({"numerical": ["a"], "tokens": ["b"]}, "unknown column in tokens 'b'"),
    ):
        with pytest.raises(BadInput, match=said):
            wf.Table(**wrong)  # type: ignore[arg-type]


def test_a_table_goes_into_a_file_and_comes_back() -> None:
    described = table(preprocess=wf.Standardize((1.0,) * 3, (2.0,) * 3), reference=rows(2), target="answer")
    again = wf.Table.from_dict(described.to_dict())
    assert again.to_dict() == described.to_dict()
    numbers, codes = described.encode(described.read(rows(3))[0])
    for made, other in zip((numbers, codes), again.encode(again.read(rows(3))[0]), strict=True):
        np.testing.assert_array_equal(made, other)
    with pytest.raises(BadInput, match="cannot be saved"):
        table(preprocess=lambda x: x).to_dict()


class TwoOfAKind(nn.Module):
    """Arguments that do not say what they are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = HomeMade("first")

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.inner(right, left)


def test_a_model_that_is_called_in_its_own_way() -> None:
    model = TwoOfAKind().eval()
    with pytest.raises(BadInput, match=r"takes left, right.*call=lambda"):
        wf.explain(model, ROW, processor=table())
    expected = wf.explain(model.inner, ROW, processor=table()).scores
    for call in (lambda n, c: (c, n), lambda n, c: {"left": c, "right": n}):
        found = wf.explain(model, ROW, processor=table(call=call))
        np.testing.assert_allclose(found.scores, expected, atol=1e-6)


class Normed(HomeMade):
    """A norm over all numbers before they become tokens: a change of one reaches every token."""

    def forward(self, numerical: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.layer_norm(numerical, (len(NUMBERS),)), categorical)


def test_a_column_with_one_category_has_no_token_to_be_found() -> None:
    one = wf.Table(numerical=NUMBERS, categorical={"work": ["private"], "sex": ["f", "m"]})
    with pytest.raises(NotOffered, match="'work' has one category only"):
        wf.explain(shared("rtdl"), ROW | {"work": "private"}, processor=one)


def test_where_tokens_cannot_be_told_they_are_named() -> None:
    model = seeded(lambda: Normed("last"))
    with pytest.raises(NotOffered, match=r"column 'age' reaches 3 tokens.*tokens="):
        wf.explain(model, ROW, processor=table())
    found = wf.explain(model, ROW, processor=table(tokens=[*CATEGORIES, *NUMBERS, None]))
    assert found.units.labels == (*CATEGORIES, *NUMBERS, "[CLS]")
    with pytest.raises(BadInput, match="tokens names 2 tokens and the model attends over 6"):
        wf.explain(model, ROW, processor=table(tokens=["age", None]))


def test_numbers_or_categories_alone() -> None:
    from rtdl_revisiting_models import FTTransformer

    size: dict[str, Any] = {
        "d_out": 2, "n_blocks": 2, "d_block": 8, "attention_n_heads": 2, "attention_dropout": 0.0, "ffn_d_hidden": 8,
        "ffn_d_hidden_multiplier": None, "ffn_dropout": 0.0, "residual_dropout": 0.0,
    }  # fmt: skip
    numbers = FTTransformer(n_cont_features=3, cat_cardinalities=[], **size).eval()
    only = {n: ROW[n] for n in NUMBERS}
    for method in ("generic_attention", "saliency", "occlusion"):
        found = wf.explain(numbers, only, processor=wf.Table(numerical=NUMBERS), method=method)
        assert found.units.labels == ("[CLS]", *NUMBERS) and np.isfinite(found.scores).all()
    codes = FTTransformer(n_cont_features=0, cat_cardinalities=[3, 2], **size).eval()
    found = wf.explain(codes, {k: ROW[k] for k in CATEGORIES}, processor=wf.Table(categorical=CATEGORIES))
    assert found.units.labels == ("[CLS]", *CATEGORIES)


def test_a_model_without_attention_is_explained_by_columns() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(3, 4), nn.Linear(3 + 8, 3)

        def forward(self, x_num: torch.Tensor, x_cat: torch.Tensor) -> torch.Tensor:
            return self.out(torch.cat([x_num, self.embed(x_cat).flatten(1)], 1))

    found = wf.explain(Plain().eval(), ROW, processor=table(), method="occlusion")
    assert found.units.labels == tuple(ROW)
