"""Any module called with tensors: sequences of vectors, or the columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.capture.intercept import module_names
from whyformer.capture.roles import first_values
from whyformer.errors import BadInput, MissingProcessor, NotOffered, UnknownName
from whyformer.inputs.base import Modality, Source, shifted
from whyformer.inputs.batch import Batch, Raw, are_tensors, require_shown
from whyformer.inputs.units import assemble, averaged, owners_of_columns, pick, resampled
from whyformer.results.types import Units


class TensorInput(Modality):
    """Units are the positions of a (B, N, D) sequence, or the columns of (B, F) tensors in the order of the call."""

    padding_in_doubt = True

    def __init__(self, model: nn.Module, processor: Any = None, example: Batch | None = None) -> None:
        super().__init__(model, processor)
        self.stream, self.main = "table", ""
        if example is not None:
            sequences = [k for k, v in example.tensors.items() if v.ndim == 3 and v.is_floating_point()]
            self.main = sequences[0] if sequences else next(iter(example.tensors))
            self.stream = "sequence" if sequences else "table"

    @property
    def kind(self) -> str:
        """A table is one whose columns are named; of bare tensors nothing is known."""
        return "" if self.stream == "table" else self.stream

    def source(self, inputs: Any) -> Source:
        if isinstance(inputs, Mapping) and not are_tensors(inputs):
            self.encode([inputs])  # a row of a table, and how to say so
        return super().source(inputs)

    def encode(self, raw: Sequence[Raw]) -> Batch:
        raise MissingProcessor(
            f"{type(self.model).__name__} is called with tensors here: pass a dict or tuple of tensors with a leading "
            "batch axis, or a processor that turns your raw inputs into them. For the rows of a table (a DataFrame, "
            "dicts) that is processor=wf.Table(numerical=[…], categorical={…})."
        )

    def length(self, batch: Batch) -> int:
        return len(self.columns(batch)) if self.stream == "table" else super().length(batch)

    def is_one_token(self, one: Batch, keys: int, forward: Callable[[Batch], Any]) -> bool:
        floats = {k: v for k, v in one.tensors.items() if v.is_floating_point()}
        if self.stream != "table" or self.seen_columns(one, keys) or not floats or len(self.columns(one)) < 2:
            return False
        other = one.with_tensors(**{k: shifted(v) for k, v in floats.items()})
        names = module_names(self.model)
        before, after = (first_values(partial(forward, batch), names) for batch in (one, other))
        return int((before != after).any(-1).any(1)[0].sum()) == 1

    def reads_other_steps(self, one: Batch, keys: int) -> bool:
        return self.stream == "sequence" and not self.seen_columns(one, keys)

    def columns(self, batch: Batch) -> list[tuple[str, int]]:
        """(tensor, column) of each input unit."""
        if self.stream == "sequence":
            return [(self.main, i) for i in range(batch.tensors[self.main].shape[1])]
        return [(k, i) for k, v in batch.tensors.items() if v.ndim == 2 for i in range(v.shape[1])]

    def seen_columns(self, batch: Batch, length: int) -> list[tuple[str, int]]:
        """The columns that became tokens: all of them, or (TabTransformer) the categorical ones only."""
        columns = self.columns(batch)
        categorical = [c for c in columns if not batch.tensors[c[0]].is_floating_point()]
        numerical = [c for c in columns if batch.tensors[c[0]].is_floating_point()]
        for choice in (columns, categorical, numerical):
            if choice and length - len(choice) in {0, 1}:
                return choice
        return []

    def _columns_of(self, batch: Batch, row: int, units: Units) -> list[tuple[str, int]]:
        """Those of the units of one input: without its padding, and without the model's own token."""
        columns = self.columns(batch)
        real = self.keep(batch, len(columns), None)[row].nonzero()[:, 0].tolist()
        whole = len(real) == units.special.count(False)
        return [columns[i] for i in real] if whole else self.seen_columns(batch, len(units))

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        columns = self.seen_columns(batch, length)
        many = len(batch.tensors) > 1
        labels = [f"{name}[{i}]" if many else str(i) for name, i in columns]
        if not columns:  # positions of the model's own making
            labels = [f"position {i}" for i in range(length)]
        units = assemble(labels, [False] * len(labels), self.stream, length - len(labels), front)
        return [pick(units, row.nonzero()[:, 0].tolist()) for row in self.keep(batch, length, front)]

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        if batch.keep_BN is not None and batch.keep_BN.shape[1] == length:  # found out by running the model
            return batch.keep_BN
        if batch.keep_BN is not None and self.stream == "sequence" and batch.keep_BN.shape[1] < length:
            added = length - batch.keep_BN.shape[1]
            before = added if front is None else front
            return nn.functional.pad(batch.keep_BN.bool(), (before, added - before), value=True)
        tensor = next(iter(batch.tensors.values()))
        keep = torch.ones(batch.size, length, dtype=torch.bool, device=tensor.device)
        steps = (batch.size, self.length(batch)) if self.stream == "sequence" else keep.shape
        added = length - steps[1]  # the model's own tokens, which no mask of the input speaks of
        before = added if front is None else front
        for name, mask in batch.tensors.items():
            if mask.shape == steps and added >= 0 and "mask" in name:
                real = ~mask.bool() if "padding" in name else mask.bool()
                require_shown(name, real)
                keep = nn.functional.pad(real, (before, added - before), value=True)
        return keep

    @property
    def replacements(self) -> tuple[str, ...]:
        return ("zero", "mean")

    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str) -> Batch:
        if replacement not in self.replacements:
            raise UnknownName("replacement", replacement, self.replacements)
        columns = self._removable_columns(batch, row, units)
        copies = batch.select([row] * len(units))
        changed = {k: v.clone() for k, v in copies.tensors.items()}
        places = [i for i, special in enumerate(units.special) if not special]  # the model's own token stays
        for i, (name, column) in zip(places, columns, strict=True):
            changed[name][i, column] = self._mean_vector(batch, row) if replacement == "mean" else 0
        return copies.with_tensors(**changed)

    def _removable_columns(self, batch: Batch, row: int, units: Units) -> list[tuple[str, int]]:
        columns = self._columns_of(batch, row, units)
        if not columns:
            raise NotOffered(
                f"the model attends over {len(units)} positions of its own making; which input belongs to which is not "
                "known, so none can be taken away."
            )
        return columns

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        columns = self._removable_columns(one, 0, units)
        places = [i for i, special in enumerate(units.special) if not special]
        return owners_of_columns(one, zip(places, columns, strict=True))

    @property
    def fillers(self) -> tuple[str, ...]:
        return ("mean", "resample")

    def filling(
        self, name: str, units: Units, one: Batch, pool: Batch, generator: np.random.Generator
    ) -> list[dict[str, Tensor]]:
        """Here the mean is that of the pool, column by column."""
        names = self.owners(units, one)
        return resampled(names, one, pool, generator) if name == "resample" else averaged(names, one, pool)

    def _mean_vector(self, batch: Batch, row: int) -> Tensor:
        """(D,) of the input's real vectors."""
        require_steps(self.stream)
        vectors = batch.tensors[self.main][row]
        return vectors[self.keep(batch, len(vectors), None)[row]].mean(0)


def require_steps(stream: str) -> None:
    """An input's own mean is over its steps; columns of a row have none that makes sense."""
    if stream == "table":
        raise BadInput(
            "the mean of a column has to come from rows that are named, not from those that happen to be explained "
            "together: pass processor=Table(…, reference=rows), use 'zero', or for integrated gradients give a tensor, "
            "baseline=rows.mean(0)."
        )
