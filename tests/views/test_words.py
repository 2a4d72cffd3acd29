"""What every picture says in words; answers of language models: what each token came from, long prompts, contrasts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.views import samples
from tests.views.test_html import balanced
from tests.views.test_terminal import VIEWS, drawn
from whyformer.capture.leaves import unruled_text
from whyformer.methods.relevance_propagation import CUT
from whyformer.registry import list_methods
from whyformer.results.types import Choice, Cost, Explanation, Generation, Target, Units
from whyformer.targets import PROBABILITIES
from whyformer.views import generation_view, view_of
from whyformer.views.explained import side_by_side
from whyformer.views.generation import groups_of, texts_of
from whyformer.views.header import (
    answer,
    check_words,
    choice_words,
    cost_of,
    decimals,
    doubts,
    ends,
    explained,
    fixed,
    method_words,
    options,
)
from whyformer.views.html.live import live_data
from whyformer.views.marks import Bars, Dialogue, Heat, Matrix, Reading, Scale
from whyformer.views.scales import first_token
from whyformer.views.terminal.terminal_page import text as printed
from whyformer.views.text_marks import folded_units, folded_words, token_run
from whyformer.views.view import View

SAID = Target(1, "positive", probability=0.9687, next=(Choice(0, "negative", 0.0313), Choice(2, "none", 1e-5)))
PARIS, PRICE = Target(7, " Paris"), Target(0, "price")
ANSWERS = {
    "classes": (samples.text(prediction=SAID), "positive (probability 96.9 %), next negative (3.1 %)"),
    "a tie": (
        samples.text(prediction=Target(1, "positive", probability=0.5, next=(Choice(0, "negative", 0.5),))),
        "positive (probability 50.0 %), tied with negative (50.0 %)",
    ),
    "a token": (
        samples.text(target=PARIS, prediction=replace(PARIS, probability=0.5, next=(Choice(8, " Lyon", 0.25),))),
        "' Paris' (probability 50.0 %), next ' Lyon' (25.0 %)",
    ),
    "a number": (samples.text(target=Target(0, "LABEL_0"), prediction=Target(0, "LABEL_0"), value=2.5), "2.5"),
    "a named number": (samples.text(target=PRICE, prediction=PRICE, value=2.5), "price = 2.5"),
    "similarity": (samples.text(scalar="cosine", value=0.8123), "similarity 0.8123"),
    "an answer": (
        samples.text(scalar="log_probability", value=np.log(0.25), target=Target(0, "Paris"), prediction=Target(0)),
        "Paris (probability 25.0 % as a whole)",
    ),
}


EXPLAINED = {
    "logit of 'positive' = 3.431": {},
    "log-odds of 'negative' = -1.5 (not the prediction)": {
        "target": Target(0, "negative"), "scalar": "log_odds", "value": -1.5},
    "logit of 'positive' rather than 'negative' = 3.431": {"target": Target(1, "positive", 0, "negative")},
    "logit of 'positive' = 3.431 (probability 96.9 %)": {"prediction": SAID},
    "logit of 'negative' = 3.431 (probability 3.1 %, not the prediction)": {
        "prediction": SAID, "target": Target(0, "negative")},
    "logit of 'positive' rather than 'negative' = 3.431 (probabilities 96.9 % and 3.1 %)": {
        "prediction": SAID, "target": Target(1, "positive", 0, "negative")},
    "probability of 'positive' = 0.9687": {"prediction": SAID, "scalar": "probability", "value": 0.9687},
    "logit of '7' = 3.431": {"target": Target(7), "prediction": Target(7)},
    "output = -1.5": {"target": Target(0, "score"), "prediction": Target(0, "score"), "value": -1.5},
    "output = 2.5": {"target": Target(0), "prediction": Target(0), "value": 2.5},
    "probability of 'positive' = 0.5": {"prediction": SAID, "value": 0.5, "warnings": (
        PROBABILITIES.format(how="it ends in a sigmoid", last="sigmoid"),)},
}  # fmt: skip
OPTIONS = {"options": {"steps": 20, "baseline": None, "heads": "max"}}
WORDS = [
    *((explained, how, words) for words, how in EXPLAINED.items()),
    (options, OPTIONS, "steps=20, heads=max"),  # all, where it is not known which were changed
    (options, OPTIONS | {"changed": ("steps",)}, "steps=20"),
    (options, OPTIONS | {"changed": ()}, ""),
    (lambda e: cost_of(e.cost), {}, "1 forward + 1 backward, 12 ms"),
    (lambda e: cost_of(e.cost), {"cost": Cost(52, 50, 2.34)}, "52 forwards + 50 backwards, 2.3 s"),
    (lambda e: cost_of(e.cost), {"cost": Cost(1, 0, 0.0001)}, "1 forward, < 1 ms"),
    (lambda e: cost_of(e.cost), {"cost": Cost()}, "no pass, < 1 ms"),
]


@pytest.mark.parametrize(("tell", "how", "words"), WORDS)
def test_what_was_explained_how_and_at_what_cost(tell: Callable[..., str], how: dict[str, Any], words: str) -> None:
    assert tell(samples.text(**how)) == words


@pytest.mark.parametrize("task", ANSWERS)
def test_the_answer_has_what_the_model_knows_of_it(task: str) -> None:
    explanation, words = ANSWERS[task]
    assert answer(explanation).value == words
    for view in (view_of(explanation), side_by_side([explanation, explanation.replace(method="other")])):
        assert view.facts == (answer(explanation),)


@pytest.mark.parametrize("target", [Target(0, "negative"), Target(1, "positive"), Target(0, "negative", 1, "positive")])
def test_what_is_not_the_prediction_is_asked_for_in_the_title(target: Target) -> None:
    """Before any score is read; also where methods stand side by side."""
    explanation = samples.text(target=target, prediction=SAID)
    question = {None: "Why 'negative'? · ", 1: "Why 'negative' rather than 'positive'? · "}[target.versus]
    asked = question if target.index == 0 else ""
    for view in (view_of(explanation), side_by_side([explanation, explanation.replace(method="other")])):
        assert view.title == asked + view_of(explanation.replace(target=SAID)).title
        others = target.index == 0 and target.versus is None
        assert view.facts[0].value.endswith("; explained is negative") == others


def test_the_ends_of_a_scale_are_numbers_as_bars_have_them() -> None:
    assert ends(Scale(0.0, 0.037849)) == ("0", fixed(0.037849, decimals([0.037849, 0.01]))) == ("0", "0.0378")
    assert ends(Scale(-3.4567, 3.4567, True)) == ("-3.46", "3.46")
    for high, told in ((1.0, "1"), (0.8, "0.8"), (0.0, "0")):
        assert ends(Scale(0.0, high)) == ("0", told)
    assert ends(Scale(0.99123, 0.99131)) == ("0.99123", "0.99131")  # not 0.991 twice
    assert ends(Scale(0.0, 8.1234e14)) == ("0", "8.12e14") and ends(Scale(0, 120000.0)) == ("0", "120000")
    assert ends(Scale(-0.5, 0.5, True, shares=True)) == ("-50.0 %", "50.0 %")
    # Scores of a column have the same decimals, or one power of ten.
    assert [decimals(column) for column in ([0.00099815], [1.03, 0.1], [12345.6], [0.0], [])] == [6, 2, 0, 1, 1]
    scores = [8.1234e14, -3.1e13, 1.0]  # a product of norms through many layers
    assert [fixed(score, decimals(scores)) for score in scores] == ["8.12e14", "-0.31e14", "0.00e14"]
    assert [fixed(score, decimals([12345.6, 1.0])) for score in (12345.6, 1.0)] == ["12346", "1"]


def test_every_method_has_a_meaning_in_plain_words_and_the_default_is_named() -> None:
    meanings = [m.meaning for m in list_methods().values() if m.run.__module__.startswith("whyformer.")]
    assert all(0 < len(words) <= 80 and words[0].islower() and not words.endswith(".") for words in meanings)
    assert method_words("generic_attention").startswith("generic_attention: gradient-weighted attention")
    assert method_words("of_a_plugin") == "of_a_plugin"
    chosen = samples.text("two_ended", default_for="text", options={"passes": 128})
    assert choice_words(chosen).startswith("the most faithful method known for texts within 128 passes")
    assert choice_words(samples.text(default_for="sound")) == "the default for such models"
    assert choice_words(samples.text(default_for="detector")) == "the default for detectors"
    assert choice_words(chosen.replace(passes=64, options={"passes": 64})) == "within passes=64"
    assert choice_words(samples.text("attn_lrp", default_for="text", passes=3)) == "within passes=3"
    assert choice_words(samples.text(default_for="text")) == "for texts, since two_ended gave no result here"


def test_folded_units_are_what_has_no_bar() -> None:
    text: Explanation = samples.text()
    assert folded_units(text) == [0, 11]
    assert folded_words(text) == (
        "Special tokens [CLS], [SEP] received 58.5 % of the total |score| and are hidden (show(specials=True))."
    )
    assert folded_words(samples.image()).startswith("Special token [CLS] received 31.3 % of the total |score| and is")
    only = text.replace(scores=np.ones(12, np.float32), units=replace(text.units, special=(True,) * 12))
    assert folded_units(only) == [] and folded_words(only) == ""  # nothing else is there to be listed
    labels, special = ("<s>", "the", "<im>", "</s>"), (True, False, True, True)
    for spans in (((0, 3), (3, 6), (6, 10), (0, 0)), None):
        units = Units(labels, special, ("text",) * 4, text="<s>the<im>", spans=spans)
        assert folded_words(samples.text(units=units, scores=np.array([0.5, 1, 0.5, 2], np.float32))) == (
            "Special tokens <s>, <im>, </s> received 75.0 % of the total |score| and are hidden (show(specials=True))."
        )


@pytest.mark.parametrize("made", [samples.text, samples.image])
def test_a_contrast_says_which_class_each_sign_supports(made: Callable[..., Explanation]) -> None:
    contrast = made("occlusion", signed=True, target=Target(1, "cat", 0, "dog"))
    for view in (view_of(contrast), side_by_side([contrast, contrast.replace(method="other")])):
        assert view.caption.startswith("Blue supports 'cat', orange supports 'dog'.")
        assert "raises" not in view.caption
        data = live_data(view)
        assert data is not None and [m["sides"] for m in data["maps"]] == [["cat", "dog"]] * len(data["maps"])
    unsigned = view_of(made(target=Target(1, "cat", 0, "dog")))
    assert "supports 'dog'" not in unsigned.caption and "do not show which of" in unsigned.caption


def test_every_percentage_says_of_what() -> None:
    """In captions, facts and lists: a probability, a share of the total |score|, or an interval."""
    shown = samples.text(prediction=SAID, errors=np.full(12, 0.01, np.float32), checks={
        "completeness_error": 0.001, "completeness_error_relative": 0.002,
        "standard_error": 0.001, "standard_error_relative": 0.003})  # fmt: skip
    for view in (view_of(shown), side_by_side([shown, samples.text("occlusion", prediction=SAID)], shared=True)):
        facts = [f.value for f in (*view.facts, *view.details, *(f for p in view.panels for f in p.facts))]
        folded = [m.folded for m in view.marks if isinstance(m, Bars)]
        for words in (view.caption, *facts, *folded):
            if "%" in words:
                assert re.search(r"probabilit|% of the (total|expected|largest)|confidence", words), words
    assert "total |score|" in side_by_side([shown, samples.text("occlusion")], shared=True).caption


def test_a_single_feature_is_said_to_be_one() -> None:
    units = Units(("[CLS]", "x", "[SEP]"), (True, False, True), ("text",) * 3)
    one = samples.text(units=units, scores=np.array([0.1, 0.5, 0.0], np.float32))
    assert "a single feature" in view_of(one).caption and "a single feature" not in view_of(samples.text()).caption


NOTHING = {
    "zero": np.zeros(12), "tiny": np.full(12, 1e-8), "nan": np.full(12, np.nan),
    "special": np.where(np.array([t.startswith("[") for t in samples.TOKENS]), 5.0, 1e-3)}  # fmt: skip


@pytest.mark.parametrize("why", NOTHING)
@pytest.mark.parametrize("signed", [False, True])
def test_a_sentence_stands_in_place_of_bars_where_nothing_was_found(why: str, signed: bool) -> None:
    empty = samples.text("occlusion", scores=NOTHING[why], signed=signed, matrix=np.ones((12, 12), np.float32))
    assert empty.nothing_found
    alone, beside = view_of(empty), side_by_side([samples.text(), empty])
    all_empty = side_by_side([empty, empty.replace(method="other")])
    assert alone.caption == all_empty.caption == empty.nothing_found and alone.legend is None
    assert not [m for m in (*alone.marks, *all_empty.marks, *beside.panels[1].marks) if isinstance(m, Bars)]
    assert beside.panels[1].note == empty.nothing_found and "occlusion" not in beside.caption
    for view, place in ((alone, 0), (beside, 1)):
        data = live_data(view)
        assert data is not None and data["maps"][place]["nothing"] == empty.nothing_found
        assert not any(data["maps"][place]["scores"])
    for words in (printed(alone._page()), samples.still(alone.to_html())):
        assert "█" not in words and "wf-bar" not in re.sub("<style>.*?</style>", "", words, flags=re.DOTALL)
        assert "not tested" not in words


@pytest.mark.parametrize("made", [samples.image, samples.table])
def test_neither_a_map_nor_columns_are_drawn_of_zeros(made: Callable[..., Explanation]) -> None:
    found = made()
    empty = found.replace(scores=np.zeros_like(found.scores))
    for view in (view_of(empty), side_by_side([empty, empty.replace(method="other")])):
        assert not [m for m in view.marks if isinstance(m, (Bars, Heat))] and view.caption == empty.nothing_found


def test_classes_that_tie_give_no_bars_for_rounding() -> None:
    """The difference of two logits is rounded as they are: near zero, scores of 1e-7 are noise."""
    tied = samples.text("two_ended", signed=True, target=Target(1, "a", 0, "b"), value=1e-9, scores=np.full(12, 1e-7))
    assert tied.nothing_found.startswith("The largest |score| is 1e-07")
    assert not tied.replace(scalar="probability").nothing_found, "a small probability is known to more digits"


def test_an_answer_of_several_tokens_says_how_sure_the_model_was_and_its_largest_error() -> None:
    said, tokens = samples.generation(), []
    for i, e in enumerate(said.tokens):
        sure = Target(e.target.index, e.target.label, probability=0.9 - i / 10, next=(Choice(99, "so", 0.05),))
        checks = e.checks | {"conservation_error": 2.0 + i, "conservation_error_relative": 0.5 + i / 10}
        tokens.append(e.replace(prediction=sure, checks=checks))
    view = view_of(Generation(tuple(tokens), said.text))
    (fact,) = view.facts
    assert fact.value == "70.0 % per token on average; lowest for ' him.' (50.0 %), next so (5.0 %)"
    (line,) = [doubt for doubt in view.doubts if "conservation" in doubt]
    assert "their sum differs by 90.0 % of it (conservation error 6)" in line and "Trust the order" in line
    assert line.endswith("This is the largest of 5 explanations.")
    assert "an error of 0.3 (5.0 % of the largest |score|) (new error)" in check_words("new error", "0.3", "5.0 %")


def test_a_conservation_error_names_the_causes_that_the_method_has() -> None:
    error = {"conservation_error": 2.0, "conservation_error_relative": 0.5}

    def line(method: str, at: str, *warnings: str) -> str:
        made = samples.text(method, checks=error, options={"at": at}, warnings=warnings)
        return next(words for words in doubts(made) if "conservation" in words)

    assert "the rule for softmax" in line("attn_lrp", "input") and "softmax" not in line("cp_lrp", "input")
    assert "position embeddings" in line("cp_lrp", "input") and "position" not in line("cp_lrp", "tokens")
    assert "Possible causes" not in line("another", "input")
    missing = unruled_text({"exp", "log"}, {"tanh"})
    assert line("cp_lrp", "tokens", *missing).endswith(
        "Possible causes: biases, if the model has them: they are not features of the input; functions without a "
        "relevance rule (exp, log, tanh). Trust the order of the features, not the size of single scores."
    )
    lost = CUT.format(share=0.3)
    assert "tensors that the model computes with gradients off. " in line("cp_lrp", "tokens", lost)


def test_text_outside_all_units_is_counted_and_no_reason_is_made_up() -> None:
    """Chosen ranges, a maximum length or dropped characters: the picture does not know which."""
    units = samples.text().units
    assert units.spans is not None

    def ends(text: str, shift: int = 0) -> tuple[str, str]:
        spans = tuple((a + shift, b + shift) if b > a else (0, 0) for a, b in units.spans or ())
        pieces = token_run(samples.text(units=replace(units, text=text, spans=spans))).pieces
        first, last = (piece.text if piece.score is None else "" for piece in (pieces[0], pieces[-1]))
        return first, last

    assert ends(samples.TEXT + " and more") == ("", " … [8 characters after the last scored token]")
    assert ends("So: " + samples.TEXT, 4) == ("[3 characters before the first scored token] … ", "")
    for unseen in (" \n", "\u200b\x01", "\u0301"):  # spaces, control characters, an accent
        assert ends(samples.TEXT + unseen) == ("", unseen)


# Answers of language models


def dialogue(view: View) -> Dialogue:
    (mark,) = [m for m in view.marks if isinstance(m, Dialogue)]
    return mark


def test_each_token_has_the_shares_of_its_words() -> None:
    """Of what is neither the first token nor the template's: 1 for the word it came from, 0.1 for each other."""
    mark = dialogue(view_of(samples.generation()))
    names = [piece.text for piece in mark.reading.scored()]
    for step, source in enumerate(["Tom", "moved", "to", "Lisbon.", "Where"]):
        words = 9 + step  # two of the system, seven of the user, and the answer so far
        expected = 1.0 / (1.0 + 0.1 * (words - 1))
        place = names.index(source)
        assert mark.shares[step, place] == pytest.approx(expected, rel=1e-5)
        assert mark.sources(step, step + 1)[0] == (source, pytest.approx(expected, rel=1e-5))
    assert np.isnan(mark.shares[0, -1]) and not np.isnan(mark.shares[-1]).any()
    assert [name for name, plain in zip(names, mark.ordinary, strict=True) if not plain] == [
        "<s>", "system", "user", "assistant",
    ]  # fmt: skip
    mean, _ = mark.over(0, 3)  # of a sentence
    np.testing.assert_allclose(mean[5:12], mark.shares[:3, 5:12].mean(0), rtol=1e-6)
    assert {name for name, _ in mark.sources(0, 3, 3)} == {"Tom", "moved", "to"}


