"""Does a Table fit its model? Tried once on made-up rows, so that columns are named where torch names tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from whyformer.borrow import borrowed, memory_of
from whyformer.errors import BadInput, WhyformerError
from whyformer.outputs import logits_of
from whyformer.subjects.base import Batch

if TYPE_CHECKING:
    from whyformer.subjects.table import TableSubject

FAILURES = (RuntimeError, IndexError, ValueError, TypeError, AssertionError)


def outputs_of(subject: TableSubject) -> int | None:
    """How many outputs the model has for a row (None: they are no row); columns and categories are tried first."""
    facts, key = memory_of(subject.model).facts, ("outputs", subject.table)
    if key not in facts:
        with borrowed(subject.model), torch.no_grad():
            logits = logits_of(_any_output(subject))
            _try_categories(subject)
        facts[key] = logits.shape[1] if logits.ndim == 2 else 1 if logits.ndim == 1 else None
    found: int | None = facts[key]
    return found


def require_classes(subject: TableSubject, outputs: int | None) -> tuple[str, ...]:
    """The names of the outputs; a single output speaks for the second of two classes."""
    classes = subject.table.classes
    if outputs == 1 and len(classes) == 2:
        return classes[1:]
    if classes and outputs is not None and outputs != len(classes):
        raise BadInput(
            f"the table names {len(classes)} classes ({', '.join(classes)}) and {type(subject.model).__name__} has "
            f"{outputs} output{'s' * (outputs != 1)}: give Table(classes=…) one name per output, in their order."
        )
    return classes


def _any_output(subject: TableSubject) -> Any:
    output, error = _attempt(subject, subject.any_row())
    if error is not None:
        table = subject.table
        sizes = ", ".join(f"{name} ({len(values)} categories)" for name, values in table.categorical.items())
        raise BadInput(
            f"{type(subject.model).__name__} cannot be called with the columns of this table, {len(table.numerical)} "
            f"numerical ({', '.join(table.numerical) or 'none'}) and {len(table.categorical)} categorical "
            f"({sizes or 'none'}): it fails with {_said(error)}. Describe the columns that it was built with, in its "
            "order, or how it is called (Table(call=…))."
        ) from error
    return output


def _try_categories(subject: TableSubject) -> None:
    """The last category of every column; on a GPU an index out of range would be the end of the whole process."""
    row = subject.any_row()
    codes = row.tensors.get("categorical")
    if codes is None or codes.device.type != "cpu":
        return
    counts = [len(values) for values in subject.table.categorical.values()]
    last = codes.repeat(len(counts), 1) + torch.diag(torch.tensor(counts) - 1)
    whole = {k: v.expand(len(counts), -1) for k, v in row.tensors.items()}
    if _attempt(subject, Batch(whole | {"categorical": last}))[1] is None:
        return
    for at, (name, values) in enumerate(subject.table.categorical.items()):
        for number, value in enumerate(values):
            other = codes.clone()
            other[0, at] += number
            _, error = _attempt(subject, row.with_tensors(categorical=other))
            if error is not None:
                raise BadInput(
                    f"column {name!r} has {len(values)} categories and {type(subject.model).__name__} takes {number} "
                    f"there: it fails at {value!r}, code {int(other[0, at])}, with {_said(error)}. Give the categories "
                    "that it was built with, and categorical columns in the order of the model's."
                ) from error


def _attempt(subject: TableSubject, batch: Batch) -> tuple[Any, Exception | None]:
    """What the model gives, and what it fails with."""
    try:
        return subject.call_alone(batch), None
    except (WhyformerError, torch.OutOfMemoryError):
        raise
    except FAILURES as error:
        return None, error


def _said(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
