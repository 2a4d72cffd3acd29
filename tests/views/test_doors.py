"""The verbs of an Explanation that lead to pictures and files."""

from __future__ import annotations

from pathlib import Path

import pytest

import whyformer as wf
from tests.views import samples
from whyformer.errors import UnknownName
from whyformer.views.header import cost, explained, options


@pytest.mark.parametrize("ending", ["html", "png", "svg", "pdf", "json", "npz"])
def test_save_by_ending(tmp_path: Path, ending: str) -> None:
    path = samples.text().save(tmp_path / f"x.{ending}")
    assert path.stat().st_size > 100


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_saved_data_draws_the_same_picture(tmp_path: Path, ending: str) -> None:
    explanation = samples.text(options={"a": 1}, changed=("a",), warnings=("w",))
    again = wf.load(explanation.save(tmp_path / f"x.{ending}"))
    assert again.changed == ("a",)
    assert again.to_html() == explanation.to_html()


def test_unknown_endings_are_refused_with_those_that_work(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"\.html, \.png, \.svg, \.pdf, \.json, \.npz"):
        samples.text().save(tmp_path / "x.gif")
    with pytest.raises(UnknownName, match=r"\.html, \.png, \.svg, \.pdf"):
        wf.views.view_of(samples.text()).save(tmp_path / "x.json")


def test_plot_gives_a_figure_and_image_reaches_the_picture() -> None:
    assert samples.text().plot(by="word").axes
    plain, over = samples.image().to_html(), samples.image().to_html(image=samples.picture())
    assert over.count("<svg") == plain.count("<svg") + 1


def test_what_was_explained_in_words() -> None:
    assert explained(samples.text()) == "logit of 'positive' = 3.431"
    other = samples.text(target=samples.Target(0, "negative"), scalar="log_odds", value=-1.5)
    assert explained(other) == "log-odds of 'negative' = -1.5 (not the prediction)"
    contrast = samples.text(target=samples.Target(1, "positive", 0, "negative"))
    assert explained(contrast) == "logit of 'positive' rather than 'negative' = 3.431"
    assert explained(samples.text(target=samples.Target(7), prediction=samples.Target(7))).startswith("logit of '7'")


def test_options_shown_are_those_that_were_changed_or_all_where_that_is_not_known() -> None:
    given = {"steps": 20, "baseline": None, "heads": "max"}
    assert options(samples.text(options=given)) == "steps=20, heads=max"
    assert options(samples.text(options=given, changed=("steps",))) == "steps=20"
    assert options(samples.text(options=given, changed=())) == ""


def test_cost_in_words() -> None:
    assert cost(samples.text()) == "1 forward + 1 backward, 12 ms"
    assert cost(samples.text(cost=samples.Cost(52, 50, 2.34))) == "52 forwards + 50 backwards, 2.3 s"
    assert cost(samples.text(cost=samples.Cost(1, 0, 0.0001))) == "1 forward, < 1 ms"
    assert cost(samples.text(cost=samples.Cost())) == "no pass, < 1 ms"
