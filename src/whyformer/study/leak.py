"""The leak audit: does information pass between positions anywhere outside the captured attention?

Every captured map is forced to the identity and one position's values are changed at the first site. Then each
position hears only itself, so wherever the model later holds one vector per position (what it projects, normalises,
attends with) all other positions must be exactly (bit for bit) what they were. It needs no knowledge of the model, and
shows when an attention explanation would be blind.

What enters the head is compared, too, and so is the output, where the head does not read the changed position: a last
block whose attention was not seen has nothing else behind it that would show.

With several streams there is one such run per stream, and nothing of any other stream may change either, except the
tokens that a stream's result is placed at. With windows, the token that a merged one contains may change it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.functions import CHOICES, POOLS, POSITIONWISE
from whyformer.capture.intercept import current_path
from whyformer.capture.record import Forward
from whyformer.capture.roles import Outline
from whyformer.capture.site import OpenSite

Changed = Callable[[float], Tensor]  # by how much: 1 is a strong change, less a gentle one
ROUNDING = 1e-4  # of a fingerprint; what is larger is no rounding
GENTLE = (2**-5, 2**-10)


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


def audit(
    forward: Forward,
    changed_forward: Changed,
    names: dict[int, str],
    position: int,
    positions: int,
    *,
    sites: int | None = None,
    unread: bool = False,
) -> Leak:
    """Run one input twice, the second time with a change at ``position``, and compare the other positions.

    ``changed_forward`` changes the position's input embedding too where that is possible (text), so that what happens
    before the first site is audited; convolutional front ends mix neighbours legitimately and start at the first site.
    ``sites``: how many attentions there are, where what enters the head is to be compared. ``unread``: the head does
    not read the position.
    """
    probe = Probe(0, position, {positions: {position}})
    plain = _marks(forward, _Isolate(names, {positions}, last=sites))

    def changed(strength: float, run: Changed = changed_forward) -> Marks:
        return _marks(lambda: run(strength), _Isolate(names, {positions}, probe, strength=strength, last=sites))

    strong: list[Marks] = []

    def first_changed(strength: float) -> Marks:
        strong.append(changed(strength))
        return strong[-1]

    leak = _verdict(plain, first_changed, probe)
    if leak.found or not unread or _moved(plain, strong[0]) <= ROUNDING:
        return leak
    # Embeddings may go to the head around all layers, which is no exchange that maps would have to show. And a head
    # that chooses its rows may have chosen another: it does not after a small change.
    amounts = [_moved(plain, changed(strength, lambda _: forward())) for strength in (1.0, GENTLE[-1])]
    if amounts[0] <= ROUNDING or not amounts[1]:
        return leak
    again = _marks(forward, _Isolate(names, {positions}))  # a model may answer differently each time
    return leak if _moved(plain, again) > ROUNDING else Leak(amounts[0], "the output", len(plain))


def _moved(plain: Marks, changed: Marks) -> float:
    """By how much of itself the output changed; of one that is no number nothing is said."""
    share = float((plain.output - changed.output).abs().max() / plain.output.abs().max().clamp_min(1e-30))
    return share if math.isfinite(share) else 0.0


def audit_streams(forward: Forward, names: dict[int, str], probes: Sequence[Probe], cross: Set[int]) -> Leak:
    """One run per probe against one without; ``cross`` are the calls where one stream asks another."""
    lengths = {n for probe in probes for n in probe.heard}
    plain = _marks(forward, _Isolate(names, lengths, cross=cross))
    for probe in probes:

        def changed(strength: float, probe: Probe = probe) -> Marks:
            return _marks(forward, _Isolate(names, lengths, probe, cross, strength))

        leak = _verdict(plain, changed, probe)
        if leak.found:
            return leak
    return Leak(checked=len(plain) * len(probes))


def _verdict(plain: Marks, changed: Callable[[float], Marks], probe: Probe) -> Leak:
    """A leak, unless it is of the size of rounding and goes away once both runs take the same way through the model.

    A router may send the changed position to another expert. Then the others are multiplied in groups of another size,
    and rounded differently. A change that is small enough leaves the router where it was.
    """
    strong = changed(1.0)
    leak, share = _compared(plain, strong, probe)
    if not leak.found or share > ROUNDING or plain.way == strong.way:
        return leak
    for strength in GENTLE:
        gentle = changed(strength)
        if gentle.way == plain.way:
            return _compared(plain, gentle, probe)[0]
    return leak


class Marks:
    """Fingerprints of positions, (N,) numbers for each place of the model, in the order in which they were met.

    They are laid into few large blocks: hundreds of small tensors, made between activations that come and go, would
    keep the memory in between from being used again, many times their own size.
    """

    ROWS = 64

    def __init__(self) -> None:
        self._places: list[tuple[str, int, int]] = []  # path, length, row among those of this length
        self._blocks: dict[int, list[Tensor]] = {}
        self._counts: Counter[int] = Counter()
        self.way: list[tuple[int, ...]] = []  # shapes that the model met and choices that it made, in their order
        self.output = torch.zeros(1)  # what the model said

    def add(self, path: str, values_N: Tensor) -> None:
        length = len(values_N)
        row, blocks = self._counts[length], self._blocks.setdefault(length, [])
        if row == len(blocks) * self.ROWS:
            blocks.append(values_N.new_empty(self.ROWS, length))
        blocks[-1][row % self.ROWS] = values_N
        self._places.append((path, length, row))
        self._counts[length] += 1

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for path, length, row in self._places:
            yield path, self._blocks[length][row // self.ROWS][row % self.ROWS]


def _marks(forward: Forward, intercept: _Isolate) -> Marks:
    with torch.no_grad(), intercept:
        output = forward()
    marks = intercept.handed_over()
    marks.output = output.detach().double()
    return marks


def _compared(plain: Marks, changed: Marks, probe: Probe) -> tuple[Leak, float]:
    """The first place that heard what it should not, and how large that is beside the fingerprints there."""
    for (path, before), (_, after) in zip(plain, changed, strict=False):
        if len(before) != len(after):
            continue
        others = [i for i in range(len(before)) if i not in probe.heard[len(before)]]
        amount = float((before[others] - after[others]).abs().max()) if others else 0.0
        if amount:
            return Leak(amount, path, len(plain)), amount / max(float(before.abs().max()), 1e-30)
    return Leak(checked=len(plain)), 0.0


class _Isolate(Outline):
    """Each position hears only itself; wherever there is one vector per position, a fingerprint of each is kept."""

    explicit = True

    def __init__(
        self,
        names: dict[int, str],
        lengths: Set[int],
        probe: Probe | None = None,
        cross: Set[int] | None = None,
        strength: float = 1.0,
        last: int | None = None,
    ) -> None:
        super().__init__(1, names)
        self.last = last  # how many sites there will be; after them, what enters the head is looked at, too
        self.lengths, self.probe, self.cross, self.strength = lengths, probe, cross, strength
        self.marks = Marks()
        self._weights: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        if func.__name__ in CHOICES:
            indices = [t for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, Tensor)]
            self.marks.way += [tuple(t.flatten().tolist()) for t in indices if t.dtype == torch.int64]
        if func.__name__ in POSITIONWISE and args:
            operand = args[1] if func.__name__ == "addmm" else args[0]
            if isinstance(operand, Tensor):
                self.marks.way.append(tuple(operand.shape))
                self._fingerprint(operand)
        if self.last is not None and len(self.sites) >= self.last:
            self._at_the_head(func.__name__, args, out)
        return out

    def _at_the_head(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        """What the head picks or pools, up to where positions come together."""
        operand = args[0] if args else None
        if not isinstance(operand, Tensor) or not isinstance(out, Tensor):
            return
        if name == "softmax" and any(n in self.lengths for n in out.shape):
            self.last = None  # weights of positions, each of which hears of all others
        elif name in POOLS and operand.ndim == 3 and operand.shape[1] in self.lengths:
            if operand.shape[2] == operand.shape[1]:
                return  # a map that torch's attention hands back beside its result, no vectors (WavLM)
            self._fingerprint(operand)
            if out.ndim < 2 or out.shape[1] != operand.shape[1]:
                self.last = None

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
        self.marks.add(current_path(self.names) or "the model itself", torch.mv(rows.double(), self._weights[width]))

    def handed_over(self) -> Marks:
        """The marks; an interceptor may outlive its pass, and then holds no tensor."""
        marks, self.marks = self.marks, Marks()
        self._weights.clear()
        return marks

    def at_site(self, site: OpenSite) -> None:
        weights, value = site.attention_BHQK, site.value_BHKD
        queries, keys = weights.shape[-2:]
        identity = torch.zeros(weights.shape, dtype=weights.dtype, device=value.device)  # weights may be a mere shape
        index = len(self.sites)
        if site.kind == "self" if self.cross is None else index not in self.cross:
            rows = torch.arange(queries, device=identity.device)
            identity[:, :, rows, rows + site.first_query] = 1
        site.attention_BHQK = identity  # cross-attention is silenced: no other stream may speak
        if keys in self.lengths and len(value) == 1:
            self._fingerprint(value[0].transpose(0, 1).flatten(1))
        probe = self.probe
        if probe is not None and index == probe.site and probe.position < keys:
            changed = value.clone()
            value_HD = changed[probe.window, :, probe.position]
            changed[probe.window, :, probe.position] = value_HD.lerp(value_HD * -1.5 + 0.5, self.strength)
            site.value_BHKD = changed
