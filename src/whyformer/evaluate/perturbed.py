"""The inputs of an evaluation and their variants: run once, in full batches, shared by all methods and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered
from whyformer.evaluate.game import Game
from whyformer.evaluate.store import Store, digest, weights_digest
from whyformer.evaluate.variants import Variants, checked_replacement, variants_of
from whyformer.explainer import BATCH_SIZE, Explainer
from whyformer.outputs import scalar_of
from whyformer.progress import tracker
from whyformer.run import Run
from whyformer.study import hidden_padding, study_of
from whyformer.subjects.base import Batch
from whyformer.subjects.table import TableSubject
from whyformer.types import Target, Units

Array = np.ndarray[Any, Any]


class Perturbed:
    """Inputs, what is explained of each, and one game per input. Made by :func:`perturbing`."""

    def __init__(
        self,
        explainer: Explainer,
        inputs: Any,
        *,
        target: Any = None,
        scalar: str = "logit",
        replace: str | int | None = None,
        reference: Any = None,
        batch_size: int | None = None,
        seed: int = 0,
        progress: bool | None = None,
        cache: str | Path | None = None,
        perturb: bool = True,
    ) -> None:
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise BadInput(f"batch_size={batch_size!r}: a whole number of at least 1.")
        self.explainer, self.seed, self.batch_size = explainer, seed, batch_size or BATCH_SIZE
        self.track = tracker(progress)
        self.subject, batch, self.single = explainer.prepare(inputs)
        self.scalar = self.subject.scalar(scalar)
        self.inputs = [inputs] if self.single else inputs
        if isinstance(target, list) and len(target) != batch.size:
            raise BadInput(f"{len(target)} targets for {batch.size} inputs: give one target, or one per input.")
        self.batch, target = self.subject.expanded(hidden_padding(self.subject, batch), target)
        if self.batch.groups:
            raise NotOffered("each input gives several explanations here (detections): they cannot be compared yet.")
        self.replacement = checked_replacement(self.subject, replace) if perturb else None
        self.pool = self._pool(reference)
        # Inputs that differ in form are each studied by themselves.
        self.step = 1 if self.subject.uneven(self.batch) else self.batch_size
        self.runs = [self._run(rows, target) for rows in self._chunks()]
        self.targets: list[Target] = [t for run in self.runs for t in run.targets]
        self.units: list[Units] = [u for run in self.runs for u in run.units]
        self.parts = [self._parts(u) for u in self.units]
        self.weights = weights_digest(explainer.model) if cache is not None else ""
        self.folder = _folder(cache)
        self._games: dict[int, Game] = {}

    @property
    def size(self) -> int:
        return self.batch.size

    @property
    def forwards(self) -> int:
        """Variants that were run."""
        return sum(game.forwards for game in self._games.values())

    def _pool(self, reference: Any) -> Batch:
        """The inputs that means and resampling are taken from."""
        if reference is None and isinstance(self.subject, TableSubject):
            reference = self.subject.table.reference
        return self.batch if reference is None else self.explainer.prepare(reference)[1]

    def _others(self, number: int) -> Batch:
        """The pool without the input itself, whose own values would leave it as it is."""
        if self.pool is not self.batch:
            return self.pool
        if self.size == 1:
            raise BadInput("replace='resample' draws from other inputs: pass reference=[…], or more than one input.")
        return self.pool.select([i for i in range(self.size) if i != number])

    def _chunks(self) -> list[range]:
        return [range(i, min(i + self.step, self.batch.size)) for i in range(0, self.batch.size, self.step)]

    def _run(self, rows: Sequence[int], target: Any) -> Run:
        own = [target[i] for i in rows] if isinstance(target, list) else target
        batch = self.batch.select(rows)
        study, _ = study_of(self.subject, batch)
        how: dict[str, Any] = {"scalar": self.scalar, "seed": self.seed, "batch_size": self.batch_size}
        return Run(self.subject, batch, study, target=own, **how)

    def label(self, number: int) -> str:
        """The name of what is explained of one input."""
        run, target = self.run_of(number)[0], self.targets[number]
        return target.label or run.head.name(target.index) or str(target.index)

    def run_of(self, number: int) -> tuple[Run, int]:
        """The run that an input belongs to, and its row there."""
        return self.runs[number // self.step], number % self.step

    def _parts(self, units: Units) -> Array:
        """The units that are judged: those that can be taken away, special tokens apart."""
        removable = np.array(self.subject.removable(units), dtype=bool)
        return np.flatnonzero(removable & ~np.array(units.special, dtype=bool))

    def game(self, number: int) -> Game:
        """The game of one input, which everyone shares; made when first asked for."""
        if number not in self._games:
            self._games[number] = self.new_game(number)
        return self._games[number]

    def new_game(self, number: int) -> Game:
        """A game that knows nothing but what is on disk."""
        assert self.replacement is not None
        run, row = self.run_of(number)
        parts = self.parts[number]
        pool = self._others(number) if self.replacement == "resample" else self.pool
        variants = variants_of(run, row, parts.tolist(), self.replacement, pool, (self.seed, number))
        return Game(
            len(parts),
            partial(_say, run, row, variants),
            batches=lambda present_MP: variants.batches(present_MP, self.batch_size),
            store=self._store(variants, len(parts), self.targets[number]),
            draws=variants.draws,
        )

    def _store(self, variants: Variants, parts: int, target: Target) -> Store | None:
        if self.folder is None:
            return None
        name = digest(
            self.weights,
            str(self.replacement),
            parts,
            target.index,
            target.versus,
            target.position,
            *variants.contents(parts),
        )
        return Store(self.folder / f"{name}.variants", parts)


def _folder(cache: str | Path | None) -> Path | None:
    if cache is None:
        return None
    folder = Path(cache)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"cache={str(cache)!r} is a file: give the folder that results are kept in.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _say(run: Run, row: int, variants: Variants, present_MP: Array) -> Array:
    """(M, 3) probability, logit, and whether the target is predicted; the mean over draws."""
    total = np.zeros((len(present_MP), 3))
    target = run.targets[row]
    for draw in range(variants.draws):
        logits = run.forward(variants.batch(present_MP, draw), [row] * len(present_MP)).float()
        targets = [target] * len(logits)
        single = logits.shape[1] == 1  # a number, not a class: there is no probability
        probability = scalar_of(logits, targets, "logit" if single else "probability")
        stays = (logits.argmax(1) == target.index) if not single else (logits[:, 0] > 0) == (run.logits[row, 0] > 0)
        parts = (probability, scalar_of(logits, targets, "logit"), stays)
        total += np.stack([p.double().cpu().numpy() for p in parts], 1)
    return total / variants.draws


@contextmanager
def perturbing(explainer: Explainer, inputs: Any, **how: Any) -> Iterator[Perturbed]:
    """Borrow the model for an evaluation."""
    with explainer.borrowed():
        yield Perturbed(explainer, inputs, **how)
