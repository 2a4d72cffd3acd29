"""The report: what was compared, explained and checked is what the verbs say; curves are the model's own numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.models import CASES
from whyformer.choices import REPORTED
from whyformer.demo import load_sentiment
from whyformer.errors import UnknownName
from whyformer.evidence import Standing, ordinal
from whyformer.explainer import CoreExplainer
from whyformer.reports.report import DRAWS, counts_of, deletion_of, misleading, usual_methods

TEXTS = ["a witty, seductive movie", "This is so boring", "no movement, not much of anything"]
FEW = ["generic_attention", {"method": "raw_attention", "layers": "mean"}]


@cache
def loaded() -> Any:
    return load_sentiment()


@cache
def reported() -> Any:
    model, tokenizer = loaded()
    how: dict[str, Any] = {"shown": 2, "drawn": 2, "checks": ["sinks"]}
    return wf.report(model, TEXTS, processor=tokenizer, method=FEW, **how)


def test_it_says_what_the_verbs_say() -> None:
    model, tokenizer = loaded()
    report, alone = reported(), wf.compare(model, TEXTS, processor=tokenizer, method=FEW)
    assert repr([r.scores for r in report.comparison.rows]) == repr([r.scores for r in alone.rows])
    assert len(report.explanations) == 2 and set(report.names) == {"generic_attention", "raw_attention(layers=mean)"}
    for text, each in zip(TEXTS, report.explanations, strict=False):
        for row, explanation in zip(alone.rows, each, strict=False):
            again = wf.explain(model, text, processor=tokenizer, method=row.method, **row.options)
            np.testing.assert_allclose(explanation.scores, again.scores, atol=1e-5)
    with pytest.warns(UserWarning, match="3 inputs: too few to rank"):
        assert report.best == alone.best
    assert [f.check for f in report.checkup.findings] == ["sinks"] and report.checkup.method == alone.rows[0].method
    assert report.misleads["generic_attention"].startswith("the scale of the output")


@pytest.mark.parametrize("verb, calls", [(wf.compare, 2), (partial(wf.report, drawn=2, checks=[]), 3)])
def test_each_method_explains_the_inputs_once(verb: Any, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report adds one call: why the prediction rather than the other class, by the best method."""
    asked = []
    explain = CoreExplainer.explain

    def counted(self: CoreExplainer, inputs: Any, **settings: Any) -> Any:
        asked.append((settings["method"], len(inputs)))
        return explain(self, inputs, **settings)

    monkeypatch.setattr(CoreExplainer, "explain", counted)
    model, tokenizer = loaded()
    verb(model, TEXTS, processor=tokenizer, method=FEW)
    assert asked[:2] == [("generic_attention", 3), ("raw_attention", 3)] and len(asked) == calls
    assert all(count == 2 for _, count in asked[2:])


def test_it_answers_why_not_the_next_class() -> None:
    model, tokenizer = loaded()
    report = reported()
    best = report.comparison.rows[0]
    assert len(report.others) == 2
    for text, (other,), (explanation, *_) in zip(TEXTS, report.others, report.explanations, strict=False):
        following = explanation.prediction.next[0]
        assert (other.target.index, other.target.versus) == (explanation.prediction.index, following.index)
        again = wf.explain(
            model, text, processor=tokenizer, method=best.method, target=(None, following.index), **best.options
        )
        np.testing.assert_allclose(other.scores, again.scores, atol=1e-5)
    aimed = wf.report(model, TEXTS[:2], processor=tokenizer, method=FEW[:1], target="positive", checks=[], drawn=1)
    assert aimed.others is None  # the question was another


def test_curves_are_what_the_model_says_without_the_highest_units() -> None:
    model, tokenizer = loaded()
    deletion, (explanation, *_) = reported().deletions[0], reported().explanations[0]
    name = reported().names[0]
    ids = tokenizer(TEXTS[0])["input_ids"]
    order = [i for i in np.argsort(-explanation.scores, kind="stable") if not explanation.units.special[i]]
    assert list(deletion.orders[name]) == order
    for count, said in zip(deletion.counts, deletion.curves[name], strict=True):
        masked = [tokenizer.mask_token_id if i in order[:count] else token for i, token in enumerate(ids)]
        with torch.no_grad():
            likely = model(input_ids=torch.tensor([masked])).logits.softmax(-1)[0, explanation.target.index]
        assert said == pytest.approx(float(likely), abs=1e-5)
    assert deletion.curves[name][0] == pytest.approx(explanation.prediction.probability, abs=1e-5)


