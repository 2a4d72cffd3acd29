"""Explanations in the shapes of Captum and Quantus, with each score in its place; and as shap's objects."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.support import folders
from tests.support.quantus import check_attributions
from whyformer.demo.census import adult_rows
from whyformer.errors import BadInput
from whyformer.results.interop import shap_package
from whyformer.results.types import Explanation, Target, Units

TEXTS = ["the movie was not good", "great"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path_factory.mktemp("bert")))


@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_stand_where_their_tokens_do(bert: wf.Explainer, side: str) -> None:
    tokens = bert.processor(TEXTS, return_tensors="pt", padding=True, padding_side=side)
    explained = bert.explain(TEXTS, method="input_x_gradient")
    ids, mask = tokens["input_ids"], tokens["attention_mask"]
    shares = wf.to_captum(explained, ids, mask)
    assert shares.shape == ids.shape and shares.dtype == torch.float32
    assert (shares[mask == 0] == 0).all()
    for row, explanation in enumerate(explained):
        np.testing.assert_array_equal(shares[row][mask[row].bool()].numpy(), explanation.scores)
        names = bert.processor.convert_ids_to_tokens(ids[row][mask[row].bool()].tolist())
        assert names == list(explanation.units.labels)
    vectors = torch.zeros(*ids.shape, 32)
    wide = wf.to_captum(explained, vectors, mask)
    assert wide.shape == vectors.shape
    torch.testing.assert_close(wide.sum(2), shares)


def test_without_inputs_shorter_texts_end_in_zeros(bert: wf.Explainer) -> None:
    explained = bert.explain(TEXTS, method="raw_attention")
    shares = wf.to_captum(explained)
    assert shares.shape == (2, 7) and (shares[1, 3:] == 0).all() and (shares[0] != 0).all()
    assert wf.to_captum(explained[1]).shape == (1, 3)


def test_a_patch_shares_its_score_among_its_pixels() -> None:
    torch.manual_seed(0)
    pixels = torch.rand(2, 3, 32, 32)
    explained = wf.explain(folders.vit(), {"pixel_values": pixels}, method="attention_rollout")
    shares = wf.to_captum(explained, pixels)
    assert shares.shape == pixels.shape
    for row, explanation in enumerate(explained):
        patches = shares[row].sum(0).unflatten(0, (4, 8)).unflatten(2, (4, 8)).sum((1, 3))
        np.testing.assert_allclose(patches.numpy(), explanation.heatmap(), rtol=1e-5)
        assert float(shares[row, :, :8, :8].std()) == pytest.approx(0, abs=1e-8)
    alone = wf.to_captum(explained)
    assert alone.shape == (2, 1, 32, 32)
    torch.testing.assert_close(alone, shares.sum(1, keepdim=True))


def test_pixels_keep_their_own_scores_where_a_method_has_them() -> None:
    pixels = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    explained = wf.explain(folders.vit(), {"pixel_values": pixels}, method="input_x_gradient")
    detail = explained[0].detail
    assert detail is not None and detail.shape == (3, 32, 32)
    np.testing.assert_array_equal(wf.to_captum(explained, pixels)[0].numpy(), detail)
    (map_only,) = (explanation.replace(detail=detail.sum(0)) for explanation in explained)
    np.testing.assert_allclose(wf.to_captum(map_only, pixels)[0].sum(0).numpy(), detail.sum(0), rtol=1e-4, atol=1e-7)


def test_entries_of_vectors_keep_their_own_scores(bert: wf.Explainer) -> None:
    explanation = bert.explain(TEXTS[0], method="input_x_gradient")
    shares = wf.to_captum(explanation, torch.zeros(1, 7, 32))
    assert explanation.detail is not None
    np.testing.assert_array_equal(shares[0].numpy(), explanation.detail)
    np.testing.assert_allclose(shares[0].sum(1).numpy(), explanation.scores, rtol=1e-4, atol=1e-6)


def test_a_grid_that_does_not_divide_the_picture_loses_nothing() -> None:
    units = wf.Explanation(
        scores=np.arange(1, 7, dtype=np.float32),
        units=wf.Units(("",) * 6, (False,) * 6, ("image",) * 6, grid=(2, 3), image_size=(5, 7)),
        target=wf.Target(1),
        scalar="logit",
        value=0.0,
        prediction=wf.Target(1),
        method="random",
    )
    shares = wf.to_captum(units)
    assert shares.shape == (1, 1, 5, 7) and float(shares.sum()) == pytest.approx(21, rel=1e-6)
    assert float(shares[0, 0, :3, :3].sum()) == pytest.approx(1, rel=1e-6)
    padded = wf.to_captum(units, torch.zeros(1, 3, 6, 9))
    assert padded[0, :, 5:].abs().sum() == padded[0, :, :, 7:].abs().sum() == 0
    assert float(padded.sum()) == pytest.approx(21, rel=1e-6)


def test_columns_without_the_special_token() -> None:
    model, table = wf.demo.load_adult()
    explained = wf.explain(model, adult_rows()[:2], processor=table, method="raw_attention")
    shares = wf.to_captum(explained)
    assert shares.shape == (2, len(table.columns))
    assert "[CLS]" in explained[0].units.labels


def test_quantus_takes_them(bert: wf.Explainer) -> None:
    pixels = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    images = wf.explain(folders.vit(), {"pixel_values": pixels}, method="generic_attention", target=[0, 2])
    arrays = wf.to_quantus(images, pixels)
    check_attributions(**arrays)
    assert arrays["a_batch"].shape == (2, 1, 32, 32) and arrays["y_batch"].tolist() == [0, 2]
    np.testing.assert_array_equal(arrays["x_batch"], pixels.numpy())
    for shares, explanation in zip(arrays["a_batch"], images, strict=True):  # what channels have together
        patches = shares[0].reshape(4, 8, 4, 8).sum((1, 3))
        np.testing.assert_allclose(patches, explanation.heatmap(), rtol=1e-5)
    tokens = bert.processor(TEXTS, return_tensors="pt", padding=True)
    texts = bert.explain(TEXTS, method="generic_attention")
    arrays = wf.to_quantus(texts, tokens["input_ids"], tokens["attention_mask"])
    check_attributions(**arrays)


def test_refusals(bert: wf.Explainer) -> None:
    explained = bert.explain(TEXTS, method="raw_attention")
    tokens = bert.processor(TEXTS, return_tensors="pt", padding=True)
    for wrong, words in (
        (lambda: wf.to_captum([]), "at least one"),
        (lambda: wf.to_shap([]), "at least one"),
        (lambda: wf.to_captum("text"), "takes an Explanation"),
        (lambda: wf.to_captum(explained, tokens["input_ids"]), "mask=attention_mask"),
        (lambda: wf.to_captum(explained, tokens["input_ids"][:1]), "2 explanations and 1 inputs"),
        (lambda: wf.to_captum(explained, torch.zeros(2, 7, 3, 3)), "positions"),
        (lambda: wf.to_captum(explained, tokens["input_ids"], torch.ones(2, 7)), "input 1 has 3 scores, and 7"),
        (lambda: wf.to_captum(bert.explain(["movies ."], units="word"), torch.zeros(1, 5)), "units='token'"),
    ):
        with pytest.raises(BadInput, match=words):
            wrong()
    contrast = bert.explain(TEXTS[0], method="input_x_gradient", target=("positive", "negative"))
    with pytest.raises(BadInput, match="positive rather than negative"):
        wf.to_quantus(contrast, tokens["input_ids"][:1])
    vit = wf.explain(folders.vit(), {"pixel_values": torch.zeros(1, 3, 32, 32)}, method="raw_attention")
    with pytest.raises(BadInput, match="one kind"):
        wf.to_captum([vit[0], explained[0]])
    with pytest.raises(BadInput, match="32×32 pixels"):
        wf.to_captum(vit, torch.zeros(1, 3, 16, 16))


# shap's own plots of our explanations


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


@pytest.fixture
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
@pytest.mark.parametrize("row", [1, 3])
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
