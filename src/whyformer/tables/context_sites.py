"""Which attentions of a model run over training rows, where those stand among the keys, and which token a column is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.roles import Observe, Recorder
from whyformer.capture.site import Layout, OpenSite
from whyformer.errors import NothingCaptured, NotOffered

NEGLIGIBLE = 1e-3  # of the largest move: columns that are scaled together move each other a little
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]  # training rows, answers, one row → its logits


class _AnyLayout:
    """Axes besides query and key are left as they are: which of them are heads is no matter of what is summed over."""

    def _open(
        self,
        weights: Tensor,
        value: Tensor,
        contraction: Any,
        axes: Any,
        sources: Any,
        layout: Any = None,
        batch_axis: Any = None,
    ) -> OpenSite:
        lead = [i for i in range(weights.ndim) if i not in (contraction.query, contraction.key)]
        order, split = (*lead, contraction.query, contraction.key), tuple(weights.shape[i] for i in lead)
        layout = Layout(order, (split or (1,)), ("B",) * max(len(split), 1), 1, 2)  # 2: never one head of several
        opened: OpenSite = super()._open(weights, value, contraction, axes, sources, layout)  # type: ignore[misc]
        return opened


class ContextRecorder(_AnyLayout, Recorder):
    """Attention maps with their gradients, of any number of axes."""


class _Watch(_AnyLayout, Observe):
    """The same without gradients."""


def last_two(site: OpenSite, tensor: Tensor) -> Tensor:
    """A map (or its gradient) with query and key at the end."""
    return tensor.permute(site.layout.order)


@dataclass(frozen=True)
class Place:
    """What one attention runs over. ``kind``: "rows", "columns" (of one row each), or "other"."""

    path: str
    kind: str
    first_row: int  # of the training rows among the keys


@dataclass(frozen=True)
class Arrangement:
    """All attentions of a model, in order, and the token that each column is made into (None: several, or none)."""

    places: tuple[Place, ...]
    tokens: tuple[int | None, ...]
    forwards: int
    rescaled: bool = False  # one training row changes what the first attention reads of the others

    @property
    def several(self) -> int | None:
        """The first column that no single token stands for."""
        return next((column for column, token in enumerate(self.tokens) if token is None), None)

    @property
    def over_rows(self) -> list[int]:
        return [i for i, place in enumerate(self.places) if place.kind == "rows"]


def arrangement_of(
    forward: Forward, names: dict[int, str], context: Tensor, answers: Tensor, row: Tensor
) -> Arrangement:
    """Found by running the model: with one training row less, and with single numbers of the first one changed.

    An axis runs over rows if it is as much shorter as there are fewer rows; a training row, or a column, is where
    values change that the first attention reads.
    """
    if len(context) < 3:
        raise NotOffered(f"{len(context)} training rows are too few to tell rows from columns: give three or more.")

    def watched(known: Tensor, told: Tensor) -> list[OpenSite]:
        watch = _Watch(1, names)
        with torch.no_grad(), watch:
            forward(known, told, row)
        return watch.sites

    whole, fewer = watched(context, answers), watched(context[:-1], answers[:-1])
    if not whole:
        raise NothingCaptured(
            "no attention was captured: training rows are scored by the attention that they get. method="
            "'input_x_gradient' with rows='cells' asks for gradients alone."
        )
    if len(whole) != len(fewer):
        raise NotOffered("the model attends another number of times beside fewer training rows: rows cannot be told.")
    kinds = [_kind(a, b) for a, b in zip(whole, fewer, strict=True)]
    moved = context.clone()
    moved[0] = context[0] * -1.5 + 0.7
    first, rescaled = _first_row(whole, watched(moved, answers), kinds, len(context))
    places = tuple(
        Place(site.path, kind, first if kind == "rows" else 0) for site, kind in zip(whole, kinds, strict=True)
    )
    tokens, passes = _tokens(whole, kinds, first, context, lambda known: watched(known, answers))
    return Arrangement(places, tokens, 3 + passes, rescaled)


def _kind(site: OpenSite, with_fewer: OpenSite) -> str:
    a, b = (last_two(s, s.attention).shape for s in (site, with_fewer))
    if len(a) != len(b):
        return "other"
    if a[-1] - b[-1] == 1:
        return "rows"
    leads = [i for i in range(len(a) - 2) if a[i] != b[i]]
    return "columns" if leads and a[-2:] == b[-2:] else "other"


def _keys_first(site: OpenSite) -> Tensor:
    """(K, …) the values of one attention."""
    return site.value.movedim(site.contraction.value_key, 0).flatten(1)


def _first_row(
    whole: Sequence[OpenSite], moved: Sequence[OpenSite], kinds: Sequence[str], rows: int
) -> tuple[int, bool]:
    if "rows" not in kinds:
        return 0, False
    at = kinds.index("rows")
    change_K = (_keys_first(whole[at]) - _keys_first(moved[at])).abs().amax(1)
    first = int(change_K.argmax())
    if first + rows > len(change_K):
        raise NotOffered(
            f"training row 0 is key {first} of {len(change_K)}, so that {rows} training rows do not follow each other "
            "from there: the model puts them in another order."
        )
    return first, int((change_K > NEGLIGIBLE * change_K.max()).sum()) > 1


def _tokens(
    whole: Sequence[OpenSite],
    kinds: Sequence[str],
    first: int,
    context: Tensor,
    watched: Callable[[Tensor], list[OpenSite]],
) -> tuple[tuple[int | None, ...], int]:
    """The token of each column: whose values change when the column of the first training row does."""
    at = next((i for i, kind in enumerate(kinds) if kind in {"rows", "columns"}), None)
    if at is None:
        return (None,) * context.shape[1], 0
    plain, made = _of_first_row(whole[at], kinds[at], first), []
    for column in range(context.shape[1]):
        changed = context.clone()
        changed[0, column] = context[0, column] * -1.5 + 0.7
        moves = (_of_first_row(watched(changed)[at], kinds[at], first) - plain).abs().amax(1)
        alone = int((moves > NEGLIGIBLE * moves.max()).sum()) == 1
        made.append(int(moves.argmax()) if alone else None)
    return tuple(made), context.shape[1]


def _of_first_row(site: OpenSite, kind: str, first: int) -> Tensor:
    """(tokens, …) the values of the first training row, token by token."""
    value = site.value.movedim(site.contraction.value_key, 0)  # (K, lead…, D) in the value's own order
    while value.ndim > 4 and value.shape[1] == 1:
        value = value[:, 0]
    if kind == "rows":
        return value[first].flatten(1) if value.ndim > 3 else value[first][None].flatten(1)
    return value[:, first].flatten(1)
