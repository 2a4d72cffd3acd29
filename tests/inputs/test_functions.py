"""Functions from texts, images or rows to probabilities, against brute force on the same functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

import whyformer as wf
from whyformer.errors import BadInput, ModelFailed, NonFinite, NotOffered

WEIGHTS = {"good": 2.0, "bad": -1.5, "film": 0.5}
TEXT = "A good film, not bad"


def of_texts(texts: list[str]) -> Any:
    z = np.array([sum(weight for word, weight in WEIGHTS.items() if word in text) for text in texts])
    return np.stack([1 / (1 + np.exp(z)), 1 / (1 + np.exp(-z))], 1)


def test_words_score_what_the_probability_loses_without_them() -> None:
    explanation = wf.explain(of_texts, TEXT, method="occlusion")
    value = of_texts([TEXT])[0, 1]
    without = {word: TEXT.replace(word, "") for word in explanation.units.labels}
    expected = {word: value - of_texts([text])[0, 1] for word, text in without.items()}
    assert dict(explanation.ranked()) == pytest.approx(expected, abs=1e-6)
    assert (explanation.value, explanation.target.index) == (pytest.approx(value), 1)
    assert explanation.prediction.probability == pytest.approx(value)
    assert wf.explain(of_texts, TEXT).method == "two_ended", "the default, without a guide"
    several = wf.explain(of_texts, [TEXT, "bad bad"], method="occlusion", target=1)
    assert np.allclose(several[0].scores, explanation.scores, atol=1e-7) and len(several) == 2
    masked = wf.explain(of_texts, TEXT, method="occlusion", replace="[MASK]").ranked()[0]
    assert masked == ("good", pytest.approx(expected["good"], abs=1e-6))


def test_shap_is_that_of_the_game_over_all_subsets() -> None:
    words = ("good", "bad", "film")
    explanation = wf.explain(of_texts, " ".join(words), method="shap")

    def value(present: frozenset[str]) -> float:
        return float(of_texts([" ".join(word for word in words if word in present)])[0, 1])

    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    expected = dict.fromkeys(words, 0.0)
    for order in orders:
        for place, number in enumerate(order):
            before = frozenset(words[i] for i in order[:place])
            expected[words[number]] += (value(before | {words[number]}) - value(before)) / len(orders)
    assert dict(explanation.ranked()) == pytest.approx(expected, abs=1e-5)


def of_images(images: Any) -> Any:
    """The share of one cell's brightness, whatever the images come as."""
    pixels = np.stack([np.asarray(image) for image in images]).astype(float)
    bright = pixels[:, 8:12, 4:8].mean((1, 2, 3)) / 255
    return np.stack([bright, 1 - bright], 1)


@pytest.mark.parametrize("kind", ["uint8", "float32", "PIL"])
def test_patches_of_an_image_are_replaced_by_its_mean_colour(kind: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 200, (32, 32, 3)).astype(np.uint8)
    pixels[8:12, 4:8] = 250
    taken: list[Any] = []

    def function(images: Any) -> Any:
        taken.append(images)
        return of_images(images)

    image = Image.fromarray(pixels) if kind == "PIL" else pixels.astype(kind)
    explanation = wf.explain(function, image, method="occlusion")
    filled = pixels.astype(float)
    filled[8:12, 4:8] = pixels.mean((0, 1))
    drop = of_images([pixels])[0, 0] - of_images([filled])[0, 0]
    label, score = explanation.ranked()[0]
    assert (label, score) == ("patch 3,2", pytest.approx(drop, abs=5e-3)) and explanation.units.grid == (8, 8)
    assert np.count_nonzero(np.abs(explanation.scores) > 1e-6) == 1
    expected = list if kind == "PIL" else np.ndarray
    assert all(isinstance(images, expected) for images in taken)
    assert kind == "PIL" or {images.dtype for images in taken} == {np.dtype(kind)}
    assert "<svg" in explanation.to_html() or "<img" in explanation.to_html()


NUMBERS = pd.DataFrame(np.random.default_rng(1).normal(size=(60, 3)), columns=["age", "hours", "gain"])
FITTED = LogisticRegression().fit(NUMBERS, np.where(NUMBERS["age"] + NUMBERS["gain"] > 0, "rich", "poor"))


@pytest.mark.parametrize("form", ["frame", "row", "estimator", "array", "dict"])
@pytest.mark.filterwarnings("error")  # of scikit-learn, about names of columns
def test_columns_of_rows_are_replaced_by_reference_rows(form: str) -> None:
    reference = NUMBERS.iloc[:1] * 0 + [0.5, -1.0, 2.0]
    table = wf.Table(numerical=list(NUMBERS), reference=reference)
    row = NUMBERS.iloc[0]
    function, inputs = {
        "frame": (FITTED.predict_proba, NUMBERS.iloc[:1]),
        "row": (FITTED.predict_proba, row),
        "estimator": (FITTED, NUMBERS.iloc[:1]),
        "array": (lambda rows: FITTED.predict_proba(pd.DataFrame(rows, columns=NUMBERS.columns)), row.to_numpy()),
        "dict": (FITTED.predict_proba, row.to_dict()),
    }[form]
    made: Any = wf.explain(function, inputs, table, method="occlusion", target=1)
    explanation = made[0] if isinstance(made, list) else made
    value = FITTED.predict_proba(NUMBERS.iloc[:1])[0, 1]
    for name in NUMBERS:
        masked = NUMBERS.iloc[:1].assign(**{name: reference[name]})
        assert dict(explanation.ranked())[name] == pytest.approx(value - FITTED.predict_proba(masked)[0, 1], abs=1e-6)
    assert explanation.target.label == ("" if form == "array" else "rich")


