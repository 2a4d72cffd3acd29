"""What is explained of whatever a model returns: classes that do not exclude each other, one output among many."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES, model_of
from tests.models.case import seeded
from tests.models.hf import ENCODER, text
from tests.support.processors import tokenizer
from whyformer import errors
from whyformer.targets import are_probabilities
from whyformer.views.header import explained


def bert(head: str, **config: Any) -> nn.Module:
    return seeded(lambda: getattr(transformers, f"BertFor{head}")(transformers.BertConfig(**(ENCODER | config))))


PLAIN = {k: text()[k] for k in ("input_ids", "attention_mask")}


class Reordered(nn.Module):
    """A classifier that returns its logits in another way than one row per input."""

    def __init__(self, classes: int, how: Any) -> None:
        super().__init__()
        self.model, self.how = bert("SequenceClassification", num_labels=classes), how

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.how(self.model(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True))


NAMES = {0: "bad", 1: "fair", 2: "good"}


@pytest.mark.parametrize("how", [lambda out: out.logits, lambda out: out])
def test_classes_are_named_by_a_model_inside_whose_logits_are_returned(how: Any) -> None:
    model = Reordered(3, how)
    model.model.config.id2label = NAMES
    found = wf.explain(model, PLAIN, target="good", method="attn_lrp")[0]
    whole = wf.explain(model.model, PLAIN, target=2, method="attn_lrp")[0]
    assert (found.target.label, found.cost.forwards) == ("good", whole.cost.forwards)
    np.testing.assert_allclose(found.scores, whole.scores, atol=1e-6)


@pytest.mark.parametrize("how", [torch.softmax, torch.log_softmax, lambda logits, _: logits.sigmoid()])
def test_classes_are_named_where_their_probabilities_are_returned(how: Any) -> None:
    model = Reordered(3, lambda out: how(out.logits, -1))
    model.model.config.id2label = NAMES
    assert wf.explain(model, PLAIN, target="good", method="occlusion")[0].target.index == 2


@pytest.mark.parametrize(
    "how",
    [
        lambda out: out.logits.neg_(),
        lambda out: out.logits.flip(1),
        lambda out: -out.logits,
        lambda out: (-out.logits).softmax(-1),
        lambda out: (out.logits * 0).softmax(-1),
    ],
)
def test_logits_that_are_changed_keep_no_names(how: Any) -> None:
    model = Reordered(3, how)
    model.model.config.id2label = NAMES
    with pytest.raises(errors.UnknownName, match="Known: 0, 1, 2"):
        wf.explain(model, PLAIN, target="good", method="attn_lrp")


@pytest.mark.parametrize("method", ["generic_attention", "occlusion"])
def test_a_label_among_others_has_a_probability_of_its_own(method: str) -> None:
    model = bert("SequenceClassification", problem_type="multi_label_classification")
    logits = model(**text()).logits.detach()
    found = {s: wf.explain(model, text(), method=method, target=2, scalar=s) for s in ("probability", "log_odds")}
    for row in range(2):
        assert found["probability"][row].value == pytest.approx(float(logits[row, 2].sigmoid()), abs=1e-5)
        assert found["log_odds"][row].value == pytest.approx(float(logits[row, 2]), abs=1e-5)
        said = found["log_odds"][row].prediction
        assert said.probability == pytest.approx(float(logits[row].max().sigmoid()), abs=1e-6)
        assert said.next[0].probability == pytest.approx(float(logits[row].sort().values[-2].sigmoid()), abs=1e-6)


LINEAR = ("occlusion", "input_x_gradient", "attn_lrp", "cp_lrp", "decompx", "grad_sam")


@pytest.mark.parametrize("method", LINEAR)
def test_a_centred_logit_is_explained_as_a_logit_minus_the_mean_of_all(method: str) -> None:
    model = bert("SequenceClassification")
    how: dict[str, Any] = {"method": method}
    centred = wf.explain(model, PLAIN, target=2, scalar="centred", **how)
    each = [wf.explain(model, PLAIN, target=i, **how) for i in range(3)]
    for row, found in enumerate(centred):
        values = [of_class[row].value for of_class in each]
        assert found.value == pytest.approx(values[2] - np.mean(values), abs=1e-5)
        if method == "grad_sam":  # negative parts of gradients are cut off: it is not linear in what is explained
            assert not np.allclose(found.scores, each[2][row].scores, atol=1e-5)
            continue
        scores = np.stack([of_class[row].scores for of_class in each])
        np.testing.assert_allclose(found.scores, scores[2] - scores.mean(0), atol=2e-5 * np.abs(scores).max())


def test_a_centred_logit_of_two_classes_is_half_of_the_log_odds() -> None:
    model = bert("SequenceClassification", num_labels=2)
    half, whole = (wf.explain(model, PLAIN, method="occlusion", scalar=s)[0] for s in ("centred", "log_odds"))
    np.testing.assert_allclose(half.scores, whole.scores / 2, atol=1e-6)
    assert explained(half).startswith("centred logit of ")


def test_where_classes_do_not_exclude_each_other_the_logit_itself_is_centred() -> None:
    for model in (
        bert("SequenceClassification", problem_type="multi_label_classification"),
        bert("SequenceClassification", num_labels=1),
    ):
        centred, plain = (
            wf.explain(model, PLAIN, method="attn_lrp", target=0, scalar=s)[0] for s in ("centred", "logit")
        )
        assert np.array_equal(centred.scores, plain.scores)
    regression = bert("SequenceClassification", num_labels=2, problem_type="regression")
    for model in (regression, softmaxed(), bert("SequenceClassification", num_labels=1)):
        for method in ("occlusion", "attn_lrp"):
            default, plain = (wf.explain(model, PLAIN, method=method, **how)[0] for how in ({}, {"scalar": "logit"}))
            assert np.array_equal(default.scores, plain.scores) and default.scalar == "logit"


@pytest.mark.parametrize("kind", [{}, {"problem_type": "multi_label_classification"}], ids=["one of them", "each"])
def test_a_log_probability_is_the_logarithm_of_the_probability(kind: dict[str, Any]) -> None:
    model = bert("SequenceClassification", **kind)
    how: dict[str, Any] = {"method": "input_x_gradient", "target": 2}
    plain = wf.explain(model, text(), scalar="probability", **how)
    if not kind:
        assert plain[0].value == pytest.approx(model(**text()).logits.softmax(1)[0, 2].item(), abs=1e-5)
    for row, explanation in enumerate(wf.explain(model, text(), scalar="log_probability", **how)):
        assert explanation.value == pytest.approx(np.log(plain[row].value), abs=1e-5)
        np.testing.assert_allclose(explanation.scores, plain[row].scores / plain[row].value, atol=1e-5)


def advised(error: BaseException, model: nn.Module) -> nn.Module:
    """The module that an error says how to write, written as it says (tests/test_advice.py has more of them)."""
    names: dict[str, Any] = {"torch": torch}
    exec(str(error).partition(":\n")[2].partition("\nwhyformer.explain")[0], names)
    return (names.get("One") or names["Part"])(model)


class Bare(nn.Module):
    """A model of transformers inside one of one's own: nothing about it is known by name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)


