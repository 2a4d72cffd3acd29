"""In-context models (TabPFN, TabICL): scores of columns and of training rows for a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.capture.record import NO_GRADIENT
from whyformer.capture.roles import Observe
from whyformer.capture.site import OpenSite
from whyformer.errors import BadInput, NotOffered, PartlyCaptured
from whyformer.explainer import CoreExplainer
from whyformer.inputs.batch import NOT_THE_MODELS, Batch, model_failed, signature_of
from whyformer.inputs.output import Output
from whyformer.inputs.table_schema import Table
from whyformer.loan.borrow import borrowed, known_about, module_names, unwrapped
from whyformer.parameters import OneOf, checked
from whyformer.results.codec import Float32
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Target
from whyformer.run.session import loaded_as, tracker
from whyformer.tables.context_sites import Arrangement, ContextRecorder, arrangement_of, cell_relevance, row_weights
from whyformer.tables.table_results import ContextExplanation
from whyformer.targets import Aims, Scalar, logits_of, require_finite, resolve_targets, scalar_of
from whyformer.views.table_marks import row_attention_view
from whyformer.views.view import view_of

Call = Callable[[Tensor, Tensor, Tensor], Any]
HOW = (
    "Give call=lambda context, answers, rows: (…), which returns the arguments of model(…) as a tuple or dict; context "
    "is (training rows, columns), answers (training rows,), rows (1, columns)."
)


@dataclass(frozen=True)
class InContextCall:
    """A model as a function from training rows (R, U), answers (R,) and one row (1, U) to logits (1, C)."""

    model: nn.Module
    arrange: Call

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
        rows = logits.reshape(-1, logits.shape[-1] if logits.ndim > 1 else 1)
        if len(rows) not in (1, len(context) + 1):
            raise BadInput(
                f"{type(self.model).__name__} returned logits of shape {tuple(logits.shape)} for one row with "
                f"{len(context)} training rows: one row of logits was expected. {HOW}"
            )
        return rows[-1:]  # where there is one for every row, training rows come first


def in_context_call(model: nn.Module, columns: int, call: Call | None) -> tuple[InContextCall, int]:
    """Return the user's call, or one derived from the names of the arguments; and the passes that this took."""
    if call is not None:
        return InContextCall(model, call), 0
    arrange, facts, key = _by_name(model), known_about(model), ("form of tables", columns)
    passes = 0
    if key not in facts:
        facts[key], passes = _form(model, arrange, columns)
    return InContextCall(model, _laid_out(arrange, *facts[key])), passes


def _laid_out(arrange: Call, batched: bool, floats: bool) -> Call:
    """Return the call for tables with or without a batch axis, and answers as floats or unchanged."""

    def call(context: Tensor, y: Tensor, row: Tensor) -> Any:
        y = y.to(context.dtype) if floats else y
        return arrange(context[None], y[None], row[None]) if batched else arrange(context, y, row)

    return call