def test_the_page_holds_what_its_script_draws() -> None:
    view = view_of(samples.generation())
    page, mark = view.to_html(), dialogue(view)
    data = json.loads(re.findall(r'class="wf-data">(.*?)</script>', page, re.DOTALL)[0])
    shares = np.array([[np.nan if x is None else x / data["steps"] for x in row] for row in data["shares"]])
    np.testing.assert_allclose(shares, mark.shares, atol=1e-4)
    assert data["aside"] == [[0]] * 5 and data["ordinary"] == mark.ordinary.astype(int).tolist()
    pieces = [int(i) for i in re.findall(r'data-piece="(\d+)"', page)]
    assert pieces == list(range(mark.shares.shape[1])), "a column of the data for each word on the page, in order"
    buttons = re.findall(r'<button type="button" data-first="(\d)" data-end="(\d)" data-name="([^"]+)">', page)
    assert [b[2] for b in buttons[:5]] == ["“In”", "“Lis”", "“bon.”", "“Ask”", "“him.”"]
    assert [tuple(map(int, b[:2])) for b in buttons[5:]] == [(0, 5), (0, 3), (3, 5)], "all of it, and its sentences"
    assert 'role="toolbar"' in page and 'aria-live="polite"' in page and balanced(page)
    page = samples.still(page)  # without its script it shows the mean
    assert "whole answer ← Tom 15 %" in page
    strongest = re.search(r'style="background:(#\w+);[^"]*" title="[^"]+">Tom<', page)
    weak = re.search(r'style="background:(#\w+);[^"]*" title="[^"]+">Be<', page)
    assert strongest and weak and strongest[1] == "#2166ac" != weak[1]
    assert ".wf-chips{display:none" in page, "what does nothing without a script is not there"
    page = VIEWS["generation_step"]().to_html()  # voices have names, templates are quiet
    quiet = re.findall(r'<div class="wf-quiet"[^>]*>(.*?)</div>', page)
    assert len(quiet) == 3 and not any("background" in part for part in quiet)
    assert re.findall(r'<h4 class="wf-voice">(.*?)</h4>', page) == ["system", "user", "answer so far"]