@pytest.mark.parametrize("head", ["MaskedLM", "TokenClassification"])
def test_one_output_per_token_is_explained_at_one_of_them(head: str) -> None:
    """The row that is read is the position's own."""
    model = Bare(bert(head))
    with pytest.raises(errors.NotOffered, match=r"logits\[:, position\]"):
        wf.explain(model, text())
    logits = model(**text()).logits.detach()
    how: Any = {"target": wf.Target(1, position=3), "method": "generic_attention"}
    for row, found in enumerate(wf.explain(model, text(), **how)):
        assert found.value == pytest.approx(float(logits[row, 3, 1]), abs=1e-5)
        assert "3" in found.readout and found.target.position == 3
        np.testing.assert_array_equal(found.scores, found.matrix[3])


@dataclass
class Answer:
    states: Tensor
    logits: Tensor


class Pair(NamedTuple):
    states: Tensor
    logits: Tensor


@pytest.mark.parametrize("kind", [Answer, Pair])
def test_logits_are_read_from_a_class_of_the_users_own(kind: Any) -> None:
    """Also behind the states of all tokens, which come first."""
    model = Reordered(2, lambda output: kind(output.logits[..., None].expand(-1, -1, 4), output.logits))
    for row, found in enumerate(wf.explain(model, PLAIN, method="occlusion", replace=3, target=1)):
        assert found.value == pytest.approx(model(**PLAIN).logits[row, 1].item(), abs=1e-5)


