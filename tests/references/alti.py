"""ALTI (Ferrando et al. 2022): a contribution counts by how near it alone comes to the block's output."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from tests.models import CASES
from tests.references.blocks import Block, blocks_of
from tests.references.twin import FAMILY, Twin, each
from tests.references.value_norms import contribution


@cache
def layer_map(block: Block, order: int = 1) -> Tensor:
    n = len(block.stream)
    shares = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        output = block.attended[i]
        for j in range(n):
            distance = torch.linalg.vector_norm(output - contribution(block, i, j, "attn_res_ln"), ord=order)
            shares[i, j] = max(float(torch.linalg.vector_norm(output, ord=order) - distance), 0.0)
        total = shares[i].sum()
        if total > 0:
            shares[i] = shares[i] / total
    return shares


def alti(blocks: list[Block], order: int = 1) -> Tensor:
    whole = torch.eye(len(blocks[0].stream), dtype=torch.float64)
    for block in blocks:
        whole = layer_map(block, order) @ whole
    return whole


def expected(name: str, row: int, norm: str) -> dict[str, Tensor]:
    blocks, order = blocks_of(name, row), {"l1": 1, "l2": 2}[norm]
    whole = alti(blocks, order)
    return {
        "layers": torch.stack([layer_map(b, order) for b in blocks]),
        "matrix": whole,
        "scores": whole[0 if CASES[name].readout == 0 else -1],
    }


TWIN = Twin(expected, each(FAMILY, [{"norm": "l1"}, {"norm": "l2"}], layers=True))
