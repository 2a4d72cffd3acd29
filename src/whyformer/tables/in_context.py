"""Models that learn in context (TabPFN, TabICL): which columns, and which training rows, drove a prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whyformer.borrow import borrowed, known_about, module_names, unwrapped
from whyformer.capture.record import NO_GRADIENT
from whyformer.errors import BadInput, NotOffered, PartlyCaptured
from whyformer.parameters import OneOf, checked
from whyformer.session import tracker
from whyformer.tables.context_call import InContextCall, described, encoded, encoded_answers, in_context_call
from whyformer.tables.context_result import ContextExplanation
from whyformer.tables.context_scores import cell_relevance, row_weights
from whyformer.tables.context_sites import Arrangement, ContextRecorder, arrangement_of
from whyformer.targets import Aims, Scalar, require_finite, resolve_targets, scalar_of

METHODS = ("input_x_gradient", "generic_attention")
ROWS = ("weight", "cells")
ONE_TOKEN = (
    "the whole row is one token of this model's attention, which therefore says nothing about its columns: "
    "method='input_x_gradient' scores them."
)
RESCALED = (
    "the model normalises its columns by the training rows before any attention, so that leaving one out also changes "
    "the others' numbers: that is no part of the scores of training rows (rows='weight')."
)
Method = Annotated[str, OneOf(*METHODS)]


@checked
def explain_in_context(
    model: Any,
    inputs: Any,
    *,
    context: Any,
    answers: Any,
    processor: Any = None,
    method: Method = "input_x_gradient",
    rows: Annotated[str, OneOf(*ROWS)] = "weight",
    baseline: Annotated[str, OneOf("mean", "zero")] = "mean",
    target: Aims = None,
    scalar: Scalar = "logit",
    call: Callable[..., Any] | None = None,
    progress: bool | None = None,
) -> ContextExplanation | list[ContextExplanation]:
    """One row or several, each asked about beside the same training rows: one forward and one backward per row.

    inputs: rows as for ``explain``; context: the training rows, the same columns; answers: what the model is told about
    each of these, classes by name or number, or numbers. processor: a Table, for names, categories and preprocessing.
    The model gets all columns as numbers, categories by their codes. call: how the model is called, where the names of
    its arguments do not say it: ``(context, answers, rows) -> arguments``, the place to pad columns or add axes.

    method="input_x_gradient": a column scores (x_u - b_u) ∂s/∂x_u, with b the mean of the training rows, or 0
    (``baseline``); ``cells`` are the same of every training row. Training rows score ∂s/∂w_r, where a row of weight w
    counts w times in every softmax over rows: what leaving it out does, to first order (rows="weight"); or the sum of
    their cells (rows="cells").
    method="generic_attention": Chefer's rule over all cells at once; a training row scores the sum of its tokens'.

    Misleads when: two training rows say the same: leaving out either does little, and first order says so of both. The
    model normalises columns by the training rows (TabPFN v2): what that does is in the gradients of cells, not in
    ∂s/∂w_r; the result warns of it.
    """
    net = unwrapped(model)
    table = described(processor, context)
    known, _, _ = encoded(table, context)
    asked, shown, single = encoded(table, inputs)
    told, names = encoded_answers(table, answers, len(known))
    with borrowed(net):
        weight = next(iter(net.parameters()), torch.empty(0))
        known, asked = known.to(weight), asked.to(weight)
        told = told.to(weight.device) if told.dtype == torch.int64 else told.to(weight)
        caller, tried = in_context_call(net, known.shape[1], call)
        arrangement, new = _arrangement(caller, known, told, asked[:1])
        setup = tried + new * arrangement.forwards
        made = []
        for number in tracker(progress)(range(len(asked)), "explaining"):
            aim = target[number] if isinstance(target, list) else target
            explained = _one(caller, arrangement, known, told, asked[number], aim, scalar, table.classes)
            scores = _scores(explained, arrangement, method, rows, baseline)
            made.append(
                ContextExplanation(
                    columns=table.columns,
                    values=tuple(shown[number][c] for c in table.columns),
                    answers=names,
                    method=method,
                    options={"rows": rows, "baseline": baseline} if method == "input_x_gradient" else {},
                    scalar=scalar,
                    signed=method == "input_x_gradient",
                    rows_signed=method == "input_x_gradient",
                    setup_forwards=0 if number else setup,
                    model=type(net).__name__,
                    target=str(explained.target),
                    value=explained.value,
                    **scores,
                )
            )
    return made[0] if single else made


def _arrangement(caller: InContextCall, known: Tensor, told: Tensor, row: Tensor) -> tuple[Arrangement, bool]:
    """What is known about the model for tables of this size; and whether it had to be found out now."""
    facts = known_about(caller.model)
    key = ("in context", known.shape, caller.arrange if caller.made_by_user else None)
    new = key not in facts
    if new:
        facts[key] = arrangement_of(caller, module_names(caller.model), known, told, row)
    arrangement: Arrangement = facts[key]
    return arrangement, new


class _Explained:
    """One pass with its gradients."""

    def __init__(self, recorder: ContextRecorder, gradients: list[Tensor], known: Tensor, row: Tensor) -> None:
        self.sites, self.gradients = recorder.sites, gradients
        self.known, self.row = known.detach(), row.detach()[0]
        of_known, of_row = recorder.input_gradients
        self.known_gradient = torch.zeros_like(self.known) if of_known is None else of_known
        self.row_gradient = torch.zeros_like(self.row) if of_row is None else of_row[0]
        self.target: Any = None
        self.value = 0.0


def _one(
    caller: InContextCall,
    arrangement: Arrangement,
    known: Tensor,
    told: Tensor,
    row: Tensor,
    aim: Any,
    scalar: str,
    classes: tuple[str, ...],
) -> _Explained:
    recorder = ContextRecorder(1, module_names(caller.model))
    known, row = known.clone().requires_grad_(), row[None].clone().requires_grad_()
    recorder.inputs = (known, row)
    with torch.enable_grad():
        with recorder:
            logits = caller(known, told, row)
        if recorder.unclaimed:
            raise PartlyCaptured(
                "some attention was not followed to its values, so what training rows did would be partial:\n  "
                + "\n  ".join(recorder.unclaimed[:8])
            )
        if len(recorder.sites) != len(arrangement.places):
            raise NotOffered("the model attends another number of times than when it was looked at: try again.")
        require_finite(logits.detach())
        if classes and len(classes) != logits.shape[1]:
            classes = ()  # the model has room for more classes than this table names
        labels = dict(enumerate(classes))
        (goal,) = resolve_targets([aim], logits.detach(), labels, None, None)
        value = scalar_of(logits, [goal], scalar).sum()
        if not value.requires_grad:
            raise NotOffered(NO_GRADIENT)
        gradients = recorder.gradients(value)
    explained = _Explained(recorder, gradients, known, row)
    explained.target, explained.value = goal, float(value.detach())
    return explained


def _scores(explained: _Explained, arrangement: Arrangement, method: str, rows: str, baseline: str) -> dict[str, Any]:
    count, columns = explained.known.shape
    if method == "input_x_gradient":
        start = explained.known.mean(0) if baseline == "mean" else torch.zeros_like(explained.row)
        cells = (explained.known - start) * explained.known_gradient
        scores = (explained.row - start) * explained.row_gradient
        if rows == "cells":
            row_scores = cells.sum(1)
        elif arrangement.over_rows:
            row_scores = row_weights(explained.sites, explained.gradients, arrangement, count)
        else:
            raise BadInput("no attention of this model runs over training rows: use rows='cells'.")
        made: dict[str, Any] = {"scores": scores, "cells": cells, "row_scores": row_scores}
        doubts = (RESCALED,) if rows == "weight" and arrangement.rescaled else ()
        return {name: _array(values) for name, values in made.items()} | {"warnings": doubts}
    relevance = cell_relevance(explained.sites, explained.gradients, arrangement)
    first, cells_TW = relevance.first_row, relevance.cells_TW
    row_scores = cells_TW[first : first + count].sum(1)
    if cells_TW.shape[1] == 1:
        nothing = np.full((count, columns), np.nan, dtype=np.float32)
        return {
            "scores": nothing[0], "cells": nothing, "row_scores": _array(row_scores), "warnings": (ONE_TOKEN,),
        }  # fmt: skip
    tokens = arrangement.tokens
    cells = torch.stack([relevance.of_columns(tokens, first + i) for i in range(count)])
    scores = relevance.of_columns(tokens, len(cells_TW) - 1)
    warnings = _shared(arrangement)
    return {
        "scores": _array(scores), "cells": _array(cells), "row_scores": _array(row_scores), "warnings": warnings,
    }  # fmt: skip


def _shared(arrangement: Arrangement) -> tuple[str, ...]:
    if len(set(arrangement.tokens)) == len(arrangement.tokens):
        return ()
    return ("some columns are one token together: they share its score evenly.",)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().float().cpu().numpy()
