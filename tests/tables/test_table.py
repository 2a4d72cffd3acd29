"""Rows as people have them, and tables that do not fit their model: what is wrong is said by the column's name."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded
from tests.tables.models import CATEGORIES, CLASSES, LAYOUTS, NUMBERS, HomeMade, rows, rtdl, shared, table, tensors
from whyformer.errors import BadInput, MissingProcessor, NotOffered, UnknownName
from whyformer.tables import CsvRows
from whyformer.views.header import is_predicted

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
        for one, scores in zip(explainer.explain(way), expected, strict=True):
            np.testing.assert_allclose(one.scores, scores, atol=1e-5)
    named = wf.explain(shared("rtdl"), ROW | {"answer": "yes"}, processor=table(target="answer"))
    np.testing.assert_allclose(named.scores, expected[0], atol=1e-5)  # the target column may stay in the table
    for single in (ROW, frame.iloc[0], np.array(list(ROW.values()), dtype=object)):
        np.testing.assert_allclose(explainer.explain(single).scores, expected[0], atol=1e-5)


WRONG: list[tuple[Any, str]] = [
    ({k: v for k, v in ROW.items() if k != "hours"}, "'hours' is missing"),
    ({("Hours" if k == "hours" else k): v for k, v in ROW.items()}, "Is it 'Hours'"),
    (ROW | {"country": "x"}, "'country' is not in the table"),
    (ROW | {"work": "privat"}, r"row 0 of column 'work': 'privat'\. Did you mean 'private'"),
    (ROW | {"age": float("nan")}, "'age' has no value"),
    (ROW | {"sex": None}, "'sex' has no value"),
    (ROW | {"age": "old"}, "'age' holds 'old' in row 0"),
    (ROW | {"age": "12"}, "'age' holds '12' in row 0.*Convert the column"),
    (ROW | {"age": True}, "'age' holds True in row 0.*Convert the column"),
    (ROW | {"age": float("inf")}, "'age' is infinite"),
    (np.zeros((2, 4)), "4 columns were given without names and the table has 5.*age, hours, gain"),
    (np.array([["private", *list(ROW.values())[1:]]], dtype=object), "'age' holds 'private' in row 0"),
    (np.zeros((2, 5, 1)), "not a table"),
    (pd.DataFrame([ROW])[:0], "no rows"),
    ({k: [v] if k == "hours" else [v, v] for k, v in ROW.items()}, "'hours' has 1 values and 'age' 2"),
    ({"numerical": torch.zeros(1, 2), "categorical": torch.tensor([[0, 0]])}, "'numerical' has shape"),
    (
        {"numerical": torch.zeros(1, 3), "categorical": torch.tensor([[0, 2]])},
        "codes from 2 to 2; .* are 0 to 1",
    ),
    ({"x": torch.zeros(1, 2)}, "ready tensors"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=[said[:20] for _, said in WRONG])
def test_what_is_wrong_is_said_by_column(explainer: wf.Explainer, given: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        explainer.explain(given)
    if isinstance(given, dict) and not isinstance(next(iter(given.values())), (list, torch.Tensor)):  # one row
        with pytest.raises(BadInput, match=said.replace("row 0", "row 1")):
            explainer.explain([ROW, given])


def test_preprocessing_is_applied_and_checked() -> None:
    from sklearn.preprocessing import StandardScaler

    some = rows(6)
    numbers = np.array([[r[n] for n in NUMBERS] for r in some])
    scaler = StandardScaler().fit(numbers)
    by_hand = [r | dict(zip(NUMBERS, scaler.transform(numbers)[i].tolist(), strict=True)) for i, r in enumerate(some)]
    model = LAYOUTS["rtdl"].build()
    same = wf.Standardize(tuple(scaler.mean_), tuple(scaler.scale_))
    expected = wf.explain(model, by_hand, processor=table())
    for preprocess in (scaler, scaler.transform, same):
        found = wf.explain(model, some, processor=table(preprocess=preprocess))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        assert found[0].units.values[1] == f"{some[0]['age']:.6g}"  # shown as they were given
    with pytest.raises(BadInput, match="has to keep every column"):
        wf.explain(model, some, processor=table(preprocess=lambda x: x[:, :2]))
    with pytest.raises(BadInput, match=r"preprocess made .* of column 'age' in row 0"):
        wf.explain(model, some, processor=table(preprocess=lambda x: x * np.nan))


def standardized(mean: Any, std: Any) -> dict[str, Any]:
    return {"numerical": NUMBERS, "preprocess": wf.Standardize(mean, std)}


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    (standardized((39.0,), (14.0,)), r"mean has 1 for 3 numerical columns.*age, hours, gain"),
    (standardized(39.0, 14.0), "mean has a single number for 3"),
    (standardized((1.0, 2.0, 3.0), (1.0, 0.0, 1.0)), "column 'hours' has mean 2.0 and std 0.0.*use 1"),
    (standardized((1.0, 2.0, float("nan")), (1.0, 1.0, 1.0)), "column 'gain' has mean nan"),
    ({"numerical": ["a"], "categorical": {"a": [1]}}, "'a' is described as numerical and as categorical"),
    ({"numerical": ["a", "a"]}, "'a' is named twice"),
    ({}, "needs columns"),
    ({"numerical": ["a"], "columns": ["a", "b"]}, "'b' must be in columns= and"),
    ({"categorical": {"a": []}}, "categories of column 'a'"),
    ({"categorical": {"a": [[1], [2]]}}, "categories of column 'a' cannot be compared .TypeError"),
    ({"numerical": ["a"], "classes": ["\ud800", "b"]}, "half a character"),
    ({"numerical": ["a"], "tokens": ["b"]}, "unknown column in tokens 'b'"),
]


@pytest.mark.parametrize(("wrong", "said"), CONTRADICTIONS, ids=[said[:20] for _, said in CONTRADICTIONS])
def test_descriptions_that_contradict_themselves(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        wf.Table(**wrong)


def test_a_table_goes_into_a_file_and_comes_back() -> None:
    described = table(preprocess=wf.Standardize((1.0,) * 3, (2.0,) * 3), reference=rows(2), target="answer")
    again = wf.Table.from_dict(described.to_dict())
    assert again.to_dict() == described.to_dict()
    with pytest.raises(BadInput, match="cannot be saved"):
        table(preprocess=lambda x: x).to_dict()


class TwoOfAKind(HomeMade):
    """Arguments that do not say what they are."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return super().forward(right, left)


