"""The input with some of its parts gone, as tensors for the model: replaced, or deleted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.coalitions import Coalitions
from whyformer.errors import NotOffered, UnknownName
from whyformer.evaluate.fillers import OWN, fillers, made_here
from whyformer.run import Run
from whyformer.subjects.base import Batch, Subject
from whyformer.subjects.detection import DetectionSubject
from whyformer.subjects.text import TextSubject

Array = np.ndarray[Any, Any]


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
    """As the subject replaces a unit (mask token, mean colour, zero, …)."""

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


def replacements_of(subject: Subject) -> tuple[str, ...]:
    """Everything that can stand for an absent part; the first is the default."""
    own = tuple(name for name in OWN if made_here(subject, name))
    return tuple(dict.fromkeys((*subject.replacements, *own)))


def checked_replacement(subject: Subject, replace: str | int | None) -> str | int:
    known = replacements_of(subject)
    if replace is None:
        if not known:
            raise NotOffered(
                "nothing is known that could stand for an absent part of this input, so perturbation metrics cannot be "
                "computed. For token ids without a tokenizer pass replace=<token id>."
            )
        return known[0]
    if isinstance(replace, bool) or (isinstance(replace, int) and not isinstance(subject, TextSubject)):
        raise UnknownName("value of replace", replace, known)
    if isinstance(replace, str) and replace not in known:
        raise UnknownName("value of replace", replace, known, "For text a token id works too.")
    return replace


def variants_of(
    run: Run, row: int, parts: Sequence[int], replacement: str | int, pool: Batch, seed: Sequence[int]
) -> Variants:
    """The variants of one input of a run."""
    subject = run.subject
    if replacement == "delete":
        assert isinstance(subject, TextSubject)
        if subject.several or run.study.extra:
            raise NotOffered("tokens can be deleted from plain text only: use replace='mask', 'unk' or a token id.")
        return Deleted(run.batch.select([row]), subject.main, parts)
    # Means here are over the pool of inputs. A detector's images are large: one filling takes less room than a variant
    # per patch.
    if made_here(subject, replacement) or isinstance(subject, DetectionSubject):
        return Filled(run.batch.select([row]), *fillers(run, row, parts, str(replacement), pool, seed))
    return Replaced(run, row, parts, replacement)
