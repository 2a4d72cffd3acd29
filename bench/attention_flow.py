"""Attention flow on scipy's maximum flow against networkx's Edmonds–Karp on the same pipes.

Both solve one row (one output, every input) of 6 layers × 24 tokens. networkx gets its graph ready-made; we start from
the maps. ``python -m bench.attention_flow`` prints times, the ratio, and how far the values are apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.timing import machine, ratios
from whyformer.methods.attention_maps import flow_from

LAYERS, TOKENS, HEADS = 6, 24, 8
ROUNDS = 3


def pipes() -> list[np.ndarray]:
    """Row-normalised head mean plus identity of random sharp attention."""
    generator = np.random.default_rng(0)
    attention = generator.dirichlet(np.full(TOKENS, 0.3), size=(LAYERS, HEADS, TOKENS)).mean(1)
    return list((attention + np.eye(TOKENS)) / 2)


def networkx_graph(layers: list[np.ndarray]) -> Any:
    import networkx

    graph = networkx.DiGraph()
    for number, layer in enumerate(layers, 1):
        for i, row in enumerate(layer):
            for j, width in enumerate(row):
                graph.add_edge((number, i), (number - 1, j), capacity=float(width))
    return graph


def networkx_row(graph: Any) -> np.ndarray:
    import networkx
    from networkx.algorithms.flow import edmonds_karp

    source = (LAYERS, 0)
    flows = [networkx.maximum_flow_value(graph, source, (0, j), flow_func=edmonds_karp) for j in range(TOKENS)]
    return np.array(flows)


def main() -> None:
    layers = pipes()
    graph = networkx_graph(layers)
    found: dict[str, np.ndarray] = {}

    def peer() -> None:
        found["networkx"] = networkx_row(graph)

    def ours() -> None:
        found["whyformer"] = flow_from(layers[-1][0], layers[:-1])

    measured = ratios({"networkx": peer, "whyformer": ours}, ROUNDS)
    apart = np.abs(found["networkx"] - found["whyformer"]).max()
    print(f"attention flow, one row, {LAYERS} layers × {TOKENS} tokens ({machine()})")
    print(f"  networkx Edmonds–Karp  {measured['networkx', '']:9.4f} s")
    print(f"  whyformer              {measured['whyformer', '']:9.4f} s")
    print(f"  {measured['networkx', 'whyformer']:.0f} × faster (wanted: 100 ×); values differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
