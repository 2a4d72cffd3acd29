"""An input with some of its parts away, as tensors for the model: replaced, filled, or deleted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.perturbation.fillers import OWN, fillers, made_here
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.inputs.base import Batch, Modality
from whyformer.inputs.detection import DetectionInput
from whyformer.inputs.streams import fitting
from whyformer.inputs.text import TextInput
from whyformer.run import Run

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
        source = (self.one, 0) if isinstance(run.modality, TextInput) else (run.batch, row)
        variants = run.modality.without_unit(*source, run.units[row], replacement)
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
    if not isinstance(run.modality, TextInput) or keep is None or run.modality.multi_input:
        return one
    width, used = keep.shape[1], int(keep[0].nonzero()[-1]) + 1
    tensors = {k: v[:, :used] if v.ndim == 2 and v.shape[1] == width else v for k, v in one.tensors.items()}
    return replace(one, tensors=tensors, keep_BN=keep[:, :used])


# The input with some of its parts gone, as tensors for the model: replaced, or deleted.


class Variants(ABC):
    """Makes the batch of (M, P) variants; ``draws`` batches where what is put in is drawn at random."""

    draws = 1

    @abstractmethod
    def batch(self, present_MP: Array, draw: int) -> Batch:
        """One row per variant."""

    def batches(self, present_MP: Array, size: int) -> list[list[int]]:
        """Rows that can share a batch."""
        return [list(range(i, min(i + size, len(present_MP)))) for i in range(0, len(present_MP), size)]

    def contents(self, parts: int) -> Iterator[bytes | str | Tensor]:
        """All that decides what the variants are: the input with everything, and with nothing."""
        yield type(self).__name__
        for present in (np.ones((1, parts), dtype=bool), np.zeros((1, parts), dtype=bool)):
            for draw in range(self.draws):
                for name, tensor in self.batch(present, draw).tensors.items():
                    yield name
                    yield tensor


class Replaced(Variants):
    """As the modality replaces a unit (mask token, mean colour, zero, …)."""

    def __init__(self, run: Run, row: int, parts: Sequence[int], replacement: str | int) -> None:
        self.coalitions = Coalitions(run, row, [(p,) for p in parts], replacement)

    def batch(self, present_MP: Array, draw: int) -> Batch:
        return self.coalitions.batch(present_MP)


class Filled(Variants):
    """By values of our own: black, the mean of a column, or what stands there in other inputs."""

    def __init__(self, one: Batch, part_of: dict[str, Tensor], filling: list[dict[str, Tensor]]) -> None:
        self.one, self.part_of, self.filling = one, part_of, filling
        self.draws = len(filling)

    def batch(self, present_MP: Array, draw: int) -> Batch:
        present = torch.from_numpy(np.ascontiguousarray(present_MP, dtype=bool))
        changed = {}
        for name, part in self.part_of.items():
            absent = ~present.to(part.device)[:, part.clamp(min=0)] & (part >= 0)
            changed[name] = torch.where(absent, self.filling[draw][name], self.one.tensors[name])
        return self.one.select([0] * len(present)).with_tensors(**changed)


class Deleted(Variants):
    """Tokens are left out and the rest moves up. Variants of one length share a batch, so nothing is padded."""

    def __init__(self, one: Batch, main: str, parts: Sequence[int]) -> None:
        assert one.keep_BN is not None
        self.one, self.main = one, main
        self.positions = one.keep_BN[0].nonzero()[:, 0].cpu().numpy()[list(parts)]
        self.real = one.keep_BN[0].cpu().numpy()
        if len(parts) == int(self.real.sum()):
            raise NotOffered(
                "deleting every token leaves the model nothing to read, since this input has no special tokens that "
                "stay: use replace='mask', 'unk', 'pad' or a token id."
            )

    def batches(self, present_MP: Array, size: int) -> list[list[int]]:
        left = present_MP.sum(1)
        found = []
        for count in np.unique(left):
            rows = np.flatnonzero(left == count).tolist()
            found += [rows[i : i + size] for i in range(0, len(rows), size)]
        return found

    def batch(self, present_MP: Array, draw: int) -> Batch:
        width = len(self.real)
        kept = np.repeat(self.real[None], len(present_MP), axis=0)  # padding goes too
        kept[:, self.positions] = present_MP
        index = torch.from_numpy(np.stack([np.flatnonzero(row) for row in kept]))
        tensors = {
            k: v[0][index.to(v.device)] if v.ndim > 1 and v.shape[1] == width else v[[0] * len(index)]
            for k, v in self.one.tensors.items()
        }
        keep = torch.ones_like(index, dtype=torch.bool, device=tensors[self.main].device)
        return Batch(tensors, keep_BN=keep, constants=self.one.constants)


def replacements_of(modality: Modality) -> tuple[str, ...]:
    """Everything that can stand for an absent part; the first is the default."""
    own = tuple(name for name in OWN if made_here(modality, name))
    return tuple(dict.fromkeys((*modality.replacements, *own)))


def checked_replacement(modality: Modality, replace: str | int | None) -> str | int:
    known = replacements_of(modality)
    if replace is None:
        if not known:
            raise NotOffered(
                "nothing is known that could stand for an absent part of this input, so perturbation metrics cannot be "
                "computed. For token ids without a tokenizer pass replace=<token id>."
            )
        return known[0]
    if isinstance(replace, bool) or (isinstance(replace, int) and not isinstance(modality, TextInput)):
        raise UnknownName("value of replace", replace, known)
    if isinstance(replace, str) and replace not in known:
        raise UnknownName("value of replace", replace, known, "For text a token id works too.")
    return replace


def variants_of(
    run: Run, row: int, parts: Sequence[int], replacement: str | int, pool: Batch, seed: Sequence[int]
) -> Variants:
    """The variants of one input of a run."""
    modality = run.modality
    if replacement == "delete":
        assert isinstance(modality, TextInput)
        if modality.multi_input or run.study.extra:
            raise NotOffered("tokens can be deleted from plain text only: use replace='mask', 'unk' or a token id.")
        return Deleted(run.batch.select([row]), modality.main, parts)
    # Means here are over the pool of inputs. A detector's images are large: one filling takes less room than a variant
    # per patch.
    if made_here(modality, replacement) or isinstance(modality, DetectionInput):
        return Filled(run.batch.select([row]), *fillers(run, row, parts, str(replacement), pool, seed))
    return Replaced(run, row, parts, replacement)


# What a method took where an option was left open, in a form that can be asked for again.


def used_replacement(run: Run, replacement: str | int) -> str | int:
    """What stood for an absent unit: the name that was asked for, unless every stream took one and the same other."""
    taken = set(_by_stream(run, replacement).values())
    return taken.pop() if len(taken) == 1 else replacement


def other_replacements(run: Run, replacement: str | int) -> list[str]:
    """A remark where streams took different things: one name cannot say it."""
    taken = _by_stream(run, replacement)
    if len(set(taken.values())) < 2:
        return []
    each = ", ".join(f"{stream}: {f'token {v}' if isinstance(v, int) else v}" for stream, v in taken.items())
    return [f"not every stream has replace={replacement!r}; what stood for an absent unit is {each}."]


def _by_stream(run: Run, replacement: str | int) -> dict[str, str | int]:
    """Per stream of which something can be taken away."""
    if not run.modality.multi_input:
        return {run.modality.stream: replacement}
    parts = {s: run.modality.part(s, run.batch)[0] for s in dict.fromkeys(s for u in run.units for s in u.stream)}
    return {stream: fitting(part, replacement) for stream, part in parts.items() if part.replacements}
