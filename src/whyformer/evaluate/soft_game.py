"""An input whose parts lose some of their numbers: what the model says when each stays with some probability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.perturbation.variants import Filled, Variants
from whyformer.errors import NotOffered
from whyformer.inputs.batch import Batch
from whyformer.run import Run
from whyformer.shapes import Array

Say = Callable[[Batch], Array]  # (M, columns) what the model says of a batch


class SoftGame:
    """Asked with (M, P) probabilities to stay, it draws for every number of every part; a draw is run once.

    say: (M, P) probabilities and (M,) numbers of draws → (M, columns), as a game says of variants.
    """

    def __init__(self, say: Callable[[Array, Sequence[int]], Array], step: int = 32) -> None:
        self.forwards = 0
        self._say, self._step = say, step
        self._known: dict[tuple[bytes, int], Array] = {}

    def ask(self, keep_MP: Array, draws: int) -> Array:
        """(M, D, columns) for each row, what the model says in each of its draws."""
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


def soft_game_of(
    run: Run,
    row: int,
    players: Sequence[Sequence[int]],
    variants: Variants,
    say: Say,
    seed: Sequence[int],
    step: int,
) -> SoftGame:
    """players: the units of each part.

    Where the input is looked up (words), numbers are those of its vectors, and 0 stands for one that is erased; of
    pixels and columns they are the input's own, and what stands for the absent comes in their place.
    """
    if run.modality.embeds and not run.modality.multi_input and not run.study.extra:
        return SoftGame(_Vectors(run, row, players, say, seed), step)
    if isinstance(variants, Filled) and not run.modality.multi_input:
        return SoftGame(_Entries(variants, say, seed), step)
    raise NotOffered(
        "soft_nc and soft_ns erase numbers of single words, pixels or columns, and here it is not known which numbers "
        "belong to which part: use pi_soft_nc and pi_soft_ns, which take whole parts away."
    )


class _Vectors:
    """Elements of word vectors."""

    def __init__(self, run: Run, row: int, players: Sequence[Sequence[int]], say: Say, seed: Sequence[int]) -> None:
        self.modality, self.say, self.seed = run.modality, say, seed
        self.one = run.modality.trimmed(run.batch.select([row]))
        assert self.one.keep_BN is not None
        position_U = self.one.keep_BN[0].nonzero()[:, 0]
        self.part_N = torch.full((self.one.keep_BN.shape[1],), -1)
        for number, members in enumerate(players):
            self.part_N[position_U[list(members)].cpu()] = number

    def __call__(self, keep_MP: Array, draws: Sequence[int]) -> Array:
        batch = self.one.select([0] * len(keep_MP))
        # Padding, special tokens and what is held stay.
        keep_MN = torch.cat([torch.from_numpy(keep_MP), torch.ones(len(keep_MP), 1, dtype=torch.float64)], 1)[
            :, self.part_N
        ]

        def erased(vectors_MND: Tensor) -> Tensor:
            shape = vectors_MND.shape[1:]
            drawn = torch.stack([uniform(shape, (*self.seed, draw)) for draw in draws])
            return vectors_MND * (drawn < keep_MN[..., None]).to(vectors_MND)

        mode: Any = self.modality.looked_up(batch, erased)
        with mode:
            said = self.say(batch)
        if not mode.lookups:
            raise NotOffered("the model looked no words up in its table, so their vectors cannot be erased in part.")
        return said


class _Entries:
    """Entries of the input's own tensors: pixels of patches, columns of a row."""

    def __init__(self, variants: Filled, say: Say, seed: Sequence[int]) -> None:
        self.variants, self.say, self.seed = variants, say, seed

    def __call__(self, keep_MP: Array, draws: Sequence[int]) -> Array:
        one, filling = self.variants.one, self.variants.fillings[0]
        changed = {}
        for name, part in self.variants.part_of.items():
            rows = []
            for keep_P, draw in zip(torch.from_numpy(keep_MP), draws, strict=True):
                drawn = uniform(part.shape, (*self.seed, draw)).to(part.device)
                stays = (drawn < keep_P.to(part.device)[part.clamp(min=0)]) | (part < 0)
                rows.append(torch.where(stays, one.tensors[name], filling[name])[0])
            changed[name] = torch.stack(rows)
        return self.say(one.select([0] * len(draws)).with_tensors(**changed))


def uniform(shape: Sequence[int], seed: Sequence[int]) -> Tensor:
    """Numbers from 0 to 1 that depend on the shape and the seed alone, whatever the device: methods share them."""
    return torch.from_numpy(np.random.default_rng(list(seed)).random(tuple(shape)))
