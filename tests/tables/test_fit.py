"""A Table that does not fit its model: said by column, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.tables.models import CATEGORIES, CLASSES, LAYOUTS, NUMBERS, HomeMade, rows, shared, table
from whyformer.errors import BadInput, MissingProcessor, UnknownName
from whyformer.tables import CsvRows

SOME = rows(3)


def described(
    numerical: Sequence[str] = NUMBERS, categorical: Any = CATEGORIES, classes: Sequence[str] = CLASSES
) -> wf.Table:
    return wf.Table(numerical=numerical, categorical=categorical, classes=classes)


@pytest.mark.parametrize("name", ["rtdl", "cls_first", "lucidrains_ft"])
def test_another_number_of_columns(name: str) -> None:
    model = LAYOUTS[name].build()
    more = [row | {"x": 1.0} for row in SOME]
    with pytest.raises(BadInput, match=r"4 numerical \(age, hours, gain, x\) and 2 categorical \(work \(3 categories"):
        wf.explain(model, more, processor=described((*NUMBERS, "x")))
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


def test_classes_are_as_many_as_outputs() -> None:
    model = LAYOUTS["cls_first"].build()
    for classes, said in (
        (("no", "yes"), r"2 classes \(no, yes\) and HomeMade has 3 outputs"),
        (tuple("abcd"), "4 classes"),
    ):
        with pytest.raises(BadInput, match=said):
            wf.explain(model, SOME[0], processor=described(classes=classes))


def test_one_output_speaks_for_the_second_of_two_classes() -> None:
    class OneOutput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = HomeMade("first")

        def forward(self, x_num: Tensor, x_cat: Tensor) -> Tensor:
            return self.inner(x_num, x_cat)[:, :1]

    model, two = OneOutput().eval(), described(classes=("no", "yes"))
    assert wf.explain(model, SOME[0], processor=two).target.label == "yes"
    with pytest.raises(UnknownName, match="yes"):
        wf.explain(model, SOME[0], processor=two, target="no")


def test_trying_leaves_the_model_as_it_was() -> None:
    model = LAYOUTS["cls_first"].build().train()
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(int(model.training)))
    wf.Explainer(model, table()).prepare(SOME)
    assert model.training and calls == [0, 0]
    assert all(p.requires_grad for p in model.parameters())


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    model, frame = LAYOUTS["cls_first"].build(), pd.DataFrame(SOME)
    twice = pd.concat([frame, frame[["age"]]], axis=1)
    for given in (twice, twice.iloc[0], [twice.iloc[0]]):
        with pytest.raises(BadInput, match="'age' is there more than once"):
            wf.explain(model, given, processor=table())
    (tmp_path / "x.csv").write_text(twice.to_csv(index=False), encoding="utf-8")
    with pytest.raises(BadInput, match="'age' is there more than once"):
        CsvRows(tmp_path / "x.csv", table())


def test_ready_codes_are_checked_by_column() -> None:
    given = {"numerical": torch.zeros(2, 3), "categorical": torch.tensor([[0, 0], [0, 2]])}
    with pytest.raises(BadInput, match="'sex' holds codes from 0 to 2; its categories are 0 to 1"):
        wf.explain(shared("cls_first"), given, processor=table())


def test_rows_without_a_table_are_told_of_it() -> None:
    frame = pd.DataFrame(SOME)
    for given in (frame, frame.iloc[0], SOME, SOME[0]):
        with pytest.raises(MissingProcessor, match=r"wf\.Table\(numerical="):
            wf.explain(shared("cls_first"), given)
