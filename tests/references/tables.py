"""Readings of a table's attention, one entry at a time: what the papers on tabular transformers do with a row.

``maps[l]`` is (H, Q, K); a last layer that asks for one row only has Q = 1, and that row belongs to position
``rows[0]``. ``rows`` are the positions that feed the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def head_mean(map_HQK: Array) -> Array:
    heads, queries, keys = map_HQK.shape
    mean = np.zeros((queries, keys))
    for h in range(heads):
        for i in range(queries):
            for j in range(keys):
                mean[i, j] += map_HQK[h, i, j] / heads
    return mean


def readout(map_QK: Array, rows: Sequence[int]) -> Array:
    """The mean of the rows that feed the head; the only row there is, where a layer has one."""
    if len(map_QK) == 1:
        return map_QK[0]
    return sum(map_QK[i] for i in rows) / len(rows)


def mean_of_layers(maps: Sequence[Array], rows: Sequence[int]) -> Array:
    """Gorishniy et al. 2021, section 5.3: p = mean over heads and layers of the class token's row."""
    return sum(readout(head_mean(m), rows) for m in maps) / len(maps)


def first_layer(maps: Sequence[Array], rows: Sequence[int]) -> Array:
    return readout(head_mean(maps[0]), rows)


def diagonal(maps: Sequence[Array]) -> Array:
    """Borisov et al. 2022 on SAINT and TabTransformer: what each column pays to itself in the first layer."""
    mean = head_mean(maps[0])
    return np.array([mean[i, i] for i in range(len(mean))])


def column_sum(maps: Sequence[Array]) -> Array:
    """The same, summed over who asks."""
    mean = head_mean(maps[0])
    return np.array([sum(mean[i, j] for i in range(len(mean))) for j in range(mean.shape[1])])


def rollout(maps: Sequence[Array], rows: Sequence[int]) -> Array:
    joint = np.eye(maps[0].shape[2])
    for map_HQK in maps:
        joint = with_identity(0.5 * head_mean(map_HQK), 0.5, rows) @ joint
    return readout(joint, rows)


def generic_attention(maps: Sequence[Array], gradients: Sequence[Array], rows: Sequence[int]) -> Array:
    joint = np.eye(maps[0].shape[2])
    for map_HQK, gradient_HQK in zip(maps, gradients, strict=True):
        joint = with_identity(head_mean(np.maximum(map_HQK * gradient_HQK, 0)), 1.0, rows) @ joint
    return readout(joint, rows)


def with_identity(map_QK: Array, weight: float, rows: Sequence[int]) -> Array:
    """The residual: a layer with a single row adds it where that row's own position is."""
    made = map_QK.copy()
    for i in range(len(made)):
        made[i, rows[0] if len(made) == 1 else i] += weight
    return made


def grad_sam(maps: Sequence[Array], gradients: Sequence[Array], rows: Sequence[int], by: str) -> Array:
    count = maps[0].shape[2]
    scores = np.zeros(count)
    for map_HQK, gradient_HQK in zip(maps, gradients, strict=True):
        cells = head_mean(map_HQK * np.maximum(gradient_HQK, 0))
        for i in range(len(cells)):
            for j in range(count):
                asker = rows[0] if len(cells) == 1 else i
                scores[asker if by == "query" else j] += cells[i, j]
    return scores / (len(maps) * count)


def value_norms(blocks: Sequence[tuple[Array, Array, Array, Array]], rows: Sequence[int]) -> Array:
    """Kobayashi et al. 2021 on pre-norm blocks: ‖Σ_h α_ij f_h(x_j) + δ_ij x_i‖ per layer, multiplied through.

    Each block: attention (H, N, N), values (H, N, d), output matrices (H, d, D), and the stream it adds to (N, D).
    """
    joint = np.eye(len(blocks[0][3]))
    for attention, value, output, stream in blocks:
        count = len(stream)
        norms = np.zeros((count, count))
        for i in range(count):
            for j in range(count):
                vector = sum(attention[h, i, j] * (value[h, j] @ output[h]) for h in range(len(value)))
                norms[i, j] = np.linalg.norm(vector + (stream[i] if i == j else 0))
        joint = norms @ joint
    return readout(joint, rows)


def permutation_drop(score, table: dict[str, Array], column: str, order: Array) -> float:
    """Breiman 2001: the score of the table, less its score with one column in another order."""
    shuffled = {name: [values[order[i]] if name == column else values[i] for i in range(len(values))]
                for name, values in table.items()}  # fmt: skip
    return score(table) - score(shuffled)
