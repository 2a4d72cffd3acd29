"""Value norms vector by vector: Kobayashi et al. 2020 and 2021; GlobEnc (Modarressi et al. 2022) for level "enc"."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from tests.models import CASES
from tests.references.blocks import Block, Norm, blocks_of
from tests.references.eager_attention import reported
from tests.references.twin import FAMILY, TARGET, Twin, each


def contribution(block: Block, i: int, j: int, level: str, gradient: Tensor | None = None) -> Tensor:
    """T_ij: what token j adds to position i."""
    vector = torch.zeros(block.stream.shape[1], dtype=torch.float64)
    for h in range(len(block.attention)):
        weight = block.attention[h, i, j]
        if gradient is not None:
            weight = weight * max(float(gradient[h, i, j]), 0.0)
        vector = vector + weight * transformed(block)[h][j]
    if level == "attn":
        return vector
    if i == j:
        vector = vector + block.stream[i]
    if level == "attn_res" or block.norms is None:  # pre-norm: no norm between attention and the block's end
        return vector
    vector = linearised(block.norms[0], vector, i)
    return vector if level == "attn_res_ln" else linearised(block.norms[1], vector, i)


@cache
def transformed(block: Block) -> list[list[Tensor]]:
    """f(x_j) of each head."""
    heads, n, _ = block.value.shape
    return [[block.value[h, j] @ block.output[h] for j in range(n)] for h in range(heads)]


def linearised(norm: Norm, vector: Tensor, i: int) -> Tensor:
    """LayerNorm without its bias, divided by the standard deviation of what it really normalised."""
    spread = torch.sqrt(norm.before[i].var(unbiased=False) + norm.eps)
    return norm.gain * (vector - vector.mean()) / spread


@cache
def layer_map(block: Block, level: str, gradient: Tensor | None = None) -> Tensor:
    n = len(block.stream)
    norms = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            norms[i, j] = contribution(block, i, j, level, gradient).norm()
    return norms


def per_head(block: Block) -> Tensor:
    """(H, N, N) ‖α f(x)‖ of each head."""
    heads, n, _ = block.attention.shape
    norms = torch.zeros(heads, n, n, dtype=torch.float64)
    for h in range(heads):
        for j in range(n):
            length = transformed(block)[h][j].norm()
            for i in range(n):
                norms[h, i, j] = block.attention[h, i, j] * length
    return norms


def mixing_ratio(block: Block, level: str) -> Tensor:
    n = len(block.stream)
    ratios = torch.zeros(n, dtype=torch.float64)
    for i in range(n):
        others = sum(contribution(block, i, j, level) for j in range(n) if j != i)
        mixing, keeping = torch.as_tensor(others).norm(), contribution(block, i, i, level).norm()
        ratios[i] = mixing / (mixing + keeping)
    return ratios


def value_norms(blocks: list[Block], level: str = "enc", gradients: list[Tensor] | None = None) -> Tensor:
    """C_L ··· C_1."""
    whole = torch.eye(len(blocks[0].stream), dtype=torch.float64)
    for layer, block in enumerate(blocks):
        whole = layer_map(block, level, None if gradients is None else gradients[layer]) @ whole
    return whole


def expected(name: str, row: int, level: str = "enc", weight: str = "attention") -> dict[str, Tensor]:
    blocks = blocks_of(name, row)
    gradients = None
    if weight == "gradient":
        gradients = [torch.from_numpy(g) for g in reported(name, row, TARGET).gradient]
    whole = value_norms(blocks, level, gradients)
    return {
        "layers": torch.stack(
            [layer_map(b, level, None if gradients is None else gradients[i]) for i, b in enumerate(blocks)]
        ),
        "matrix": whole,
        "scores": whole[0 if CASES[name].readout == 0 else -1],
    }


LEVELS = ("attn", "attn_res", "attn_res_ln", "enc")
TWIN = Twin(expected, each(FAMILY, [*[{"level": level} for level in LEVELS], {"weight": "gradient"}], layers=True))