def test_the_band_and_the_orders_that_are_beaten_on_a_sum_of_parts() -> None:
    weights = np.array([5.0, 0.0, 3.0, 1.0, 7.0])
    game = SimpleNamespace(values=lambda present_MP: present_MP @ weights)
    games: Any = SimpleNamespace(parts=[np.arange(1, 6)], replacement="mask", seed=0, game=lambda number: game)
    scores = np.concatenate([[99.0], weights])  # the first unit is special: it cannot be taken away
    deletion = deletion_of(games, 0, {"right": scores, "wrong": -scores}, "sum")
    assert deletion is not None and deletion.counts == (0, 1, 2, 3, 4, 5)
    assert deletion.orders["right"] == (5, 1, 3, 4, 2)
    assert deletion.curves["right"] == (16, 9, 4, 1, 0, 0)
    assert deletion.beaten["right"] >= DRAWS - 1 and deletion.beaten["wrong"] <= 1
    for low, mean, high in zip(deletion.low, deletion.mean, deletion.high, strict=True):
        assert low <= mean <= high
    assert (deletion.low[0], deletion.high[-1]) == (16, 0)
    games.parts = [np.array([1])]
    assert deletion_of(games, 0, {"right": scores}, "sum") is None  # nothing to be ordered


def test_points_of_a_curve() -> None:
    assert counts_of(3) == (0, 1, 2, 3)
    many = counts_of(196)
    assert (many[0], many[-1], len(many)) == (0, 196, 17) and np.all(np.diff(many) > 0)


@pytest.mark.parametrize(
    ("standing", "words", "verdict"),
    [
        (Standing(3, 17, 5, 5, 40, "texts"), "3rd of 17 on 40 texts, beats random", "yes"),
        (Standing(1, 4, 3, 5, 90, "rows"), "1st of 4 on 90 rows, beats random by 3 of 5 metrics", "partly"),
        (Standing(12, 12, 0, 5, 30), "12th of 12 on 30 inputs, not better than random", "no"),
        (Standing(None, 2, 0, 0, 1, "images"), "1 image: too few to rank methods (30 needed)", "unknown"),
    ],
)
def test_badges(standing: Standing, words: str, verdict: str) -> None:
    assert (str(standing), standing.verdict) == (words, verdict)
    assert [ordinal(n) for n in (11, 21, 22, 113)] == ["11th", "21st", "22nd", "113th"]


def test_one_input_has_no_intervals_and_says_so() -> None:
    case = CASES["bert"]
    model = case.build(case.implementations[0])
    inputs = {name: value[:1] for name, value in case.inputs().items()}
    report = wf.report(model, inputs, method=["saliency", "random"], checks=[])
    assert report.view().lead[0].startswith("1 text: too few to rank methods (30 needed)")
    assert report.checkup is None and "skipped" in report.unchecked
    assert {s.verdict for s in report.standings.values()} == {"unknown"}


def test_everything_is_read_back(tmp_path: Path) -> None:
    report = reported()
    again = wf.load(report.save(tmp_path / "x.json"))
    assert isinstance(again, wf.Report) and again.to_html() == report.to_html()
    assert again.standings == report.standings


def test_wrong_names_are_refused_before_long_work() -> None:
    model, tokenizer = loaded()
    with pytest.raises(UnknownName):
        wf.report(model, TEXTS, processor=tokenizer, method=["raw_atention"])


def test_what_is_compared_unasked() -> None:
    assert usual_methods("text")[0] == usual_methods("table")[0] == "two_ended"
    assert set(REPORTED) <= set(usual_methods("image"))
    assert all(misleading(wf.list_methods()[name].run) for name in REPORTED)


def test_a_section_documents_the_system() -> None:
    """Purpose, method, evidence and limits, with the figures of the report itself."""

    def section(one: Any) -> dict[str, str]:
        terms = next(part for part in one.view().outro if getattr(part, "title", "") == "To document a system")
        return {fact.name: fact.value for fact in terms.facts}

    made = reported()
    told = section(made)
    best = next(row.name for row in made.comparison.rows if not row.baseline)
    assert list(told) == ["Purpose", "Method", "Evidence", "Limits", "To repeat it"]
    assert "purpose=" in told["Purpose"] and best in told["Method"] and made.comparison.model in told["Method"]
    assert str(made.standings[best]) in told["Evidence"] and f"{made.comparison.inputs} " in told["Evidence"]
    drawn = [d for d in made.deletions if d is not None]
    assert f"better than {sum(d.beaten[best] for d in drawn)} of {sum(d.draws for d in drawn)}" in told["Evidence"]
    assert "Not tested here: whether predictions are correct, fair, safe or lawful" in told["Limits"]
    assert f"seed {made.comparison.seed}" in told["To repeat it"]
    assert section(replace(made, purpose="to sort letters"))["Purpose"] == "to sort letters"
