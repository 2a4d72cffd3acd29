"""shap's own plots of our explanations."""

from __future__ import annotations

import numpy as np
import pytest

import whyformer as wf
from whyformer.errors import BadInput
from whyformer.results.interop import shap_package
from whyformer.results.types import Explanation, Target, Units

SENTENCES = [
    "I like the movie",
    "She hates the book",
    "This is so boring",
    "I cannot wait for next time",
    "You look extremely confused",
]


@pytest.fixture(scope="module")
def found() -> list[Explanation]:
    model, tokenizer = wf.demo.load_sentiment()
    return wf.explain(model, SENTENCES, processor=tokenizer, method="shap", target="positive")


@pytest.fixture(autouse=True)
def canvas():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_one_explanation(found: list[Explanation]) -> None:
    one = found[1].to_shap()
    assert one.values.tolist() == found[1].scores.astype(np.float64).tolist()
    assert one.base_values == found[1].base
    assert list(one.data) == ["[CLS]", "She", " hates", " the", " book", "[SEP]"]
    assert one.base_values + one.values.sum() == pytest.approx(found[1].value, abs=1e-4)


@pytest.mark.filterwarnings("ignore")  # what shap's plots do with matplotlib is their own affair
@pytest.mark.parametrize("row", range(len(SENTENCES)))
def test_plots_of_one(found: list[Explanation], row: int, canvas) -> None:
    shap = shap_package("this test")
    one, same = found[row].to_shap(), wf.to_shap(found)[row]
    np.testing.assert_array_equal(one.values, same.values)
    last = SENTENCES[row].split()[-1]
    for values in (one, same):
        assert last in shap.plots.text(values, display=False)
        axes = shap.plots.waterfall(values, show=False)
        assert any(last in label.get_text() for label in axes.get_yticklabels())
        canvas.close("all")
        assert shap.plots.force(values, matplotlib=True, show=False) is not None
        canvas.close("all")


@pytest.mark.filterwarnings("ignore")
def test_plots_of_several(found: list[Explanation], canvas) -> None:
    shap = shap_package("this test")
    values = wf.to_shap(found)
    assert "boring" in shap.plots.text(values, display=False)
    total = values.abs.sum(0)
    names = [str(n) for n in total.feature_names]
    boring = total.values[names.index(" boring")]
    assert boring == pytest.approx(abs(found[2].scores[4]), abs=1e-6)
    the = total.values[names.index(" the")]
    assert the == pytest.approx(abs(found[0].scores[3]) + abs(found[1].scores[3]), abs=1e-6), "summed over sentences"
    canvas.figure()
    axes = shap.plots.bar(total, show=False)
    shown = [text.get_text() for text in axes.get_yticklabels()]
    assert any("boring" in label for label in shown)


def test_labels_without_text_and_without_a_base() -> None:
    units = Units(("a", "b"), (False, False), ("table", "table"))
    bare = Explanation(np.array([1, 2], np.float32), units, Target(0), "logit", 3.0, Target(0), "saliency")
    assert bare.to_shap().base_values == 0
    rows = wf.to_shap([bare, bare])
    assert rows.values.shape == (2, 2)
    assert list(rows.data[0]) == ["a", "b"]


def test_refusals() -> None:
    with pytest.raises(BadInput, match="at least one"):
        wf.to_shap([])
