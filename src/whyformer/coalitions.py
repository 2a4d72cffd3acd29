"""One input with only some of its parts there: many such variants at once, for methods that ask for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, NotOffered
from whyformer.run import Run
from whyformer.subjects.base import Batch
from whyformer.subjects.text import TextSubject

Array = np.ndarray[Any, Any]


class Coalitions:
    """Scores of one input when only some of its players are present; others are replaced. Asked twice, scored once.

    players: the units of each player. Units of no player are always there.
    """

    def __init__(self, run: Run, row: int, players: Sequence[Sequence[int]], replacement: Any) -> None:
        self.run, self.row, self.count = run, row, len(players)
        if replacement == "delete":
            raise BadInput("replace='delete' would change the positions of what is left: use 'mask', 'unk' or an id.")
        self.one = _without_padding(run, row)
        source = (self.one, 0) if isinstance(run.subject, TextSubject) else (run.batch, row)
        variants = run.subject.without_unit(*source, run.units[row], replacement)
        player_U = torch.full((len(run.units[row]),), -1)
        for number, members in enumerate(players):
            player_U[list(members)] = number
        self._owned = {k: _owned(v, self.one.tensors[k], player_U) for k, v in variants.tensors.items()}
        everyone = np.ones(self.count, bool)
        self._known: dict[bytes, float] = {everyone.tobytes(): float(run.value_B[row])}

    def batch(self, present_MP: Array) -> Batch:
        """Variants of the input, one per row of ``present_MP``."""
        present = torch.from_numpy(np.ascontiguousarray(present_MP, dtype=bool))
        tensors = {}
        for name, owned in self._owned.items():
            original = self.one.tensors[name]
            if owned is None:
                tensors[name] = original[[0] * len(present)]
                continue
            player, filler = owned
            absent = ~present.to(player.device)[:, player.clamp(min=0)] & (player >= 0)
            tensors[name] = torch.where(absent, filler, original)
        return self.one.select([0] * len(present)).with_tensors(**tensors)

    def scores(self, present_MP: Array) -> Array:
        """(M,) the explained value of each variant; only new ones are run, in full batches."""
        keys = [row.tobytes() for row in np.ascontiguousarray(present_MP, dtype=bool)]
        new = list({key: i for i, key in enumerate(keys) if key not in self._known}.items())
        if new:
            values = self._run(np.asarray(present_MP, bool)[[i for _, i in new]])
            self._known |= dict(zip((key for key, _ in new), values.tolist(), strict=True))
        return np.array([self._known[key] for key in keys])

    def _run(self, present_MP: Array) -> Array:
        size = self.run.batch_size
        parts = [present_MP[i : i + size] for i in range(0, len(present_MP), size)]
        return np.concatenate([self.run.score(self.batch(part), self.row).double().cpu().numpy() for part in parts])


def _owned(variants: Tensor, original: Tensor, player_U: Tensor) -> tuple[Tensor, Tensor] | None:
    """For every entry of a tensor: whose it is (-1: nobody's), and what stands there without its owner."""
    changed = variants != original
    if not changed.any():
        return None
    if int(changed.sum(0).max()) > 1:
        raise NotOffered("taking one unit away changes another one here, so they cannot be taken away in groups.")
    unit = changed.int().argmax(0)
    filler = torch.where(changed.any(0), variants.gather(0, unit[None])[0], original[0])
    return torch.where(changed.any(0), player_U.to(unit.device)[unit], -1), filler


def _without_padding(run: Run, row: int) -> Batch:
    """One input; padding at the end of a text is cut off, since every variant would pay for it."""
    one = run.batch.select([row])
    keep = one.keep_BN
    if not isinstance(run.subject, TextSubject) or keep is None or run.subject.several:
        return one
    width, used = keep.shape[1], int(keep[0].nonzero()[-1]) + 1
    tensors = {k: v[:, :used] if v.ndim == 2 and v.shape[1] == width else v for k, v in one.tensors.items()}
    return replace(one, tensors=tensors, keep_BN=keep[:, :used])
