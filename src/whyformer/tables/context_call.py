"""How a model that learns in context is called: training rows, their answers, and the rows that are asked about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.borrow import known_about
from whyformer.errors import BadInput
from whyformer.inputs.arguments import NOT_THE_MODELS, model_failed, signature_of
from whyformer.inputs.batch import Batch
from whyformer.inputs.table_schema import Table
from whyformer.targets import logits_of

Array = np.ndarray[Any, Any]
Call = Callable[[Tensor, Tensor, Tensor], Any]
HOW = (
    "Say how it is called: call=lambda context, answers, rows: (…), with what goes into model(…) as a tuple, or as a "
    "dict of arguments; context is (training rows, columns), answers (training rows,), rows (1, columns)."
)


@dataclass(frozen=True)
class InContextCall:
    """From training rows (R, U), their answers (R,) and one row (1, U) to that row's logits (1, C)."""

    model: nn.Module
    arrange: Call
    made_by_user: bool

    def __call__(self, context: Tensor, answers: Tensor, row: Tensor) -> Tensor:
        made = self.arrange(context, answers, row)
        tensors = {"context": context, "answers": answers, "rows": row}
        try:
            if isinstance(made, dict):
                output = self.model(**made)
            else:
                output = self.model(*(made if isinstance(made, (tuple, list)) else (made,)))
        except NOT_THE_MODELS:
            raise
        except Exception as error:
            raise model_failed(self.model, Batch(tensors), error) from error
        logits = logits_of(output)
        return self._of_the_row(logits, len(context))

    def _of_the_row(self, logits: Tensor, known: int) -> Tensor:
        """(1, C) of an output with one row for what is asked, or with one for every row, training rows first."""
        classes = logits.shape[-1] if logits.ndim > 1 else 1
        rows = logits.reshape(-1, classes)
        if len(rows) not in (1, known + 1):
            raise BadInput(
                f"{type(self.model).__name__} gave logits of shape {tuple(logits.shape)} for one row beside {known} "
                f"training rows: one row of logits was expected. {HOW}"
            )
        return rows[-1:]


def in_context_call(model: nn.Module, columns: int, call: Call | None) -> tuple[InContextCall, int]:
    """As the user says, or by the names of the arguments; with a batch axis where the model asks for one.

    And how many passes it took to find that out, which is done once for each number of columns.
    """
    if call is not None:
        return InContextCall(model, call, True), 0
    arrange, facts, key = _by_name(model), known_about(model), ("form of tables", columns)
    passes = 0
    if key not in facts:
        facts[key], passes = _form(model, arrange, columns)
    made = facts[key](arrange)
    return InContextCall(model, made, False), passes


def _form(model: nn.Module, arrange: Call, columns: int) -> tuple[Callable[[Call], Call], int]:
    """Tables of their own axis or without, answers as they are or as floats: the first that the model answers."""
    weight = next(iter(model.parameters()), torch.empty(0))
    known = torch.arange(4 * columns, dtype=weight.dtype, device=weight.device).reshape(4, columns) / (4 * columns)
    answers, asked, passes = torch.tensor([0, 1, 0, 1], device=weight.device), known[:2] + 0.1, 0
    for form, lead in FORMS:
        try:
            with torch.no_grad():
                logits = logits_of(model(**form(arrange)(known, answers, asked)))
        except Exception:  # another form may be what it takes
            continue
        passes += 1
        # Two rows of logits, or one for every row, behind the axis of tables if there is one.
        if tuple(logits.shape[: len(lead)]) in (lead, (*lead[:-1], 6)) and logits.ndim <= len(lead) + 1:
            return form, passes
    raise BadInput(
        f"{type(model).__name__} could be called neither with tables of their own axis, (1, rows, {columns}), nor "
        f"without, (rows, {columns}). {HOW}"
    )