@pytest.mark.parametrize("labels", [10, 4])
def test_classes_are_told_from_tokens_by_a_second_length(labels: int) -> None:
    """As many classes as tokens are no reason to refuse, and as many tokens as classes none to accept."""
    found = wf.explain(bert("SequenceClassification", num_labels=labels), text(), method="occlusion", replace=3)
    assert len(found[0].scores) == 10
    config = transformers.ElectraConfig(**(ENCODER | {"num_labels": labels}), embedding_size=32)
    with pytest.raises(errors.NotOffered, match="one row per input"):
        wf.explain(seeded(lambda: transformers.ElectraForPreTraining(config)), text(), method="occlusion", replace=3)


def test_as_many_answers_as_tokens() -> None:
    """As of LXMERT, whose config counts its answers under a name of its own."""
    model = Reordered(PLAIN["input_ids"].shape[1], lambda output: output.logits)
    model.config = SimpleNamespace(num_labels=2)  # type: ignore[assignment]
    found = wf.explain(model, PLAIN, method="generic_attention", target=4)
    assert found[0].value == pytest.approx(model(**PLAIN)[0, 4].item(), abs=1e-5)


@pytest.mark.parametrize("classes", [2, 3, "squeezed"])
def test_logits_have_a_row_for_each_input(classes: Any) -> None:
    """Also where there are as many classes as inputs, or the row of a single one was squeezed away."""
    inputs = PLAIN
    if classes == "squeezed":
        model = Reordered(3, lambda output: output.logits.squeeze(0))
        inputs = {name: tensor[:1] for name, tensor in PLAIN.items()}
    else:
        model = Reordered(classes, lambda output: output.logits.T)
    for method in ("generic_attention", "integrated_gradients"):
        with pytest.raises(errors.NotOffered, match="one row per input") as refused:
            wf.explain(model, inputs, method=method)
    found = wf.explain(advised(refused.value, model), inputs, target=1)
    assert [e.value for e in found] == pytest.approx(model(**inputs)[1].reshape(-1).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        lambda output: (output.hidden_states[-1][:, 0], output.logits),  # a hidden state comes first
        lambda output: {"pooled": output.hidden_states[-1][:, 0], "answer": output.logits},
        lambda output: (output.logits, output.hidden_states[-1][:, 0]),
    ],
)
def test_which_of_several_tensors_are_the_logits_is_not_guessed(how: Any) -> None:
    model = Reordered(3, how)
    with pytest.raises(errors.NotOffered, match="which of them are the logits"):
        wf.explain(model, PLAIN)
    model.config = SimpleNamespace(num_labels=3)  # type: ignore[assignment]
    output = model(**PLAIN)
    logits = next(part for part in (output.values() if isinstance(output, dict) else output) if part.shape[-1] == 3)
    found = wf.explain(model, PLAIN, target=1)
    assert [e.value for e in found] == pytest.approx(logits[:, 1].tolist(), abs=1e-5)


def test_a_loss_is_no_logits() -> None:
    model = bert("SequenceClassification")
    inputs = text() | {"labels": torch.tensor([0, 1])}
    model.config.return_dict = False
    found = wf.explain(model, inputs, target=1)
    assert [e.value for e in found] == pytest.approx(model(**inputs)[1][:, 1].tolist(), abs=1e-5)


def softmaxed() -> nn.Module:
    """A classifier whose forward ends in a softmax, as many home-made ones do."""
    return Reordered(3, lambda output: output.logits.softmax(-1))


def test_probabilities_are_not_squashed_again() -> None:
    for found in wf.explain(softmaxed(), PLAIN, method="generic_attention"):
        assert any("returns probabilities" in w for w in found.warnings)
    for scalar in ("probability", "log_odds"):
        with pytest.raises(errors.NotOffered, match=r"probabilities already.*Omit scalar="):
            wf.explain(softmaxed(), PLAIN, method="generic_attention", scalar=scalar)


def test_metrics_of_probabilities_say_how_to_take_them_as_they_are() -> None:
    how: dict[str, Any] = {"method": ["raw_attention"], "replace": 3, "progress": False}
    found = wf.compare(softmaxed(), PLAIN, metric=["aopc"], **how)
    assert any("softmax is applied to them again by aopc" in w for w in found.warnings)
    plain = wf.compare(softmaxed(), PLAIN, metric={"aopc": {"value": "logit"}}, **how)
    assert not any("softmax" in w for w in plain.warnings)
    with pytest.raises(errors.NotOffered, match="value='logit'"):
        wf.recommend(softmaxed(), PLAIN, scope="instance", value="probability", replace=3, progress=False)


