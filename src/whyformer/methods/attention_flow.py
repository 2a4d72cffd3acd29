"""Attention flow: the maximum flow from an output, down the layers, to each input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch

from whyformer.engines.attention.maps import over_heads, real, with_residual
from whyformer.errors import BadInput
from whyformer.parameters import Limits, OneOf, Place
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run
from whyformer.shapes import Array

# Capacities are whole numbers of 2^-30, so each is exact to 5e-10, finer than the float32 maps they come from. Rows sum
# to one, so no flow exceeds 2^30, and even a doubled residual stays inside int32.
SCALE = 2**30


@method(
    paper="Abnar & Zuidema 2020, arXiv:2005.00928; joint: after Ethayarajh & Jurafsky 2021, arXiv:2105.14652",
    needs={"attention"},
    cost=constant(1, 0),
    cost_text="1 forward + N maximum flows per row",
    signed=False,
    class_specific=False,
    meaning="how much could flow from each part to the answer if attention were pipes",
    extra_cost=lambda units: units**2 / 100,
    slow=True,
)
def attention_flow(
    run: Run,
    *,
    joint: bool = False,
    rows: Annotated[str, OneOf("readout", "all")] = "readout",
    end_layer: Place = -1,
    normalize: bool = True,
    orders: Annotated[int, Limits(2, 10**6)] = 8,
) -> Attribution:
    """How much could flow from the output to each input if attention weights were the widths of pipes.

    Node (l, i) is position i after layer l; the pipe (l, i) → (l-1, j) holds rownorm(mean_h A_l + I)_ij. F_ij is the
    maximum flow from (L, i) to (0, j), each pair on its own, with the row divided by its sum (``normalize``).
    ``rows="all"`` solves all N² pairs and gives the whole map. ``end_layer`` is the layer flow starts from, numbered
    from 0. ``joint=True`` sends one maximum flow to all inputs at once, so that a row adds up to it; many such flows
    exist (rollout is one), and the one given is the mean over ``orders`` × N orders in which inputs claim their part.

    Misleads when: models are deep: nearly every pair can then carry what its narrowest end lets through, and scores
    follow the column sums of the first layer. It is the same for every class.
    """
    sites = run.record().sites
    if not -len(sites) <= end_layer < len(sites):
        raise BadInput(f"end_layer={end_layer!r}: the model has {len(sites)} layers, numbered 0 to {len(sites) - 1}.")
    sites = sites[: end_layer % len(sites) + 1]
    keep_BN, last = run.attended_BN, sites[-1]
    pipes = []
    for site in sites:
        fused = real(over_heads(site.attention_BHQK.float(), "mean"), keep_BN, site)
        layer = with_residual(fused, site.first_query, 0.5, normalize=True)
        pipes.append(layer.cpu().numpy().astype(np.float64))
    queries = last.attention_BHQK.shape[2]
    flow_BQK = np.zeros((len(keep_BN), queries, keep_BN.shape[1]))
    weights_BQ = run.readout_BN[:, last.first_query : last.first_query + queries].cpu().numpy()
    real_BN = keep_BN.cpu().numpy()
    wanted_BQ = real_BN[:, last.first_query : last.first_query + queries] if rows == "all" else weights_BQ > 0
    error_B = np.zeros(len(keep_BN))
    wanted = np.argwhere(wanted_BQ).tolist()
    for b, i in run.track(wanted, "attention_flow"):
        tokens = np.flatnonzero(real_BN[b])
        between = [layer[b][np.ix_(tokens, tokens)] for layer in pipes[:-1]]
        top_K = pipes[-1][b, i, tokens]
        if joint:
            flow_BQK[b, i, tokens], error = joint_flow_from(top_K, between, orders, run.seed)
            error_B[b] = max(error_B[b], error)
        else:
            inputs = run.track(range(len(tokens)), "attention_flow") if len(wanted) == 1 else None
            flow_BQK[b, i, tokens] = flow_from(top_K, between, inputs)
    if normalize:
        total = flow_BQK.sum(2, keepdims=True)
        flow_BQK = np.divide(flow_BQK, total, out=np.zeros_like(flow_BQK), where=total > 0)
    matrix = torch.from_numpy(flow_BQK).to(keep_BN.device, torch.float32)
    scores = torch.einsum("bq,bqk->bk", torch.from_numpy(weights_BQ).to(matrix), matrix)
    checks = {"split_error": torch.from_numpy(error_B)} if joint else {}
    return Attribution(scores, matrix_BQK=matrix if rows == "all" else None, checks=checks)


def flow_from(top_K: Array, layers: list[Array], inputs: Iterable[int] | None = None) -> Array:
    """Maximum flow from one output to each input: ``top_K`` are its own pipes, ``layers`` (K, K) those below.

    The first layer comes first; ``inputs`` are all of them if not given.
    """
    network = Network.of(top_K, layers)
    return np.array([network.flow_into([j]) for j in (range(len(top_K)) if inputs is None else inputs)])


def joint_flow_from(top_K: Array, layers: list[Array], orders: int, seed: int) -> tuple[Array, float]:
    """(K,) one maximum flow to all inputs, and the standard error of its split.

    Inputs claim what they can get one after the other; the split is the mean over orders (its Shapley value), which
    again is a maximum flow. In each drawn order everyone begins once, so the largest claims are weighed exactly.
    """
    network = Network.of(top_K, layers)
    inputs = network.last_EK.shape[1]
    total = network.flow_into(range(inputs))
    seen: dict[frozenset[int], float] = {}
    draws = np.zeros((orders, inputs))
    generator = np.random.default_rng(seed)
    for draw in draws:
        order = generator.permutation(inputs)
        for begin in range(inputs):
            flow = 0.0
            claimed: frozenset[int] = frozenset()
            for j in np.roll(order, begin).tolist():
                claimed |= {j}
                if claimed not in seen:
                    seen[claimed] = network.flow_into(claimed)
                draw[j] += (seen[claimed] - flow) / inputs
                flow = seen[claimed]
                if flow >= total:
                    break
    return draws.mean(0), float(draws.std(0, ddof=1).max() / np.sqrt(orders))


@dataclass
class Network:
    """The pipes between one output and the inputs.

    Node 0 is the output, then come the positions of each layer that it can reach, then a sink. Only the pipes into the
    sink depend on which inputs flow may reach, so the rest is built once. ``last_EK``: lowest pipes, from the E
    positions that were reached.
    """

    graph: Any  # None: a single layer, whose pipes lead straight to the inputs
    last_EK: Array

    @classmethod
    def of(cls, top_K: Array, layers: list[Array]) -> Network:
        from scipy.sparse import csr_array

        first, *inner = [np.rint(layer * SCALE).astype(np.int32) for layer in (top_K, *layers[::-1])]
        if not inner:
            return cls(None, first[None])
        reached = np.flatnonzero(first)
        leave, enter, width = [np.zeros(len(reached), int)], [1 + np.arange(len(reached))], [first[reached]]
        offset = 1  # first node of the level that was reached last
        for layer in inner[:-1]:
            block = layer[reached]
            below = np.flatnonzero(block.any(0))
            tail, head = np.nonzero(block[:, below])
            leave.append(offset + tail)
            enter.append(offset + len(reached) + head)
            width.append(block[:, below][tail, head])
            offset += len(reached)
            reached = below
        sink = offset + len(reached)
        leave.append(np.arange(offset, sink))
        enter.append(np.full(len(reached), sink))
        width.append(np.ones(len(reached), np.int32))
        # Pipes are in the order of the nodes they leave, as scipy wants them.
        pointers = np.searchsorted(np.concatenate(leave), np.arange(sink + 2)).astype(np.int32)
        pipes = (np.concatenate(width), np.concatenate(enter).astype(np.int32), pointers)
        return cls(csr_array(pipes, shape=(sink + 1, sink + 1)), inner[-1][reached])

    def flow_into(self, inputs: Iterable[int]) -> float:
        """Maximum flow to some of the inputs together."""
        from scipy.sparse.csgraph import maximum_flow

        open_E = self.last_EK[:, list(inputs)].sum(1, dtype=np.int32)
        if self.graph is None:
            return float(open_E[0] / SCALE)
        if not open_E.any():
            return 0.0
        self.graph.data[-len(open_E) :] = open_E  # the pipes into the sink come last, one per position
        return float(maximum_flow(self.graph, 0, self.graph.shape[0] - 1).flow_value / SCALE)
