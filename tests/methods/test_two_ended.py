"""two_ended: what it equals, what it cannot see, what it costs, and on which kinds of input it runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.explainer.test_language import answer_log_probability
from tests.methods import properties
from tests.methods.properties import close, explained
from tests.methods.test_gradients import Linear
from tests.references.shap import MASK, first_tokens, value_of_tokens
from tests.references.two_ended import semivalue
from tests.support import language
from tests.test_stream_contracts import inputs_of, model_of, target_of

METHOD = {"method": "two_ended"}
TEXT = "The cat sat on the mat . The big red dog ran home . He said yes ."
ANSWER = "paris is red ."


class Signs(nn.Module):
    """What a rule says of how many signs there are: one number per input, beside a constant."""

    def __init__(self, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale, self.rule = nn.Parameter(torch.ones(1)), rule

    def forward(self, x: Tensor) -> Tensor:
        score = self.rule(x.sum(1)).float() * self.scale
        return torch.stack([score, torch.zeros_like(score)], 1)


def of_signs(rule: Callable[[Tensor], Tensor], count: int, **how: str) -> wf.Explanation:
    return wf.explain(Signs(rule), (torch.ones(1, count),), target=0, replace="zero", **how)[0]


def test_it_is_the_semivalue_with_half_its_weight_on_none_and_half_on_all() -> None:
    (found,) = explained("bert", first_tokens("bert"), double=True, **METHOD, replace=MASK, keep_special=False)
    close(found.scores, semivalue(value_of_tokens("bert"), 5, [0.5, 0, 0, 0, 0.5]))


def test_of_two_players_it_is_the_shapley_value() -> None:
    how = {"replace": MASK, "keep_special": False}
    mine, shapley = (explained("bert", first_tokens("bert", 2), method=m, **how)[0] for m in ("two_ended", "shap"))
    close(mine.scores, shapley.scores)
    assert mine.cost.forwards == 4, "one alone is the other's absence"


def test_of_a_sum_it_is_every_term() -> None:
    torch.manual_seed(0)
    model, x = Linear(), torch.randn(2, 5)
    for row, found in enumerate(wf.explain(model, (x,), target=2, **METHOD)):
        close(found.scores, (model.head.weight[2] * x[row]).detach().numpy())


@pytest.mark.parametrize(
    ("rule", "count", "scores"),
    [
        (lambda n: n >= 1, 3, 0.5),  # any one suffices: leave-one-out sees nothing
        (lambda n: n >= 3, 3, 0.5),  # all are needed: one alone does nothing
        (lambda n: n >= 2, 3, 0.0),  # any two of three: neither end sees it
        (lambda n: n >= 1, 1, 1.0),
    ],
)
def test_doubled_evidence(rule: Callable[[Tensor], Tensor], count: int, scores: float) -> None:
    found = of_signs(rule, count, **METHOD)
    close(found.scores, np.full(count, scores))
    if count > 1:
        close(of_signs(rule, count, method="shap").scores, np.full(count, 1 / count))


def test_passes_are_two_for_each_player_and_two_for_the_ends() -> None:
    for found in explained("bert", **METHOD, replace=MASK, keep_special=False):
        assert found.cost.forwards == 2 * len(found.units) + 2
    assert of_signs(lambda n: n, 1, **METHOD).cost.forwards == 2


def test_words_and_special_tokens() -> None:
    model, processor = wf.demo.load_sentiment()
    found = wf.explain(model, "The overblown movie", processor=processor, target="positive", **METHOD, by="word")
    pieces = [s for s, w in zip(found.scores, found.units.word, strict=True) if w == 1]
    assert len(pieces) > 1 and np.ptp(pieces) < 1e-6
    assert found.cost.forwards == 2 * 3 + 2
    assert found.scores[0] == found.scores[-1] == 0, "[CLS] and [SEP] were there all the time"


def test_deleted_tokens_by_hand() -> None:
    """What is deleted moves up: plain text, two tokens of which [CLS]-like ones stay."""
    ids = first_tokens("bert")["input_ids"]
    keep = [int(ids[0, 0]), int(ids[0, 4])]
    (found,) = explained("bert", {"input_ids": ids}, **METHOD, replace="delete", keep_special=keep)

    def score(positions: list[int]) -> float:
        with torch.no_grad():
            return float(properties.model_of("bert")(input_ids=ids[:, positions]).logits[0, properties.TARGET])

    for i in (1, 2, 3):
        others = [p for p in range(5) if p != i]
        by_hand = (score([0, 1, 2, 3, 4]) - score(others) + score([0, i, 4]) - score([0, 4])) / 2
        assert found.scores[i] == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("name", ["lxmert", "clip", "t5", "blip_vqa", "llava", "qwen2_vl", "similarity"])
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


def test_superpixels() -> None:
    for found in explained("vit", **METHOD, by="superpixel", superpixels=5):
        assert len(np.unique(found.scores[1:].round(6))) <= 5
        assert found.cost.forwards == 2 * 5 + 2