def test_a_model_that_is_called_in_its_own_way() -> None:
    model, plain = (seeded(lambda kind=kind: kind("first")) for kind in (TwoOfAKind, HomeMade))
    with pytest.raises(BadInput, match=r"takes left, right.*call=lambda"):
        wf.explain(model, ROW, processor=table())
    expected = wf.explain(plain, ROW, processor=table()).scores
    for call in (lambda n, c: (c, n), lambda n, c: {"left": c, "right": n}):
        found = wf.explain(model, ROW, processor=table(call=call))
        np.testing.assert_allclose(found.scores, expected, atol=1e-6)


class Normed(HomeMade):
    """A norm over all numbers before they become tokens: a change of one reaches every token."""

    def forward(self, numerical: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.layer_norm(numerical, (len(NUMBERS),)), categorical)


def test_where_tokens_cannot_be_told_they_are_named() -> None:
    one = wf.Table(numerical=NUMBERS, categorical={"work": ["private"], "sex": ["f", "m"]})
    with pytest.raises(NotOffered, match="'work' has one category only"):
        wf.explain(shared("rtdl"), ROW | {"work": "private"}, processor=one)
    model = seeded(lambda: Normed("last"))
    with pytest.raises(NotOffered, match=r"column 'age' reaches 3 tokens.*tokens="):
        wf.explain(model, ROW, processor=table())
    found = wf.explain(model, ROW, processor=table(tokens=[*CATEGORIES, *NUMBERS, None]))
    assert found.units.labels == (*CATEGORIES, *NUMBERS, "[CLS]")
    with pytest.raises(BadInput, match="tokens names 2 tokens and the model attends over 6"):
        wf.explain(model, ROW, processor=table(tokens=["age", None]))


def test_numbers_or_categories_alone() -> None:
    numbers = rtdl(cat_cardinalities=[]).eval()
    only = {n: ROW[n] for n in NUMBERS}
    for method in ("generic_attention", "saliency", "occlusion"):
        found = wf.explain(numbers, only, processor=wf.Table(numerical=NUMBERS), method=method)
        assert found.units.labels == ("[CLS]", *NUMBERS) and np.isfinite(found.scores).all()
    codes = rtdl(n_cont_features=0).eval()
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


# A Table that does not fit its model: said before anything is computed.


SOME = rows(3)


def described(**other: Any) -> wf.Table:
    return wf.Table(**{"numerical": NUMBERS, "categorical": CATEGORIES, "classes": CLASSES, **other})


@pytest.mark.parametrize("name", ["cls_first", "lucidrains_ft"])
def test_another_number_of_columns(name: str) -> None:
    model = LAYOUTS[name].build()
    more = [row | {"x": 1.0} for row in SOME]
    with pytest.raises(BadInput, match=r"4 numerical \(age, hours, gain, x\) and 2 categorical \(work \(3 categories"):
        wf.explain(model, more, processor=described(numerical=(*NUMBERS, "x")))
    fewer = [{k: v for k, v in row.items() if k != "sex"} for row in SOME]
    with pytest.raises(BadInput, match=r"3 numerical .* and 1 categorical \(work \(3 categories\)\): it fails with"):
        wf.explain(model, fewer, processor=described(categorical={"work": CATEGORIES["work"]}))


