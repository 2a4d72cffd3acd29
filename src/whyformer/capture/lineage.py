"""The lineage of a pass: its attentions, read from what autograd remembers of it after the model ran by itself.

Where all attentions are torch's own kernels, nothing has to be watched while the model runs: autograd holds what each
kernel was given, and knows where the gradient of its result arrives. To be asked about each of the hundreds of calls of
a pass takes Python longer than a GPU takes to compute a short input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from whyformer.capture.fused import FusedCall
from whyformer.capture.intercept import SQUARE
from whyformer.capture.plan import Plan, Route, Turn
from whyformer.capture.roles import Recorder
from whyformer.capture.site import Layout, OpenSite

# Torch's kernels, by their node in the graph: where it holds the mask, if it can have one.
KERNELS = {
    "ScaledDotProductFlashAttentionForCpuBackward0": "_saved_attn_mask",
    "ScaledDotProductFlashAttentionBackward0": "",
    "ScaledDotProductEfficientAttentionBackward0": "_saved_attn_bias",
    "ScaledDotProductCudnnAttentionBackward0": "_saved_attn_bias",
}
ELSEWHERE = {"SoftmaxBackward0", "CheckpointFunctionBackward"}  # attention that is written out, or out of sight


class Unread(Exception):
    """Autograd does not tell all attentions of this pass: it has to be watched."""


class Lineage(Recorder):
    """Attentions of a pass that nothing watched, with their gradients.

    leaf: a weight from which everything comes, so that frozen models have a graph, too.
    """

    watches = False

    def __init__(self, batch: int, names: dict[int, str], *, plan: Plan, leaf: nn.Parameter) -> None:
        super().__init__(batch, names)
        self.plan, self.leaf = plan, leaf

    def __enter__(self) -> Lineage:  # no function mode: nothing is asked about
        self.leaf.requires_grad_(True)
        first = self.leaf.view_as(self.leaf).grad_fn  # nodes are numbered as they are made
        self.begun = 0 if first is None else first._sequence_nr()
        return self

    def __exit__(self, *exc: object) -> None:
        self.leaf.requires_grad_(False)

    def read(self, logits: Tensor) -> None:
        """Find the sites that the plan foresees, each a call over all positions with several heads, and no others."""
        assert self.plan is not None
        nodes, paths = kernels_of(logits, self.begun, self.plan.route), self.plan.paths
        if len(nodes) != len(paths):
            raise Unread
        placeholder = layout = None
        for path, node in zip(paths, nodes, strict=True):
            call = call_of(node)
            shape = call.shape
            if len(shape) != 4 or shape[2] != shape[3] or shape[0] != self.batch or shape[1] == 1:
                raise Unread
            if placeholder is None or placeholder.shape != shape:
                placeholder = torch.empty(shape, dtype=call.query.dtype, device="meta")
                layout = Layout((0, 1, 2, 3), shape[:2], ("B", "H"), 1, shape[1])
            assert layout is not None
            site = OpenSite(path, placeholder, call.value, layout, SQUARE, (None, None), False)
            site.call, site.waits, site.edge = call, True, GradientEdge(node, 0)
            self.sites.append(site)


def kernels_of(logits: Tensor, begun: int, route: Route) -> list[Any]:
    """Nodes of torch's attention kernels, in the order in which they ran.

    begun: the number of the last node before the pass. route: how they were reached in the last one. A pass that made
    as many nodes, and as many between any two kernels, is the same again; any other is looked through.
    """
    root = logits.grad_fn
    if root is None:
        raise Unread
    made = root._sequence_nr()
    nodes = _reached(root, route.turns) if route.made == made - begun else []
    if not nodes:
        nodes, ways = _found(root)
        route.turns, route.made = _route(root, nodes, ways), made - begun
    return nodes[::-1]


def _reached(root: Any, turns: list[Turn]) -> list[Any]:
    """The kernels at the ends of a route, last first; none where it leads elsewhere."""
    nodes: list[Any] = []
    made = root._sequence_nr()
    try:
        for start, edges, behind in turns:
            node = root if start < 0 else nodes[start]
            for edge in edges:
                node = node.next_functions[edge][0]
            if type(node).__name__ not in KERNELS or made - node._sequence_nr() != behind:
                return []
            nodes.append(node)
    except (IndexError, AttributeError):
        return []
    return nodes


def _found(root: Any) -> tuple[list[Any], dict[Any, tuple[Any, int]]]:
    """The kernels, last first, and from where and by which edge each node was met."""
    ways: dict[Any, tuple[Any, int]] = {root: (None, 0)}
    stack = [root]
    while stack:
        here = stack.pop()
        for edge, (node, _) in enumerate(here.next_functions):
            if node is not None and node not in ways:
                ways[node] = here, edge
                stack.append(node)
    kinds = set(map(type, ways))
    if any(kind.__name__ in ELSEWHERE for kind in kinds):
        raise Unread
    kernels = {kind for kind in kinds if kind.__name__ in KERNELS}
    return sorted((node for node in ways if type(node) in kernels), key=lambda node: -node._sequence_nr()), ways


def _route(root: Any, nodes: list[Any], ways: dict[Any, tuple[Any, int]]) -> list[Turn]:
    places = {node: number for number, node in enumerate(nodes)} | {root: -1}
    made, turns = root._sequence_nr(), list[Turn]()
    for node in nodes:
        edges: list[int] = []
        here, edge = ways[node]
        edges.append(edge)
        while here not in places:
            here, edge = ways[here]
            edges.append(edge)
        if places[here] >= len(turns):  # met from one that ran before it: no way from the end
            return []
        turns.append(Turn(places[here], tuple(edges[::-1]), made - node._sequence_nr()))
    return turns


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
