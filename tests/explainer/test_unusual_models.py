"""Models and surroundings that are allowed, and were not thought of: each gives a result, or an error of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded
from tests.models.hf import ENCODER, text
from whyformer import errors

IDS = text()["input_ids"][:, :6]


def classifier() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return seeded(lambda: BertForSequenceClassification(BertConfig(**ENCODER)))


@pytest.fixture(scope="module")
def decoder() -> nn.Module:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, num_labels=3)
    config.pad_token_id = None
    return seeded(lambda: GPT2ForSequenceClassification(config))


@pytest.mark.parametrize("method", ["occlusion", "smooth_grad"])
def test_a_decoder_classifier_without_a_padding_token(decoder: nn.Module, method: str) -> None:
    for row, found in enumerate(wf.explain(decoder, {"input_ids": IDS}, method=method, target=1)):
        assert found.value == pytest.approx(decoder(IDS[row : row + 1]).logits[0, 1].item(), abs=1e-5)
        assert "pad" not in found.options.values()
    assert decoder.config.pad_token_id is None


@pytest.mark.parametrize("name", ["classifier", "language model"])
def test_shap_where_nothing_can_stand_for_a_token(decoder: nn.Module, name: str) -> None:
    """The error says what to pass, and with it shap runs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{k: v for k, v in ENCODER.items() if k != "num_labels"})
    model = decoder if name == "classifier" else seeded(lambda: LlamaForCausalLM(config))
    with pytest.raises(errors.NotOffered, match="replace=<token id>, or the attention_mask"):
        wf.explain(model, {"input_ids": IDS}, method="shap")
    for inputs, options in (
        ({"input_ids": IDS}, {"replace": 3}),
        ({"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, {}),
    ):
        assert len(wf.explain(model, inputs, method="shap", **options)[0].scores) == 6
    with pytest.raises(errors.NotOffered, match="give the attention_mask, too"):
        wf.explain(model, {"input_ids": IDS}, method="occlusion", replace="attention_mask")


@pytest.mark.parametrize("replace", [-1, 100])
def test_a_token_that_the_model_does_not_know(replace: int) -> None:
    with pytest.raises(errors.BadInput, match=r"0 to (99|2)"):
        wf.explain(classifier(), {"input_ids": IDS}, method="occlusion", replace=replace)


class PositionalOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = classifier()

    def forward(self, input_ids: Tensor, /) -> Tensor:
        return self.model(input_ids).logits


@pytest.mark.parametrize("method", ["generic_attention", "occlusion", "integrated_gradients"])
def test_arguments_without_a_name(method: str) -> None:
    model = PositionalOnly()
    options = {"replace": 3} if method == "occlusion" else {"baseline": 3} if "integrated" in method else {}
    plain = wf.explain(model.model, {"input_ids": IDS}, method=method, target=1, **options)
    for inputs in ({"input_ids": IDS}, (IDS,), IDS):
        found = wf.explain(model, inputs, method=method, target=1, **options)
        np.testing.assert_allclose(found[0].scores, plain[0].scores, rtol=1e-4, atol=1e-6)


class Constant(PositionalOnly):
    def forward(self, input_ids: Tensor) -> Tensor:
        self.model(input_ids)
        return torch.ones(len(input_ids), 3)


@pytest.mark.parametrize("method", ["integrated_gradients", "saliency"])
def test_an_output_that_depends_on_nothing(method: str) -> None:
    """What the error recommends runs."""
    with pytest.raises(errors.NotOffered, match="does not depend on"):
        wf.explain(Constant(), {"input_ids": IDS}, method=method)
    found = wf.explain(Constant(), {"input_ids": IDS}, method="occlusion", replace=3)[0]
    assert not found.scores.any() and any("all scores are equal" in w for w in found.warnings)


@pytest.mark.parametrize("how", [{}, {"level": "attn"}, {"weight": "gradient"}, {"residual": 0.5}])
def test_value_norms_while_the_caller_computes_in_half_precision(how: dict[str, Any]) -> None:
    """The model runs as the caller has it; the formula is not rounded besides."""
    model = classifier()
    plain = wf.explain(model, {"input_ids": IDS}, method="value_norms", target=1, **how)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logit = model(IDS).logits[0, 1].item()
        found = wf.explain(model, {"input_ids": IDS}, method="value_norms", target=1, **how)[0]
    assert found.value == pytest.approx(logit, rel=2**-6)  # seen attention adds up in another order
    if how.get("weight") is None:
        np.testing.assert_allclose(found.scores, plain.scores, rtol=0.05)
    assert found.scores.dtype == "float32"


class WithoutParameters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


@pytest.mark.parametrize(("method", "options"), [("shap", {"replace": "zero"}), ("integrated_gradients", {})])
def test_a_model_without_parameters(method: str, options: dict[str, str]) -> None:
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    found = wf.explain(WithoutParameters(), x, method=method, target=1, **options)
    np.testing.assert_allclose(found[0].scores, x[0, :, 1].numpy(), rtol=1e-4, atol=1e-6)