def test_an_array_of_numbers_is_rows_without_names() -> None:
    rows = NUMBERS.to_numpy()
    fitted = LogisticRegression().fit(rows, rows[:, 1] > 0)
    two, one = wf.explain(fitted.predict_proba, rows[:2]), wf.explain(fitted, rows[0])
    assert one.units.labels == ("column 0", "column 1", "column 2") and one.scores.argmax() == 1
    np.testing.assert_allclose(two[0].scores, one.scores)
    assert any("Table(…, reference=rows)" in warning for warning in one.warnings)


def test_names_of_columns_and_classes_come_from_the_data_and_the_function() -> None:
    explanation = wf.explain(FITTED.predict_proba, NUMBERS.iloc[:2], target="rich", method="occlusion")[1]
    assert explanation.units.labels == ("age", "hours", "gain") and explanation.target.index == 1
    named = wf.Table(numerical=list(NUMBERS), classes=["no", "yes"])
    one = wf.explain(lambda rows: FITTED.predict_proba(rows)[:, 1], NUMBERS.iloc[0], named, target="yes")
    assert one.value == pytest.approx(FITTED.predict_proba(NUMBERS.iloc[:1])[0, 1])
    jobs = wf.Table(numerical=["age"], categorical={"job": ["a", "b"]}, reference=[{"age": -1, "job": "b"}])

    def mixed(rows: Any) -> Any:
        return np.where(rows["age"] > 0, 0.75, 0.0) + np.where(rows["job"] == "a", 0.25, 0.0)

    scores = dict(wf.explain(mixed, {"job": "a", "age": 1.0}, jobs, method="occlusion").ranked())
    assert scores == {"age": 0.75, "job": 0.25}


def test_a_job_explains_the_rows_of_a_table(tmp_path: Path) -> None:
    rows, table = NUMBERS.iloc[:3], wf.Table(numerical=list(NUMBERS), reference=NUMBERS)
    job = wf.explain_dataset(FITTED.predict_proba, rows, out=tmp_path / "out", processor=table)
    for one, other in zip(job, wf.explain(FITTED.predict_proba, rows, table), strict=True):
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-6)
    with pytest.raises(BadInput, match="describe them"):
        wf.explain_dataset(FITTED.predict_proba, rows, out=tmp_path / "other")


def test_numbers_reach_the_function_as_they_were_given() -> None:
    taken: list[Any] = []

    def function(rows: Any) -> Any:
        taken.append(np.asarray(rows))
        return np.full((len(rows), 2), 0.5)

    row = np.array([0.1, 1 / 3, 1e9 + 0.25])
    wf.explain(function, row, wf.Table(numerical=["a", "b", "c"]), method="random")
    assert any(np.array_equal(rows, row[None]) for rows in taken)


@pytest.mark.parametrize(
    ("function", "inputs", "settings", "error", "match"),
    [
        (of_texts, TEXT, {"method": "attn_lrp"}, NotOffered, "needs gradients.*occlusion"),
        (of_texts, TEXT, {"generate": 3}, NotOffered, "Omit them"),
        (of_texts, ("a", "b"), {}, BadInput, "takes texts, images"),
        (of_texts, ["a", ("a", "b")], {}, BadInput, "the first is a text"),
        (of_texts, torch.zeros(1, 3), {}, BadInput, "torch.nn.Module"),
        (of_texts, [], {}, BadInput, "empty"),
        (of_texts, "", {}, BadInput, "no words"),
        (of_texts, [0.5], {}, BadInput, "a DataFrame, an array of numbers"),
        (of_texts, NUMBERS.assign(job="a"), {}, BadInput, "job hold no numbers.*categorical="),
        (lambda texts: [0.5], TEXT, {}, BadInput, "one row is expected for each"),
        (lambda texts: [[0.5, np.nan]] * len(texts), TEXT, {}, NonFinite, "finite"),
        (lambda texts: 1 / 0, TEXT, {}, ModelFailed, "ZeroDivisionError.*Call it directly"),
        (lambda: 1, TEXT, {}, BadInput, "predict_proba"),
        (lambda a, b, c: 1, TEXT, {}, BadInput, "predict_proba"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_what_to_do(
    function: Any, inputs: Any, settings: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        wf.explain(function, inputs, **settings)
