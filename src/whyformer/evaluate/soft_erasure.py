"""Soft erasure: run an input whose numbers (of vectors, pixels, columns) each stay with some probability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.perturbation import variants as variant_kinds
from whyformer.errors import NotOffered
from whyformer.inputs.batch import Batch
from whyformer.run import Run
from whyformer.shapes import Array

Say = Callable[[Batch], Array]  # (M, columns) probability, logit and whether the target is predicted, of a batch
SoftSay = Callable[[Array, Sequence[int]], Array]  # (M, P) probabilities, (M,) draws → (M, columns)


class SoftGame:
    """Asked with (M, P) probabilities to stay, it draws for every number of every part; a draw is run once."""

    def __init__(self, say: SoftSay, step: int = 32) -> None:
        self.forwards = 0
        self._say, self._step = say, step
        self._known: dict[tuple[bytes, int], Array] = {}

    def ask(self, keep_MP: Array, draws: int) -> Array:
        """(M, D, columns) for each row, the model's output in each of its draws."""
        keep_MP = np.ascontiguousarray(keep_MP, dtype=float)
        wanted = [(row.tobytes(), draw) for row in keep_MP for draw in range(draws)]
        new = list(dict.fromkeys(key for key in wanted if key not in self._known))
        for start in range(0, len(new), self._step):
            some = new[start : start + self._step]
            rows = np.stack([np.frombuffer(row, dtype=float) for row, _ in some])
            said = np.asarray(self._say(rows, [draw for _, draw in some]), dtype=float)
            self.forwards += len(some)
            self._known |= dict(zip(some, said, strict=True))
        return np.array([self._known[key] for key in wanted]).reshape(len(keep_MP), draws, -1)


def of_vectors(run: Run, row: int, members: Sequence[Sequence[int]], say: Say, seed: Sequence[int]) -> SoftSay:
    """Elements of word vectors become 0. members: the units of each part."""
    one = run.modality.trimmed(run.batch.select([row]))
    assert one.keep_BN is not None
    position_U = one.keep_BN[0].nonzero()[:, 0]
    part_N = torch.full((one.keep_BN.shape[1],), -1)
    for number, units in enumerate(members):
        part_N[position_U[list(units)].cpu()] = number

    def said(keep_MP: Array, draws: Sequence[int]) -> Array:
        # -1, the last column: padding, special tokens and what is held stay.
        always = torch.ones(len(keep_MP), 1, dtype=torch.float64)
        keep_MN = torch.cat([torch.from_numpy(keep_MP), always], 1)[:, part_N]

        def erased(vectors_MND: Tensor) -> Tensor:
            drawn = torch.stack([uniform(vectors_MND.shape[1:], (*seed, draw)) for draw in draws])
            return vectors_MND * (drawn < keep_MN[..., None]).to(vectors_MND)

        batch = one.select([0] * len(keep_MP))
        mode: Any = run.modality.looked_up(batch, erased)
        with mode:
            answer = say(batch)
        if not mode.lookups:
            raise NotOffered("the model did not look up word embeddings, so elements of them cannot be erased.")
        return answer

    return said


def of_entries(
    variants: variant_kinds.Filled, say: Say, seed: Sequence[int], keep_MP: Array, draws: Sequence[int]
) -> Array:
    """Entries of the input's own tensors, pixels of patches or columns of a row, become the baseline.

    Each draw has one baseline: of several rows of a table, one drawn by their weights.
    """
    one, weights = variants.one, variants.weights
    fillings = [variants.fillings[0]] * len(draws)
    if weights is not None:
        generators = [np.random.default_rng([*seed, draw, 1]) for draw in draws]
        share = weights / weights.sum()
        fillings = [variants.fillings[int(generator.choice(len(share), p=share))] for generator in generators]
    changed = {}
    for name, part in variants.part_of.items():
        rows = []
        for keep_P, draw, filling in zip(torch.from_numpy(keep_MP), draws, fillings, strict=True):
            drawn = uniform(part.shape, (*seed, draw)).to(part.device)
            stays = (drawn < keep_P.to(part.device)[part.clamp(min=0)]) | (part < 0)
            rows.append(torch.where(stays, one.tensors[name], filling[name])[0])
        changed[name] = torch.stack(rows)
    return say(one.select([0] * len(draws)).with_tensors(**changed))


def uniform(shape: Sequence[int], seed: Sequence[int]) -> Tensor:
    """Numbers from 0 to 1 that depend on the shape and the seed alone, whatever the device: methods share them."""
    return torch.from_numpy(np.random.default_rng(list(seed)).random(tuple(shape)))
