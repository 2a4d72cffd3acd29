"""What is explained of whatever a model returns: classes that do not exclude each other, one output among many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded
from tests.models.hf import ENCODER, text
from tests.support.processors import tokenizer
from whyformer import errors
from whyformer.targets import are_probabilities


def bert(head: str, **config: Any) -> nn.Module:
    import transformers

    return seeded(lambda: getattr(transformers, f"BertFor{head}")(transformers.BertConfig(**(ENCODER | config))))


@pytest.mark.parametrize("method", ["generic_attention", "integrated_gradients", "occlusion"])
def test_a_label_among_others_has_a_probability_of_its_own(method: str) -> None:
    model = bert("SequenceClassification", problem_type="multi_label_classification")
    logit = model(**text()).logits[:, 2].detach()
    found = {s: wf.explain(model, text(), method=method, target=2, scalar=s) for s in ("probability", "log_odds")}
    for row in range(2):
        assert found["probability"][row].value == pytest.approx(float(logit[row].sigmoid()), abs=1e-5)
        assert found["log_odds"][row].value == pytest.approx(float(logit[row]), abs=1e-5)


def test_labels_that_exclude_each_other_share_one_probability() -> None:
    model = bert("SequenceClassification")
    found = wf.explain(model, text(), target=2, scalar="probability")
    assert found[0].value == pytest.approx(float(model(**text()).logits.detach().softmax(1)[0, 2]), abs=1e-5)


@pytest.mark.parametrize("head", ["MaskedLM", "TokenClassification"])
def test_one_output_per_token_is_explained_at_one_of_them(head: str) -> None:
    """The refusal says how, and what it says works: the row that is read is the position's own."""
    model = bert(head)
    with pytest.raises(errors.NotOffered, match=r"logits\[:, position\]"):
        wf.explain(model, text())

    class AtPosition(nn.Module):
        def __init__(self, position: int) -> None:
            super().__init__()
            self.model, self.position = model, position

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
            return logits[:, self.position]

    explanation = wf.explain(AtPosition(3), text(), target=1)[0]
    assert "3" in explanation.readout
    assert explanation.scores.argmax() == 3


def test_one_number_per_token_is_no_row_of_classes() -> None:
    import transformers

    config = transformers.ElectraConfig(**ENCODER, embedding_size=32)
    model = seeded(lambda: transformers.ElectraForPreTraining(config))
    assert model(**text()).logits.shape == text()["input_ids"].shape
    with pytest.raises(errors.NotOffered, match=r"logits\[:, \[position\]\]"):
        wf.explain(model, text())


def test_a_start_and_an_end_are_two_answers() -> None:
    with pytest.raises(errors.NotOffered, match=r"start_logits\[:, \[position\]\]"):
        wf.explain(bert("QuestionAnswering", num_labels=2), text())


class Softmaxed(nn.Module):
    """A classifier whose forward ends in a softmax, as many home-made ones do."""

    def __init__(self) -> None:
        super().__init__()
        self.model = bert("SequenceClassification")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits.softmax(-1)


@pytest.mark.parametrize("method", ["generic_attention", "occlusion"])
def test_probabilities_are_not_squashed_again(method: str) -> None:
    inputs = {k: text()[k] for k in ("input_ids", "attention_mask")}
    for found in wf.explain(Softmaxed(), inputs, method=method):
        assert any("returns probabilities" in w for w in found.warnings)
    for scalar in ("probability", "log_odds"):
        with pytest.raises(errors.NotOffered, match=r"probabilities already.*Leave scalar out"):
            wf.explain(Softmaxed(), inputs, method=method, scalar=scalar)


def test_metrics_of_probabilities_say_how_to_take_them_as_they_are() -> None:
    inputs = {k: text()[k] for k in ("input_ids", "attention_mask")}
    how: dict[str, Any] = {"methods": ["raw_attention"], "replace": 3, "progress": False}
    found = wf.compare(Softmaxed(), inputs, metrics=["aopc"], **how)
    assert any("softmax is taken of them again by aopc" in w for w in found.warnings)
    plain = wf.compare(Softmaxed(), inputs, metrics={"aopc": {"value": "logit"}}, **how)
    assert not any("softmax" in w for w in plain.warnings)
    with pytest.raises(errors.NotOffered, match="value='logit'"):
        wf.recommend(Softmaxed(), inputs, scope="instance", value="probability", replace=3, progress=False)


@pytest.mark.parametrize(
    ("logits", "are"),
    [
        ([[0.25, 0.75], [1.0, 0.0]], True),
        ([[0.25, 0.75], [0.5, 0.6]], False),  # one row by chance
        ([[1.5, -0.5]], False),
        ([[1.0], [1.0]], False),  # a single output
    ],
)
def test_what_counts_as_probabilities(logits: list[list[float]], are: bool) -> None:
    assert are_probabilities(torch.tensor(logits)) is are


def test_labels_that_do_not_exclude_each_other_may_add_up_to_one_by_chance() -> None:
    model = bert("SequenceClassification", problem_type="multi_label_classification")
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.25, 0.25, 0.5]))
    found = wf.explain(model, text(), method="occlusion", replace=3, target=2, scalar="probability")[0]
    assert found.value == pytest.approx(torch.tensor(0.5).sigmoid().item())
    assert not any("returns probabilities" in w for w in found.warnings)


def test_a_class_rather_than_itself() -> None:
    with pytest.raises(errors.BadInput, match="two different classes"):
        wf.explain(bert("SequenceClassification"), text(), target=(1, 1))


@pytest.fixture(scope="module")
def language_model() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return seeded(lambda: LlamaForCausalLM(LlamaConfig(**ENCODER, pad_token_id=0, bos_token_id=1, eos_token_id=2)))


@pytest.mark.parametrize("target", ["zebra", "cat dog"])
def test_a_next_token_that_is_none(language_model: nn.Module, target: str) -> None:
    """A word that the tokenizer does not know is not its unknown token, and two tokens are not one."""
    with pytest.raises(errors.BadInput, match="no single token"):
        wf.explain(language_model, "a cat on the", processor=tokenizer(), target=target)
    assert str(wf.explain(language_model, "a cat on the", processor=tokenizer(), target="mat").target) == "mat"


def test_tokens_that_are_not_among_the_inputs(language_model: nn.Module) -> None:
    ids = torch.tensor([[5, 6, 7]])
    with pytest.raises(errors.BadInput, match="give the whole text"):
        wf.explain(language_model, {"input_ids": ids, "past_key_values": language_model(ids).past_key_values})


def test_under_autocast_scores_are_float32() -> None:
    model = bert("SequenceClassification")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = wf.explain(model, text(), method=["generic_attention", "attention_rollout"])
    assert all(e.scores.dtype == "float32" and e.matrix.dtype == "float32" for each in found.values() for e in each)
