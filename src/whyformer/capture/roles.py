"""What the interceptor does at a site: observe, record, or intervene."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from whyformer.capture.intercept import Intercept, open_body
from whyformer.capture.site import OpenSite


class Observe(Intercept):
    """The model's own kernel runs untouched; the attention map is computed beside it."""

    explicit = False

    def at_site(self, site: OpenSite) -> None:
        """Nothing to change: the base class keeps the site."""


class Recorder(Intercept):
    """The attention map stands in the autograd graph, so that it has a gradient."""

    def at_site(self, site: OpenSite) -> None:
        # With frozen weights the first map has no history: it becomes the leaf that everything later hangs on.
        if not site.attention.requires_grad:
            site.attention = site.attention.detach().requires_grad_()

    def gradients(self, scalar: Tensor) -> list[Tensor]:
        """d scalar / d attention for every site, in the model's layout; zeros where the scalar does not depend on it.

        The mode stays on during backward, for models that recompute their forward there (checkpointing).
        """
        maps = [site.attention for site in self.sites]
        replay = type(self)(self.batch, self.names, self.batch_axes)
        with replay:
            # autograd.grad would hand itself to the mode, and run its body with the mode off
            grads = open_body(torch.autograd.grad)(scalar, maps, allow_unused=True)
        return [torch.zeros_like(m) if g is None else g for m, g in zip(maps, grads, strict=True)]


Edit = Callable[[int, OpenSite], None]


class Intervene(Intercept):
    """Change attention maps or values inside the running model; ``edit(index, site)`` sets canonical tensors."""

    def __init__(
        self, batch: int, names: dict[int, str], batch_axes: dict[int, int] | None = None, *, edit: Edit
    ) -> None:
        super().__init__(batch, names, batch_axes)
        self.edit = edit

    def at_site(self, site: OpenSite) -> None:
        self.edit(len(self.sites), site)