def _by_name(model: nn.Module) -> Call:
    needed = [k for k, p in signature_of(model).items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    answers = [k for k in needed if k.lower().startswith(("y", "label", "answer", "target"))]
    others = [k for k in needed if k not in answers]
    asked = [k for k in others if any(word in k.lower() for word in ("test", "query", "quer", "asked", "new"))]
    if len(answers) == 1 and len(others) == 1:
        return lambda context, y, row: {others[0]: torch.cat([context, row], -2), answers[0]: y}
    if len(answers) == 1 and len(others) == 2 and len(asked) == 1:
        (known,) = [k for k in others if k not in asked]
        return lambda context, y, row: {known: context, answers[0]: y, asked[0]: row}
    raise BadInput(
        f"{type(model).__name__} takes {', '.join(needed) or 'nothing'}: which of these are training rows, their "
        f"answers and the rows asked about is not clear. {HOW}"
    )


def _plain(arrange: Call) -> Call:
    return arrange


def _in_batch(arrange: Call) -> Call:
    return lambda context, y, row: arrange(context[None], y[None], row[None])


def _as_floats(form: Callable[[Call], Call]) -> Callable[[Call], Call]:
    return lambda arrange: lambda context, y, row: form(arrange)(context, y.to(context.dtype), row)


# How tables are laid out, and what the first axes of logits are then for two rows.
FORMS: tuple[tuple[Callable[[Call], Call], tuple[int, ...]], ...] = (
    (_in_batch, (1, 2)),
    (_as_floats(_in_batch), (1, 2)),
    (_plain, (2,)),
    (_as_floats(_plain), (2,)),
)


def encoded(table: Table, rows: Any) -> tuple[Tensor, list[dict[str, str]], bool]:
    """(rows, columns) numbers in the table's order, codes among them; the raw values; whether it was one row."""
    columns, single = table.read(rows)
    numbers, codes = table.encode(columns)
    parts = [torch.from_numpy(np.asarray(p, dtype=np.float32)) for p in (numbers, codes) if p is not None]
    names = (*table.numerical, *table.categorical)
    made = torch.cat(parts, 1)[:, [names.index(c) for c in table.columns]]
    return made, [table.shown(columns, i) for i in range(len(made))], single


def encoded_answers(table: Table, answers: Any, rows: int) -> tuple[Tensor, tuple[str, ...]]:
    """(R,) what the model is told about each training row, and how it is called."""
    values = np.asarray(answers.tolist() if hasattr(answers, "tolist") else list(answers))
    if values.ndim != 1 or len(values) != rows:
        raise BadInput(f"answers has shape {values.shape} for {rows} training rows: give one answer per row.")
    if values.dtype.kind in "OUS":
        unknown = [str(v) for v in values if str(v) not in table.classes]
        if unknown:
            raise BadInput(
                f"answer {unknown[0]!r} is none of the classes ({', '.join(table.classes) or 'none are named'}): name "
                "them in the order of the model's outputs, processor=Table(…, classes=[…]), or give class numbers."
            )
        return torch.tensor([table.classes.index(str(v)) for v in values]), tuple(map(str, values))
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise BadInput("answers hold NaN or infinity: leave those training rows out.")
        return torch.from_numpy(values.astype(np.float32)), tuple(f"{v:.6g}" for v in values)
    codes = values.astype(np.int64)
    named = table.classes and 0 <= codes.min() and codes.max() < len(table.classes)
    return torch.from_numpy(codes), tuple(table.classes[c] if named else str(c) for c in codes)


def described(processor: Any, rows: Any) -> Table:
    """The Table that was given, or one with the names that the rows themselves have."""
    if isinstance(processor, Table):
        return processor
    if processor is not None:
        raise BadInput(f"processor is a {type(processor).__name__}: columns are described by a whyformer.Table.")
    if hasattr(rows, "columns"):
        return Table(numerical=[str(c) for c in rows.columns])
    first = rows[0] if isinstance(rows, (list, tuple)) and len(rows) else rows
    if isinstance(first, dict):
        return Table(numerical=list(first))
    shape = np.shape(rows)
    if len(shape) != 2:
        raise BadInput(f"context has shape {shape}: give (training rows, columns), a DataFrame, or a list of dicts.")
    return Table(numerical=[str(i) for i in range(shape[1])])