def test_tokens_of_an_answer_are_cut_from_its_text() -> None:
    """Some tokenizers drop the space before a token that is read alone; no token can end the script."""
    generation = samples.generation()
    bare = tuple(e.replace(target=Target(0, e.target.label.strip())) for e in generation.tokens)
    assert texts_of(Generation(bare, generation.text)) == samples.ANSWER
    first = generation.tokens[0].replace(target=Target(0, "</script><b>"))
    odd = Generation((first, *generation.tokens[1:]), "</script><b> Lisbon. Ask him.", generation.sentences)
    page = view_of(odd).to_html()
    assert page.count("</script>") == 2 and "<b>" not in page.split("</style>")[1].replace("<b>Warnings", "")


def test_words_do_not_go_on_after_a_line_break_or_in_another_voice() -> None:
    """Byte-level tokenizers mark the space before a word, and nothing after a line break."""
    labels, roles = ("Ġcaf", "e", ".", "ĊĊ", "In", "Ġtown", "?", "Ċ", "Yes"), ("user",) * 7 + ("template", "answer")
    spans = tuple(pairwise((0, 4, 5, 6, 8, 10, 15, 16, 17, 20)))
    how = {"word": (0,) * 5 + (1,) * 4, "spans": spans, "text": " cafe.\n\nIn town?\nYes", "role": roles}
    units = Units(labels, (False,) * 9, ("text",) * 9, **how)
    assert [(g.text, g.before) for g in groups_of(units, "word")] == [
        ("cafe.", " "), ("In", "\n\n"), ("town?", " "), ("\n", ""), ("Yes", ""),
    ]  # fmt: skip
    assert [g.members for g in groups_of(units, "token")] == [(i,) for i in range(9)]


