"""Gates: multiply the result of each attention head by a number, inside the running model.

A head's result is A·V, so a gate on the map is a gate on the result, whatever comes after it: 1 leaves the head as it
is, 0 takes it away. Gates may require gradients, which makes them trainable without touching the model.
"""

from __future__ import annotations

from torch import Tensor

from whyformer.capture.intercept import Intercept
from whyformer.capture.site import OpenSite


class Gate(Intercept):
    """Gate heads: ``gates`` is (L, H), the same for all inputs, or (B, L, H), one table per input."""

    def __init__(
        self, batch: int, names: dict[int, str], batch_axes: dict[int, int] | None = None, *, gates: Tensor
    ) -> None:
        super().__init__(batch, names, batch_axes)
        self.gates = gates if gates.ndim == 3 else gates[None]
        self.layer, self.first = -1, 0  # where the next head of a model that computes heads one by one belongs

    def at_site(self, site: OpenSite) -> None:
        heads = site.layout.heads
        if site.parallel:
            self.first += heads
        else:
            self.layer, self.first = self.layer + 1, 0
        own_BH = self.gates[:, self.layer, self.first : self.first + heads]
        if len(own_BH) > 1:
            own_BH = own_BH.repeat_interleave(site.layout.windows, 0)
        weights = site.attention_BHQK
        site.attention_BHQK = weights * own_BH.to(weights.dtype)[:, :, None, None]
