"""A site: one attention of the running model, its axes brought to B,H,Q,K, open for inspection and change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from torch import Size, Tensor

from whyformer.capture.functions import FusedCall
from whyformer.capture.trail import Axes, Axis, Sources
from whyformer.errors import AmbiguousLayout

HATCH = (
    "Name the layout yourself: Explainer(model, attention_at={'path.of.module': 'b h q k'}), where the module's "
    "output is the attention map, or call whyformer.mark_attention(weights, 'b h q k') in your own code; 'b k' are "
    "weights without queries, as of a recurrent network."
)


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
        if self.names == ("B", "H") and self.order == (0, 1, 2, 3):  # as most models have it
            return raw
        moved = raw.permute(self.order)
        unfolded = moved.reshape(*self.split, *moved.shape[-2:])
        target = [i for letter in ("B", "W", "H") for i, n in enumerate(self.names) if n == letter]
        lead = unfolded.permute(*target, unfolded.ndim - 2, unfolded.ndim - 1)
        return lead.reshape(-1, self.heads, *lead.shape[-2:])

    def inputs_of(self, rows: Tensor) -> Tensor:
        """(B, Q) whether any head has something, of (lead..., Q)."""
        unfolded = rows.reshape(*self.split, rows.shape[-1])
        return unfolded.movedim(self.names.index("B"), 0).flatten(1, -2).any(1)

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
    shape: tuple[int, ...], axes: Axes, query: int, key: int, batch: int, path: str, batch_axis: int | None = None
) -> Layout:
    """Find batch and heads among the other axes, or raise; ``batch_axis`` is known from an unambiguous run."""
    lead = [i for i in range(len(shape)) if i not in (query, key)]
    order = (*lead, query, key)
    if len(lead) == 0:
        if batch != 1:
            raise AmbiguousLayout(f"{path}: attention of shape {shape} has no batch axis for {batch} inputs.")
        return Layout(order, (1, 1), ("B", "H"), 1, 1)
    if len(lead) == 1:
        return _folded(shape, axes[lead[0]], order, batch, path)
    if len(lead) > 2:
        raise AmbiguousLayout(f"{path}: attention of shape {shape} has {len(lead)} axes besides query and key. {HATCH}")
    # Two: batch and heads in either order, or windows folded into the batch.
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
    if matches == lead[:1]:
        return Layout(order, (folded, heads), ("B", "H"), 1, heads)
    if matches:
        return Layout(order, (folded, heads), ("H", "B"), 1, folded)
    if batch == 1 or (windowed and math.prod(sizes) == folded):
        windows = folded // batch
        return Layout(order, (batch, windows, heads), ("B", "W", "H"), windows, heads)
    raise AmbiguousLayout(f"{path}: attention of shape {shape} does not fit a batch of {batch}. {HATCH}")


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


@dataclass(frozen=True, slots=True)
class Contraction:
    """What a product sums over: axes of the attention operand (query, key) and of the value operand (key, width)."""

    query: int
    key: int
    value_key: int
    value_width: int
    value_lead: tuple[int, ...]  # the value's batch and head axes, in the order of the attention operand's

    @classmethod
    def of_matmul(cls, weights_ndim: int, value_ndim: int, key: tuple[int, bool]) -> Contraction | None:
        """Return what matmul and bmm sum over; None if one operand has fewer axes (a codebook that inputs share)."""
        axis, first = key
        if weights_ndim < 2 or value_ndim != weights_ndim:
            return None
        if first and axis == weights_ndim - 1:
            return cls(weights_ndim - 2, axis, value_ndim - 2, value_ndim - 1, tuple(range(value_ndim - 2)))
        if not first and axis == weights_ndim - 2:  # valuesᵀ · mapᵀ
            return cls(weights_ndim - 1, axis, value_ndim - 1, value_ndim - 2, tuple(range(value_ndim - 2)))
        return None

    @classmethod
    def of_einsum(cls, equation: str, weights_ndim: int, value_ndim: int, key: tuple[int, bool]) -> Contraction | None:
        """By letters: keys are in both operands and not in the result, queries in the map and the result."""
        axis, first = key
        left, arrow, result = equation.replace(" ", "").partition("->")
        terms = left.split(",")
        if not arrow or len(terms) != 2 or "." in equation:
            return None
        weights, value = terms if first else terms[::-1]
        if len(weights) != weights_ndim or len(value) != value_ndim:
            return None
        summed = weights[axis]
        queries = [c for c in weights if c in result and c not in value]
        widths = [c for c in value if c in result and c not in weights]
        if summed in result or summed not in value or len(queries) != 1 or len(widths) != 1:
            return None
        lead = [c for c in weights if c not in (summed, queries[0])]
        if any(c not in value for c in lead):
            return None
        where = tuple(value.index(c) for c in lead)
        return cls(weights.index(queries[0]), axis, value.index(summed), value.index(widths[0]), where)


@dataclass(slots=True)
class OpenSite:
    """One attention as the model computes it, in the model's own layout, open for inspection and change."""

    path: str
    attention: Tensor
    value: Tensor
    layout: Layout
    contraction: Contraction
    sources: Sources  # what queries and keys were projected from, where that is known
    parallel: bool  # another head of the previous site's layer
    kind: str = "self"  # or "cross"
    first_query: int = 0  # the key position of the first row, for layers that ask for a few rows only
    call: FusedCall | None = None  # what torch's own kernel was given, where it ran
    waits: bool = False  # the map is made of that later on
    edge: Any = None  # where the gradient of the kernel's result is found

    def locate(self) -> None:
        """Kind and first row, from what queries and keys were projected from."""
        query, key = self.sources
        if query is None or key is None:
            shape = self.attention.shape
            self.kind = "self" if shape[self.contraction.query] == shape[self.contraction.key] else "cross"
        elif query.storage != key.storage:
            self.kind = "cross"
        else:
            self.kind = "self"
            if len(query.shape) > 1 and len(key.shape) > 1 and key.strides[-2]:
                self.first_query = (query.offset - key.offset) // key.strides[-2]

    @property
    def attention_BHQK(self) -> Tensor:
        return self.layout.to_canonical(self.attention)

    @attention_BHQK.setter
    def attention_BHQK(self, weights: Tensor) -> None:
        self.attention = self.layout.to_raw(weights, self.attention)

    @property
    def value_layout(self) -> Layout:
        """The values' layout: the same lead axes, keys in place of queries, width in place of keys."""
        c = self.contraction
        return replace(self.layout, order=(*c.value_lead, c.value_key, c.value_width))

    def _full_value(self) -> Tensor:
        """The values with shared heads repeated: broadcast ones, and groups of torch's ``enable_gqa``."""
        lead = [self.attention.shape[i] for i in self.layout.order[:-2]]
        value, shape = self.value, list(self.value.shape)
        for axis, size in zip(self.contraction.value_lead, lead, strict=True):
            if 1 < shape[axis] < size:
                value = value.repeat_interleave(size // shape[axis], dim=axis)
            shape[axis] = size
        return value.expand(shape)

    @property
    def value_BHKD(self) -> Tensor:
        return self.value_layout.to_canonical(self._full_value())

    @value_BHKD.setter
    def value_BHKD(self, value: Tensor) -> None:
        self.value = self.value_layout.to_raw(value, self._full_value())


# A plan: what is known about the calls of a pass, so that a later pass intercepts attention alone.
#
# It is the order of all softmaxes and products of a pass that was followed: which of them are sites, and how those are
# laid out. If all attentions of a model are torch's own, over all positions, their calls are the plan, and the study
# knows them. Every later pass is compared with the plan call by call, by names and shapes. If it differs, it is
# followed again and learned. Passes under changed gradient rules are planned in the same way (run/traced.py).

GIVEN_UP = 4  # passes that were off the plan: what changes so often is followed
# Which method of the interceptor sees which function. By name, not as bound methods: an interceptor in a cycle with
# itself would hold its maps until the collector comes.
FOLLOWED = {
    "scaled_dot_product_attention": "_sdpa",
    "multi_head_attention_forward": "_see_through",
    "softmax": "_softmax",
    "special_softmax": "_softmax",
    "matmul": "_matmul",
    "__matmul__": "_matmul",
    "bmm": "_matmul",
    "baddbmm": "_baddbmm",
    "einsum": "_einsum",
    "mark_attention": "_marked_by_user",
}
STEPWISE = frozenset(FOLLOWED)
# Of a model whose attentions are all torch's own; products are no steps there, and with a softmax it is off the plan.
FUSED = frozenset(
    "scaled_dot_product_attention multi_head_attention_forward softmax special_softmax mark_attention".split()
)


class OffPlan(Exception):
    """The model did something else than when it was studied: it has to be followed again."""


@dataclass(frozen=True, slots=True)
class PlannedSite:
    """One attention that will come: where, and how its axes are to be read."""

    path: str
    layout: Layout
    contraction: Contraction
    kind: str
    queries: int
    keys: int
    first_query: int
    parallel: bool

    @classmethod
    def of(cls, site: OpenSite) -> PlannedSite:
        shape, where = site.attention.shape, site.contraction
        sizes = shape[where.query], shape[where.key]
        return cls(site.path, site.layout, where, site.kind, *sizes, site.first_query, site.parallel)

    @classmethod
    def fused(cls, path: str, heads: int, positions: int) -> PlannedSite:
        """Torch's own attention of several heads over all positions: its axes speak for themselves."""
        layout = Layout((0, 1, 2, 3), (1, heads), ("B", "H"), 1, heads)
        return cls(path, layout, Contraction(2, 3, 2, 3, (0, 1)), "self", positions, positions, 0, False)

    def opened(self, attention: Tensor, value: Tensor, batch: int) -> OpenSite:
        """The site with a map that is there now; OffPlan if its shape does not fit."""
        layout, place = self._fitting(attention.shape, batch), (self.parallel, self.kind, self.first_query)
        return OpenSite(self.path, attention, value, layout, self.contraction, (None, None), *place)

    @lru_cache(maxsize=256)  # noqa: B019  (it holds no tensor)
    def _fitting(self, shape: Size, batch: int) -> Layout:
        layout, where = self.layout, self.contraction
        if len(shape) != len(layout.order):
            raise OffPlan
        queries, keys = shape[where.query], shape[where.key]
        if (queries == keys) != (self.queries == self.keys):
            raise OffPlan
        if self.first_query and (queries, keys) != (self.queries, self.keys):  # which row it is may go by the length
            raise OffPlan
        lead = [shape[axis] for axis in layout.order[:-2]]
        split = tuple({"B": batch, "W": layout.windows, "H": layout.heads}[name] for name in layout.names)
        fits = lead == list(split) if len(lead) == len(split) else math.prod(lead) == math.prod(split)
        if not fits or (len(lead) == 2 and len(split) == 3 and lead[1] != layout.heads):
            raise OffPlan
        return layout if split == layout.split else replace(layout, split=split)


class PlannedCall(NamedTuple):
    """One call that will come."""

    function: str
    site: int | None = None  # its number, if the call is one
    first: bool = True  # the map is the first operand of the product
    softmax: int | None = None  # which of the softmaxes made it
    equation: str = ""  # of an einsum

    def rows(self, site: OpenSite) -> tuple[int, ...]:
        """Return the axes of the call's result that are (lead..., query)."""
        count = len(site.layout.order)
        if not self.equation:
            return (*range(count - 2), count - 2 if self.first else count - 1)
        left, _, result = self.equation.replace(" ", "").partition("->")
        letters = left.split(",")[0 if self.first else 1]
        return tuple(result.index(letters[axis]) for axis in site.layout.order[:-1])


@dataclass(frozen=True)
class Plan:
    """The calls of a pass that matter, in their order."""

    sites: tuple[PlannedSite, ...]
    steps: tuple[PlannedCall, ...]
    watched: frozenset[str] = STEPWISE  # functions that are steps

    @classmethod
    def fused(cls, sites: Sequence[PlannedSite]) -> Plan | None:
        """Return the plan of a model whose attentions are torch's own; None without any."""
        steps = (PlannedCall("scaled_dot_product_attention", number) for number in range(len(sites)))
        return cls(tuple(sites), tuple(steps), FUSED) if sites else None


Passed = TypeVar("Passed")


@dataclass
class Plans:
    """Plans by kind of pass, and how often each was wrong."""

    plans: dict[Hashable, Any] = field(default_factory=dict)
    misses: Counter[Hashable] = field(default_factory=Counter)

    def at(self, kind: Hashable, known: Any = None) -> Any:
        """Return the plan of a pass, None if there is none; known: the plan before any was learned."""
        return self.plans.get(kind, None if self.misses[kind] else known)

    def run(self, kind: Hashable, a_pass: Callable[[Any], Passed], known: Any = None) -> Passed:
        """Run a pass by its plan; if the model leaves that, run the pass again without."""
        while True:
            try:
                return a_pass(self.at(kind, known))
            except OffPlan:
                self.plans.pop(kind, None)
                self.misses[kind] += 1

    def learn(self, kind: Hashable, plan: Any) -> None:
        if self.misses[kind] < GIVEN_UP:
            self.plans[kind] = plan
