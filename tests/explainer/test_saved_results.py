"""Results elsewhere: saved and loaded, as frames, and in the shapes of Captum, Quantus and shap."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.support import folders
from tests.support.quantus import check_attributions
from whyformer.demo import load_adult
from whyformer.demo.census import adult_rows
from whyformer.errors import BadInput
from whyformer.results.interop import shap_package
from whyformer.results.types import Explanation, Target, Units


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path_factory.mktemp("bert")))


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_an_explanation_survives_saving(bert: wf.Explainer, tmp_path: Path, suffix: str) -> None:
    how = {"method": "attention_rollout", "keep_layers": True, "target": ("positive", "negative")}
    saved = bert.explain("the movies was boring", **how)
    found = wf.load(saved.save(tmp_path / f"x.{suffix}"))
    for name in ("scores", "matrix", "layers"):
        np.testing.assert_array_equal(getattr(found, name), getattr(saved, name))
    for name in "units target prediction method options cost scalar value readout versions".split():
        assert getattr(found, name) == getattr(saved, name), name
    assert found.layers.shape == (2, 7, 7)


def test_frames(bert: wf.Explainer) -> None:
    """The row of a table has its values."""
    text = bert.explain("i like it")
    assert list(text.to_frame()["unit"]) == list(text.units.labels)
    assert list(text.to_frame().columns) == ["unit", "score", "special", "stream", "word"]
    several = bert.explain(["i like it", "boring"], method=["occlusion", "grad_sam"]).to_frame()
    assert list(several.columns)[:3] == ["method", "input", "unit"] and list(several.index) == list(range(len(several)))
    second = several[(several["method"] == "grad_sam") & (several["input"] == 1)]
    assert second["unit"].tolist() == ["[CLS]", "boring", "[SEP]"]
    assert len(wf.Explanations([]).to_frame()) == 0
    model, table = load_adult()
    found = wf.explain(model, adult_rows()[:2], processor=table, method="raw_attention")
    values = found[0].to_frame()["value"].tolist()
    assert values == list(found[0].units.values or ()) and str(adult_rows()[0]["age"]) in values
    assert wf.to_captum(found).shape == (2, len(table.columns)), "columns without the special token"
    assert "[CLS]" in found[0].units.labels


def test_ranked_lists_special_tokens_unless_told_not_to(bert: wf.Explainer) -> None:
    found = bert.explain("i like it", method="grad_sam")
    assert found.ranked()[0][0] == "[CLS]", "the published Grad-SAM puts CLS first"
    assert "[CLS]" not in [u for u, _ in found.ranked(specials=False)]
    values = [s for _, s in found.ranked()]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(("name", "value"), [("value", None), ("value", "inf"), ("scores", None), ("scores", "-inf")])
def test_numbers_that_no_explanation_has_are_warned_of(
    bert: wf.Explainer, tmp_path: Path, name: str, value: object
) -> None:
    path = bert.explain("i like it").save(tmp_path / "x.json")
    plain = json.loads(path.read_text())
    plain[name] = value if name == "value" else [value, *plain[name][1:]]
    path.write_text(json.dumps(plain))
    for load in (wf.load, wf.Explanation.load):
        with pytest.warns(UserWarning, match=f"NaN or infinity in {name}.*Do not rely on it") as heard:
            load(path)
        assert [warning.filename for warning in heard] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="NaN or infinity"):
                load(path)


# In the shapes of Captum and Quantus, with each score in its place; and as shap's objects.

TEXTS = ["the movie was not good", "great"]


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
    shares = wf.to_captum(bert.explain(TEXTS, method="raw_attention"))
    assert shares.shape == (2, 7) and (shares[1, 3:] == 0).all() and (shares[0] != 0).all()


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


def test_a_grid_that_does_not_divide_the_picture_loses_nothing() -> None:
    units = Units(("",) * 6, (False,) * 6, ("image",) * 6, grid=(2, 3), image_size=(5, 7))
    scores = np.arange(1, 7, dtype=np.float32)
    explanation = Explanation(scores, units, Target(1), "logit", 0.0, Target(1), "random")
    shares = wf.to_captum(explanation)
    assert shares.shape == (1, 1, 5, 7) and float(shares.sum()) == pytest.approx(21, rel=1e-6)
    assert float(shares[0, 0, :3, :3].sum()) == pytest.approx(1, rel=1e-6)
    padded = wf.to_captum(explanation, torch.zeros(1, 3, 6, 9))
    assert padded[0, :, 5:].abs().sum() == padded[0, :, :, 7:].abs().sum() == 0
    assert float(padded.sum()) == pytest.approx(21, rel=1e-6)


def test_quantus_takes_them(bert: wf.Explainer) -> None:
    pixels = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    images = wf.explain(folders.vit(), {"pixel_values": pixels}, method="generic_attention", target=[0, 2])
    arrays = wf.to_quantus(images, pixels)
    check_attributions(**arrays)
    assert arrays["y_batch"].tolist() == [0, 2]
    np.testing.assert_array_equal(arrays["x_batch"], pixels.numpy())
    np.testing.assert_allclose(arrays["a_batch"], wf.to_captum(images), rtol=1e-5)  # what channels have together
    tokens = bert.processor(TEXTS, return_tensors="pt", padding=True)
    texts = bert.explain(TEXTS, method="generic_attention")
    check_attributions(**wf.to_quantus(texts, tokens["input_ids"], tokens["attention_mask"]))


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


SENTENCES = ["I like the movie", "She hates the book", "This is so boring"]


@pytest.fixture(scope="module")
def found() -> list[Explanation]:
    model, tokenizer = wf.demo.load_sentiment()
    return wf.explain(model, SENTENCES, processor=tokenizer, method="shap", target="positive")


def test_one_explanation(found: list[Explanation]) -> None:
    one = found[1].to_shap()
    assert one.values.tolist() == found[1].scores.astype(np.float64).tolist()
    assert one.base_values == found[1].base
    assert list(one.data) == ["[CLS]", "She", " hates", " the", " book", "[SEP]"]
    assert one.base_values + one.values.sum() == pytest.approx(found[1].value, abs=1e-4)


@pytest.mark.filterwarnings("ignore")  # what shap's plots do with matplotlib is their own affair
def test_plots_of_one_and_of_several(found: list[Explanation]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shap, values = shap_package("this test"), wf.to_shap(found)
    np.testing.assert_array_equal(found[1].to_shap().values, values[1].values)
    assert "book" in shap.plots.text(values[1], display=False) and "boring" in shap.plots.text(values, display=False)
    total = values.abs.sum(0)
    the = total.values[[str(n) for n in total.feature_names].index(" the")]
    assert the == pytest.approx(abs(found[0].scores[3]) + abs(found[1].scores[3]), abs=1e-6), "summed over sentences"
    for plot, shown, word in ((shap.plots.waterfall, values[1], "book"), (shap.plots.bar, total, "boring")):
        pyplot.figure()
        axes = plot(shown, show=False)
        assert any(word in label.get_text() for label in axes.get_yticklabels())
        pyplot.close("all")
    assert shap.plots.force(values[1], matplotlib=True, show=False) is not None
    pyplot.close("all")


def test_labels_without_text_and_without_a_base() -> None:
    units = Units(("a", "b"), (False, False), ("table", "table"))
    bare = Explanation(np.array([1, 2], np.float32), units, Target(0), "logit", 3.0, Target(0), "saliency")
    assert bare.to_shap().base_values == 0
    assert list(wf.to_shap([bare, bare]).data[0]) == ["a", "b"]
