"""Quantised layers: explained as their dequantised twin, or refused because the measured slope is another."""

from __future__ import annotations

import platform
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.explainer.test_weights import IDS, llama
from tests.support.demo_models import loaded as shipped
from tests.support.quantised import cosine, dequantised, loaded, quiet
from tests.support.released import BEFORE_FIVE
from whyformer import errors
from whyformer.checks.randomisation import Redrawn
from whyformer.loan.backwards import backwards_of, quantised_layers
from whyformer.loan.borrow import borrowed
from whyformer.loan.digests import digest
from whyformer.loan.quantised import weight_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of the quantising libraries
TEXTS = list(wf.demo.SENTENCES[:1])


@cache
def pair(kind: str) -> tuple[Any, Any]:
    """A quantised model and its twin."""
    model = loaded(kind)
    return model, dequantised(model)


SIX = ("attention_rollout", "generic_attention", "attn_lrp", "input_x_gradient", "integrated_gradients", "occlusion")
READ = ("transformer_attribution", "value_norms", "decompx")  # the weights
METHODS = {"nf4": (*SIX, *READ, "cp_lrp", "alti", "value_zeroing"), "int8": (*SIX, *READ)}
METHODS |= {"torchao int8": READ} if find_spec("torchao") else {}
# Where it is installed, transformers imports it in every process, and it writes to stderr: not part of our environment.
with_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")


@pytest.mark.parametrize("kind", METHODS)
def test_scores_are_those_of_the_dequantised_twin(kind: str) -> None:
    for method in METHODS[kind]:
        options = {"steps": 4} if method == "integrated_gradients" else {}
        with quiet():
            found, expected = (
                wf.explain(m, TEXTS[0], processor=shipped("sentiment")[1], method=method, target=1, **options)
                for m in pair(kind)
            )
        assert cosine(found.scores, expected.scores) >= (0.999 if kind == "int8" else 0.999999), method
        assert not any("no relevance rule" in warning for warning in found.warnings), method
    layers = quantised_layers(pair(kind)[0])
    # The classifier is not quantised before transformers 5.
    assert len(layers) == 26 - BEFORE_FIVE and not any("forward" in vars(layer) for layer in layers), "as they came"


def test_which_layers_round_their_input_too() -> None:
    for kind, exact in {"nf4": True, "int8": False, "torchao int8": True}.items():
        if kind not in METHODS:
            continue
        with quiet(), borrowed(pair(kind)[0]):
            checks = [backward for _, backward in backwards_of(pair(kind)[0])]
        assert {(check.fault, check.exact) for check in checks} == {("", exact)}, kind
    with quiet():
        found = wf.explain(pair("nf4")[0], TEXTS, processor=shipped("sentiment")[1], method="attn_lrp")
    assert found[0].warnings == ()


@with_torchao
def test_torchao_layers_that_round_their_input_have_no_backward() -> None:
    """Before the layers were checked, scores of attn_lrp and integrated_gradients were wrong here."""
    model, twin = pair("torchao int8 dynamic")
    for method in ("attn_lrp", "integrated_gradients", "generic_attention"):
        with pytest.raises(errors.NotOffered, match=r"query \(Linear\) is quantised, and its operator has no backward"):
            wf.explain(model, TEXTS[0], processor=shipped("sentiment")[1], method=method)
    for method in ("attention_rollout", "value_norms"):
        found, expected = (wf.explain(m, TEXTS[0], shipped("sentiment")[1], method=method) for m in (model, twin))
        assert cosine(found.scores, expected.scores) > 0.999


@with_torchao
def test_a_job_on_wrapped_weights_can_be_resumed() -> None:
    """The numbers of a tensor class around codes are described, and others have another digest."""
    model = pair("torchao int8")[0]
    before = digest(dict(model.named_parameters()))
    assert digest(dict(model.named_parameters())) == before
    other = deepcopy(model)
    other.classifier.weight.scale.mul_(2)
    assert digest(dict(other.named_parameters())) != before


def test_a_job_on_an_int8_model_is_resumed_in_the_same_process(tmp_path: Path) -> None:
    """The first pass moves the scales of bitsandbytes from the weight to the layer."""
    model, tokenizer = loaded("int8"), shipped("sentiment")[1]
    before, texts = digest(model), list(wf.demo.SENTENCES[:3])
    how: Any = {"processor": tokenizer, "method": "occlusion", "out": tmp_path / "job"}
    with quiet():
        wf.explain_dataset(model, texts, **how)
        assert digest(model) == before
        wf.explain_dataset(model, texts, **how)  # a digest of other weights would be refused
    layer = next(layer for layer in model.modules() if type(layer).__name__ == "Linear8bitLt")
    layer.state.SCB = layer.state.SCB * 2
    assert digest(model) != before


