"""The default, method="auto": which method explains, within how many passes, and what is said if nothing is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PatchTSTConfig, PatchTSTForClassification

import whyformer as wf
from tests.models import CASES
from tests.models.case import seeded
from tests.support import language
from tests.tables.models import LAYOUTS, rows, table
from tests.views import samples
from whyformer.choices import (
    ANYWHERE,
    FEWEST,
    FEWEST_OF_ROWS,
    MEASURED,
    MOST_UNITS,
    ONE_PASS,
    answers,
    default_method,
    guides,
)
from whyformer.demo import census, load_sentiment
from whyformer.errors import BadInput
from whyformer.registry import get_method
from whyformer.views import scales
from whyformer.views.html.live import live_data
from whyformer.views.marks import Bars, Heat, TokenRun
from whyformer.views.text_marks import placed_rows, waterfall

SHORT, LONG = "I like the movie, but the plot is thin.", "good and bad " * 40


@pytest.fixture(scope="module")
def sentiment() -> wf.Explainer:
    return wf.Explainer(*load_sentiment())


def spent(e: wf.Explanation) -> float:
    return e.cost.forwards + 2 * e.cost.backwards


# The rule


def test_the_rule_looks_at_kind_size_and_passes_alone() -> None:
    for kind in ("text", "image", "sequence", "", "table"):
        assert answers(kind, 20)[0] == ("two_ended", {"passes": 128, "guide": "auto"})
        assert answers(kind, 196, 512)[0] == ("two_ended", {"passes": 512, "guide": "auto"})
        assert answers(kind, MOST_UNITS + 1) == answers(kind, 20, 6) == [(name, {}) for name in ONE_PASS]
        few = FEWEST_OF_ROWS if kind == "table" else FEWEST
        assert answers(kind, 20, few)[0] == ("two_ended", {"passes": few, "guide": "auto"})
        assert answers(kind, 20, few - 1)[0] == ("attn_lrp", {"maskings": min(8, (few - 2) // 3)})
        plain = [name for name, options in answers(kind, 20) if not options]
        assert plain == list(ONE_PASS), "where nothing can stand for a masked part"
    assert answers("language", 20) == [("attn_lrp", {}), ("occlusion", {})]
    assert answers("language", 20, 128)[0] == ("two_ended", {"passes": 128, "guide": "auto"})
    assert guides()[0] == guides(128)[0] == "attn_lrp(maskings=8)" and guides(24)[0] == "attn_lrp(maskings=3)"
    assert guides(8) == ONE_PASS
    assert answers("sound", 20) == [(ANYWHERE, {}), ("occlusion", {})] and answers("sound", 128) == [(ANYWHERE, {})]
    assert answers("prompt", 20) == [("occlusion", {})]
    assert answers("prompt", 500) == [("two_ended", {"passes": 128})]


@pytest.mark.parametrize("kind", [*MEASURED, "language", "sound", "detector", "prompt"])
@pytest.mark.parametrize("units", [1, 30, 400, 5000])
@pytest.mark.parametrize("passes", [3, 16, 128])
def test_what_is_chosen_first_exists_and_takes_no_more(kind: str, units: int, passes: int) -> None:
    name, options = answers(kind, units, passes)[0]
    method = get_method(name)
    forwards, backwards = method.cost(units, **method.checked(options))
    assert kind == "prompt" or forwards + 2 * backwards <= passes


@pytest.mark.parametrize(
    ("text", "passes", "method", "guide"),
    [
        (SHORT, None, "two_ended", "attn_lrp(maskings=8)"),
        (SHORT, 3, "attn_lrp", None),
        (SHORT, 12, "attn_lrp", None),
        (SHORT, 24, "two_ended", "attn_lrp(maskings=3)"),
        (SHORT, 48, "two_ended", "attn_lrp(maskings=6)"),
        (LONG, None, "two_ended", "attn_lrp(maskings=8)"),
        (LONG, 512, "two_ended", "attn_lrp(maskings=8)"),
    ],
)
def test_texts(sentiment: wf.Explainer, text: str, passes: int | None, method: str, guide: str | None) -> None:
    found = sentiment.explain(text, passes=passes)
    assert (found.method, found.options.get("guide"), found.default_for) == (method, guide, "text")
    assert spent(found) <= (passes or 128)
    again = sentiment.explain(text, method=found.method, **{k: v for k, v in found.options.items() if v is not None})
    np.testing.assert_allclose(again.scores, found.scores, atol=1e-6)


def test_other_kinds() -> None:
    vit = CASES["vit"]
    drawing = wf.explain(vit.build("sdpa"), vit.inputs())[0]
    assert (drawing.method, drawing.options["guide"]) == ("two_ended", "attn_lrp(maskings=8)") and spent(drawing) <= 128
    row = wf.explain(LAYOUTS["rtdl"].build(), rows(2), processor=table())[0]
    assert row.method == "two_ended" and row.default_for == "table"
    assert wf.explain(language.model("llama"), "The cat sat on", language.tokenizer()).method == "attn_lrp"


def test_detectors_are_explained_by_one_pass_for_each_object() -> None:
    detr = CASES["detr"]
    explainer = wf.Explainer(detr.build("sdpa"))
    kind = explainer.source(detr.inputs()).modality.kind
    found: Any = explainer.explain(detr.inputs(), target=0.0)
    while isinstance(found[0], list):
        found = found[0]
    assert {(e.method, e.default_for, spent(e)) for e in found} == {(ANYWHERE, kind, 3)}
    # compare, report, the command line and the server take it from here.
    assert kind == "detector" and default_method(kind) == ANYWHERE
    assert wf.Explainer(detr.build("sdpa")).estimate(detr.inputs()).method == ANYWHERE


def test_models_of_several_inputs_have_the_same_default_at_every_door() -> None:
    for name in ("t5", "clip"):
        case = CASES[name]
        explainer = wf.Explainer(case.build("sdpa"))
        kind = explainer.source(case.inputs()).modality.kind
        assert kind == "streams" and default_method(kind) == ANYWHERE == explainer.estimate(case.inputs()).method


def test_the_caption_says_what_was_asked(sentiment: wf.Explainer) -> None:
    def chosen(e: wf.Explanation) -> str:
        return next(fact.value for fact in e.view().details if fact.name == "chosen")

    assert chosen(sentiment.explain(SHORT, passes=3)) == "within passes=3"
    assert chosen(sentiment.explain(SHORT, passes=64)) == "within passes=64"
    assert "within 128 passes" in chosen(sentiment.explain(SHORT))
    assert sentiment.explain(SHORT, method="two_ended", passes=64).passes is None, "it was named, not chosen"


def test_what_asks_for_one_pass_gets_it(sentiment: wf.Explainer) -> None:
    assert sentiment.explain(SHORT, keep_layers=True).layers is not None
    assert sentiment.explain(SHORT, memory="fold").method == ANYWHERE
    assert sentiment.explain(SHORT, start_layer=1).method == ANYWHERE, "it has this option"
    assert sentiment.explain(SHORT, replace="pad").options["replace"] == "pad"


def test_a_list_is_explained_as_each_of_it(sentiment: wf.Explainer) -> None:
    texts = [SHORT, LONG, "Good.", LONG + " " + SHORT]
    for text, found in zip(texts, sentiment.explain(texts), strict=True):
        alone = sentiment.explain(text)
        assert found.method == alone.method == "two_ended"
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
    both = sentiment.explain(SHORT, method=["auto", "grad_sam"])
    assert list(both) == ["auto", "grad_sam"] and both["auto"].method == "two_ended"


def test_inputs_of_one_list_may_need_different_methods(
    monkeypatch: pytest.MonkeyPatch, sentiment: wf.Explainer
) -> None:
    monkeypatch.setattr("whyformer.choices.MOST_UNITS", 50)
    assert [e.method for e in sentiment.explain([SHORT, LONG, SHORT])] == ["two_ended", "attn_lrp", "two_ended"]


def test_passes_are_for_methods_that_have_them(sentiment: wf.Explainer) -> None:
    assert sentiment.explain(LONG, method="two_ended", passes=40).cost.forwards <= 40
    with pytest.raises(BadInput, match="passes=40 is for method='auto'"):
        sentiment.explain(SHORT, method="grad_sam", passes=40)
    with pytest.raises(BadInput, match="passes"):
        sentiment.explain(SHORT, passes=0)
    language_model = wf.Explainer(language.model("llama"), language.tokenizer())
    assert language_model.explain("The cat sat on", passes=512).method == "two_ended"


def test_the_estimate_is_of_what_would_run(sentiment: wf.Explainer) -> None:
    assert str(sentiment.estimate(SHORT)).startswith("two_ended: at most 112 forwards + 8 backwards")
    assert sentiment.estimate(SHORT, passes=3).method == "attn_lrp"
    for text in (SHORT, LONG):
        told, found = sentiment.estimate(text), sentiment.explain(text)
        assert found.cost.forwards <= told.forwards and found.cost.backwards <= told.backwards
        assert told.forwards + 2 * told.backwards <= 128
    vit = CASES["vit"]
    told = wf.Explainer(vit.build("sdpa")).estimate(vit.inputs(), passes=20)
    assert told.method == "two_ended" and told.forwards + 2 * told.backwards <= 20


# Where nothing is found


def test_nothing_is_drawn_where_nothing_was_found() -> None:
    model, tokenizer = load_sentiment()
    with torch.no_grad():
        model.classifier.weight.zero_()  # it says the same of every text
    found = wf.explain(model, SHORT, tokenizer)
    assert not found.scores.any() and found.nothing_found.startswith("Every score is zero")
    view = found.view()
    assert view.caption == found.nothing_found and "strongest scores" not in [panel.title for panel in view.panels]


def test_a_flat_map_is_no_answer() -> None:
    """A map without a sign that is the same everywhere, as of a head that averages over all positions."""
    e, scores = samples.text().replace(signed=False), np.full(len(samples.text().units), 0.04, np.float32)
    assert "nearly equal (0.04 to 0.0404)" in e.replace(scores=scores * np.linspace(1, 1.01, len(scores))).nothing_found
    assert not e.replace(scores=scores * np.linspace(1, 1.1, len(scores))).nothing_found
    assert not e.replace(scores=scores, signed=True).nothing_found, "equal effects may be right"


def test_where_attention_is_not_over_the_units_they_are_masked() -> None:
    """PatchTST: each variable is read by itself."""
    sizes = {"d_model": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 16, "num_targets": 3}
    config = PatchTSTConfig(num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, **sizes)
    model = seeded(lambda: PatchTSTForClassification(config))
    (found,) = wf.explain(model, {"past_values": torch.randn(1, 32, 2)})
    assert found.method == "occlusion" and len(found.units) == 8


def test_the_next_method_is_taken_where_one_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, sentiment: wf.Explainer
) -> None:
    from whyformer.methods import ablation

    monkeypatch.setattr(ablation, "_both_ends", lambda game, together: np.zeros(len(together)))
    found = sentiment.explain(SHORT)
    assert found.method == "attn_lrp" and not found.nothing_found
    assert "since two_ended gave no result here" in str(found.view().details)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([0.0, 1.0, 0.2, 0.0], ""),
        ([0.0, 0.0, 0.0, 0.0], "Every score is zero"),
        ([0.0, 4.7e-8, 1e-9, 0.0], "within the rounding error"),
        ([1.0, 0.0, 0.001, 1.0], "Special tokens received"),
    ],
)
def test_what_counts_as_nothing(scores: list[float], words: str) -> None:
    e = samples.text()
    special = [i for i, flag in enumerate(e.units.special) if flag]
    plain = [i for i, flag in enumerate(e.units.special) if not flag]
    made: Any = np.zeros(len(e.units), dtype=np.float32)
    made[[special[0], plain[0], plain[1], special[-1]]] = scores
    assert words in e.replace(scores=made, value=3.4).nothing_found
    assert bool(e.replace(scores=made, value=3.4).nothing_found) is bool(words)


def test_a_class_that_nothing_speaks_for_is_no_picture_of_noise(sentiment: wf.Explainer) -> None:
    """Of two classes one is often a constant: the result names the question that helps."""
    model, tokenizer = load_sentiment()
    with torch.no_grad():
        model.classifier.weight[0] *= 1e-5
        model.classifier.bias[:] = torch.tensor([3.9, -20.0])
    found = wf.explain(model, SHORT, tokenizer)
    assert found.method == "two_ended" and 0 < np.abs(found.scores).max() < 1e-4 * found.value
    assert found.nothing_found.startswith("Nothing in this input moves the explained value 3.9")
    assert found.nothing_found.endswith("Ask why not 'positive': target=('negative', 'positive').")
    assert found.view().caption == found.nothing_found
    asked = wf.explain(model, SHORT, tokenizer, target=("negative", "positive"))
    assert not asked.nothing_found and np.abs(asked.scores).max() > 0.1


def test_features_that_speak_against_the_prediction_are_named(sentiment: wf.Explainer) -> None:
    e = sentiment.explain(SHORT)
    scores: Any = -np.ones(len(e.units), np.float32) * np.linspace(1, 2, len(e.units))
    view = e.replace(scores=scores, signed=True).view()
    assert "8 of the 8 strongest features speak against" in view.caption and "Ask why not" in view.caption
    assert "strongest features" not in e.replace(scores=np.abs(scores), signed=True).view().caption


def test_scores_that_are_little_beside_the_value_are_not_drawn_in_full(sentiment: wf.Explainer) -> None:
    """One rule in terminal, page and figure: below 5 % of the value, all scores together, bars are shorter."""
    e = sentiment.explain(SHORT)
    part = float(np.abs(e.scores).sum() / abs(e.value))
    for times, length in ((1.0, 1.0), (0.02 / part, 0.4), (0.001 / part, 0.02)):
        view = e.replace(scores=e.scores * np.float32(times)).view()
        listed = next(mark for panel in view.panels for mark in panel.marks if isinstance(mark, Bars))
        run = next(mark for panel in view.panels for mark in panel.marks if isinstance(mark, TokenRun))
        drawn = [abs(listed.scale.length(bar.score)) for bar in listed.bars]
        assert max(drawn) == pytest.approx(length, rel=1e-3) and run.scale == listed.scale == view.legend
        (page,) = live_data(view)["maps"]  # type: ignore[index]
        assert page["headroom"] == pytest.approx(1 / length, rel=1e-3)
        assert ("together are" in view.caption) == (length < 1) == ("relative to" not in view.caption)
    number = e.prediction
    alone = e.replace(prediction=wf.Target(number.index, number.label), scores=e.scores * np.float32(1e-3))
    assert scales.headroom(alone) == 1, "the zero of a regression is arbitrary"


def test_a_waterfall_of_small_steps_is_short_too() -> None:
    e = wf.Explainer(*wf.demo.load_adult()).explain(census.adult_rows()[0], method="two_ended")
    change = e.value - e.checks["baseline_value"]
    small = e.replace(scores=e.scores * np.float32(0.01), checks={"baseline_value": e.value - 0.01 * change})
    widths = [max(row.width for row in placed_rows(waterfall(each))) for each in (e, small)]
    assert scales.headroom(e) == 1 and widths[1] == pytest.approx(widths[0] / scales.headroom(small), rel=1e-3)
    assert scales.headroom(small) > 2


def test_patches_that_all_speak_against_a_class_keep_their_sign() -> None:
    e = samples.image()
    scores: Any = np.linspace(2, 3, len(e.units), dtype=np.float32)
    for sign in (1, -1):
        view = e.replace(scores=sign * scores, signed=True, value=1.0).view()
        heat = next(mark for panel in view.panels for mark in panel.marks if isinstance(mark, Heat))
        assert heat.scale.signed == (sign < 0), "from the lowest to the highest, or on both sides of zero"


def test_the_rule_of_what_is_deleted_is_in_the_result(sentiment: wf.Explainer) -> None:
    text = "I like the movie. The plot is thin."
    sentences, words = (sentiment.explain(text, units=units) for units in ("sentence", "word"))
    assert sentences.options["replace"] == "delete" and "also in sign" in sentences.warnings[0]
    assert words.options["replace"] == "mask" and not words.warnings
    assert not sentiment.explain(text, units="sentence", method="shap", replace="delete").warnings


@pytest.mark.parametrize("text", ["x", "[CLS] [SEP]", "[MASK]", "good " * 2000])
def test_odd_texts_are_answered(sentiment: wf.Explainer, text: str) -> None:
    found = sentiment.explain(text)
    assert spent(found) <= 128 + 6 and np.isfinite(found.scores).all()
    found.show()


def test_a_word_is_the_same_for_both_ways_to_ask_for_it(sentiment: wf.Explainer) -> None:
    how: Any = {"method": "shap", "replace": "mask"}
    text = "I can't like the movie, it's boring"
    inside, whole = sentiment.explain(text, by="word", **how), sentiment.explain(text, units="word", **how)
    assert inside.scores[2:5].sum() == pytest.approx(whole.scores[whole.units.labels.index("can't")], abs=1e-5)
    assert inside.scores[2] == inside.scores[3] == inside.scores[4]
    joined, labels = [word for word, _ in inside.words()], [u for u in whole.units.labels if not u.startswith("[")]
    assert joined == labels, "words() and pictures"
    assert "can't" in [bar.label for bar in inside.view(by="word").panels[-1].marks[0].bars]
