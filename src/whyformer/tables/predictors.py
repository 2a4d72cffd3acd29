"""Anything that predicts, and a table whose columns can be shuffled: what permutation importance asks of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.borrow import borrowed, unwrapped
from whyformer.errors import BadInput
from whyformer.head import Head
from whyformer.subjects.base import Batch
from whyformer.subjects.columns import Table
from whyformer.subjects.table import TableSubject

Array = np.ndarray[Any, Any]


class Predictor(ABC):
    """A model with its table."""

    columns: tuple[str, ...]
    rows: int
    name: str
    warnings: tuple[str, ...] = ()

    @abstractmethod
    def output(self, order: Array | None, shuffled: Sequence[str]) -> Any:
        """What the model gives with the columns ``shuffled`` put in another order."""


class TorchPredictor(Predictor):
    """A torch module with a Table; rows are encoded once, and their codes are shuffled. Gives logits (rows, C)."""

    def __init__(self, model: nn.Module, table: Table, inputs: Any, batch_size: int) -> None:
        self.model = unwrapped(model)
        self.subject = TableSubject(self.model, table)
        self.tensors = self.subject.read(inputs)[0].tensors
        self.columns, self.batch_size = table.columns, batch_size
        self.rows, self.name = len(next(iter(self.tensors.values()))), type(self.model).__name__
        self.classes = table.classes
        with borrowed(self.model):
            if self.subject.mixes_rows:
                self.warnings = (
                    f"rows of this model look at each other: predictions were made in batches of {batch_size} rows, in "
                    "the order of the table.",
                )

    def output(self, order: Array | None, shuffled: Sequence[str]) -> Array:
        tensors = dict(self.tensors)
        for name in shuffled:
            kind, at = self.subject.where(name)
            if tensors[kind] is self.tensors[kind]:
                tensors[kind] = tensors[kind].clone()
            tensors[kind][:, at] = self.tensors[kind][torch.as_tensor(order, device=tensors[kind].device), at]
        parts: list[Tensor] = []
        with borrowed(self.model), torch.no_grad():
            for start in range(0, self.rows, self.batch_size):
                part = slice(start, start + self.batch_size)
                batch = Batch({k: v[part] for k, v in tensors.items()}, alone=True)
                parts.append(Head(self.subject, batch).logits(batch).float())
        return torch.cat(parts).cpu().numpy()


class AnyPredictor(Predictor):
    """An estimator or a function, and a table as it takes it: a DataFrame, a dict of columns, or an array."""

    def __init__(self, model: Any, inputs: Any) -> None:
        self.model, self.inputs = model, inputs
        self.name = getattr(model, "__name__", type(model).__name__)
        if hasattr(inputs, "columns"):
            self.columns = tuple(map(str, inputs.columns))
            self.rows = len(inputs)
        elif isinstance(inputs, dict):
            self.columns = tuple(inputs)
            self.rows = len(next(iter(inputs.values())))
        else:
            self.inputs = np.asarray(inputs)
            if self.inputs.ndim != 2:
                raise BadInput(f"X has shape {self.inputs.shape}: give rows × columns.")
            self.rows, width = self.inputs.shape
            self.columns = tuple(map(str, range(width)))
        if not self.rows:
            raise BadInput("the table has no rows.")

    def table(self, order: Array | None, shuffled: Sequence[str]) -> Any:
        if order is None:
            return self.inputs
        if isinstance(self.inputs, dict):
            return {k: np.asarray(v)[order] if k in shuffled else v for k, v in self.inputs.items()}
        if isinstance(self.inputs, np.ndarray):
            made = self.inputs.copy()
            at = [self.columns.index(c) for c in shuffled]
            made[:, at] = made[order][:, at]
            return made
        made = self.inputs.copy()
        for column in made.columns:
            if str(column) in shuffled:
                made[column] = made[column].take(order).set_axis(made.index)  # keeps the dtype, categories included
        return made

    def output(self, order: Array | None, shuffled: Sequence[str]) -> Any:
        """The table itself where a scorer will ask the estimator, else what the function gives."""
        made = self.table(order, shuffled)
        return made if hasattr(self.model, "predict") else np.asarray(self.model(made))


def predictor_of(model: Any, inputs: Any, processor: Any, batch_size: int) -> Predictor:
    if isinstance(model, nn.Module):
        if not isinstance(processor, Table):
            raise BadInput(
                "a torch model needs its columns described, processor=Table(…); or pass a function from a table to "
                "predictions."
            )
        return TorchPredictor(model, processor, inputs, batch_size)
    if not callable(model) and not hasattr(model, "predict"):
        raise BadInput(f"a {type(model).__name__} predicts nothing: pass a torch model, an estimator or a function.")
    return AnyPredictor(model, inputs)
