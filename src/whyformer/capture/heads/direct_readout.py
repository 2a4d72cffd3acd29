"""Which rows of each attention reach the output without passing another attention.

The result of every attention call becomes a leaf, so gradients of the output stop there: a row of the last call of a
stream that still gets one feeds the head itself, and is not merely read by another stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.intercept import Intercept
from whyformer.capture.probe import grad_rows
from whyformer.capture.site import OpenSite


class Severed(Intercept):
    """Every attention result stands at the start of a graph of its own."""

    explicit = False

    def __init__(self, batch: int, names: dict[int, str]) -> None:
        super().__init__(batch, names)
        self.results: list[Tensor] = []

    def at_site(self, site: OpenSite) -> None:
        """The result, not the map, is followed."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = len(self.sites)
        out = super().__torch_function__(func, types, args, kwargs)
        if len(self.sites) == before + 1 and func.__name__ != "multi_head_attention_forward":
            out = out.detach().requires_grad_()
            self.results.append(out)
        return out


def direct_rows(forward: Callable[[], Tensor], names: dict[int, str], seed: int = 0) -> list[list[int]]:
    """Per attention call, the rows that reach the output directly, on a single input."""
    severed = Severed(1, names)
    with torch.enable_grad():
        with severed:
            logits = forward()
        if not logits.requires_grad:
            return [[] for _ in severed.results]
        mix = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed)).to(logits)
        grads = torch.autograd.grad((logits * mix).sum(), severed.results, allow_unused=True)
    found = []
    for site, grad in zip(severed.sites, grads, strict=True):
        found.append([] if grad is None else [int(r) for r in grad_rows(site, grad).nonzero()[:, 0]])
    return found
