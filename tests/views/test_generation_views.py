"""Answers of language models in pictures: what each token came from, the first token apart, long prompts, contrasts."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.views import samples
from tests.views.test_html import Balanced
from tests.views.test_terminal import VIEWS, drawn
from whyformer.results.types import Generation, Target, Units
from whyformer.views import generation_view, view_of
from whyformer.views.generation import texts_of
from whyformer.views.marks import Dialogue, Matrix, Reading
from whyformer.views.reading import groups_of
from whyformer.views.scales import first_token
from whyformer.views.view import View


def dialogue(view: View) -> Dialogue:
    (mark,) = [m for p in view.panels for m in p.marks if isinstance(m, Dialogue)]
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


def test_a_sentence_is_the_mean_of_its_tokens() -> None:
    mark = dialogue(view_of(samples.generation()))
    mean, _ = mark.over(0, 3)
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
    assert 'role="toolbar"' in page and 'aria-live="polite"' in page
    for outside in ("http://", "https://", "url(", "src=", "fetch(", "XMLHttp", "import("):
        assert outside not in page
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []


def test_without_its_script_the_page_shows_the_mean() -> None:
    page = re.sub(r"<script.*?</script>", "", view_of(samples.generation()).to_html(), flags=re.DOTALL)
    assert "the whole answer ← Tom 15 %" in page
    strongest = re.search(r'style="background:(#\w+);[^"]*" title="[^"]+">Tom<', page)
    weak = re.search(r'style="background:(#\w+);[^"]*" title="[^"]+">Be<', page)
    assert strongest and weak and strongest[1] == "#2166ac" != weak[1]
    assert ".wf-chips{display:none" in page, "what does nothing without a script is not there"


def test_what_a_model_says_cannot_end_the_script() -> None:
    generation = samples.generation()
    first = generation.tokens[0].replace(target=Target(0, "</script><b>"))
    odd = Generation((first, *generation.tokens[1:]), "</script><b> Lisbon. Ask him.", generation.sentences)
    page = view_of(odd).to_html()
    assert "<b>" not in page.split("</style>")[1].replace("<b>What to doubt", "")
    assert page.count("</script>") == 2


def test_tokens_of_an_answer_are_cut_from_its_text() -> None:
    """Some tokenizers drop the space before a token that is read alone."""
    generation = samples.generation()
    bare = tuple(e.replace(target=Target(0, e.target.label.strip())) for e in generation.tokens)
    assert texts_of(Generation(bare, generation.text)) == samples.ANSWER


def test_words_do_not_go_on_after_a_line_break_or_in_another_voice() -> None:
    """Byte-level tokenizers mark the space before a word, and nothing after a line break."""
    labels, roles = ("Ġcaf", "e", ".", "ĊĊ", "In", "Ġtown", "?", "Ċ", "Yes"), ("user",) * 7 + ("template", "answer")
    text, spans = (
        " cafe.\n\nIn town?\nYes",
        [(0, 4), (4, 5), (5, 6), (6, 8), (8, 10), (10, 15), (15, 16), (16, 17), (17, 20)],
    )
    units = Units(
        labels, (False,) * 9, ("text",) * 9, word=(0, 0, 0, 0, 0, 1, 1, 1, 1), spans=tuple(spans), text=text, role=roles
    )
    assert [(g.text, g.before) for g in groups_of(units, "word")] == [
        ("cafe.", " "), ("In", "\n\n"), ("town?", " "), ("\n", ""), ("Yes", ""),
    ]  # fmt: skip
    assert [g.members for g in groups_of(units, "token")] == [(i,) for i in range(9)]


# The first token


def test_the_first_token_is_hatched_by_every_backend() -> None:
    view = VIEWS["prompt"]()  # its terminal is stored
    assert re.search(r'<span class="wf-token wf-aside" title="[^"]+">The</span>', view.to_html())
    assert any(
        patch.get_hatch() == "////" and patch.get_facecolor()[:3] == (1, 1, 1) for patch in view.plot().axes[0].patches
    )


def test_the_first_token_can_be_coloured() -> None:
    highs = [VIEWS[name]().panels[0].marks[0].scale.high for name in ("prompt", "prompt_coloured")]
    assert highs == pytest.approx([0.5, 9.0])
    whole = dialogue(generation_view(samples.generation(), colour_first_token=True))
    assert not whole.aside.any() and dialogue(view_of(samples.generation())).aside[:, 0].all()


def test_no_other_model_has_a_first_token_apart() -> None:
    assert first_token(samples.text()) is None
    sentence = samples.prompt([9.0, 1.0], ["The", "cat"])
    sentence = sentence.replace(units=replace(sentence.units, labels=("The cat sat.", "It ran.")))
    assert first_token(sentence) is None, "a sentence is more than its first token"
    chosen = samples.prompt([9.0, 1.0], ["The", "cat"])
    chosen = chosen.replace(units=replace(chosen.units, spans=((4, 7), (0, 3)), labels=("cat", "The")))
    assert first_token(chosen) is None, "a range that someone chose"
    alone = samples.prompt([9.0], ["The"])
    assert first_token(alone) is None, "there is nothing else"


# Long prompts


def test_the_middle_of_a_long_prompt_is_folded_but_for_what_counts() -> None:
    view = VIEWS["prompt_long"]()
    (reading,) = [m for p in view.panels for m in p.marks if isinstance(m, Reading)]
    assert len(reading.scored()) == 1000, "nothing is lost"
    page = view.to_html()
    folds = re.findall(r'<details class="wf-fold">.*?</details>', page, re.DOTALL)
    assert any("word300" in fold for fold in folds) and not any("word500<" in fold for fold in folds)
    assert view.plot().get_size_inches()[1] < 12


def test_a_long_answer_and_prompt_stay_short_on_a_page() -> None:
    base = samples.long_prompt(strong=700)
    tokens = []
    for step in range(40):
        units = base.units
        scores = base.scores.copy()
        scores[100 + step] = 0.5
        tokens.append(base.replace(scores=scores, units=units, target=Target(step, f" t{step}")))
    generation = Generation(tuple(tokens), "".join(e.target.label for e in tokens))
    view = view_of(generation)
    (heat,) = [m for p in view.panels for m in p.marks if isinstance(m, Matrix)]
    assert heat.values.shape == (40, 40) and "word700" in heat.column_labels
    assert "the 40 of 999 words" not in view.panels[1].title and "the 40 of 1000 words" in view.panels[1].title
    shown = drawn(view)
    assert "… 16 more tokens" in shown and len(shown.splitlines()) < 190
    assert len(view.to_html()) < 600_000


def test_voices_have_names_and_templates_are_quiet() -> None:
    page = VIEWS["generation_step"]().to_html()
    quiet = re.findall(r'<div class="wf-quiet"[^>]*>(.*?)</div>', page)
    assert len(quiet) == 3 and not any("background" in part for part in quiet)
    assert re.findall(r'<h4 class="wf-voice">(.*?)</h4>', page) == ["system", "user", "the answer so far"]


def test_errors_of_all_tokens_are_told_in_one_line() -> None:
    said = samples.generation()
    tokens = [
        e.replace(checks=e.checks | {"conservation_error": 2.0 + i, "conservation_error_relative": 0.5 + i / 10})
        for i, e in enumerate(said.tokens)
    ]
    view = view_of(Generation(tuple(tokens), said.text))
    lines = [doubt for doubt in view.doubts if "conservation" in doubt]
    last = len(tokens) - 1
    share = f"{100 * (0.5 + last / 10):.1f} %"
    (line,) = lines
    assert f"{share} of it is missing (conservation error {2 + last})" in line
    assert line.endswith(f"That is the largest of {len(tokens)} tokens out of {len(tokens)}.")
