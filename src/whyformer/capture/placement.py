"""Which positions of one stream become which tokens of another: image tokens in a language model.

A vision tower's result is projected and put at marked places of a text. Every attention result is made a leaf
(direct_readout.py), so the gradient of a token that enters the language model shows the tower's rows it was made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.heads.direct_readout import Severed
from whyformer.capture.probe import grad_rows


class Entering(Severed):
    """Keeps the last tensor with one vector per position that is made before attention call ``first``."""

    def __init__(self, names: dict[int, str], first: int, positions: int) -> None:
        super().__init__(1, names)
        self.first, self.positions = first, positions
        self.tokens: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        if len(self.sites) <= self.first and isinstance(out, Tensor) and out.ndim == 3 and out.requires_grad:
            if tuple(out.shape[:2]) == (1, self.positions):
                self.tokens = out
        return out


def made_of(
    forward: Callable[[], Tensor], names: dict[int, str], source: int, first: int, places_N: Tensor
) -> Tensor | None:
    """(tokens, rows) weights of the rows of call ``source`` in each placed token, or None where that is not clear.

    ``places_N`` marks the tokens among the positions that call ``first`` attends over.
    """
    entering = Entering(names, first, len(places_N))
    with torch.enable_grad(), entering:
        forward()
    if entering.tokens is None or not places_N.any():
        return None
    tokens_ND, result, site = entering.tokens[0], entering.results[source], entering.sites[source]
    mix = torch.randn(tokens_ND.shape, generator=torch.Generator().manual_seed(0)).to(tokens_ND)

    def rows(chosen: Tensor) -> list[int]:
        """Rows of the source that these tokens depend on."""
        (grad,) = torch.autograd.grad((tokens_ND * mix)[chosen].sum(), result, retain_graph=True, allow_unused=True)
        return [] if grad is None else [int(r) for r in grad_rows(site, grad).nonzero()[:, 0]]

    places = places_N.nonzero()[:, 0].to(tokens_ND.device)
    others = (~places_N).nonzero()[:, 0].to(tokens_ND.device)
    used, count = rows(places), len(places)
    if not used or len(used) % count or (len(others) and rows(others)):
        return None
    group = len(used) // count  # as many neighbouring rows for each token (Qwen merges four)
    for i in {0, count // 2, count - 1}:
        if rows(places[i : i + 1]) != used[i * group : (i + 1) * group]:
            return None
    total = site.attention.shape[site.contraction.query]
    weights = torch.zeros(count, total)
    for i in range(count):
        weights[i, used[i * group : (i + 1) * group]] = 1 / group
    return weights
