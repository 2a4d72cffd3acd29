"""Attention combined across layers: raw_attention, attention_rollout, gradient_rollout and generic_attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.functions import HeadFusion
from whyformer.engines.attention import chain as chains
from whyformer.engines.attention import maps as mapped
from whyformer.errors import BadInput, NotOffered
from whyformer.methods.value_contributions import mixing_ratio
from whyformer.parameters import Limits, OneOf, Place, Share
from whyformer.registry import constant, method, one_backward, one_forward
from whyformer.run import Attribution, Run
from whyformer.shapes import AnyBQK, Array
from whyformer.study.schedule import Schedule

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
    meaning="maximum flow from the output to each token, with attention as capacity",
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
    """Compute the maximum flow from the output position to each token, with attention weights as edge capacities.

    Node (l, i) is position i after layer l; the edge (l, i) → (l-1, j) has capacity rownorm(mean_h A_l + I)_ij. F_ij is
    the maximum flow from (L, i) to (0, j), solved for each pair separately; rows are divided by their sum
    (``normalize``). ``rows="all"`` solves all N² pairs and returns the full map. ``end_layer``: the layer where the
    flow starts, counted from 0. ``joint=True`` computes one maximum flow to all tokens at once, so that a row sums to
    the total flow. That flow is not unique (rollout is one solution): the result is the mean over ``orders`` × N orders
    in which tokens receive flow.

    Misleads when: the model is deep. Nearly every pair can then carry the full flow, and the scores follow the column
    sums of the first layer. The scores are the same for every class.
    """
    sites = run.record().sites
    if not -len(sites) <= end_layer < len(sites):
        raise BadInput(f"end_layer={end_layer!r}: the model has {len(sites)} layers, numbered 0 to {len(sites) - 1}.")
    sites = sites[: end_layer % len(sites) + 1]
    keep_BN, last = run.attended_BN, sites[-1]
    pipes = []
    for site in sites:
        fused = mapped.real(mapped.over_heads(site.attention_BHQK.float(), "mean"), keep_BN, site)
        layer = mapped.with_residual(fused, site.first_query, 0.5, normalize=True)
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
    """Return the maximum flow from one output to each of ``inputs`` (default: all).

    ``top_K`` are the edges of the output, ``layers`` (K, K) those below, the first layer first.
    """
    network = FlowNetwork(top_K, layers)
    return np.array([network.flow_into([j]) for j in (range(len(top_K)) if inputs is None else inputs)])


def joint_flow_from(top_K: Array, layers: list[Array], orders: int, seed: int) -> tuple[Array, float]:
    """Return (K,) one maximum flow to all inputs, and the standard error of its split.

    Inputs receive their maximum flow one after the other; the split is the mean over orders (the Shapley value), which
    is a maximum flow too. All rotations of a drawn order are used, so that each input is first equally often.
    """
    network = FlowNetwork(top_K, layers)
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


class FlowNetwork:
    """The edges between one output and the inputs.

    Node 0 is the output, then come the positions of each layer that it can reach, then a sink. Only the pipes into the
    sink depend on which inputs flow may reach, so the rest is built once. ``last_EK``: lowest pipes, from the E
    positions that were reached.
    """

    def __init__(self, top_K: Array, layers: list[Array]) -> None:
        from scipy.sparse import csr_array

        first, *inner = [np.rint(layer * SCALE).astype(np.int32) for layer in (top_K, *layers[::-1])]
        self.graph: Any = None  # a single layer, whose edges lead straight to the inputs
        self.last_EK: Array = first[None]
        if not inner:
            return
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
        # Edges are in the order of the nodes they leave, as scipy requires.
        pointers = np.searchsorted(np.concatenate(leave), np.arange(sink + 2)).astype(np.int32)
        pipes = (np.concatenate(width), np.concatenate(enter).astype(np.int32), pointers)
        self.graph, self.last_EK = csr_array(pipes, shape=(sink + 1, sink + 1)), inner[-1][reached]

    def flow_into(self, inputs: Iterable[int]) -> float:
        """Return the maximum flow to several inputs together."""
        from scipy.sparse.csgraph import maximum_flow

        open_E = self.last_EK[:, list(inputs)].sum(1, dtype=np.int32)
        if self.graph is None:
            return float(open_E[0] / SCALE)
        if not open_E.any():
            return 0.0
        self.graph.data[-len(open_E) :] = open_E  # the edges into the sink come last, one per position
        return float(maximum_flow(self.graph, 0, self.graph.shape[0] - 1).flow_value / SCALE)


@one_forward(
    paper="Bahdanau, Cho & Bengio 2015, arXiv:1409.0473; readings after Gorishniy 2021, Borisov 2022, Mylonas 2022",
    needs={"attention"},
    rowwise=lambda *, read, **options: read == "row",
    folds=chains.readable_folded,
    meaning="attention weights at the output position",
    space="attention",
    compiles=True,
)
def raw_attention(
    run: Run,
    *,
    layers: mapped.Layers = "last",
    heads: mapped.Heads = "mean",
    read: Annotated[str, OneOf(*chains.READINGS)] = "row",
) -> Attribution:
    """Return attention weights, averaged over heads, at the output position.

    ``layers``: "last", "mean", "product" (A_L···A_1 without residual), a number, or a list (its mean). ``heads``:
    "mean", "max", "min", "sum", a number, or a list (its mean). ``read``: "row" (what the output position attends to),
    "column" (attention to the output position), "column_mean", "column_sum", "column_max" (attention received),
    "diagonal". With several streams, layers are counted per pair of streams, and only "row" is available.

    Misleads when: earlier layers have mixed the tokens, so a weight on a position is not a weight on its token. The
    scores are the same for every class.
    """
    if (run.multi_stream or run.windowed) and (read != "row" or layers == "product"):
        raise NotOffered(
            "with several streams of tokens, or attention inside windows, raw attention is read by row, layer by "
            "layer: read='row' and layers='last', 'mean', a number or a list."
        )
    return chains.read_layers(run, chains.attention_heads(heads), layers, read, streams=True)


@one_forward(
    paper="Abnar & Zuidema 2020, arXiv:2005.00928",
    needs={"attention"},
    rowwise=lambda *, discard, **options: not discard,
    folds=lambda *, discard, residual, **options: not discard and not isinstance(residual, str),
    meaning="attention combined across layers, the same for every class",
    space="rollout",
    compiles=True,
)
def attention_rollout(
    run: Run,
    *,
    heads: mapped.Heads = "mean",
    residual: Share | Annotated[str, OneOf("mixing")] = 0.5,
    normalize: bool = True,
    discard: Annotated[float, Limits(0, 1, open_high=True)] = 0.0,
    start_layer: Place = 0,
    protect_special: bool = False,
) -> Attribution:
    """Multiply the attention maps of all layers, with a residual share: R = Â_L ··· Â_1.

    Â_l = rownorm((1-a)·fuse_h A_l + a·I), a = ``residual``. ``residual="mixing"`` measures the share instead: in row i,
    the mixing ratio r_i of the block (value_norms) goes to the other positions and 1 - r_i stays (W-Res in GlobEnc).
    ``heads``: "mean", "max", "min", "sum", one head or a list. ``normalize=False`` uses A + I; with heads="mean" this
    is the same map times 2^L. ``discard``: fraction of the smallest entries of each fused map that is set to zero;
    ``protect_special`` exempts rows and columns of special tokens. ``start_layer`` skips earlier layers.

    With several streams, each stream has its own rollout; stream s reads stream q by R_ss^T A R_qq, with A the last
    cross-attention between them (the baseline of Chefer, Gur & Wolf 2021).

    Misleads when: values and MLPs do more than mix tokens (they do), and on deep models, where the rows of the product
    become alike. The scores are the same for every class.
    """
    if (run.multi_stream or run.windowed) and discard:
        raise NotOffered("discard needs one stream of plain self-attention: use discard=0 on this model.")
    share = 0.0 if isinstance(residual, str) else residual
    if isinstance(residual, str) and not normalize:
        raise BadInput('residual="mixing" gives rows that sum to 1 by themselves: leave normalize at True.')
    return chains.chain(
        run,
        chains.attention_heads(heads),
        residual=mixing_ratio(run, "enc") if isinstance(residual, str) else residual,
        normalize=normalize,
        start_layer=start_layer,
        discard=discard,
        protect_special=protect_special,
        streams=partial(_rolled_out, residual=share, normalize=normalize),
    )


def _rolled_out(
    schedule: Schedule, maps: Mapping[int, AnyBQK], keep: Mapping[str, Tensor], residual: float, normalize: bool
) -> mapped.Maps:
    """Compute a rollout per stream, and join two streams by the last cross-attention between them."""
    mix = partial(mapped.with_residual, first_query=0, residual=residual, normalize=normalize)
    return mapped.rollout_relevance(schedule, *mapped.own_and_cross(schedule, maps, keep, mix), keep)


@one_backward(
    paper="Gildenblat 2020, github.com/jacobgil/vit-explain",
    needs={"attention_gradients"},
    signed=False,
    folds=lambda *, discard, **options: not discard,
    meaning="attention rollout of gradient-weighted attention",
    space="rollout",
    compiles=True,
)
def gradient_rollout(
    run: Run,
    *,
    heads: mapped.Heads = "mean",
    discard: Annotated[float, Limits(0, 1, open_high=True)] = 0.0,
    start_layer: Place = 0,
    protect_special: bool = False,
) -> Attribution:
    """Multiply gradient-weighted attention maps of all layers, with a residual share: R = Â_L ··· Â_1.

    Â_l = rownorm((F_l + I)/2), F_l = ReLU(fuse_h(A_l ∘ ∂s/∂A_l)). ``heads``: "mean", "max", "min", "sum", a head or a
    list. ``discard``: fraction of the smallest entries of each F_l that is set to zero; ``protect_special`` exempts
    rows and columns of special tokens. ``start_layer`` skips earlier layers.

    Misleads when: gradients are small compared with 1, as they usually are: the identity dominates, each position keeps
    most of its own score, and only the ranking of the others is informative. Heads are fused before the clamp, so
    positive and negative heads cancel.
    """
    # NOTE[DIFF] the authors' code multiplies layer l's attention by layer L-1-l's gradient (issue #6); here each layer
    # has its own.
    weighted = HeadFusion(lambda attention, gradient: mapped.over_heads(attention * gradient, heads).clamp(min=0), True)
    # NOTE[DIFF] the authors discard in the first input only, by indices of the whole batch; here in each its own.
    # NOTE[DIFF] the authors divide column j by the sum of row j (a missing keepdim); here rows sum to one.
    return chains.chain(
        run, weighted, normalize=True, start_layer=start_layer, discard=discard, protect_special=protect_special
    )


@one_backward(
    paper="Chefer, Gur & Wolf 2021 (ICCV), arXiv:2103.15679",
    needs={"attention_gradients"},
    signed=False,
    folds=lambda **options: True,
    meaning="gradient-weighted attention, combined across layers",
    space="rollout",
    compiles=True,
)
def generic_attention(
    run: Run,
    *,
    start_layer: Place = 0,
    heads: mapped.Heads = "mean",
    normalize_cross: bool = True,
    self_in_rule_10: bool = True,
) -> Attribution:
    """Combine gradient-weighted attention across layers: R = (I + Ā_L) ··· (I + Ā_1).

    Ā_l = mean_h max(0, A_l ∘ ∂s/∂A_l) (eqs. 5 and 6). ``start_layer`` skips earlier layers; ``heads``: "mean", "max",
    "min", "sum", one head, or the mean of a list. For cross-attention from stream s to stream q: R_sq += R̄_ss^T Ā
    R̄_qq (eq. 10) and R_ss += Ā R_qs (eq. 11), with R̄ the normalised self relevance (eqs. 8 and 9;
    ``normalize_cross=False`` uses R, ``self_in_rule_10=False`` adds Ā alone).

    Misleads when: the scale of the output changes (a temperature, or a probability instead of the logit, changes the
    ranking), and when evidence against the class matters: it is clamped to zero.
    """
    rules = partial(mapped.generic_relevance, normalize_cross=normalize_cross, self_in_rule_10=self_in_rule_10)
    return chains.chain(run, chains.raised_heads(heads), start_layer=start_layer, streams=rules)
