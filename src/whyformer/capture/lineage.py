"""The lineage of a pass: its attentions, read from what autograd remembers of it after the model ran by itself.

Where all attentions are torch's own kernels, nothing has to be watched while the model runs: autograd holds what each
kernel was given, and knows where the gradient of its result arrives. To be asked about each of the hundreds of calls of
a pass takes Python longer than a GPU takes to compute a short input. But a graph does not show what is outside of it (a
map under no_grad, a function of someone's own), so a pass is trusted only if one with as many nodes of every kind was
watched. To walk through all of it takes a millisecond or two, so attentions are found by the way that led to them
last time; the walk that confirms it is made when a GPU has been told everything, and Python would only wait.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from whyformer.capture.functions import FusedCall
from whyformer.capture.leaves import nodes_behind
from whyformer.capture.roles import Recorder
from whyformer.capture.site import Graph, OffPlan, Plan, Route

# Torch's kernels, by their node in the graph: where it holds the mask, if it can have one.
KERNELS = {
    "ScaledDotProductFlashAttentionForCpuBackward0": "_saved_attn_mask",
    "ScaledDotProductFlashAttentionBackward0": "",
    "ScaledDotProductEfficientAttentionBackward0": "_saved_attn_bias",
    "ScaledDotProductCudnnAttentionBackward0": "_saved_attn_bias",
}
MOST = 8  # graphs of one model: what takes another way so often is watched


class Unread(Exception):
    """Autograd does not tell all attentions of such passes: they have to be watched."""


class Unseen(Unread):
    """No pass like this one was watched yet."""


@contextlib.contextmanager
def rooted(leaf: nn.Parameter) -> Iterator[None]:
    """A frozen model has a graph, from this weight on."""
    leaf.requires_grad_(True)
    try:
        yield
    except Exception as error:
        said = str(error.__cause__ or error)
        if "leaf Variable" in said and "in-place" in said:  # the model writes into its weight
            raise Unread from error
        raise
    finally:
        leaf.requires_grad_(False)


class Lineage(Recorder):
    """Attentions of a pass that nothing watched, with their gradients.

    leaf: a weight from which everything comes, so that frozen models have a graph, too.
    """

    watches = False

    def __init__(self, batch: int, names: dict[int, str], *, plan: Plan, leaf: nn.Parameter) -> None:
        super().__init__(batch, names)
        self.plan, self.leaf = plan, leaf
        self._unconfirmed: tuple[Tensor, list[Any]] | None = None  # logits, and what seems to be behind them

    def __enter__(self) -> Lineage:  # no function mode: nothing is asked about
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def read(self, logits: Tensor) -> None:
        """Find the sites that the plan foresees, each a call over all positions with several heads, and no others."""
        assert self.plan is not None
        routes = set(self.plan.graphs.values())
        nodes = routed(logits.grad_fn, routes.pop()) if len(routes) == 1 else None
        if nodes is None:
            nodes = self._confirmed(logits)
        else:
            self._unconfirmed = logits, nodes
        for node in nodes:
            try:
                site = self.foreseen(call_of(node))
            except OffPlan as error:
                raise Unread from error
            site.edge = GradientEdge(node, 0)
            self.sites.append(site)

    def confirm(self) -> None:
        """What was found by a route is what the whole graph holds; once."""
        if self._unconfirmed is not None:
            (logits, taken), self._unconfirmed = self._unconfirmed, None
            self._confirmed(logits, taken)

    def _confirmed(self, logits: Tensor, taken: list[Any] | None = None) -> list[Any]:
        """All attentions, of a graph that is known."""
        assert self.plan is not None
        graph, nodes = graph_of(logits)
        if graph not in self.plan.graphs:
            raise Unseen
        if len(nodes) != len(self.plan.paths):
            raise Unread
        if taken is not None and nodes != taken:
            self.plan.graphs[graph] = ()  # as many nodes, put together otherwise: no route will be taken any more
            raise Unseen
        return nodes


def routed(start: Any, route: Route) -> list[Any] | None:
    """The attentions that a route leads to, in the order they ran in; None: it leads elsewhere here."""
    nodes: list[Any] = []
    node = start
    for steps in route:
        for step in steps:
            behind = () if node is None else node.next_functions
            if step >= len(behind):
                return None
            node = behind[step][0]
        if type(node).__name__ not in KERNELS:
            return None
        nodes.append(node)
    return nodes[::-1] if nodes else None


def route_to(start: Any, nodes: Sequence[Any]) -> Route:
    """The shortest way from a node to the last attention, from there to the one before it, and so on; () if there is
    none, as between attentions that run side by side."""
    ways: list[tuple[int, ...]] = []
    for goal in reversed(nodes):
        came: dict[Any, tuple[Any, int]] = {}
        waiting = deque([start])
        while waiting and goal not in came and start is not goal:
            node = waiting.popleft()
            for step, (behind, _) in enumerate(node.next_functions):
                if behind is not None and behind is not start and behind not in came:
                    came[behind] = node, step
                    waiting.append(behind)
        if goal not in came:
            return ()
        steps, node = [], goal
        while node is not start:
            node, step = came[node]
            steps.append(step)
        ways.append(tuple(reversed(steps)))
        start = goal
    return tuple(ways)


def graph_of(logits: Tensor) -> tuple[Graph, list[Any]]:
    """How many nodes of each kind a pass made; and those of torch's attention kernels, in the order they ran in."""
    if logits.grad_fn is None:
        raise Unread
    seen = nodes_behind(logits.grad_fn)
    kinds = Counter(map(type, seen))
    kernels = {kind for kind in kinds if kind.__name__ in KERNELS}
    nodes = sorted((node for node in seen if type(node) in kernels), key=lambda node: node._sequence_nr())
    return frozenset((f"{kind.__module__}.{kind.__qualname__}", count) for kind, count in kinds.items()), nodes


def readable(logits: Tensor, plan: Plan) -> tuple[Graph, Route] | None:
    """The graph of a pass that was watched, if it tells all attentions that the plan foresees, and the way to them."""
    try:
        graph, nodes = graph_of(logits)
        if len([call_of(node) for node in nodes]) != len(plan.paths):
            return None
        return graph, plan.graphs.get(graph, route_to(logits.grad_fn, nodes))
    except Unread:
        return None


def call_of(node: Any) -> FusedCall:
    """What a kernel was given. With a mask it is watched: calls that share one are computed together there."""
    where = KERNELS[type(node).__name__]
    try:
        if where and getattr(node, where) is not None:
            raise Unread
        query, key, value = node._saved_query, node._saved_key, node._saved_value
    except RuntimeError as error:  # the model wrote over it since
        raise Unread from error
    return FusedCall(query, key, value, None, node._saved_is_causal, node._saved_scale)
