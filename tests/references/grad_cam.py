"""Grad-CAM (Selvaraju et al. 2017) at the norm before the last attention, channel by channel, by a hook."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.references.differentiable import double
from tests.references.twin import TARGET, Twin, each


def features_and_gradient(
    model: nn.Module, module: nn.Module, image: Tensor, target: int
) -> tuple[np.ndarray, np.ndarray]:
    """(positions, channels) of one module's output, and the gradient of the target's logit there."""
    kept: list[Tensor] = []
    handle = module.register_forward_hook(lambda m, args, out: kept.append(out))
    try:
        logits = model(pixel_values=image[None].requires_grad_()).logits
    finally:
        handle.remove()
    (gradient,) = torch.autograd.grad(logits[0, target], kept[0])
    return kept[0][0].detach().numpy(), gradient[0].numpy()


def grad_cam(features: np.ndarray, gradient: np.ndarray, special: int) -> np.ndarray:
    """The first ``special`` positions are tokens of the model's own."""
    features, gradient = features[special:], gradient[special:]
    patches, channels = features.shape
    weight = [sum(gradient[p, c] for p in range(patches)) / patches for c in range(channels)]
    return np.array([max(0.0, sum(weight[c] * features[p, c] for c in range(channels))) for p in range(patches)])


SPECIAL = {"vit": 1, "vit_nonsquare": 1, "deit": 2, "beit": 1}  # tokens of the model's own


def last_norm(model: nn.Module) -> nn.Module:
    """The norm before the last attention, by the name it has in transformers."""
    return [m for n, m in model.named_modules() if n.endswith("layernorm_before")][-1]


def expected(name: str, row: int) -> dict[str, np.ndarray]:
    model, image = double(name), CASES[name].inputs()["pixel_values"][row].double()
    features, gradient = features_and_gradient(model, last_norm(model), image, TARGET)
    patches = grad_cam(features, gradient, SPECIAL[name])
    return {"scores": np.concatenate([np.zeros(SPECIAL[name]), patches])}


TWIN = Twin(expected, each(tuple(SPECIAL)))