def test_the_first_token_is_hatched_by_every_backend_or_coloured() -> None:
    view = VIEWS["prompt"]()  # its terminal is stored
    assert re.search(r'<span class="wf-token wf-aside" title="[^"]+">The</span>', view.to_html())
    hatched = [patch for patch in view.plot().axes[0].patches if patch.get_hatch() == "////"]
    assert any(patch.get_facecolor()[:3] == (1, 1, 1) for patch in hatched)
    highs = [VIEWS[name]().panels[0].marks[0].scale.high for name in ("prompt", "prompt_coloured")]
    assert highs == pytest.approx([0.5, 9.0])
    whole = dialogue(generation_view(samples.generation(), colour_first_token=True))
    assert not whole.aside.any() and dialogue(view_of(samples.generation())).aside[:, 0].all()


def test_no_other_model_has_a_first_token_apart() -> None:
    assert first_token(samples.text()) is None
    two = samples.prompt([9.0, 1.0], ["The", "cat"])
    sentences = replace(two.units, labels=("The cat sat.", "It ran."))  # more than a first token
    chosen = replace(two.units, spans=((4, 7), (0, 3)), labels=("cat", "The"))  # a range that someone chose
    for other in (two.replace(units=sentences), two.replace(units=chosen), samples.prompt([9.0], ["The"])):
        assert first_token(other) is None
    assert first_token(two) == 0


