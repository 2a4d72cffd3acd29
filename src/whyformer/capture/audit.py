"""The leak audit: does information pass between positions anywhere outside the captured attention?

Every captured map is forced to the identity and one position's values are changed at the first site. Then each
position hears only itself, so wherever the model later holds one vector per position (what it projects, normalises,
attends with) all other positions must be exactly (bit for bit) what they were. It needs no knowledge of the model, and
shows when an attention explanation would be blind.

With several streams there is one such run per stream, and nothing of any other stream may change either, except the
tokens that a stream's result is placed at. With windows, the token that a merged one contains may change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.intercept import Intercept
from whyformer.capture.paths import current_path
from whyformer.capture.site import OpenSite

Forward = Callable[[], Tensor]
POSITIONWISE = frozenset({"linear", "addmm", "layer_norm", "rms_norm", "gelu", "silu", "relu"})


@dataclass(frozen=True)
class Leak:
    """Largest change at a position that should have heard nothing, and the first place where it showed."""

    amount: float = 0.0
    path: str = ""
    checked: int = 0  # places that were compared

    @property
    def found(self) -> bool:
        return self.amount != 0.0


@dataclass(frozen=True)
class Probe:
    """One position to disturb at one attention call, and the positions that may hear of it."""

    site: int
    position: int
    heard: Mapping[int, Set[int]]  # by number of positions: those that may change; of all others none
    window: int = 0


def audit(forward: Forward, changed_forward: Forward, names: dict[int, str], position: int, positions: int) -> Leak:
    """Run one input twice, the second time with a change at ``position``, and compare the other positions.

    ``changed_forward`` changes the position's input embedding too where that is possible (text), so that what happens
    before the first site is audited; convolutional front ends mix neighbours legitimately and start at the first site.
    """
    probe = Probe(0, position, {positions: {position}})
    plain = _marks(forward, _Isolate(names, {positions}))
    return _compared(plain, _marks(changed_forward, _Isolate(names, {positions}, probe)), probe)


def audit_streams(forward: Forward, names: dict[int, str], probes: Sequence[Probe], cross: Set[int]) -> Leak:
    """One run per probe against one without; ``cross`` are the calls where one stream asks another."""
    lengths = {n for probe in probes for n in probe.heard}
    plain = _marks(forward, _Isolate(names, lengths, cross=cross))
    for probe in probes:
        leak = _compared(plain, _marks(forward, _Isolate(names, lengths, probe, cross)), probe)
        if leak.found:
            return leak
    return Leak(checked=len(plain) * len(probes))


Marks = list[tuple[str, Tensor]]


def _marks(forward: Forward, intercept: _Isolate) -> Marks:
    with torch.no_grad(), intercept:
        forward()
    return intercept.marks


def _compared(plain: Marks, changed: Marks, probe: Probe) -> Leak:
    for (path, before), (_, after) in zip(plain, changed, strict=False):
        others = [i for i in range(len(before)) if i not in probe.heard[len(before)]]
        amount = float((before[others] - after[others]).abs().max()) if others else 0.0
        if amount:
            return Leak(amount, path, len(plain))
    return Leak(checked=len(plain))


class _Isolate(Intercept):
    """Each position hears only itself; wherever there is one vector per position, a fingerprint of each is kept."""

    def __init__(
        self, names: dict[int, str], lengths: Set[int], probe: Probe | None = None, cross: Set[int] | None = None
    ) -> None:
        super().__init__(1, names)
        self.lengths, self.probe, self.cross = lengths, probe, cross
        self.marks: Marks = []
        self._weights: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        if func.__name__ in POSITIONWISE and args:
            operand = args[1] if func.__name__ == "addmm" else args[0]
            if isinstance(operand, Tensor):
                self._fingerprint(operand)
        return out

    def _fingerprint(self, x: Tensor) -> None:
        if x.ndim == 2 and x.shape[0] in self.lengths:
            rows = x
        elif x.ndim == 3 and x.shape[0] == 1 and x.shape[1] in self.lengths:
            rows = x[0]
        elif x.ndim == 3 and x.shape[1] == 1 and x.shape[0] in self.lengths:
            rows = x[:, 0]
        else:
            return
        width = rows.shape[1]
        if width not in self._weights:
            generator = torch.Generator().manual_seed(width)
            self._weights[width] = torch.randn(width, generator=generator, dtype=torch.float64).to(rows.device)
        self.marks.append((current_path(self.names), (rows.double() * self._weights[width]).sum(1)))

    def at_site(self, site: OpenSite) -> None:
        weights, value = site.attention_BHQK, site.value_BHKD
        queries, keys = weights.shape[-2:]
        own = torch.zeros_like(weights)
        index = len(self.sites)
        if site.kind == "self" if self.cross is None else index not in self.cross:
            rows = torch.arange(queries, device=weights.device)
            own[:, :, rows, rows + site.first_query] = 1
        site.attention_BHQK = own  # cross-attention is silenced: no other stream may speak
        if keys in self.lengths and len(value) == 1:
            self._fingerprint(value[0].transpose(0, 1).flatten(1))
        probe = self.probe
        if probe is not None and index == probe.site and probe.position < keys:
            changed = value.clone()
            changed[probe.window, :, probe.position] = changed[probe.window, :, probe.position] * -1.5 + 0.5
            site.value_BHKD = changed
