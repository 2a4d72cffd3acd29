"""Weights of another kind, found by the layers that have them, whatever a flag claims; and weights elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES, model_of
from tests.models.case import seeded
from tests.models.hf import ENCODER, text
from whyformer import errors

IDS = {"input_ids": text()["input_ids"][:1, :6]}


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    return seeded(lambda: LlamaForSequenceClassification(LlamaConfig(**ENCODER)))


@pytest.mark.parametrize("method", ["generic_attention", "input_x_gradient"])
def test_a_dequantised_model_is_not_refused_for_its_flags(method: str) -> None:
    """transformers leaves the flags on models that it read from GGUF files into plain float32 layers."""
    expected = wf.explain(llama(), IDS, method=method, target=1)[0].scores
    model = llama()
    model.is_quantized, model.quantization_method = True, "gguf"
    model.config.quantization_config = SimpleNamespace(quant_method="gguf", to_dict=dict)
    np.testing.assert_array_equal(wf.explain(model, IDS, method=method, target=1)[0].scores, expected)
    assert model.is_quantized


def test_indices_among_the_parameters_are_no_weights() -> None:
    """A parameter of whole positions is not differentiated, and needs no gradient."""
    model = llama()
    model.places = nn.Parameter(torch.arange(6), requires_grad=False)
    model.register_buffer("mask", torch.ones(6, 6, dtype=torch.uint8).tril())
    assert len(wf.explain(model, IDS, method="input_x_gradient", target=1)) == 1


# Weights that are elsewhere: on the meta device, brought for each pass by a hook, or by nobody.

FEW: dict[str, dict[str, int]] = {"integrated_gradients": {"steps": 4}}


def same_scores(name: str, model: nn.Module, method: str) -> None:
    expected, results = (
        wf.explain(m, CASES[name].inputs(), method=method, target=1, **FEW.get(method, {}))
        for m in (model_of(name), model)
    )
    for one, other in zip(expected, results, strict=True):
        np.testing.assert_allclose(other.scores, one.scores, atol=1e-6)
        assert other.value == pytest.approx(one.value, abs=1e-6)


def test_offloaded_weights_are_handed_back_as_they_were() -> None:
    from accelerate import cpu_offload

    model = CASES["bert"].build("sdpa")
    model.classifier.weight.requires_grad = False
    cpu_offload(model, torch.device("cpu"))
    before = {name: (p.device, p.requires_grad) for name, p in model.named_parameters()}
    assert {device.type for device, _ in before.values()} == {"meta"}
    same_scores("bert", model, "saliency")
    assert {name: (p.device, p.requires_grad) for name, p in model.named_parameters()} == before


@pytest.mark.parametrize("method", ["generic_attention", "occlusion"])
def test_a_weight_that_nobody_brings_is_refused(method: str) -> None:
    model = CASES["bert"].build("sdpa")
    state = model.state_dict()
    model.classifier.weight = nn.Parameter(torch.empty_like(model.classifier.weight, device="meta"))
    with pytest.raises(
        errors.NotOffered, match=r"classifier\.weight is on the meta device.*load_state_dict\(state, assign"
    ):
        wf.explain(model, CASES["bert"].inputs(), method=method)
    model.load_state_dict(state, assign=True)  # as it advises
    assert len(wf.explain(model, CASES["bert"].inputs(), method=method)) == 2


# One model over the CPU and a disk.
MAP = {
    "bert.embeddings": "cpu",
    "bert.encoder.layer.0": "disk",
    "bert.encoder.layer.1": "cpu",
    "bert.encoder.layer.2": "disk",
    "bert.pooler": "cpu",
    "classifier": "disk",
}


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    from accelerate import dispatch_model

    model = CASES["bert"].build("sdpa")
    present = {name for name, _ in model.named_modules()}
    device_map = {name: place for name, place in MAP.items() if name in present}
    folder = str(tmp_path_factory.mktemp("weights"))
    return dispatch_model(model, device_map, main_device="cpu", offload_dir=folder, force_hooks=True)


@pytest.mark.parametrize("method", ["generic_attention", "occlusion", "integrated_gradients", "value_zeroing"])
def test_a_model_over_cpu_and_disk_gives_the_same_scores(method: str, on_disk: nn.Module) -> None:
    same_scores("bert", on_disk, method)
    assert {p.device.type for p in on_disk.parameters()} == {"cpu", "meta"}, "some weights stay on the disk"


# Models and surroundings that were not thought of: each gives a result, or an error of ours.


BOTH = text()["input_ids"][:, :6]


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
    for row, found in enumerate(wf.explain(decoder, {"input_ids": BOTH}, method=method, target=1)):
        assert found.value == pytest.approx(decoder(BOTH[row : row + 1]).logits[0, 1].item(), abs=1e-5)
        assert "pad" not in found.options.values()
    assert decoder.config.pad_token_id is None


@pytest.mark.parametrize("name", ["classifier", "language model"])
def test_shap_where_nothing_can_stand_for_a_token(decoder: nn.Module, name: str) -> None:
    """Each masked id is looked up as the mean vector of its table; with another token, shap runs, too."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{k: v for k, v in ENCODER.items() if k != "num_labels"})
    model = decoder if name == "classifier" else seeded(lambda: LlamaForCausalLM(config))
    masked = {"input_ids": BOTH, "attention_mask": torch.ones_like(BOTH)}
    for inputs, options, replace in (
        ({"input_ids": BOTH}, {}, "mean_vector"),
        ({"input_ids": BOTH}, {"replace": 3}, 3),
        (masked, {}, "mean_vector"),
    ):
        found = wf.explain(model, inputs, method="shap", **options)[0]
        assert len(found.scores) == 6 and found.options["replace"] == replace
    with pytest.raises(errors.NotOffered, match="leaves an empty input"):
        wf.explain(model, masked, method="shap", replace="attention_mask")
    with pytest.raises(errors.NotOffered, match="give the attention_mask, too"):
        wf.explain(model, {"input_ids": BOTH}, method="occlusion", replace="attention_mask")


@pytest.mark.parametrize("replace", [-1, 100])
def test_a_token_that_the_model_does_not_know(replace: int) -> None:
    with pytest.raises(errors.BadInput, match=r"0 to (99|2)"):
        wf.explain(classifier(), {"input_ids": BOTH}, method="occlusion", replace=replace)


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
    plain = wf.explain(model.model, {"input_ids": BOTH}, method=method, target=1, **options)
    for inputs in ({"input_ids": BOTH}, (BOTH,), BOTH):
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
        wf.explain(Constant(), {"input_ids": BOTH}, method=method)
    found = wf.explain(Constant(), {"input_ids": BOTH}, method="occlusion", replace=3)[0]
    assert not found.scores.any() and found.nothing_found.startswith("Every score is zero")


@pytest.mark.parametrize("how", [{}, {"level": "attn"}, {"weight": "gradient"}, {"residual": 0.5}])
def test_value_norms_while_the_caller_computes_in_half_precision(how: dict[str, Any]) -> None:
    """The model runs as the caller has it; the formula is not rounded besides."""
    model = classifier()
    plain = wf.explain(model, {"input_ids": BOTH}, method="value_norms", target=1, **how)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logit = model(BOTH).logits[0, 1].item()
        found = wf.explain(model, {"input_ids": BOTH}, method="value_norms", target=1, **how)[0]
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
