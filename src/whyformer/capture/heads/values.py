"""Keep each head's values in the graph: with attention held constant, they carry all that a head says."""

from __future__ import annotations

import torch
from torch import Tensor

from whyformer.capture.intercept import Intercept
from whyformer.capture.site import OpenSite


class HeldAttention(Intercept):
    """Attention maps are constants; ``values`` are the (B·W, H, K, D) tensors that the score is differentiated by."""

    def __init__(self, batch: int, names: dict[int, str], batch_axes: dict[int, int] | None = None) -> None:
        super().__init__(batch, names, batch_axes)
        self.values: list[Tensor] = []

    def at_site(self, site: OpenSite) -> None:
        site.attention = site.attention.detach()
        value = site.value_BHKD  # one copy per head, also where key heads are shared
        if not value.requires_grad:  # nothing before it depends on the input: it is where the graph begins
            value = value.detach().requires_grad_()
        self.values.append(value)
        site.value_BHKD = value

    def gradient_times_value(self, scalar: Tensor) -> list[Tensor]:
        """Per layer (B, H) Σ_kd V ∘ ∂s/∂V, which is Σ_q o_q · ∂s/∂o_q for the head's result o = A·V."""
        gradients = torch.autograd.grad(scalar, self.values, allow_unused=True)
        layers: list[Tensor] = []
        for site, value, gradient in zip(self.sites, self.values, gradients, strict=True):
            product = torch.zeros_like(value) if gradient is None else value.detach() * gradient
            own_BH = product.float().sum((2, 3)).view(-1, site.layout.windows, value.shape[1]).sum(1)
            if site.parallel:  # another head of the same layer
                layers[-1] = torch.cat([layers[-1], own_BH], 1)
            else:
                layers.append(own_BH)
        return layers
