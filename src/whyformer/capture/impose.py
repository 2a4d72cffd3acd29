"""Impose: other attention maps in the place of the model's own, layer by layer and head by head.

Maps may require gradients, which makes attention itself something to search over, with the model left as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from whyformer.capture.intercept import Intercept
from whyformer.capture.site import OpenSite

Rewrite = Callable[[int, int, Tensor], Tensor]  # layer, number of the first head, (B, H, Q, K) → another map


class Impose(Intercept):
    """Every map passes through ``rewrite(layer, first_head, attention_BHQK)`` before it meets the values."""

    def __init__(
        self, batch: int, names: dict[int, str], batch_axes: dict[int, int] | None = None, *, rewrite: Rewrite
    ) -> None:
        super().__init__(batch, names, batch_axes)
        self.rewrite = rewrite
        self.layer, self.first = -1, 0  # where the next head of a model that computes heads one by one belongs

    def at_site(self, site: OpenSite) -> None:
        if site.parallel:
            self.first += self.sites[-1].layout.heads
        else:
            self.layer, self.first = self.layer + 1, 0
        site.attention_BHQK = self.rewrite(self.layer, self.first, site.attention_BHQK)