@pytest.mark.parametrize("classes", [1, 3])
def test_what_a_sigmoid_gave_is_not_squashed_again(classes: int) -> None:
    """Of a multi-label classifier, or one of yes and no."""
    model = Reordered(3, lambda output: output.logits[:, :classes].sigmoid().squeeze(-1))
    said = model(**PLAIN).detach()
    for row, found in enumerate(wf.explain(model, PLAIN, method="occlusion", target=0)):
        assert any("it ends in a sigmoid" in w and "without its final sigmoid" in w for w in found.warnings)
        if classes > 1:
            assert found.prediction.probability == pytest.approx(said[row].max().item(), abs=1e-6)
    for scalar in ("probability", "log_odds"):
        with pytest.raises(errors.NotOffered, match=r"ends in a sigmoid.*Omit scalar="):
            wf.explain(model, PLAIN, method="occlusion", target=0, scalar=scalar)


def test_a_sigmoid_inside_a_model_says_nothing_of_its_end() -> None:
    gated = Reordered(3, lambda output: output.logits.sigmoid() * 4 - 2)
    for found in wf.explain(gated, PLAIN, target=0, method="occlusion"):
        assert not any("sigmoid" in w for w in found.warnings)


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


@pytest.fixture(scope="module")
def language_model() -> nn.Module:
    return seeded(
        lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**ENCODER, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        )
    )


@pytest.mark.parametrize("target", ["zebra", "cat dog"])
def test_a_next_token_that_is_none(language_model: nn.Module, target: str) -> None:
    """A word that the tokenizer does not know is not its unknown token, and two tokens are not one."""
    with pytest.raises(errors.BadInput, match="not a single token"):
        wf.explain(language_model, "a cat on the", processor=tokenizer(), target=target)
    assert str(wf.explain(language_model, "a cat on the", processor=tokenizer(), target="mat").target) == "mat"


def test_tokens_that_are_not_among_the_inputs(language_model: nn.Module) -> None:
    ids = torch.tensor([[5, 6, 7]])
    with pytest.raises(errors.BadInput, match="give the whole text"):
        wf.explain(language_model, {"input_ids": ids, "past_key_values": language_model(ids).past_key_values})


@pytest.mark.parametrize("method", ["generic_attention", "occlusion"])
def test_an_earlier_position_is_the_one_that_is_explained(method: str) -> None:
    model, inputs = model_of("gpt2"), CASES["gpt2"].inputs()
    logits = model(**inputs).logits.detach()
    found = wf.explain(model, inputs, method=method, target=wf.Target(7, position=3))
    for row, explanation in enumerate(found):
        assert explanation.value == pytest.approx(float(logits[row, 3, 7]), abs=1e-5)
        assert explanation.target.position == 3
        assert explanation.prediction.index == int(logits[row, 3].argmax())
        np.testing.assert_allclose(explanation.scores[4:], 0, atol=1e-6)  # later tokens are not seen from there
        assert np.abs(explanation.scores[:4]).max() > 0
    # The same as the text that ends there.
    cut = wf.explain(model, {k: v[:, :4] for k, v in inputs.items()}, method=method, target=7)
    np.testing.assert_allclose(found[0].scores[:4], cut[0].scores, rtol=1e-4, atol=1e-6)


def test_deleted_tokens_move_the_position() -> None:
    model = model_of("gpt2")
    ids = CASES["gpt2"].inputs()["input_ids"][:1]
    target = wf.Target(7, position=5)
    found = wf.explain(model, {"input_ids": ids}, method="occlusion", replace="delete", target=target)[0]
    for gone in range(6):
        left = torch.cat([ids[:, :gone], ids[:, gone + 1 : 6]], 1)
        assert found.scores[gone] == pytest.approx(found.value - model(left).logits[0, -1, 7].item(), abs=1e-5)
    np.testing.assert_allclose(found.scores[6:], 0, atol=1e-5)  # what comes later moves nothing


