"""ALTI: how near each token's contribution alone comes to what the attention block really put out."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from whyformer.engines.attention.chain import read
from whyformer.engines.attention.maps import product, real, row_normalized
from whyformer.engines.attention.value_vectors import Contributions, contributions, lifted
from whyformer.parameters import OneOf
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run
from whyformer.shapes import BQK

ORDERS = {"l1": 1, "l2": 2}


@method(
    paper="Ferrando, Gállego & Costa-jussà 2022, arXiv:2203.04212",
    needs={"attention", "values"},
    cost=constant(1, 0),
    cost_text="1 forward",
    signed=False,
    class_specific=False,
    specificity="attention",
    rowwise=lambda **options: True,
)
def alti(run: Run, *, norm: Annotated[str, OneOf(*ORDERS)] = "l1") -> Attribution:
    """How near each token's contribution alone comes to the attention block's output: rows of shares, multiplied.

    c_ij = max(0, ‖y_i‖ - ‖y_i - T_ij‖), divided by its sum over j; R = C_L ··· C_1, without added identity. T_ij holds
    the residual and the norm after it (value_norms at level "attn_res_ln"), y_i is the output of the attention half
    with all its biases. ``norm``: "l1" (the paper) or "l2".

    Misleads when: the MLP, which is left out, changes the vectors much, and when no single contribution points the way
    of the output: such rows are all zero and pass nothing on.
    """
    anatomy = run.anatomy()
    layers = []
    for site, block in anatomy.layers:
        parts = contributions(site, block, "attn_res_ln")
        near = proximity(parts, lifted(block.attended_BQE), ORDERS[norm])
        layers.append(row_normalized(real(near, run.attended_BN, site)))
    return read(run, product(layers), anatomy.record.sites[-1].first_query, layers)


def proximity(parts: Contributions, output_BQE: Tensor, order: int) -> BQK:
    """max(0, ‖y_i‖ - ‖y_i - T_ij‖), a few query rows at a time.

    NOTE[DIFF] the authors' distance adds 1e-6 to every difference (torch's pairwise_distance); ours does not.
    """
    chunks = []
    for rows, vectors_BQKE in parts.rows():
        output = output_BQE[:, rows, None]
        distance = torch.linalg.vector_norm(output - vectors_BQKE, ord=order, dim=-1)
        chunks.append((torch.linalg.vector_norm(output, ord=order, dim=-1) - distance).clamp(min=0))
    return torch.cat(chunks, 1)
