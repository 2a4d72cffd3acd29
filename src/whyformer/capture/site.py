"""A site while the model is running: one attention, open for inspection and change."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from whyformer.capture.canonical import Layout
from whyformer.capture.product import Contraction
from whyformer.capture.trail import Source


@dataclass(slots=True)
class OpenSite:
    """One attention as the model computes it, in the model's own layout."""

    path: str
    attention: Tensor
    value: Tensor
    layout: Layout
    contraction: Contraction
    sources: tuple[Source | None, Source | None]
    parallel: bool = False  # another head of the previous site's layer

    @property
    def attention_BHQK(self) -> Tensor:
        return self.layout.to_canonical(self.attention)

    @attention_BHQK.setter
    def attention_BHQK(self, weights: Tensor) -> None:
        self.attention = self.layout.to_raw(weights, self.attention)

    @property
    def value_layout(self) -> Layout:
        """The values' layout: the same lead axes, keys in place of queries, width in place of keys."""
        c, own = self.contraction, self.layout
        return Layout((*c.value_lead, c.value_key, c.value_width), own.split, own.names, own.windows, own.heads)

    def _full_value(self) -> Tensor:
        """The values with shared (broadcast) heads repeated."""
        lead = [self.attention.shape[i] for i in self.layout.order[:-2]]
        shape = list(self.value.shape)
        for axis, size in zip(self.contraction.value_lead, lead, strict=True):
            shape[axis] = size
        return self.value.expand(shape)

    @property
    def value_BHKD(self) -> Tensor:
        return self.value_layout.to_canonical(self._full_value())

    @value_BHKD.setter
    def value_BHKD(self, value: Tensor) -> None:
        self.value = self.value_layout.to_raw(value, self._full_value())

    @property
    def kind(self) -> str:
        query, key = self.sources
        if query is not None and key is not None:
            return "self" if query.storage == key.storage else "cross"
        shape = self.attention.shape
        return "self" if shape[self.contraction.query] == shape[self.contraction.key] else "cross"

    @property
    def first_query(self) -> int:
        """Which key position the first query row belongs to, for layers that ask for a few rows only."""
        query, key = self.sources
        if query is None or key is None:
            return 0
        return query.rows_within(key) or 0
