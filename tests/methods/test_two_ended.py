"""two_ended: what it equals, cannot see and costs; and hold: parts that are always there, of two_ended and shap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whyformer as wf
from tests.explainer.test_language import answer_log_probability
from tests.methods.properties import Scored, close, explained
from tests.references.shap import MASK, first_tokens, value_of_tokens
from tests.references.two_ended import semivalue, two_ended, value_of_patches
from tests.support import language
from tests.test_stream_contracts import inputs_of, model_of, target_of
from whyformer.engines.perturbation.maskings import random_maskings
from whyformer.errors import BadInput, NotOffered

METHOD = {"method": "two_ended"}
TEXT = "The cat sat on the mat . The big red dog ran home . He said yes ."
ANSWER = "paris is red ."


def of_signs(rule: Callable[[Tensor], Tensor], count: int, **how: str) -> wf.Explanation:
    return wf.explain(Scored(lambda x: rule(x.sum(1))), (torch.ones(1, count),), target=0, replace="zero", **how)[0]


def test_it_is_the_semivalue_with_half_its_weight_on_none_and_half_on_all() -> None:
    (found,) = explained("bert", first_tokens("bert"), double=True, **METHOD, replace=MASK, keep_special=False)
    close(found.scores, semivalue(value_of_tokens("bert"), 5, [0.5, 0, 0, 0, 0.5]))


@pytest.mark.parametrize(
    ("rule", "count", "scores"),
    [
        (lambda n: n >= 1, 3, 0.5),  # any one suffices: leave-one-out sees nothing
        (lambda n: n >= 3, 3, 0.5),  # all are needed: one alone does nothing
        (lambda n: n >= 1, 1, 1.0),
    ],
)
def test_doubled_evidence(rule: Callable[[Tensor], Tensor], count: int, scores: float) -> None:
    found = of_signs(rule, count, **METHOD)
    close(found.scores, np.full(count, scores))
    assert found.cost.forwards == (2 * count + 2 if count > 1 else 2), "two for each player, and two for the ends"
    if count > 1:
        close(of_signs(rule, count, method="shap").scores, np.full(count, 1 / count))


def test_where_neither_end_sees_the_evidence_it_raises() -> None:
    def two_of_three(n: Tensor) -> Tensor:
        return n >= 2

    with pytest.raises(NotOffered, match=r"two_ended gives 0 to every unit.*changes by 1 when all"):
        of_signs(two_of_three, 3, **METHOD)
    close(of_signs(two_of_three, 3, method="shap").scores, np.full(3, 1 / 3))


@pytest.mark.parametrize("name", ["lxmert", "t5"])
def test_every_stream_is_scored(name: str) -> None:
    for found in wf.explain(model_of(name), inputs_of(name), target=target_of(name), **METHOD):
        streams = np.array(found.units.stream)
        for stream in set(streams.tolist()):
            assert np.abs(found.scores[streams == stream]).max() > 0, stream
        assert found.cost.forwards <= 2 * len(found.units) + 2


@pytest.mark.parametrize(("units", "replace"), [("token", 9), ("word", 9), ("sentence", "delete")])
def test_of_a_language_model(units: str, replace: int | str) -> None:
    """One half is what occlusion says; the other is each part alone. The beginning of the text is read once."""
    lm, numbers = language.model("llama"), language.tokenizer()
    how = {"processor": numbers, "units": units, "replace": replace, "batch_size": 4, "span": True}
    found = wf.explain(lm, (TEXT, ANSWER), keep_special=False, **METHOD, **how)
    without = wf.explain(lm, (TEXT, ANSWER), method="occlusion", **how)
    alone = 2 * found.scores - without.scores
    assert found.units == without.units and np.abs(alone).max() > 0
    if units == "sentence":
        assert found.cost.forwards == 2 * 3 + 2
    if units == "token":
        assert found.checks["prefix_reused"] > 0.1
        ids, answer = (numbers(text)["input_ids"] for text in (TEXT, ANSWER))
        absent = [replace] * len(ids)
        one, none = (answer_log_probability(lm, prompt, answer).item() for prompt in ([*absent[:-1], ids[-1]], absent))
        assert alone[len(ids) - 1] == pytest.approx(one - none, abs=1e-4)


PROMPT = "The dog ran home . The cat sat on the mat . Where sat the cat ?"
QUESTION = "Where sat the cat ?"


def logits_of_mat() -> list[float]:
    """Logits of "mat", by hand: the question alone, after the sentence of the cat, of the dog, and after both."""
    lm, tokenizer = language.model("llama"), language.tokenizer()
    dog, cat = "The dog ran home . ", "The cat sat on the mat . "
    ids = [tokenizer(text + QUESTION, return_tensors="pt").input_ids for text in ("", cat, dog, dog + cat)]
    with torch.no_grad():
        return [float(lm(input_ids=i).logits[0, -1, tokenizer.convert_tokens_to_ids("mat")]) for i in ids]


def only_together() -> Scored:
    """The second part counts where the first is there; the third counts by itself."""
    return Scored(lambda x: x[:, 0] * x[:, 1] + x[:, 2])


def of_three(method: str, **how: Any) -> wf.Explanation:
    return wf.explain(only_together(), (torch.ones(1, 3),), method=method, target=0, replace="zero", **how)[0]


@pytest.mark.parametrize("method", ["two_ended", "shap"])
def test_what_is_held_is_company_for_the_others(method: str) -> None:
    np.testing.assert_allclose(of_three(method).scores, [0.5, 0.5, 1], atol=1e-6)
    held = of_three(method, hold=0)
    np.testing.assert_allclose(held.scores, [0, 1, 1], atol=1e-6)
    np.testing.assert_allclose(of_three(method, hold=[0, -1]).scores, [0, 1, 0], atol=1e-6)
    assert held.options["hold"] == 0 and held.cost.forwards < of_three(method).cost.forwards


def test_of_shapley_values_the_base_is_what_is_held_alone() -> None:
    held = of_three("shap", hold=2)
    assert any("was held" in words for words in held.warnings) and not of_three("shap").warnings
    assert held.base == pytest.approx(1) and held.checks["additivity_error"] < 1e-6


def test_a_stretch_of_text_a_label_and_a_number_are_the_same() -> None:
    model, tokenizer = wf.demo.load_sentiment()

    def held(hold: Any) -> wf.Explanation:
        return wf.explain(model, "a gorgeous film with a dull end", tokenizer, method="two_ended", hold=hold)

    labels = list(held("gorgeous").units.labels)
    first, last = labels.index("gorgeous"), labels.index("film")
    stretch = held("gorgeous film")
    assert not stretch.scores[[first, last]].any() and stretch.scores.any()
    assert "'gorgeous film' was held: always there" in stretch.warnings[-1]
    for same in (["gorgeous", "film"], [first, last], [first, "film"], [first - len(labels), last]):
        np.testing.assert_array_equal(held(same).scores, stretch.scores)
    assert held("gorgeous fil").scores[last] == 0, "a token that the text ends in the middle of is held, too"


@pytest.mark.parametrize("method", ["two_ended", "shap"])
def test_the_question_of_a_prompt(method: str) -> None:
    """Sentences come and go before a question that stays: by hand, with the texts that are left."""
    lm, tokenizer = language.model("llama"), language.tokenizer()
    how = {"processor": tokenizer, "units": "sentence", "replace": "delete", "target": "mat"}
    found = wf.explain(lm, PROMPT, method=method, hold=QUESTION, **how)
    np.testing.assert_allclose(wf.explain(lm, PROMPT, method=method, hold=-1, **how).scores, found.scores, atol=1e-6)
    none, cat, dog, both = logits_of_mat()
    np.testing.assert_allclose(
        found.scores, [(both - cat + dog - none) / 2, (both - dog + cat - none) / 2, 0], atol=1e-4
    )


def test_of_an_answer_nothing_goes_anyway() -> None:
    """The last unit of prompt and answer is not the question: to hold it would change nothing, and not be noticed."""
    lm, tokenizer = language.model("llama"), language.tokenizer()
    how = {"processor": tokenizer, "method": "two_ended", "units": "sentence", "span": True}
    with pytest.raises(BadInput, match="hold=-1 is 'on the mat' in input 0, which is never masked"):
        wf.explain(lm, (PROMPT, "on the mat ."), hold=-1, **how)
    held = wf.explain(lm, (PROMPT, "on the mat ."), hold=QUESTION, **how)
    assert held.scores[list(held.units.labels).index(QUESTION)] == 0 and np.count_nonzero(held.scores) == 2


def test_every_input_of_a_batch_holds_its_own() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    texts = ["I like the movie", "She really hates the movie"]
    together = wf.explain(model, texts, tokenizer, method="two_ended", hold="the movie")
    for text, found in zip(texts, together, strict=True):
        alone = wf.explain(model, text, tokenizer, method="two_ended", hold="the movie")
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
        assert found.scores[found.units.labels.index("movie")] == 0


# Fewer passes than both ends of every part take


@pytest.mark.parametrize("passes", [16, 24])
def test_a_guide_chooses_what_is_measured(passes: int) -> None:
    """By the formula: the first by the guide get the mean of both ends and the scaled guide, the others the guide."""
    found = explained("vit", double=True, **METHOD, guide="alti", passes=passes)[0]
    guide = explained("vit", double=True, method="alti")[0].scores[1:].astype(float)
    first = np.argsort(-np.abs(guide), kind="stable")[: (passes - 3) // 2]
    ends = two_ended(value_of_patches("vit", 0), 16)
    expected = guide * np.abs(ends[first]).sum() / np.abs(guide[first]).sum()
    expected[first] = (ends[first] + np.abs(expected[first]) * np.sign(ends[first])) / 2  # alti has no sign
    np.testing.assert_allclose(found.scores[1:], expected, atol=1e-5)
    assert found.cost.forwards + 2 * found.cost.backwards <= passes and found.options["guide"] == "alti"


@pytest.mark.parametrize("guide", ["value_x_gradient", "value_x_gradient(maskings=3)", "alti"])
def test_many_passes_correct_the_guide_by_ridge_regression(guide: str) -> None:
    """Towards α·guide, with a penalty of an eighth of the number of maskings, in a basis of one row per masking."""
    passes = 180
    found = explained("vit", double=True, **METHOD, guide=guide, passes=passes)[0]
    options = {"maskings": 3} if "maskings" in guide else {}
    alone = explained("vit", double=True, method=guide.split("(", maxsplit=1)[0], **options)[0]
    said, taken = alone.scores[1:].astype(float), alone.cost.forwards + 2 * alone.cost.backwards
    value, masks = value_of_patches("vit", 0), int(passes - 1 - taken) - 2 * 16 - 1
    kept = random_maskings(masks, 16, 0)
    assert found.cost.forwards + 2 * found.cost.backwards <= passes and found.options["guide"] == guide
    values = np.array([value(frozenset(np.flatnonzero(row).tolist())) for row in kept])
    design, values = kept - kept.mean(0), values - values.mean()
    share = max(0.0, np.linalg.lstsq((design @ said)[:, None], values, rcond=None)[0][0])
    stacked = np.concatenate([design, np.sqrt(masks / 8) * np.eye(16)])
    rest = np.concatenate([values - share * design @ said, np.zeros(16)])
    moved = share * said + np.linalg.lstsq(stacked, rest, rcond=None)[0]
    ends = two_ended(value, 16)
    expected = (moved * np.abs(ends).sum() / np.abs(moved).sum() + ends) / 2
    np.testing.assert_allclose(found.scores[1:], expected, atol=1e-5)


def test_a_guide_that_is_no_method_is_named() -> None:
    for guide in ("value_x_gradients(maskings=8)", "value_x_gradient(maskings=1)", "occlusion(maskings=8)"):
        with pytest.raises(BadInput):
            explained("vit", **METHOD, guide=guide, passes=40)


def test_where_no_guide_runs_neighbours_are_measured_first() -> None:
    """Of a model without attention and gradients: eight stretches, and then the parts of the strongest."""
    weights = torch.zeros(40)
    weights[17] = 3.0
    inputs = (torch.ones(1, 40),)
    (found,) = wf.explain(Scored(lambda x: x.detach() @ weights), inputs, target=0, replace="zero", **METHOD, passes=34)
    assert found.scores.argmax() == 17 and found.scores[17] == pytest.approx(3.0, abs=1e-5)
    assert np.abs(np.delete(found.scores, 17)).max() < 1e-5
    assert found.cost.forwards <= 34 and found.options["guide"] is None


class PooledByAQuery(torch.nn.Module):
    """Patches that a learned query pools, with maps of the shape (inputs · heads, 1, patches)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = torch.nn.Conv2d(3, 8, 4, 4), torch.nn.Linear(8, 3)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.query, self.pool = torch.nn.Parameter(torch.randn(1, 1, 8)), torch.nn.MultiheadAttention(8, 2, 0.0)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.layer(self.patches(pixel_values).flatten(2).transpose(1, 2)).transpose(0, 1)
        return self.head(self.pool(self.query.expand(1, x.shape[1], 8), x, x)[0][0])


def test_a_batch_whose_heads_cannot_be_distinguished_has_the_guide_of_its_inputs() -> None:
    torch.manual_seed(0)
    model, pictures = PooledByAQuery().eval(), torch.randn(2, 3, 16, 16)
    ask = {"method": "two_ended", "target": 0, "passes": 16}
    together = wf.explain(model, {"pixel_values": pictures}, **ask)
    for row, found in enumerate(together):
        (alone,) = wf.explain(model, {"pixel_values": pictures[row : row + 1]}, **ask)
        assert found.options["guide"] == alone.options["guide"] is not None
        close(found.scores, alone.scores)
