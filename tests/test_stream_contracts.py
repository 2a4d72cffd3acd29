"""What every method promises, on models with several streams, windows, two compared texts; and on a trained model."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests import models
from tests.methods.properties import near as close
from tests.models import CASES, UNUSUAL, run
from tests.support.processors import tokenizer
from tests.test_contracts import METHODS as ALL_METHODS
from tests.test_contracts import QUICK, check_result
from whyformer.demo import load_sentiment
from whyformer.errors import NonFinite, NotOffered, NotOverUnits

METHODS = ["generic_attention", "attention_rollout", "raw_attention", "attention_gradcam", "occlusion"]
MODELS = ["lxmert", "clip", "siglip", "vilt", "detr", "t5", "bart_cls", "whisper", "blip_retrieval", "blip_vqa"]
MODELS += ["llava", "qwen2_vl", "swin", "similarity"]
GRADIENTS = ["saliency", "input_x_gradient", "smooth_grad", "integrated_gradients"]
# Variations of the models above: a gradient method alone.
MORE = ["visual_bert", "blip2", "qwen2_5_vl", "nn_transformer"]
OCCLUDED = {"lxmert", "clip", "t5", "blip_vqa", "llava", "qwen2_vl", "similarity"}  # test_streams.py has the others
PAIRS = [("a cat on the mat", "two birds"), ("a dog", "what is this")]


@cache
def texts_compared() -> Any:
    return CASES["bert"].build("sdpa").bert


def model_of(name: str) -> Any:
    return texts_compared() if name == "similarity" else models.model_of(name)


def inputs_of(name: str) -> Any:
    if name != "similarity":
        return (CASES | UNUSUAL)[name].inputs()
    sides = [tokenizer()([pair[i] for pair in PAIRS], padding=True, return_tensors="pt") for i in (0, 1)]
    return {f"{s}_{k}": v for s, side in zip("ab", sides, strict=True) for k, v in side.items()}


def target_of(name: str) -> Any:
    return {"detr": (2, 1), "clip": 0, "siglip": 0, "similarity": 0}.get(name, 1)


def explained(name: str, method: str, model: Any = None, inputs: Any = None) -> list[wf.Explanation] | None:
    try:
        inputs = inputs or inputs_of(name)
        return wf.explain(
            model or model_of(name), inputs, method=method, target=target_of(name), **QUICK.get(method, {})
        )
    except (NotOffered, NotOverUnits) as refusal:
        assert len(str(refusal)) > 40, "a refusal has to say why and what to do"
        return None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("name", MODELS + MORE)
def test_same_scores_again_declared_cost_and_an_unchanged_model(name: str) -> None:
    model = model_of(name)
    if name != "similarity":
        run(model, inputs_of(name))  # LLaVA leaves hooks of its own on its first call
    before = {k: v.clone() for k, v in model.state_dict().items()}
    flags = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    wanted = [p.requires_grad for p in model.parameters()]
    seen = 0
    # Gradient methods differ in what they do with a gradient, not in how streams give it: one for each model, in turn.
    methods = [GRADIENTS[(MODELS + MORE).index(name) % len(GRADIENTS)]]
    methods += METHODS[: 5 if name in OCCLUDED else 4] if name in MODELS else []
    for method in methods:
        found = explained(name, method)
        assert found is not None  # these know streams
        again = explained(name, method) if method == "smooth_grad" else found
        assert again is not None
        entry = wf.list_methods()[method]
        for one, other in zip(found, again, strict=True):
            seen += 1
            assert np.array_equal(one.scores, other.scores)
            assert np.isfinite(one.scores).all() and (entry.signed or (one.scores >= 0).all())
            assert one.scores.shape == (len(one.units),)
            forwards, backwards = entry.cost(len(one.scores), **one.options)
            assert one.cost.forwards == forwards and 0 <= one.cost.backwards - backwards < 0.5 * entry.works + 1e-9
            assert one.target.index == other.target.index
            own = np.array([stream == "queries" for stream in one.units.stream])  # positions of the model itself
            assert method not in GRADIENTS or (not one.scores[own].any() and one.scores[~own].any())
    assert seen == 2 * len(methods)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert flags == [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    assert wanted == [p.requires_grad for p in model.parameters()]
    assert all(p.grad is None for p in model.parameters())


def test_batch_is_singles_for_two_texts() -> None:
    """For the others, see test_streams.py and methods/test_stream_gradients.py."""
    inputs = inputs_of("similarity")
    for method in ("generic_attention", "raw_attention", "occlusion", "smooth_grad"):
        together = explained("similarity", method)
        assert together is not None
        for row in range(2):
            one = {k: v[row : row + 1] for k, v in inputs.items()}
            bare = {k: v[:, one[f"{k[0]}_attention_mask"][0].bool()] for k, v in one.items()}
            alone = explained("similarity", method, inputs=bare)
            assert alone is not None
            close(together[row].scores, alone[0].scores)


@pytest.mark.parametrize("name", ["llava", "t5"])
def test_left_padding_changes_nothing(name: str) -> None:
    inputs = inputs_of(name)
    moved = dict(inputs)
    gap = int((inputs["attention_mask"][1] == 0).sum())
    for key in ("input_ids", "attention_mask"):
        moved[key] = torch.stack([inputs[key][0], inputs[key][1].roll(gap)])
    for method in ("generic_attention", "attention_gradcam", "integrated_gradients"):
        right, left = explained(name, method), explained(name, method, inputs=moved)
        assert right is not None and left is not None
        for one, other in zip(right, left, strict=True):
            assert one.units.labels == other.units.labels
            close(one.scores, other.scores)


HALVES = ["lxmert", "clip", "t5", "llava", "swin", "similarity"]


@pytest.mark.parametrize("name", HALVES)
def test_half_precision_is_finite_or_refused(name: str) -> None:
    """In each precision on every other model."""
    dtype = [torch.float16, torch.bfloat16][HALVES.index(name) % 2]
    case = CASES.get(name)
    model = (CASES["bert"].build("sdpa").bert if case is None else case.build(case.implementations[0])).to(dtype)
    for method in ["generic_attention", "attention_rollout", *(["smooth_grad"] if name in {"t5", "llava"} else [])]:
        try:
            found = explained(name, method, model)
        except NonFinite as refusal:
            assert "float32" in str(refusal)
            continue
        exact = explained(name, method)
        assert found is not None and exact is not None
        for one, other in zip(found, exact, strict=True):
            assert one.scores.dtype == np.float32 and np.isfinite(one.scores).all()
            if method == "attention_rollout":  # no gradient: only rounding differs
                close(one.scores, other.scores, 0.1)


def test_one_token_and_one_box() -> None:
    for name, methods in (("lxmert", METHODS[:4]), ("t5", ["generic_attention", "smooth_grad"])):
        inputs = {k: v[:1, :1] for k, v in inputs_of(name).items()}
        for method in methods:
            found = explained(name, method, inputs=inputs)
            assert found is not None and len(found[0].scores) == 2 and np.isfinite(found[0].scores).all()


def test_a_score_that_depends_on_nothing_gives_zeros_and_not_nan() -> None:
    """A class that hears nothing: no gradient reaches any attention, and what is left is the identity."""
    deaf = CASES["lxmert"].build("eager")
    with torch.no_grad():
        deaf.answer_head.logit_fc[-1].weight[1] = 0
    for explanation in wf.explain(deaf, inputs_of("lxmert"), target=1):
        tokens = explanation.units.stream.count("text")
        close(explanation.matrix["text", "text"], np.eye(tokens))
        close(explanation.matrix["text", "image"], np.zeros((tokens, 6)))


# On a trained model: random weights have no sinks and no outliers.


SENTENCES = ["I like the movie", "She hates the book", "This is so boring", "I cannot wait for next time"]
EXPECTED = ["positive", "negative", "negative", "positive"]


@cache
def explainer() -> wf.Explainer:
    return wf.Explainer(*load_sentiment())


def test_the_shipped_model_says_what_its_card_says() -> None:
    model, tokenizer = load_sentiment()
    with torch.no_grad():
        logits = model(**tokenizer(SENTENCES, padding=True, return_tensors="pt")).logits
    assert [model.config.id2label[i] for i in logits.argmax(1).tolist()] == EXPECTED


@pytest.mark.parametrize("method", ALL_METHODS)
def test_contract_on_a_trained_model(method: str) -> None:
    """Two sentences of different lengths: together, with padding, and each alone."""
    pair, how = SENTENCES[2:], {"method": method, "target": "positive", **QUICK.get(method, {})}
    try:
        together = explainer().explain(pair, **how)
    except (NotOffered, NotOverUnits):
        return
    check_result(together, ALL_METHODS[method], "logit")
    for sentence, found in zip(pair, together, strict=True):
        close(found.scores, explainer().explain(sentence, **how).scores)


def test_the_word_that_decides_comes_first() -> None:
    found = explainer().explain(SENTENCES[1], method="generic_attention")
    assert found.ranked(specials=False)[0][0] == "hates"
    assert np.isclose(found.value, 3.203, atol=0.01)
