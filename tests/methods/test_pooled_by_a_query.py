"""LRP on a classifier whose learned query pools the patches (SigLIP): nothing of the input goes to another stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import whyformer as wf
from tests.models.case import randn, seeded


def siglip(biases: bool = True) -> nn.Module:
    tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    tower |= {"image_size": 32, "patch_size": 8}
    text: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = hf.SiglipConfig(vision_config=tower, text_config=text, num_labels=3)
    model = seeded(lambda: hf.SiglipForImageClassification(config)).eval()
    if not biases:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "bias" in name or "position" in name:
                    parameter.zero_()
    return model


INPUTS = {"pixel_values": randn(1, 3, 32, 32)}


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp"])
def test_patches_get_relevance(method: str) -> None:
    result = wf.explain(siglip(), INPUTS, method=method, target=1)[0]
    assert result.units.grid == (4, 4) and len(result.units) == 16
    assert (result.scores != 0).all()


def test_all_of_the_score_goes_to_the_patches() -> None:
    """Without biases and positions there is nobody else to take a share, where attention is a constant."""
    result = wf.explain(siglip(biases=False), INPUTS, method="cp_lrp", target=1)[0]
    assert float(result.scores.sum()) == pytest.approx(result.value, rel=1e-3)
    assert result.checks["conservation_error_relative"] < 1e-3


def test_it_is_the_gradient_with_attention_and_norms_held() -> None:
    """cp_lrp, written out: input × gradient with every softmax, norm and activation a constant factor."""
    model = siglip(biases=False)
    pixels = INPUTS["pixel_values"].clone().requires_grad_()
    result = wf.explain(model, INPUTS, method="cp_lrp", target=1)[0]
    with Held():
        (slope,) = torch.autograd.grad(model(pixel_values=pixels).logits[0, 1], pixels)
    shares = (pixels * slope)[0].detach().sum(0).reshape(4, 8, 4, 8).sum((1, 3))
    torch.testing.assert_close(torch.tensor(result.heatmap()), shares, rtol=1e-3, atol=1e-5)


class Held(torch.overrides.TorchFunctionMode):
    """Attention weights, deviations of norms and what activations multiply by: the same numbers, without a gradient."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.scaled_dot_product_attention:
            q, k, v = args[:3] if len(args) >= 3 else (kwargs["query"], kwargs["key"], kwargs["value"])
            scale = kwargs.get("scale") or q.shape[-1] ** -0.5
            return (q @ k.transpose(-1, -2) * scale).softmax(-1).detach() @ v
        if func is nn.functional.multi_head_attention_forward:  # (positions, 1, width), all biases zero
            (query, keys, _, width, heads, weights), last = args[:6], args[11]
            q, k, v = (
                (x @ w.T).reshape(-1, heads, width // heads).transpose(0, 1)
                for x, w in zip((query, keys, keys), weights.chunk(3), strict=True)
            )
            attention = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1).detach()
            return ((attention @ v).transpose(0, 1).reshape(-1, 1, width) @ last.T, None)
        if func is nn.functional.layer_norm:
            x, weight, eps = args[0], kwargs["weight"], kwargs["eps"]
            deviation = (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt().detach()
            return (x - x.mean(-1, keepdim=True)) / deviation * weight
        out = func(*args, **kwargs)
        if func is nn.functional.gelu:
            return args[0] * (out / args[0]).detach()
        return out
