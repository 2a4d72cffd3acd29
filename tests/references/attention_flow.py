"""Attention flow as the paper has it: a graph of pipes, and augmenting paths (Edmonds & Karp) for every pair."""

from __future__ import annotations

from collections import deque
from itertools import permutations
from typing import Any

import numpy as np

from tests.references.eager_attention import reported, reported_by_columns
from tests.references.twin import FAMILY, TARGET, Twin, each

Array = np.ndarray
Node = tuple[int, int]
Graph = dict[Node, dict[Node, float]]
EVERYWHERE = (-1, 0)  # a sink behind some of the inputs


def pipes(attention: list[Array], offset: int = 0) -> list[Array]:
    """(head mean + I) / row sum, per layer; ``offset``: the position whose row a one-row layer holds."""
    result = []
    for layer in attention:
        _, queries, keys = layer.shape
        pipe = np.zeros((queries, keys))
        for i in range(queries):
            own = i + (offset if queries < keys else 0)
            for j in range(keys):
                pipe[i, j] = layer[:, i, j].mean() + (1.0 if j == own else 0.0)
            pipe[i] /= pipe[i].sum()
        result.append(pipe)
    return result


def attention_flow(attention: list[Array], rows: list[int] | None = None, normalize: bool = True) -> Array:
    """attention: per layer (H, Q, K) of one input. The flow (rows, K)."""
    layers = pipes(attention)
    top, inputs = len(layers), layers[0].shape[1]
    flow = np.zeros((layers[-1].shape[0] if rows is None else len(rows), inputs))
    for place, i in enumerate(range(layers[-1].shape[0]) if rows is None else rows):
        for j in range(inputs):
            flow[place, j] = maximum_flow(graph_of(layers), (top, i), (0, j))
        if normalize:
            flow[place] /= flow[place].sum()
    return flow


def joint_flow(attention: list[Array], row: int) -> Array:
    """The Shapley value of "how much can flow to these inputs together", over all orders."""
    layers = pipes(attention)
    top, inputs = len(layers), layers[0].shape[1]
    value = {}
    for mask in range(2**inputs):
        graph = graph_of(layers)
        for j in range(inputs):
            if mask >> j & 1:
                graph[0, j] = {EVERYWHERE: 9.0}
        value[mask] = maximum_flow(graph, (top, row), EVERYWHERE)
    share = np.zeros(inputs)
    orders = list(permutations(range(inputs)))
    for order in orders:
        mask = 0
        for j in order:
            share[j] += (value[mask | 1 << j] - value[mask]) / len(orders)
            mask |= 1 << j
    return share


def graph_of(layers: list[Array]) -> Graph:
    """Node (l, i): position i after layer l."""
    graph: Graph = {}
    for number, layer in enumerate(layers, 1):
        for i, row in enumerate(layer):
            graph[number, i] = {(number - 1, j): float(row[j]) for j in range(len(row)) if row[j] > 0}
    return graph


def maximum_flow(graph: Graph, source: Node, sink: Node) -> float:
    left = {node: dict(edges) for node, edges in graph.items()}
    total = 0.0
    while path := shortest_path(left, source, sink):
        amount = min(left[a][b] for a, b in path)
        for a, b in path:
            left[a][b] -= amount
            back = left.setdefault(b, {})
            back[a] = back.get(a, 0.0) + amount
        total += amount
    return total


def shortest_path(left: Graph, source: Node, sink: Node) -> list[tuple[Node, Node]]:
    came: dict[Node, Node] = {source: source}
    queue = deque([source])
    while queue and sink not in came:
        node = queue.popleft()
        for after, capacity in left.get(node, {}).items():
            if capacity > 1e-13 and after not in came:
                came[after] = node
                queue.append(after)
    if sink not in came:
        return []
    path = []
    while sink != source:
        path.append((came[sink], sink))
        sink = came[sink]
    return path[::-1]


def expected(name: str, row: int, rows: str = "read", normalize: bool = True) -> dict[str, Any]:
    if name == "rtdl_ft_transformer":  # its last layer has one row
        return {"scores": attention_flow(reported_by_columns(name, row, TARGET).attention)[0]}
    known = reported(name, row, TARGET)
    if rows == "all":
        whole = attention_flow(known.attention, normalize=normalize)
        return {"matrix": whole, "scores": whole[known.row]}
    return {"matrix": None, "scores": attention_flow(known.attention, [known.row], normalize)[0]}


TWIN = Twin(
    expected,
    [
        *each((*FAMILY, "rtdl_ft_transformer"), double=False),
        *each(("bert", "gpt2"), [{"rows": "all", "normalize": False}], double=False),
    ],
)