def test_more_categories_than_the_model_has_are_found_whatever_the_rows_hold() -> None:
    model = LAYOUTS["cls_first"].build()
    wide = CATEGORIES | {"work": ("private", "state", "self", "none", "other")}
    for _ in range(2):  # not only the first time
        with pytest.raises(BadInput, match=r"'work' has 5 categories and HomeMade takes 3 there: .*'none', code 3"):
            wf.explain(model, SOME, processor=described(categorical=wide))
    flipped = {"sex": CATEGORIES["sex"], "work": CATEGORIES["work"]}
    with pytest.raises(BadInput, match=r"'work' has 3 categories and HomeMade takes 2 there.*order of the model's"):
        wf.explain(model, SOME, processor=described(categorical=flipped))


class OneOutput(HomeMade):
    def forward(self, x_num: Tensor, x_cat: Tensor) -> Tensor:
        return super().forward(x_num, x_cat)[:, :1]


def test_classes_are_as_many_as_outputs_and_one_output_speaks_for_the_second_of_two() -> None:
    model, two = OneOutput("first").eval(), described(classes=("no", "yes"))
    with pytest.raises(BadInput, match=r"2 classes \(no, yes\) and HomeMade has 3 outputs"):
        wf.explain(shared("cls_first"), SOME[0], processor=two)
    for bias, said in ((-30.0, "no"), (30.0, "yes")):
        shifted = copy.deepcopy(model)
        shifted.head.bias.data.fill_(bias)
        found = wf.explain(shifted, SOME[0], processor=two)
        assert found.target.label == "yes" and found.prediction.label == said and found.prediction.probability > 0.9
        assert is_predicted(found) == (said == "yes")
    with pytest.raises(UnknownName, match="yes"):
        wf.explain(model, SOME[0], processor=two, target="no")


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    model, frame = LAYOUTS["cls_first"].build(), pd.DataFrame(SOME)
    twice = pd.concat([frame, frame[["age"]]], axis=1)
    for given in (twice, twice.iloc[0], [twice.iloc[0]]):
        with pytest.raises(BadInput, match="'age' is there more than once"):
            wf.explain(model, given, processor=table())
    twice.to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(BadInput, match="'age' is there more than once"):
        CsvRows(tmp_path / "x.csv", table())


def test_rows_without_a_table_are_told_of_it() -> None:
    frame = pd.DataFrame(SOME)
    for given in (frame, frame.iloc[0], SOME, SOME[0]):
        with pytest.raises(MissingProcessor, match=r"wf\.Table\(numerical="):
            wf.explain(shared("cls_first"), given)


# Calling conventions of libraries: deeptab and pytorch_tabular.


class ListsOfColumns(nn.Module):
    """deeptab's convention: three lists with one (B, 1) tensor per column."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = HomeMade("first")
        self.embedding_layer = nn.Identity()
        self.embedding_layer.feature_info = ({}, {}, {})  # type: ignore[assignment]

    def forward(self, *data: Any) -> Tensor:
        numbers, codes, embeddings = data
        assert embeddings == [] and all(x.shape[1] == 1 for x in (*numbers, *codes))
        return self.inner(torch.cat(numbers, 1), torch.cat(codes, 1))


class OneDict(nn.Module):
    """pytorch_tabular's: one dict in, one dict out; the class token comes last."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = HomeMade("last")
        self.hparams = SimpleNamespace(continuous_dim=len(NUMBERS))

    def embed_input(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        return x

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.embed_input(x)
        logits = self.inner(x["continuous"], x["categorical"])
        return {"logits": logits, "backbone_features": logits}


def test_calling_conventions() -> None:
    row = rows(1)[0]
    columns = {ListsOfColumns: ("[CLS]", *NUMBERS, *CATEGORIES), OneDict: (*CATEGORIES, *NUMBERS, "[CLS]")}
    for kind, tokens in columns.items():
        model = seeded(kind)
        found = wf.explain(model, row, processor=table(), target=1)
        assert found.units.labels == tokens
        plain = wf.explain(model.inner, row, processor=table(), target=1)
        np.testing.assert_allclose(found.scores, plain.scores, atol=1e-6)


def test_embeddings_that_are_written_into() -> None:
    """pytorch_tabular's shared embeddings overwrite a part of what they looked up."""

    class Overwritten(HomeMade):
        def forward(self, numerical: Tensor, categorical: Tensor) -> Tensor:
            codes = []
            for i, embed in enumerate(self.embeddings):
                looked_up = embed(categorical[:, i])
                looked_up[:, :2] = self.bias[0, :2]
                codes.append(looked_up)
            x = torch.cat([numerical[:, :, None] * self.weight + self.bias, torch.stack(codes, 1)], 1)
            return self.head(self.encoder(x).mean(1))

    found = wf.explain(
        seeded(lambda: Overwritten("none")), rows(1)[0], processor=table(reference=rows(5, seed=1)),
        method="integrated_gradients", steps=40, target=1,
    )  # fmt: skip
    assert found.base is not None
    assert abs(float(found.scores.sum()) - (found.value - found.base)) < 1e-3
