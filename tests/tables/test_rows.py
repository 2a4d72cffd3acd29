"""A baseline of real rows, and columns that carry the same information."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.models.case import seeded
from tests.references.shap import shap
from tests.references.table_rows import covering, mean_over_rows
from tests.references.two_ended import Value, two_ended
from tests.tables.models import CATEGORIES, COLUMNS, LAYOUTS, NUMBERS, HomeMade, rows, saint, table, tensors
from whyformer.demo import load_adult, load_sentiment
from whyformer.demo.census import adult_rows
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.evaluate.games import games_of
from whyformer.inputs.table_reference import FEWEST_ROWS, covering_rows, default_count, uniform_codes
from whyformer.tables import same_columns

REFERENCE, EXPLAINED, TARGET = rows(24, seed=7), rows(3, seed=8), 1
DESCRIBED = table(reference=REFERENCE)
BASELINES = 3
NAME = f"rows:{BASELINES}"
EACH = [(name,) for name in COLUMNS]


def occlusion(value: Value, players: int) -> np.ndarray:
    everyone = frozenset(range(players))
    return np.array([value(everyone) - value(everyone - {i}) for i in range(players)])


FORMULAS = {"two_ended": two_ended, "occlusion": occlusion, "shap": shap}


@pytest.fixture(scope="module")
def explainer() -> wf.Explainer:
    return wf.Explainer(LAYOUTS["no_cls"].build(), DESCRIBED)


@cache
def double() -> Any:
    return seeded(lambda: HomeMade("none")).double()


def predicted(some: list[dict[str, Any]]) -> np.ndarray:
    made: np.ndarray = double()(*tensors(some)).numpy()[:, TARGET]
    return made


def value_of(row: dict[str, Any], columns: Any = EACH) -> Any:
    chosen, counts = covering(REFERENCE, NUMBERS, BASELINES)
    return mean_over_rows(predicted, row, [REFERENCE[i] for i in chosen], counts, columns)


# Which rows


def test_the_rows_are_those_of_the_definition() -> None:
    for most in (1, 2, 5):
        found, weights = covering_rows(DESCRIBED, most)
        assert (found.tolist(), weights.tolist()) == covering(REFERENCE, NUMBERS, most)
    assert weights.sum() == len(REFERENCE)


def test_fewer_rows_are_the_first_of_more() -> None:
    assert covering_rows(DESCRIBED, 6)[0][:2].tolist() == covering_rows(DESCRIBED, 2)[0].tolist()


def test_rows_of_two_kinds_are_both_there() -> None:
    base = rows(1)[0]
    kinds = [{**base, "age": age, "work": work} for age, work in ((-3.0, "state"), (3.0, "self"))]
    found, weights = covering_rows(table(reference=[*[kinds[0]] * 6, *[kinds[1]] * 2]), 5)
    assert sorted(found.tolist()) == [0, 6] and sorted(weights.tolist()) == [2, 6], "no row twice"


def test_very_long_references_are_thinned_evenly() -> None:
    base = rows(1)[0]
    found, weights = covering_rows(table(reference=[{**base, "age": float(i >= 2000)} for i in range(2500)]), 2)
    assert found[0] < 2000 <= found[1] and weights.tolist() == [800, 200]


def test_the_default_number_fits_the_passes_of_the_default_method() -> None:
    for columns in (1, 5, 14, 31, 62):
        assert 1 + default_count(columns) * (2 * columns + 1) <= 128
    assert [default_count(n) for n in (2, 14, 31, 200)] == [8, 4, 2, 1]


# The mean over them


@pytest.mark.parametrize("method", ["two_ended", "occlusion", "shap"])
def test_scores_are_of_the_mean_over_the_rows(explainer: wf.Explainer, method: str) -> None:
    for row in EXPLAINED[:2]:
        value = value_of(row)
        expected = FORMULAS[method](value, len(COLUMNS))
        found = explainer.explain(row, method=method, target=TARGET, replace=NAME)
        np.testing.assert_allclose(found.scores, expected, atol=1e-5)
        if method == "shap":
            assert found.base == pytest.approx(value(frozenset()), abs=1e-5)
            assert found.scores.sum() == pytest.approx(found.value - found.base, abs=1e-5)


@pytest.mark.parametrize("method", ["two_ended", "occlusion", "shap"])
def test_rows_are_the_default_and_cost_what_is_declared(explainer: wf.Explainer, method: str) -> None:
    found = explainer.explain(EXPLAINED[0], method=method)
    assert found.options["replace"] == f"rows:{default_count(5)}" == "rows:8"
    declared = wf.list_methods()[method].cost(len(found.units), **found.options)
    at_most = explainer.estimate(EXPLAINED[0], method=method)
    assert (at_most.forwards, at_most.backwards) == declared
    assert found.cost.forwards == declared[0] or (method == "shap" and found.cost.forwards == 1 + 8 * (2**5 - 1))
    same = explainer.explain(EXPLAINED[0], method=method, replace="rows")
    assert np.array_equal(same.scores, found.scores) and same.options == found.options


@pytest.mark.parametrize("method", ["two_ended", "occlusion", "shap", None])
def test_a_batch_is_its_rows(explainer: wf.Explainer, method: str | None) -> None:
    for together, row in zip(explainer.explain(EXPLAINED, method=method), EXPLAINED, strict=True):
        np.testing.assert_allclose(together.scores, explainer.explain(row, method=method).scores, atol=1e-5)


def test_few_passes_take_fewer_rows_before_fewer_columns(explainer: wf.Explainer) -> None:
    for passes, used, count in ((128, 8, 8), (60, 3, 7), (41, 2, 5)):
        found = explainer.explain(EXPLAINED[0], passes=passes)
        assert (found.method, found.options["replace"]) == ("two_ended", f"rows:{used}")
        assert found.options["guide"] == f"attn_lrp(maskings={count})"
        assert found.cost.forwards <= explainer.estimate(EXPLAINED[0], passes=passes).forwards <= passes
    for passes, used in ((23, 2), (16, 1)):
        found = explainer.explain(EXPLAINED[0], method="two_ended", passes=passes)
        assert (found.options["replace"], found.options["guide"]) == (f"rows:{used}", None)
        assert any("a single baseline row" in warning for warning in found.warnings) == (used == 1)
    guided = explainer.explain(EXPLAINED[0], method="two_ended", guide="auto", passes=20)
    assert guided.cost.forwards + 2 * guided.cost.backwards <= 20


def test_the_other_baselines_stay_by_name(explainer: wf.Explainer) -> None:
    typical = {name: float(np.mean([row[name] for row in REFERENCE])) for name in NUMBERS}
    for name in ("work", "sex"):
        values = [row[name] for row in REFERENCE]
        typical[name] = max(dict.fromkeys(values), key=values.count)
    one = mean_over_rows(predicted, EXPLAINED[0], [typical], [1.0], EACH)
    found = explainer.explain(EXPLAINED[0], method="two_ended", replace="mean", target=TARGET)
    np.testing.assert_allclose(found.scores, two_ended(one, len(COLUMNS)), atol=1e-5)
    assert found.cost.forwards == 2 * len(COLUMNS) + 2
    with pytest.raises(UnknownName, match="rows:8, mean, zero"):
        explainer.explain(EXPLAINED[0], method="occlusion", replace="row")
    with pytest.raises(UnknownName, match="rows:0"):
        explainer.compare(EXPLAINED, method=["occlusion"], replace="rows:0")


def test_without_a_reference_there_are_no_rows() -> None:
    alone = wf.Explainer(LAYOUTS["no_cls"].build(), table())
    assert alone.explain(EXPLAINED[0]).options["replace"] == "uniform:6"
    with pytest.raises(BadInput, match=r"reference rows.*reference=rows"):
        alone.explain(EXPLAINED[0], method="occlusion", replace="rows")
    with pytest.raises(UnknownName, match="uniform"):
        wf.explain(alone.model, EXPLAINED[0], processor=DESCRIBED, method="occlusion", replace="uniform:4")


def test_without_a_reference_categories_are_compared_with_all_of_their_column() -> None:
    """The first category has a score, too; numbers are compared with 0, and the result names what would be better."""
    model, row = double(), {**EXPLAINED[0], "work": "private", "sex": "f"}
    found = wf.explain(model, row, processor=table(), method="occlusion", target=TARGET)

    def value(**changed: Any) -> float:
        with torch.no_grad():
            return float(predicted([{**row, **changed}])[0])

    others = {name: [value(**{name: each}) for each in values] for name, values in CATEGORIES.items()}
    others |= {name: [value(**{name: 0.0})] for name in NUMBERS}
    expected = [value() - np.mean(others[name]) for name in found.units.labels]
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)
    assert "reference=rows" in " ".join(found.warnings)
    compared = wf.compare(model, EXPLAINED[:2], processor=table(), method=["occlusion", "saliency"])
    assert "reference=rows" in " ".join(compared.warnings)


def test_categories_are_as_frequent_as_the_number_of_rows_allows() -> None:
    described = wf.Table(categorical={"a": list("xyz"), "b": list("xy"), "c": list("abcdefghij")}, first_code=1)
    codes = uniform_codes(described, 7)
    assert codes.min() == 1 and codes.max(0).tolist()[:2] == [3, 2]
    few = uniform_codes(wf.Table(categorical={"a": list("xyz"), "b": list("xy")}), 25)
    assert [np.bincount(column).tolist() for column in few.T] == [[2, 2, 2], [3, 3]]


def test_evaluation_uses_the_same_baseline(explainer: wf.Explainer) -> None:
    with games_of(explainer, EXPLAINED) as games:
        assert games.replacement == "rows:8"
    with games_of(explainer, EXPLAINED, target=TARGET, replace=NAME) as games:
        value = value_of(EXPLAINED[0])
        assert games.game(0).empty("logit") == pytest.approx(value(frozenset()), abs=1e-5)
        np.testing.assert_allclose(games.game(0).drops("logit"), occlusion(value, len(COLUMNS)), atol=1e-5)
        assert games.forwards == BASELINES * (len(COLUMNS) + 2)


def test_rows_that_look_at_each_other() -> None:
    found = wf.explain(saint(), EXPLAINED[0], processor=DESCRIBED, replace="rows:2", method="two_ended")
    assert found.options["replace"] == "rows:2" and found.cost.forwards == 1 + 2 * (2 * 5 + 1)


# Columns that carry the same information


def related(count: int = 40) -> wf.Table:
    """`hours` follows `age` in order, `sex` is `work` by other names, `gain` is on its own."""
    made = rows(count, seed=3)
    for number, row in enumerate(made):
        row["hours"] = float(np.exp(row["age"]))
        row["work"], row["sex"] = ("private", "f") if number % 3 else ("state", "m")
    return table(reference=made)


def test_columns_that_determine_each_other_are_found() -> None:
    assert same_columns(related()) == {"age + hours": ("age", "hours"), "work + sex": ("work", "sex")}
    assert same_columns(related(FEWEST_ROWS - 1)) == {}, "so few rows agree by chance"
    assert same_columns(table(reference=rows(200))) == {} and same_columns(table()) == {}
    _, census = load_adult()
    assert same_columns(census) == {"education + education-num": ("education", "education-num")}


def test_one_way_is_not_enough() -> None:
    made = rows(60, seed=4)
    for row in made:  # three categories make two, which do not make three
        row["sex"] = "f" if row["work"] == "private" else "m"
    assert same_columns(table(reference=made)) == {}
    for row in made:
        row["work"] = row["sex"] = "private"
    constant = [{**row, "sex": "f"} for row in made]
    assert same_columns(table(reference=constant)) == {}, "columns that never vary"


def test_groups_are_scored_as_one() -> None:
    described = related()
    model = LAYOUTS["cls_first"].build()
    plain = wf.explain(model, EXPLAINED[0], processor=described)
    assert any("age and hours carry the same information" in w and 'units="groups"' in w for w in plain.warnings)
    found = wf.explain(model, EXPLAINED[0], processor=described, units="groups")
    assert found.units.labels == ("[CLS]", "age + hours", "gain", "work + sex")
    assert not any("same information" in warning for warning in found.warnings)
    shown = plain.units.values
    assert shown is not None and found.units.values is not None
    assert found.units.values[1] == f"{shown[1]}, {shown[2]}"
    how: dict[str, Any] = {"processor": described, "method": "integrated_gradients", "target": 1}
    apart, joined = (wf.explain(model, EXPLAINED[0], units=units, **how) for units in ("token", "groups"))
    np.testing.assert_allclose(joined.scores[1], apart.scores[1] + apart.scores[2], atol=1e-6)


@pytest.mark.parametrize("method", ["two_ended", "occlusion", "shap"])
def test_groups_are_masked_together(method: str) -> None:
    named = {"time": ("hours", "age"), "person": ("sex", "work")}
    described = table(reference=REFERENCE, groups=named)
    players = [("age", "hours"), ("gain",), ("work", "sex")]
    expected = FORMULAS[method](value_of(EXPLAINED[0], players), len(players))
    model = LAYOUTS["no_cls"].build()
    how: dict[str, Any] = {"method": method, "target": TARGET, "replace": NAME, "units": "groups"}
    found = wf.explain(model, EXPLAINED[0], processor=described, **how)
    assert found.units.labels == ("time", "gain", "person")
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)
    restored = wf.Table.from_dict(described.to_dict())
    assert np.array_equal(wf.explain(model, EXPLAINED[0], processor=restored, **how).scores, found.scores)


def test_groups_that_cannot_be() -> None:
    with pytest.raises(UnknownName, match="ages"):
        table(groups={"time": ["ages"]})
    with pytest.raises(BadInput, match="two groups"):
        table(groups={"a": ["age"], "b": ["age"]})
    model = LAYOUTS["no_cls"].build()
    with pytest.raises(BadInput, match=r"reference=rows.*groups="):
        wf.explain(model, EXPLAINED[0], processor=table(), units="groups")
    with pytest.raises(NotOffered, match="divides a text"):
        wf.explain(model, EXPLAINED[0], processor=DESCRIBED, units="word")
    sentiment, tokenizer = load_sentiment()
    with pytest.raises(NotOffered, match="columns of a table"):
        wf.explain(sentiment, "A good film.", tokenizer, units="groups")


def test_the_shipped_table_opens_with_a_note() -> None:
    model, census = load_adult()
    found = wf.explain(model, adult_rows()[1], processor=census)
    assert found.options["replace"] == "rows:4" and found.cost.forwards <= 128
    assert any("education and education-num carry the same information" in warning for warning in found.warnings)