def _form(model: nn.Module, arrange: Call, columns: int) -> tuple[tuple[bool, bool], int]:
    """Return the first layout (``_laid_out``) that the model accepts, and the passes that this took."""
    weight = next(iter(model.parameters()), torch.empty(0))
    known = torch.arange(4 * columns, dtype=weight.dtype, device=weight.device).reshape(4, columns) / (4 * columns)
    answers, asked, passes = torch.tensor([0, 1, 0, 1], device=weight.device), known[:2] + 0.1, 0
    for batched, floats in product((True, False), (False, True)):
        try:
            with torch.no_grad():
                logits = logits_of(model(**_laid_out(arrange, batched, floats)(known, answers, asked)))
        except Exception:  # another form may be what it takes
            continue
        passes += 1
        # Two rows of logits, or one for every row, behind the axis of tables if there is one.
        shape = (1, 2) if batched else (2,)
        if tuple(logits.shape[: len(shape)]) in (shape, (*shape[:-1], 6)) and logits.ndim <= len(shape) + 1:
            return (batched, floats), passes
    raise BadInput(
        f"{type(model).__name__} accepts neither tables with a batch axis, (1, rows, {columns}), nor without, "
        f"(rows, {columns}). {HOW}"
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
        f"{type(model).__name__} takes {', '.join(needed) or 'nothing'}: it is not clear which of these are the "
        f"training rows, their answers and the rows to predict. {HOW}"
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
    """Return the (R,) encoded labels of the training rows, and their names."""
    values = np.asarray(answers.tolist() if hasattr(answers, "tolist") else list(answers))
    if values.ndim != 1 or len(values) != rows:
        raise BadInput(f"answers has shape {values.shape} for {rows} training rows: give one answer per row.")
    if values.dtype.kind in "OUS":
        unknown = [str(v) for v in values if str(v) not in table.classes]
        if unknown:
            raise BadInput(
                f"answer {unknown[0]!r} is not one of the classes ({', '.join(table.classes) or 'none are named'}): "
                "name them in the order of the model's outputs, processor=Table(…, classes=[…]), or give class numbers."
            )
        return torch.tensor([table.classes.index(str(v)) for v in values]), tuple(map(str, values))
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise BadInput("answers contain NaN or infinity: remove those training rows.")
        return torch.from_numpy(values.astype(np.float32)), tuple(f"{v:.6g}" for v in values)
    codes = values.astype(np.int64)
    named = table.classes and 0 <= codes.min() and codes.max() < len(table.classes)
    return torch.from_numpy(codes), tuple(table.classes[c] if named else str(c) for c in codes)


def described(processor: Any, rows: Any) -> Table:
    """Return the processor if it is a Table, else a Table with the column names of the rows."""
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


@dataclass(frozen=True, eq=False)
class RowAttention(Result):
    """Attention of one row to itself and to the reference rows, per layer and head."""

    what: ClassVar[str] = "row attention"
    axes: ClassVar[Mapping[str, str]] = {"paths": "L", "labels": "R", "weights_LHR": "LHR"}

    weights_LHR: Float32  # rows sum to one; entry 0 is the row itself
    labels: tuple[str, ...]
    paths: tuple[str, ...]
    reference: str

    def ranked(self) -> list[tuple[str, float]]:
        """Return rows from the most to the least attended, averaged over layers and heads."""
        mean = self.weights_LHR.mean((0, 1))
        return [(self.labels[i], float(mean[i])) for i in np.argsort(-mean, kind="stable")]

    def to_frame(self) -> DataFrame:
        """Return one row per attended row, the most attended first."""
        return dataframe(self.ranked(), columns=["row", "attention"])


view_of.register(RowAttention, row_attention_view)


@checked
def row_attention(model: Any, inputs: Any, processor: Any = None) -> RowAttention | list[RowAttention]:
    """Run rows together with the table's reference rows, and return their attention to every reference row.

    This is attention between rows. It does not show which columns matter; for that, use ``explain``.
    """
    explainer = loaded_as(CoreExplainer, model, processor)
    readings = []
    with explainer.session(inputs) as session, torch.no_grad():
        modality = session.modality
        if not modality.place.named_columns:
            raise BadInput("row attention is for tables: pass processor=Table(…, reference=rows).")
        if not modality.read.mixes_rows:
            raise NotOffered("rows of this model do not attend to each other: there is no row attention.")
        for row in range(session.size):
            together = modality.read.beside_reference_rows(session.part([row]))
            observer = Observe(together.size, session.names)
            observer.rows_attend = True
            with observer:
                Output(modality, together).logits(together)
            maps = [m.reshape(-1, *m.shape[-2:])[:, 0].float().cpu().numpy() for _, m in observer.between_rows]
            names = ("this row", *(f"{modality.read.reference_name} {i}" for i in range(together.reference_rows)))
            paths = tuple(path for path, _ in observer.between_rows)
            readings.append(RowAttention(np.stack(maps), names, paths, modality.read.reference_name))
    return readings[0] if session.single else readings


METHODS = ("input_x_gradient", "generic_attention")
ROWS = ("weight", "cells")
ONE_TOKEN = (
    "the whole row is one token of this model's attention, so attention cannot score columns: use "
    "method='input_x_gradient'."
)
RESCALED = (
    "the model normalises columns by the training rows before any attention, so leaving out a row also changes the "
    "values of the others. The scores of training rows (rows='weight') do not include this effect."
)


@checked
def explain_in_context(
    model: Any,
    inputs: Any,
    *,
    context: Any,
    answers: Any,
    processor: Any = None,
    method: Annotated[str, OneOf(*METHODS)] = "input_x_gradient",
    rows: Annotated[str, OneOf(*ROWS)] = "weight",
    baseline: Annotated[str, OneOf("mean", "zero")] = "mean",
    target: Aims = None,
    scalar: Scalar = "centred",
    call: Callable[..., Any] | None = None,
    progress: bool | None = None,
) -> ContextExplanation | list[ContextExplanation]:
    """Explain one row or several with the same training rows: one forward and one backward pass per row.

    inputs: rows as for ``explain``; context: the training rows, with the same columns; answers: the labels of the
    training rows, classes by name or number, or numbers. processor: a Table, for names, categories and preprocessing.
    The model gets all columns as numbers, categories as codes. call: returns the arguments of the model, if their names
    do not make them clear: ``(context, answers, rows) -> arguments``; here columns can be padded and axes added.

    method="input_x_gradient": a column scores (x_u - b_u) ∂s/∂x_u, with b the mean of the training rows, or 0
    (``baseline``); ``cells`` are the same for every training row. Training rows score ∂s/∂w_r, where a row of weight w
    counts w times in every softmax over rows: the first-order effect of leaving it out (rows="weight"); or the sum of
    their cells (rows="cells").
    method="generic_attention": Chefer's rule over all cells at once; a training row scores the sum of its tokens'.

    Misleads when: training rows are redundant: leaving out one of them changes little, so all of them score low. If the
    model normalises columns by the training rows (TabPFN v2), that effect is in the gradients of cells, not in ∂s/∂w_r;
    the result has a warning.
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
        caller, setup = in_context_call(net, known.shape[1], call)
        facts, key = known_about(net), ("in context", known.shape, call)
        if key not in facts:
            facts[key] = arrangement_of(caller, module_names(net), known, told, asked[:1])
            setup += facts[key].forwards
        arrangement: Arrangement = facts[key]
        made = []
        for number in tracker(progress)(range(len(asked)), "explaining"):
            aim = target[number] if isinstance(target, list) else target
            row = asked[number]
            done, goal, value = _one(caller, arrangement, known, told, row, aim, scalar, table.classes)
            scores = _scores(done, arrangement, known, row, method, rows, baseline)
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
                    target=str(goal),
                    value=value,
                    **scores,
                )
            )
    return made[0] if single else made


Pass = tuple[list[OpenSite], list[Tensor], list[Tensor]]  # attentions, their gradients, those of training rows and row


def _one(
    caller: InContextCall,
    arrangement: Arrangement,
    known: Tensor,
    told: Tensor,
    row: Tensor,
    aim: Any,
    scalar: str,
    classes: tuple[str, ...],
) -> tuple[Pass, Target, float]:
    """Run one pass; return it with its gradients, the target, and its value."""
    recorder = ContextRecorder(1, module_names(caller.model))
    known, row = known.clone().requires_grad_(), row[None].clone().requires_grad_()
    recorder.inputs = (known, row)
    with torch.enable_grad():
        with recorder:
            logits = caller(known, told, row)
        if recorder.unclaimed:
            raise PartlyCaptured(
                "some attention was not captured, so the scores of training rows would be incomplete:\n  "
                + "\n  ".join(recorder.unclaimed[:8])
            )
        if len(recorder.sites) != len(arrangement.places):
            raise NotOffered("the number of attention calls changed between two passes of the model: try again.")
        require_finite(logits.detach())
        if classes and len(classes) != logits.shape[1]:
            classes = ()  # the model has room for more classes than this table names
        labels = dict(enumerate(classes))
        (goal,) = resolve_targets([aim], logits.detach(), labels, None, None)
        value = scalar_of(logits, [goal], scalar).sum()
        if not value.requires_grad:
            raise NotOffered(NO_GRADIENT)
        gradients = recorder.gradients(value)
    of_inputs = [
        torch.zeros_like(tensor) if gradient is None else gradient.detach()
        for tensor, gradient in zip((known, row), recorder.input_gradients, strict=True)
    ]
    return (recorder.sites, gradients, of_inputs), goal, float(value.detach())


def _scores(
    done: Pass, arrangement: Arrangement, known: Tensor, row: Tensor, method: str, rows: str, baseline: str
) -> dict[str, Any]:
    sites, gradients, (known_gradient, row_gradient) = done
    count, columns = known.shape
    warnings: tuple[str, ...] = ()
    if method == "input_x_gradient":
        start = known.mean(0) if baseline == "mean" else torch.zeros_like(row)
        cells = (known - start) * known_gradient
        scores = (row - start) * row_gradient[0]
        if rows == "cells":
            row_scores = cells.sum(1)
        elif arrangement.over_rows:
            row_scores = row_weights(sites, gradients, arrangement, count)
        else:
            raise BadInput("attention of this model does not run over training rows: use rows='cells'.")
        if rows == "weight" and arrangement.rescaled:
            warnings = (RESCALED,)
    else:
        cells_TW, first = cell_relevance(sites, gradients, arrangement)
        row_scores = cells_TW[first : first + count].sum(1)
        if cells_TW.shape[1] == 1:
            of_columns, warnings = torch.full((len(cells_TW), columns), torch.nan), (ONE_TOKEN,)
        else:
            tokens = [token or 0 for token in arrangement.tokens]  # cell_relevance refuses columns without a token
            # Columns that share a token share its relevance evenly.
            of_columns = cells_TW[:, tokens] / torch.tensor([tokens.count(token) for token in tokens])
            if len(set(tokens)) < len(tokens):
                warnings = ("some columns share one token: its score is divided evenly among them.",)
        cells, scores = of_columns[first : first + count], of_columns[-1]
    made = {"scores": scores, "cells": cells, "row_scores": row_scores}
    return {name: v.detach().float().cpu().numpy() for name, v in made.items()} | {"warnings": warnings}
