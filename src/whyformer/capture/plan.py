"""A plan: what was learned about the calls of a pass, so that a later one looks at attention alone and follows nothing.

Of a model whose attentions are all torch's own, over all positions, the number of them is a plan. Of others it is the
order of all softmaxes and products, as a pass that was followed went through them: which of them are sites, and how
those are laid out. Every later pass is held to it call by call, by names and shapes; where it does something else, it
is followed again, and what it does now is learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from whyformer.capture.site import Contraction, Layout, OpenSite

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
COUNTED = {  # of a model whose attentions are all torch's own
    "scaled_dot_product_attention": "_next_fused",
    "multi_head_attention_forward": "_see_through",
    "softmax": "_leave_plan",
    "special_softmax": "_leave_plan",
    "mark_attention": "_leave_plan",
}
STEPWISE = dict.fromkeys(FOLLOWED, "_next_step") | {"multi_head_attention_forward": "_see_through"}


Graph = frozenset[tuple[str, int]]
Route = tuple[tuple[int, ...], ...]  # through a graph, from one attention to the one before: which way at each node


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

    def placed(self, shape: Sequence[int], batch: int) -> Layout:
        """The layout for a map of this shape."""
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
        return (
            layout if split == layout.split else Layout(layout.order, split, layout.names, layout.windows, layout.heads)
        )


class Step(NamedTuple):
    """One call that will come."""

    function: str
    site: int | None = None  # its number, if the call is one
    first: bool = True  # the map is the first operand of the product
    softmax: int | None = None  # which of the softmaxes made it
    equation: str = ""  # of an einsum


@dataclass(frozen=True)
class Plan:
    """The calls of a pass that matter, in their order; or only that there will be as many of torch's own attentions."""

    sites: tuple[PlannedSite, ...] = ()
    steps: tuple[Step, ...] = ()
    paths: tuple[str, ...] = ()  # of attentions that are torch's own, all of them
    streams: tuple[tuple[str, str], ...] = ()  # of those: of queries and keys
    watched: Mapping[str, str] = field(default_factory=lambda: STEPWISE)
    # Graphs of passes that were watched, as numbers of nodes of each kind: no others are trusted (lineage.py); and the
    # way to their attentions.
    graphs: dict[Graph, Route] = field(default_factory=dict, compare=False)


@dataclass
class Plans:
    """What is planned for passes of one kind each (with gradients, of several inputs), and how often it was wrong."""

    plans: dict[tuple[bool, bool], Plan] = field(default_factory=dict)
    misses: dict[tuple[bool, bool], int] = field(default_factory=dict)
    watched: bool = False  # autograd does not tell the attentions of a pass (lineage.py)

    def at(self, kind: tuple[bool, bool], fused: Sequence[tuple[str, tuple[str, str]]]) -> Plan | None:
        """fused: path and streams of attentions that are torch's own, if all of them are."""
        if kind not in self.plans and fused and not self.misses.get(kind):
            paths, streams = zip(*fused, strict=True)
            self.plans[kind] = Plan(paths=paths, streams=streams, watched=COUNTED)
        return self.plans.get(kind)

    def missed(self, kind: tuple[bool, bool]) -> None:
        self.plans.pop(kind, None)
        self.misses[kind] = self.misses.get(kind, 0) + 1

    def learn(self, kind: tuple[bool, bool], sites: Sequence[OpenSite], steps: Sequence[Step]) -> None:
        if self.misses.get(kind, 0) < GIVEN_UP:
            self.plans[kind] = Plan(tuple(map(PlannedSite.of, sites)), tuple(steps))
