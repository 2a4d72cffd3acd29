"""One place that turns any layout into B,H,Q,K and back. It raises when a layout is ambiguous; it never guesses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from whyformer.capture.trail import Axes, Axis
from whyformer.errors import AmbiguousLayout


@dataclass(frozen=True, slots=True)
class Layout:
    """How a raw attention operand maps to (B, W, H, Q, K); W counts windows that share the batch axis.

    ``order`` permutes the raw axes to (lead..., Q, K); ``split`` is the shape of the lead after unfolding and
    ``names`` its letters, e.g. ("B", "H") for a folded (B·H, Q, K), ("H", "B") for the reverse.
    """

    order: tuple[int, ...]
    split: tuple[int, ...]
    names: tuple[str, ...]
    windows: int
    heads: int

    def to_canonical(self, raw: Tensor) -> Tensor:
        """Raw operand → (B·W, H, rows, columns)."""
        moved = raw.permute(self.order)
        unfolded = moved.reshape(*self.split, *moved.shape[-2:])
        target = [i for letter in ("B", "W", "H") for i, n in enumerate(self.names) if n == letter]
        lead = unfolded.permute(*target, unfolded.ndim - 2, unfolded.ndim - 1)
        return lead.reshape(-1, self.heads, *lead.shape[-2:])

    def to_raw(self, canonical: Tensor, like: Tensor) -> Tensor:
        """The inverse of :meth:`to_canonical`."""
        target = [i for letter in ("B", "W", "H") for i, n in enumerate(self.names) if n == letter]
        lead = canonical.reshape(*(self.split[i] for i in target), *canonical.shape[-2:])
        back = [target.index(i) for i in range(len(self.names))]
        unfolded = lead.permute(*back, lead.ndim - 2, lead.ndim - 1)
        moved_shape = [like.shape[i] for i in self.order]
        moved = unfolded.reshape(*moved_shape[:-2], *canonical.shape[-2:])
        inverse = [self.order.index(i) for i in range(len(self.order))]
        return moved.permute(inverse)


def layout_of(
    shape: tuple[int, ...],
    axes: Axes,
    query: int,
    key: int,
    batch: int,
    path: str,
    batch_axis: int | None = None,
) -> Layout:
    """Find batch and heads among the axes of an attention operand that are neither query nor key.

    ``batch_axis`` is what an earlier, unambiguous run taught about this site.
    """
    lead = [i for i in range(len(shape)) if i not in (query, key)]
    order = (*lead, query, key)
    if len(lead) == 0:
        if batch != 1:
            raise AmbiguousLayout(f"{path}: attention of shape {shape} has no batch axis for {batch} inputs.")
        return Layout(order, (1, 1), ("B", "H"), 1, 1)
    if len(lead) == 1:
        return _folded(shape, axes[lead[0]], order, batch, path)
    if len(lead) == 2:
        return _two(shape, axes, lead, order, batch, path, batch_axis)
    raise AmbiguousLayout(f"{path}: attention of shape {shape} has {len(lead)} axes besides query and key. {HATCH}")


HATCH = (
    "Name the layout yourself: Explainer(model, attention_at={'path.of.module': 'b h q k'}), where the module's "
    "output is the attention map, or call whyformer.mark_attention(weights, 'b h q k') in your own code."
)


def _folded(shape: tuple[int, ...], axis: Axis, order: tuple[int, ...], batch: int, path: str) -> Layout:
    """A single lead axis: heads folded into the batch, or one head."""
    size = shape[order[0]]
    if size == batch:
        return Layout(order, (batch, 1), ("B", "H"), 1, 1)
    if batch == 1:
        return Layout(order, (1, size), ("B", "H"), 1, size)
    sizes = tuple(atom.size for atom in axis)
    if len(sizes) == 2 and batch in sizes and sizes[0] != sizes[1]:
        names = ("B", "H") if sizes[0] == batch else ("H", "B")
        return Layout(order, sizes, names, 1, size // batch)
    raise AmbiguousLayout(
        f"{path}: {size} attention maps for {batch} inputs; batch and heads are folded into one axis and cannot be "
        f"told apart at this batch size. Explain one input at a time (batch_size=1). {HATCH}"
    )


def _two(
    shape: tuple[int, ...],
    axes: Axes,
    lead: list[int],
    order: tuple[int, ...],
    batch: int,
    path: str,
    batch_axis: int | None,
) -> Layout:
    """Two lead axes: (B, H) in either order, or windows folded into the batch."""
    folded, heads = shape[lead[0]], shape[lead[1]]
    sizes = [atom.size for atom in axes[lead[0]]]
    windowed = len(sizes) > 1 and (batch == 1 or sizes[0] == batch)
    matches = [] if windowed else [i for i in lead if shape[i] == batch]
    if batch_axis in matches:
        matches = [batch_axis]
    if len(matches) == 2 and batch == 1:
        matches = matches[:1]
    if len(matches) == 2:
        raise AmbiguousLayout(
            f"{path}: attention of shape {shape} for {batch} inputs; batch and heads have the same size. "
            f"Use another batch size. {HATCH}"
        )
    if matches:
        names = ("B", "H") if matches[0] == lead[0] else ("H", "B")
        heads = shape[lead[1]] if matches[0] == lead[0] else shape[lead[0]]
        return Layout(order, (shape[lead[0]], shape[lead[1]]), names, 1, heads)
    if batch == 1 or (windowed and math.prod(sizes) == folded):
        windows = folded // batch
        return Layout(order, (batch, windows, heads), ("B", "W", "H"), windows, heads)
    raise AmbiguousLayout(f"{path}: attention of shape {shape} does not fit a batch of {batch}. {HATCH}")