def test_positions_are_counted_from_the_end_as_well() -> None:
    model, inputs = model_of("gpt2"), CASES["gpt2"].inputs()
    found = wf.explain(model, inputs, method="occlusion", target=wf.Target(7, position=-2))
    logits = model(**inputs).logits
    for row, last in enumerate(inputs["attention_mask"].sum(1).tolist()):
        assert found[row].value == pytest.approx(logits[row, last - 2, 7].item(), abs=1e-5)
        assert found[row].target.position == last - 2


@pytest.mark.parametrize(
    ("name", "target", "error", "words"),
    [
        *(("gpt2", wf.Target(1, position=p), errors.BadInput, "the text has 10 tokens") for p in (10, -11, 1.5, True)),
        ("bert", (1, 1), errors.BadInput, "two different classes"),
        ("bert", wf.Target(1, position=3), errors.BadInput, "position= cannot be used|Omit the position"),
        ("bert", wf.Target(17), errors.UnknownName, "target"),
    ],
)
def test_targets_that_are_none(name: str, target: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        wf.explain(model_of(name), CASES[name].inputs(), target=target)


@pytest.mark.parametrize("name", ["XLNetLMHeadModel", "BertLMHeadModel"])
def test_whether_later_tokens_are_seen_is_found_out(name: str) -> None:
    """Not read from the name of a class: at its last token a model that sees both ways does not say the next."""
    cls = getattr(transformers, name)
    small = {"emb_dim": 32, "d_model": 32, "n_layers": 2, "n_layer": 2, "n_heads": 4, "n_head": 4, "d_inner": 64}
    config = cls.config_class(**(ENCODER | (small if name.startswith("XL") else {})))
    model = seeded(lambda: cls(config))
    inputs = {"input_ids": text()["input_ids"][:1]}
    with pytest.raises(errors.NotOffered, match=r"Target\(class, position=…\)"):
        wf.explain(model, inputs)
    found = wf.explain(model, inputs, method="occlusion", replace=3, target=wf.Target(5, position=2))[0]
    assert found.value == pytest.approx(model(**inputs).logits[0, 2, 5].item(), abs=1e-4)
    assert np.abs(found.scores[3:]).max() > 0  # later tokens are seen


def test_a_decoder_of_the_same_class_says_the_next_token() -> None:
    model = seeded(lambda: transformers.BertLMHeadModel(transformers.BertConfig(**ENCODER, is_decoder=True)))
    found = wf.explain(model, text(), target=5)
    logits = model(**text()).logits
    assert [e.value for e in found] == pytest.approx([logits[0, 9, 5].item(), logits[1, 6, 5].item()], abs=1e-5)
    assert [e.target.position for e in found] == [9, 6]


def test_one_token_of_an_answer_that_was_given(language_model: nn.Module) -> None:
    found = wf.explain(language_model, ("a cat on", "the mat"), processor=tokenizer())
    (only,) = wf.explain(language_model, [("a cat on", "the mat")], processor=tokenizer(), target="mat")
    assert [str(e.target) for e in found] == ["the", "mat"] and found[1].target.position == 3
    np.testing.assert_allclose(only.scores, found[1].scores, rtol=1e-4, atol=1e-6)


def test_where_answers_cannot_be_taken_apart_they_are_refused(language_model: nn.Module) -> None:
    with pytest.raises(errors.BadInput, match="the prompt with the answer so far"):
        wf.head_importance(language_model, [("a cat on", "the mat")], processor=tokenizer(), progress=False)
    with pytest.raises(errors.BadInput, match="an answer with every prompt"):
        wf.explain(language_model, [("a cat on", "the mat"), "a dog"], processor=tokenizer())


# What a prediction says besides its class.


def test_a_prediction_has_its_probability_and_the_next_classes() -> None:
    model = bert("SequenceClassification", num_labels=7)
    probability_BC = model(**text()).logits.detach().softmax(1)
    for row, explanation in enumerate(wf.explain(model, text())):
        said = explanation.prediction
        assert said.probability == pytest.approx(float(probability_BC[row].max()), abs=1e-6)
        order = probability_BC[row].argsort(descending=True).tolist()
        assert [said.index, *(choice.index for choice in said.next)] == order[:5]
        for choice in said.next:
            assert choice.probability == pytest.approx(float(probability_BC[row, choice.index]), abs=1e-6)
            assert choice.label == model.config.id2label[choice.index]
    estimate = wf.explain(bert("SequenceClassification", problem_type="regression"), text())[0].prediction
    assert estimate.probability is None and estimate.next is None
