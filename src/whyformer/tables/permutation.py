"""Permutation importance: the fall of a metric when a column is shuffled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, UnknownName, reading, require
from whyformer.evidence import limits_of_repeats
from whyformer.inputs.batch import Batch
from whyformer.inputs.output import Output
from whyformer.inputs.table import TableInput, TableRead
from whyformer.inputs.table_schema import Table, columns_by_group
from whyformer.loan.borrow import borrowed, unwrapped
from whyformer.parameters import BatchSize, Count, Seed, checked
from whyformer.run.session import tracker
from whyformer.shapes import Array
from whyformer.tables.table_results import FeaturePermutation


class TorchPredictor:
    """A torch module with a Table; rows are encoded once, and their codes are shuffled. Gives logits (rows, C)."""

    warnings: tuple[str, ...] = ()

    def __init__(self, model: nn.Module, table: Table, inputs: Any, batch_size: int) -> None:
        self.model = unwrapped(model)
        self.modality = TableInput(self.model, table)
        self.read = TableRead(self.model, table)
        self.tensors = self.read.ready(inputs)[0].tensors
        self.columns, self.batch_size = table.columns, batch_size
        self.rows, self.name = len(next(iter(self.tensors.values()))), type(self.model).__name__
        self.classes = table.classes
        with borrowed(self.model):
            if self.read.mixes_rows:
                self.warnings = (
                    f"rows of this model attend to each other: predictions were made in batches of {batch_size} rows, "
                    "in the order of the table.",
                )

    def output(self, order: Array | None, shuffled: Sequence[str]) -> Array:
        """Return the logits with the columns ``shuffled`` in another order."""
        tensors = dict(self.tensors)
        for name in shuffled:
            kind, at = self.read.where(name)
            if tensors[kind] is self.tensors[kind]:
                tensors[kind] = tensors[kind].clone()
            tensors[kind][:, at] = self.tensors[kind][torch.as_tensor(order, device=tensors[kind].device), at]
        parts: list[Tensor] = []
        with borrowed(self.model), torch.no_grad():
            for start in range(0, self.rows, self.batch_size):
                part = slice(start, start + self.batch_size)
                batch = Batch({k: v[part] for k, v in tensors.items()}, alone=True)
                parts.append(Output(self.modality, batch).logits(batch).float())
        return torch.cat(parts).cpu().numpy()


class AnyPredictor:
    """An estimator or a function, and a table as it takes it: a DataFrame, a dict of columns, or an array."""

    warnings: tuple[str, ...] = ()

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
        """Return the output of the function; for an estimator, the table, which its scorer predicts."""
        made = self.table(order, shuffled)
        return made if hasattr(self.model, "predict") else np.asarray(self.model(made))


Predictor = TorchPredictor | AnyPredictor


def scorer_of(metric: Any, predictor: Predictor, truth: Array) -> tuple[Callable[[Any], float], str]:
    """Return a function from outputs to a score, and the name of the metric."""
    if callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__)

        def score(output: Any) -> float:
            with reading(
                f"metric {name} cannot be computed", "Give a function of (truth, predictions) that returns a number."
            ):
                return float(metric(truth, output))

        if isinstance(predictor, AnyPredictor) and hasattr(predictor.model, "predict"):
            return (lambda table: score(predictor.model.predict(table))), name
        return score, name
    name = metric or ("r2" if truth.dtype.kind == "f" else "accuracy")
    require("sklearn", why=f"metric={name!r}")
    from sklearn.metrics import get_scorer, get_scorer_names

    if name not in get_scorer_names():
        raise UnknownName("metric", name, get_scorer_names(), "Or pass a function (y, output) -> number.")
    scorer = get_scorer(name)
    if isinstance(predictor, AnyPredictor) and hasattr(predictor.model, "predict"):
        return (lambda table: float(scorer(predictor.model, table, truth))), name
    labels = _labels(predictor, truth)
    return (lambda output: float(scorer(_Predicted(np.asarray(output), labels), _ROWS, truth))), name


def _labels(predictor: Predictor, truth: Array) -> Array:
    """Return the names of the classes in y, in the order of the model's outputs; empty where y are numbers."""
    if truth.dtype.kind == "f":
        return np.zeros(0)
    classes = predictor.classes if isinstance(predictor, TorchPredictor) else ()
    if classes and truth.dtype.kind in "OUS":
        unknown = sorted({str(v) for v in truth} - set(classes))
        if unknown:
            raise UnknownName("class in y:", unknown[0], classes)
        return np.asarray(classes, dtype=truth.dtype)
    if truth.dtype.kind in "OUS":
        return np.unique(truth)
    if truth.dtype.kind == "b":
        return np.array([False, True])
    return np.arange(max(int(truth.max()) + 1, len(classes), 2))


_ROWS = np.zeros((1, 1))  # scorers want a table; what was predicted is known already


