"""The leak audit: does information pass between positions anywhere outside the captured attention?

Every captured map is forced to the identity and one position's values are changed at the first site. Then each
position hears only itself, so at every later site all other positions must be exactly (bit for bit) what they were.
It needs no knowledge of the model, and shows when an attention explanation would be blind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer.capture.roles import Intervene
from whyformer.capture.site import OpenSite

Forward = Callable[[], Tensor]


@dataclass(frozen=True)
class Leak:
    """Largest change at a position that should have heard nothing, and the first site where it showed."""

    amount: float = 0.0
    path: str = ""
    checked_sites: int = 0

    @property
    def found(self) -> bool:
        return self.amount != 0.0


def audit(forward: Forward, changed_forward: Forward, names: dict[int, str], position: int) -> Leak:
    """Run one input twice, the second time with a change at ``position``, and compare the other positions.

    ``changed_forward`` changes the position's input embedding too where that is possible (text), so that what happens
    before the first site is audited; convolutional front ends mix neighbours legitimately and start at the first site.
    """
    plain, paths = _values(forward, names, position, disturb=False)
    changed, _ = _values(changed_forward, names, position, disturb=True)
    worst = Leak(checked_sites=len(plain))
    for before, after, path in zip(plain, changed, paths, strict=True):
        if before is None or after is None or before.shape[2] <= position:
            continue
        others = [i for i in range(before.shape[2]) if i != position]
        amount = float((before[:, :, others] - after[:, :, others]).abs().max()) if others else 0.0
        if amount and not worst.found:
            worst = Leak(amount, path, len(plain))
    return worst


def _values(
    forward: Forward, names: dict[int, str], position: int, disturb: bool
) -> tuple[list[Tensor | None], list[str]]:
    """The values of every site while each position hears only itself."""
    seen: list[Tensor | None] = []
    paths: list[str] = []

    def isolate(index: int, site: OpenSite) -> None:
        weights = site.attention_BHQK
        queries, keys = weights.shape[-2:]
        own = torch.zeros_like(weights)
        if site.kind == "self":
            rows = torch.arange(queries, device=weights.device)
            own[:, :, rows, rows + site.first_query] = 1
        site.attention_BHQK = own  # cross-attention is silenced: no other stream may speak
        value = site.value_BHKD
        seen.append(value.clone() if site.kind == "self" else None)
        paths.append(site.path)
        if disturb and index == 0 and position < keys:
            changed = value.clone()
            changed[:, :, position] = changed[:, :, position] * -1.5 + 0.5
            site.value_BHKD = changed

    with torch.no_grad(), Intervene(1, names, edit=isolate):
        forward()
    return seen, paths
