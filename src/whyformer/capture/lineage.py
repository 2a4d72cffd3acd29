"""The lineage of a pass: its attentions, read from what autograd remembers of it after the model ran by itself.

Where all attentions are torch's own kernels, nothing has to be watched while the model runs: autograd holds what each
kernel was given, and knows where the gradient of its result arrives. To be asked about each of the hundreds of calls of
a pass takes Python longer than a GPU takes to compute a short input. But a graph does not show what is outside of it (a
map under no_grad, a function of someone's own), so a pass is trusted only if one with as many nodes of every kind was
watched.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from whyformer.capture.fused import FusedCall
from whyformer.capture.leaves import nodes_behind
from whyformer.capture.plan import Graph, OffPlan, Plan
from whyformer.capture.roles import Recorder

# Torch's kernels, by their node in the graph: where it holds the mask, if it can have one.
KERNELS = {
    "ScaledDotProductFlashAttentionForCpuBackward0": "_saved_attn_mask",
    "ScaledDotProductFlashAttentionBackward0": "",
    "ScaledDotProductEfficientAttentionBackward0": "_saved_attn_bias",
    "ScaledDotProductCudnnAttentionBackward0": "_saved_attn_bias",
}
SMALL = 2**24  # numbers of maps: more of them are made when the pass has let go of what it held
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

    def __enter__(self) -> Lineage:  # no function mode: nothing is asked about
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def read(self, logits: Tensor) -> None:
        """Find the sites that the plan foresees, each a call over all positions with several heads, and no others."""
        assert self.plan is not None
        graph, nodes = graph_of(logits)
        if graph not in self.plan.graphs:
            raise Unseen
        if len(nodes) != len(self.plan.paths):
            raise Unread
        for node in nodes:
            try:
                site = self.foreseen(call_of(node))
            except OffPlan as error:
                raise Unread from error
            site.edge = GradientEdge(node, 0)
            self.sites.append(site)
        if sum(math.prod(site.call.shape) for site in self.sites if site.call is not None) <= SMALL:
            self.meanwhile += (self.weigh,)


def graph_of(logits: Tensor) -> tuple[Graph, list[Any]]:
    """How many nodes of each kind a pass made; and those of torch's attention kernels, in the order they ran in."""
    if logits.grad_fn is None:
        raise Unread
    seen = nodes_behind(logits.grad_fn)
    kinds = Counter(map(type, seen))
    kernels = {kind for kind in kinds if kind.__name__ in KERNELS}
    nodes = sorted((node for node in seen if type(node) in kernels), key=lambda node: node._sequence_nr())
    return frozenset((f"{kind.__module__}.{kind.__qualname__}", count) for kind, count in kinds.items()), nodes


def readable(logits: Tensor, plan: Plan) -> Graph | None:
    """The graph of a pass that was watched, if it tells all attentions that the plan foresees."""
    try:
        graph, nodes = graph_of(logits)
        return graph if len([call_of(node) for node in nodes]) == len(plan.paths) else None
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