class _Predicted:
    """An estimator that returns outputs computed before: numbers, logits, probabilities or labels."""

    def __init__(self, output: Array, labels: Array) -> None:
        self.output, self.classes_ = output, labels
        self._estimator_type = "classifier" if len(labels) else "regressor"

    def _logits(self) -> Array:
        logits = self.output.astype(float)
        if logits.ndim == 1 or logits.shape[1] == 1:  # one output: the second class against the first
            one = logits.reshape(len(logits))
            return np.stack([np.zeros_like(one), one], 1)
        if logits.shape[1] != len(self.classes_):
            raise BadInput(f"the model has {logits.shape[1]} outputs and y {len(self.classes_)} classes.")
        return logits

    def predict_proba(self, table: Any) -> Array:
        output = self.output
        if output.ndim == 2 and (output >= 0).all() and np.allclose(output.sum(1), 1, atol=1e-4):
            return output
        logits = self._logits()
        raised = np.exp(logits - logits.max(1, keepdims=True))
        return raised / raised.sum(1, keepdims=True)

    def decision_function(self, table: Any) -> Array:
        logits = self._logits()
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, table: Any) -> Array:
        if not len(self.classes_):
            return self.output[:, 0] if self.output.ndim == 2 and self.output.shape[1] == 1 else self.output
        if self.output.ndim == 1 and self.output.dtype.kind in "OUSiub":  # labels already
            return self.output
        return np.asarray(self.classes_[self.predict_proba(table).argmax(1)])

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        facts = {"classifier_tags": ClassifierTags()} if len(self.classes_) else {}
        return Tags(estimator_type=self._estimator_type, target_tags=TargetTags(required=True), **facts)


RECORDED = 1000  # rows whose changes of prediction a result holds


def _predicted_values(output: Any, unchanged: Any = None) -> Any:
    """(R,) the output for the class that ``unchanged`` (else ``output``) predicts; None where there are no numbers."""
    if not isinstance(output, np.ndarray) or output.dtype.kind not in "fiub":
        return None
    if output.ndim == 1 or output.shape[1] == 1:
        return output.reshape(len(output)).astype(float)
    best_R = (output if unchanged is None else unchanged).argmax(1)
    return output[np.arange(len(output)), best_R].astype(float)


@checked
def feature_permutation(
    model: Any,
    X: Any,
    y: Any,
    *,
    processor: Any = None,
    metric: str | Callable[[Array, Array], float] | None = None,
    repeats: Count = 5,
    groups: Mapping[str, Sequence[str]] | None = None,
    seed: Seed = 0,
    batch_size: BatchSize = 1024,
    progress: bool | None = None,
) -> FeaturePermutation:
    """Measure the fall of a metric when the values of a column are shuffled among the rows (Breiman 2001).

    PI_j = metric(X) - mean over ``repeats`` of metric(X with column j shuffled); use rows the model was not trained on.
    model: a torch module (with ``processor`` a Table), a scikit-learn estimator, or any function from a table to
    predictions. metric: a scikit-learn scorer's name (default "accuracy", or "r2" if y are floats), or a function
    ``(y, output) -> number``, where higher is better. groups: name -> columns that are shuffled together; other columns
    are shuffled alone. A repeat shuffles every column in the same order, so that models can be compared. The result's
    ``agreement(explanation)`` is the rank correlation with an explanation of the same rows.

    Misleads when: columns are correlated: shuffling one of them creates unrealistic rows, and the model can use the
    others instead. Group them.

    >>> model, table = wf.demo.load_adult()
    >>> rows = wf.demo.census.adult_rows()[:40]
    >>> labels = [row["income"] for row in rows]
    >>> wf.feature_permutation(model, rows, labels, processor=table, repeats=1).show()
    """
    with reading("y cannot be read", "Give one value per row."):
        truth = np.asarray(y)
    predictor: Predictor
    if isinstance(model, nn.Module):
        if not isinstance(processor, Table):
            raise BadInput(
                "a torch model needs processor=Table(…), which describes the columns; or pass a function from a table "
                "to predictions."
            )
        predictor = TorchPredictor(model, processor, X, batch_size)
    elif callable(model) or hasattr(model, "predict"):
        predictor = AnyPredictor(model, X)
    else:
        raise BadInput(f"a {type(model).__name__} cannot predict: pass a torch model, an estimator or a function.")
    if truth.ndim != 1 or len(truth) != predictor.rows:
        raise BadInput(f"y has shape {truth.shape} for {predictor.rows} rows: one value per row is needed.")
    chosen = columns_by_group(predictor.columns, groups)
    score, name = scorer_of(metric, predictor, truth)
    unchanged = predictor.output(None, ())
    baseline, value_R = score(unchanged), _predicted_values(unchanged)
    orders = [np.random.default_rng([seed, repeat]).permutation(predictor.rows) for repeat in range(repeats)]
    drops = np.zeros((len(chosen), repeats))
    jobs = [(i, repeat) for i in range(len(chosen)) for repeat in range(repeats)]
    changes_RU = np.zeros((0 if value_R is None else min(predictor.rows, RECORDED), len(chosen)))
    for i, repeat in tracker(progress)(jobs, "shuffling"):
        output = predictor.output(orders[repeat], list(chosen.values())[i])
        drops[i, repeat] = baseline - score(output)
        if value_R is not None:
            other_R = _predicted_values(output, unchanged)
            changes_RU[:, i] += np.abs(other_R - value_R)[:RECORDED] / repeats
    low, high = limits_of_repeats(drops)
    return FeaturePermutation(
        labels=tuple(chosen),
        drops=drops,
        score=float(baseline),
        metric=name,
        rows=predictor.rows,
        mean=drops.mean(1),
        low=low,
        high=high,
        seed=seed,
        groups={k: tuple(v) for k, v in chosen.items() if len(v) > 1},
        changes=changes_RU if len(changes_RU) else None,
        warnings=predictor.warnings,
        model=predictor.name,
    )