def test_scales_of_four_bits_are_part_of_the_digest() -> None:
    """Weights of twice the size have the same codes."""
    model = loaded("nf4")
    before = digest(model)
    layer = next(layer for layer in model.modules() if type(layer).__name__ == "Linear4bit")
    layer.weight.quant_state.absmax = layer.weight.quant_state.absmax * 2
    assert digest(model) != before


# Layers of no library: what is known of them is what they compute.


class Coded(nn.Module):
    """A linear layer as GPTQ and AWQ store it: codes in a buffer, no parameter at all."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("scales", weight.abs().amax(1, keepdim=True) / 127)
        self.register_buffer("qweight", (weight / self.scales).round().to(torch.int8))

    def dequantised(self) -> Tensor:
        return self.qweight * self.scales

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.dequantised().T.to(x.dtype)


class _Kernel(torch.autograd.Function):
    """A product that Python cannot look into; ``share`` of its gradient arrives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, share: float) -> Tensor:
        ctx.weight, ctx.share = weight, share
        return torch.tensor(x.detach().numpy() @ weight.numpy().T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.share < 0:
            raise NotImplementedError("inference only")
        return ctx.share * (gradients[0] @ ctx.weight), None, None


class Fused(Coded):
    share = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return _Kernel.apply(x, self.dequantised(), self.share)  # type: ignore[no-untyped-call, no-any-return]


class HalfGradient(Fused):
    share = 0.5


class Raises(Fused):
    share = -1.0


class NoGraph(Coded):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


class RoundsInput(Coded):
    """As dynamic quantisation is usually written: round() has a gradient of zero."""

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return super().forward((x / scale).round() * scale)


class EightBitFloats(nn.Module):
    """Not a layer with a known width: the slope of the whole model decides."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)

    def dequantised(self) -> Tensor:
        return self.weight.float()

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.to(x.dtype).T


def with_layer(kind: type[nn.Module]) -> nn.Module:
    model = llama()
    mlp = model.model.layers[1].mlp
    mlp.up_proj = kind(mlp.up_proj)
    return model


@pytest.mark.parametrize("kind", [Coded, Fused, EightBitFloats])
def test_a_layer_with_a_right_backward(kind: type[nn.Module]) -> None:
    model, twin = with_layer(kind), llama()
    layer = model.model.layers[1].mlp.up_proj
    twin.model.layers[1].mlp.up_proj.weight.data = layer.dequantised()
    for method in ("attn_lrp", "generic_attention", "decompx"):
        found, expected = (wf.explain(m, IDS, method=method, target=1)[0] for m in (model, twin))
        np.testing.assert_allclose(found.scores, expected.scores, rtol=2e-3, atol=1e-5, err_msg=method)
        assert found.warnings == expected.warnings, method
    if kind is not EightBitFloats:
        weight, bias = weight_of(layer, layer.forward, torch.float32)
        torch.testing.assert_close(weight, layer.dequantised())
        assert bias is None


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (NoGraph, "its operator has no backward pass"),
        (HalfGradient, "does not give the slope"),
        (RoundsInput, "does not give the slope"),
        (Raises, "its backward pass raises NotImplementedError: inference only"),
    ],
)
def test_a_layer_without_a_right_backward_is_named(kind: type[nn.Module], fault: str) -> None:
    model = with_layer(kind)
    for _ in range(2):  # the second time from what is known about the model
        with pytest.raises(
            errors.NotOffered, match=rf"model\.layers\.1\.mlp\.up_proj \({kind.__name__}\) is quant.*{fault}"
        ):
            wf.explain(model, IDS, method="input_x_gradient", target=1)
    for method in ("attention_rollout", "occlusion", "decompx"):
        assert len(wf.explain(model, IDS, method=method, target=1)) == 1


def test_torch_s_own_quantised_layers_are_named() -> None:
    if platform.machine() in {"aarch64", "arm64"}:
        torch.backends.quantized.engine = "qnnpack"
    model = llama()
    model.score = torch.ao.quantization.quantize_dynamic(nn.Sequential(model.score), {nn.Linear}, torch.qint8)[0]
    with pytest.raises(errors.NotOffered, match=r"score \(Linear\) is quantised, and its operator has no backward"):
        wf.explain(model, IDS, method="input_x_gradient", target=1)


def test_weights_that_are_trained_or_drawn_anew_are_refused() -> None:
    """Also where codes are buffers: then no parameter shows that the layer is quantised."""
    with pytest.raises(errors.NotOffered, match=r"draws new weights, but .*up_proj \(Coded\) is quantised"):
        Redrawn(with_layer(Coded))
    texts = TEXTS * 20
    with (
        quiet(),
        pytest.raises(errors.NotOffered, match=r"trains a copy of the model, but .*query \(Linear4bit\) is q"),
    ):
        wf.masked_surrogate(pair("nf4")[0], texts, processor=shipped("sentiment")[1], epochs=1)
