"""From a metric, by name or as a function, to one number per set of predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from whyformer.errors import BadInput, MissingExtra, UnknownName
from whyformer.tables.predictors import AnyPredictor, Predictor, TorchPredictor

Array = np.ndarray[Any, Any]
Score = Callable[[Any], float]


def scorer_of(metric: Any, predictor: Predictor, truth: Array) -> tuple[Score, str]:
    """``score(output)`` and the metric's name. A function gets (y, what the model gave)."""
    if callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__)
        if isinstance(predictor, AnyPredictor) and hasattr(predictor.model, "predict"):
            return (lambda table: float(metric(truth, predictor.model.predict(table)))), name
        return (lambda output: float(metric(truth, output))), name
    name = metric or ("r2" if truth.dtype.kind == "f" else "accuracy")
    scorer = _sklearn(name)
    if isinstance(predictor, AnyPredictor) and hasattr(predictor.model, "predict"):
        return (lambda table: float(scorer(predictor.model, table, truth))), name
    given: Any = _Given if truth.dtype.kind == "f" else _Classified
    labels = _labels(predictor, truth)
    return (lambda output: float(scorer(given(np.asarray(output), labels), _ROWS, truth))), name


def _sklearn(name: str) -> Any:
    try:
        from sklearn.metrics import get_scorer, get_scorer_names
    except ImportError:
        raise MissingExtra("scikit-learn", "eval", f"metric={name!r}") from None
    if name not in get_scorer_names():
        raise UnknownName("metric", name, get_scorer_names(), "Or pass a function (y, output) -> number.")
    return get_scorer(name)


def _labels(predictor: Predictor, truth: Array) -> Array:
    """What y calls the classes, in the order of the model's outputs."""
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


class _Given:
    """Numbers that were predicted already, for scorers that ask an estimator."""

    _estimator_type = "regressor"

    def __init__(self, output: Array, labels: Array) -> None:
        self.output = output[:, 0] if output.ndim == 2 and output.shape[1] == 1 else output

    def predict(self, table: Any) -> Array:
        return self.output

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type="regressor", target_tags=TargetTags(required=True))


class _Classified:
    """Logits, probabilities or labels that were predicted already."""

    _estimator_type = "classifier"

    def __init__(self, output: Array, labels: Array) -> None:
        self.output, self.classes_ = output, labels

    def _logits(self) -> Array:
        found = self.output.astype(float)
        if found.ndim == 1 or found.shape[1] == 1:  # one output: the second class against the first
            one = found.reshape(len(found))
            return np.stack([np.zeros_like(one), one], 1)
        if found.shape[1] != len(self.classes_):
            raise BadInput(f"the model has {found.shape[1]} outputs and y {len(self.classes_)} classes.")
        return found

    def predict_proba(self, table: Any) -> Array:
        found = self.output
        if found.ndim == 2 and (found >= 0).all() and np.allclose(found.sum(1), 1, atol=1e-4):
            return found
        logits = self._logits()
        raised = np.exp(logits - logits.max(1, keepdims=True))
        return raised / raised.sum(1, keepdims=True)

    def decision_function(self, table: Any) -> Array:
        logits = self._logits()
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, table: Any) -> Array:
        if self.output.ndim == 1 and self.output.dtype.kind in "OUSiub":  # labels already
            return self.output
        return np.asarray(self.classes_[self.predict_proba(table).argmax(1)])

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier", target_tags=TargetTags(required=True), classifier_tags=ClassifierTags()
        )
