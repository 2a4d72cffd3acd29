"""hold of the judges: what a method holds, its judge holds, and nobody is judged by it; both play one game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.evaluate.test_detectors import model_of
from tests.methods.test_two_ended import PROMPT, QUESTION, logits_of_mat, only_together
from tests.models import CASES
from tests.support import language, processors
from whyformer.errors import BadInput, NotAllowed
from whyformer.evaluate.games import games_of

ROWS = (torch.tensor([[1.0, 1, 1], [2, 1, 3], [1, 2, 1], [3, 1, 2]]),)
QUIET: dict[str, Any] = {"target": 0, "replace": "zero", "progress": False}


def judged(hold: Any, *methods: Any, **how: Any) -> wf.Comparison:
    """Once the first part is held, the model is a sum: whoever plays that game foretells every set without an error."""
    exact: dict[str, Any] = {"infidelity": {"normalize": False}}
    return wf.compare(only_together(), ROWS, method=list(methods), metric=exact, hold=hold, **QUIET, **how)


@pytest.mark.parametrize("method", ["shap", "two_ended"])
def test_method_and_judge_play_one_game(method: str) -> None:
    def error(*call: Any) -> float:
        return float(np.mean(next(iter(judged(*call).values["infidelity"].values()))))

    replaced = {"method": method, "replace": "zero"}
    assert error(0, replaced) == pytest.approx(0, abs=1e-6)
    assert error(None, replaced) > 0.1, "without hold the game is another one, and no sum"
    assert error(0, {**replaced, "hold": None}) > 0.1, "the method plays without hold"
    assert error(None, {**replaced, "hold": 0}) > 0.1, "the judge plays without hold"
    assert error(0, {**replaced, "hold": [0, 1]}) > 0.1, "what the user gave the method comes first"


@pytest.mark.filterwarnings("ignore:.*too few to rank")
def test_the_result_says_what_was_held_and_hands_it_on(tmp_path: Path) -> None:
    found = judged(0, {"method": "two_ended", "replace": "zero"}, "saliency")
    assert found.best["hold"] == 0 and found["two_ended(replace=zero)"].options["hold"] == 0
    assert "hold" not in found["saliency"].options and not found.failures
    assert found.held == ("'0'",) * 4 and "'0' is held in every input: never masked" in " ".join(found.warnings)
    assert wf.load(found.save(tmp_path / "c.json")).held == found.held
    assert judged(None, "saliency").held is None
    alike, other = judged([0], {"method": "two_ended", "hold": 0}), judged(0, {"method": "two_ended", "hold": 1})
    assert not any("one game" in words for words in alike.warnings)
    assert any(words.startswith("two_ended(hold=1) holds other features") for words in other.warnings)


def test_a_method_without_hold_is_judged_by_the_parts_that_go() -> None:
    found, whole = judged(0, "saliency"), judged(None, "saliency")
    with games_of(wf.Explainer(only_together()), ROWS, hold=0, target=0, replace="zero") as games:
        assert [parts.tolist() for parts in games.parts] == [[1, 2]] * 4
        assert games.game(1).values(np.array([[0, 0], [1, 0], [0, 1]]), "logit") == pytest.approx([0, 2, 3])
    assert found.values["infidelity"] != whole.values["infidelity"]


@pytest.mark.parametrize("hold", [QUESTION, ["Where sat", "the cat ?"]])
def test_the_question_of_a_prompt_stays(hold: Any) -> None:
    lm, tokenizer = language.model("llama"), language.tokenizer()
    how = {"units": "sentence", "replace": "delete", "target": "mat"}
    with games_of(wf.Explainer(lm, tokenizer), [PROMPT], hold=hold, **how) as games:
        said = games.game(0).values(np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), "logit")
        assert games.held == (repr(QUESTION),)
    np.testing.assert_allclose(said, logits_of_mat(), atol=1e-4)


def test_a_sentence_that_is_held_in_part_goes_without_that_part() -> None:
    lm, tokenizer = language.model("llama"), language.tokenizer()
    how: dict[str, Any] = {"units": "sentence", "replace": "unk", "target": "mat"}
    with games_of(wf.Explainer(lm, tokenizer), [PROMPT], hold="sat the cat", **how) as games:
        none = games.variants(0).batch(np.zeros((1, 3), dtype=bool)).tensors["input_ids"][0]
        assert len(games.parts[0]) == 3
    assert tokenizer.decode(none[none != tokenizer.unk_token_id]) == "sat the cat"


@pytest.mark.parametrize(
    ("hold", "error", "words"),
    [
        ("dreadful", BadInput, "is not in input 0. Write it as it stands there"),
        ("good", BadInput, "is not in input 1. Write it as it stands there"),
        ("film", BadInput, "is 2 times in input 0. Write more of the text around it"),
        (99, BadInput, "input 0 has 8 units, numbered from 0, or from -1 backwards"),
        ([1, 2, 3, 4, 5, 6], BadInput, "is all of input 0"),
        ([], NotAllowed, "the text, label or number of a feature"),
    ],
)
def test_what_cannot_be_held_is_refused_at_once(
    hold: Any, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*args: Any, **how: Any) -> Any:
        raise AssertionError("nothing is to be explained")

    explainer = wf.Explainer(*wf.demo.load_sentiment())
    texts = ["a film , a good film", "a very bad old book"] * 3
    for method in ("shap", "two_ended"):
        with pytest.raises(error, match=words):
            explainer.explain(texts, method=method, hold=hold, batch_size=1)
    monkeypatch.setattr("whyformer.explainer.CoreExplainer.explain", nothing)
    for judge in (explainer.compare, explainer.recommend, explainer.report):
        with pytest.raises(error, match=words):
            judge(texts, hold=hold, batch_size=1, progress=False)


def test_what_is_on_disk_is_of_the_same_parts(tmp_path: Path) -> None:
    """Deleted, "a dog a cat" leaves the same whichever "a" is held."""
    explainer = wf.Explainer(language.model("llama"), language.tokenizer())

    def values(hold: Any, **how: Any) -> Any:
        with games_of(explainer, ["a dog a cat"], hold=hold, replace="delete", target="mat", **how) as games:
            said = games.game(0).drops("logit")
            return said.tolist(), games.forwards

    for hold in (0, 2):
        assert values(hold, cache=tmp_path)[0] == pytest.approx(values(hold)[0], abs=1e-5)
    assert values(0, cache=tmp_path)[1] == 0 and values(0)[0] != pytest.approx(values(2)[0])
    named = {"method": "two_ended", "hold": 0}  # the same scores under another name
    how: dict[str, Any] = {"metric": "aopc", "replace": "unk", "target": "mat", "cache": tmp_path, "progress": False}
    first = explainer.compare(["a dog a cat"], method=named, **how)
    again = explainer.compare(["a dog a cat"], method="two_ended", hold=0, **how)
    assert (first.rows[0].name, again.rows[0].name) == ("two_ended(hold=0)", "two_ended")


def test_every_token_of_a_translation_is_judged_without_what_is_held() -> None:
    model, tokenizer = model_of("t5"), processors.tokenizer()
    pair = ("what is this", "a cat")
    how: dict[str, Any] = {"method": ["two_ended", "saliency"], "metric": "aopc", "progress": False}
    found = wf.compare(model, [pair], processor=tokenizer, hold="what is", **how)
    assert not found.failures and found.held == ("'what is'",) * 3 and found["two_ended"].options["hold"] == [0, 1]
    for explanation in wf.explain(model, pair, processor=tokenizer, **found["two_ended"].options, method="two_ended"):
        assert not explanation.scores[:2].any()


def test_patches_that_are_held_lie_dark_on_the_map() -> None:
    case = CASES["vit"]
    model, inputs = case.build(None), case.inputs()
    high, wide = inputs["pixel_values"].shape[-2:]
    mask = np.zeros((high, wide), bool)
    mask[: high // 2] = True
    names = ["pointing_game", "relevance_mass"]
    how: dict[str, Any] = {"masks": [mask] * len(inputs["pixel_values"]), "method": "saliency", "metric": names}
    whole = wf.compare(model, inputs, **how, progress=False)
    held = wf.compare(model, inputs, hold=[1, 2], **how, progress=False)
    assert np.mean(held.values["relevance_mass"]["saliency"]) < np.mean(whole.values["relevance_mass"]["saliency"])


TEXTS = ["I like the movie", "She hates the movie", "They love the movie", "We dislike the movie"]


@pytest.mark.filterwarnings("ignore:.*too few to rank")
@pytest.mark.parametrize("budget", [None, 30])
def test_recommend(budget: int | None) -> None:
    explainer = wf.Explainer(*wf.demo.load_sentiment())
    methods = [{"method": "shap", "evaluations": 8}]
    chosen = explainer.recommend(
        TEXTS, spaces=[], method=methods, hold="the movie", budget=budget, effort=None, progress=False
    )
    assert chosen.best["hold"] == "the movie" and chosen.best["method"] == "shap"
    assert chosen.held == ("'the movie'",) * 4 and "'the movie' is held in every input" in " ".join(chosen.warnings)
    assert "hold" not in chosen.choices[0].name
    if chosen.budgeted is not None:
        assert all(c.options["hold"] == "the movie" for c in chosen.budgeted.candidates)
        assert all(c.forwards + 2 * c.backwards <= 30 for c in chosen.budgeted.candidates)
    wf.explain(explainer.model, "You hate the movie", explainer.processor, **chosen.best)


def test_report() -> None:
    explainer = wf.Explainer(*wf.demo.load_sentiment())
    how: dict[str, Any] = {"method": ["two_ended", "saliency"], "checks": ["stability"], "progress": False}
    report = explainer.report(TEXTS[:2], hold="the movie", **how)
    assert report.comparison.held == ("'the movie'",) * 2
    for explanations, deletion in zip(report.explanations, report.deletions, strict=True):
        by_name = dict(zip(report.names, explanations, strict=True))
        assert by_name["two_ended"].options["hold"] == "the movie"
        held = {by_name["two_ended"].units.labels.index(word) for word in ("the", "movie")}
        assert deletion is not None and not held & set(deletion.orders["saliency"])
    by_sentence = explainer.report(["I like it . She hates it ."], hold=1, units="sentence", **how)
    assert by_sentence.checkup is not None and by_sentence.comparison.held == ("'I like it .'",)


def test_a_surrogate_is_trained_with_what_is_held() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    with pytest.raises(BadInput, match="'book' is not in input 0"):
        wf.masked_surrogate(model, TEXTS * 2, processor=tokenizer, hold="book")