def test_the_middle_of_a_long_prompt_is_folded_but_for_what_counts() -> None:
    view = VIEWS["prompt_long"]()
    (reading,) = [m for m in view.marks if isinstance(m, Reading)]
    assert len(reading.scored()) == 1000, "nothing is lost"
    page = view.to_html()
    folds = re.findall(r'<details class="wf-fold">.*?</details>', page, re.DOTALL)
    assert any("word300" in fold for fold in folds) and not any("word500<" in fold for fold in folds)
    assert view.plot().get_size_inches()[1] < 12


def test_a_long_answer_and_prompt_stay_short_on_a_page() -> None:
    base, places = samples.long_prompt(strong=700), np.arange(1000)
    tokens = [
        base.replace(scores=np.where(places == 100 + step, 0.5, base.scores), target=Target(step, f" t{step}"))
        for step in range(40)
    ]
    view = view_of(Generation(tuple(tokens), "".join(e.target.label for e in tokens)))
    (heat,) = [m for m in view.marks if isinstance(m, Matrix)]
    assert heat.values.shape == (40, 40) and "word700" in heat.column_labels
    assert "the 40 of 1000 words" in view.panels[1].title
    shown = drawn(view)
    assert "… 16 more tokens" in shown and len(shown.splitlines()) < 190
    assert len(view.to_html()) < 600_000
