"""Permutation importance: shuffle a column and see how much worse the predictions get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from whyformer.errors import BadInput, UnknownName
from whyformer.progress import tracker
from whyformer.tables.predictors import predictor_of
from whyformer.tables.result import FeaturePermutation
from whyformer.tables.scorers import scorer_of

Array = np.ndarray[Any, Any]
Metric = str | Callable[[Array, Array], float]


def feature_permutation(
    model: Any,
    X: Any,
    y: Any,
    *,
    processor: Any = None,
    metric: Metric | None = None,
    repeats: int = 5,
    groups: Mapping[str, Sequence[str]] | None = None,
    seed: int = 0,
    batch_size: int = 1024,
    progress: bool | None = None,
) -> FeaturePermutation:
    """How much a metric falls when the values of a column are shuffled among the rows (Breiman 2001).

    PI_j = metric(X) - mean over ``repeats`` of metric(X with column j shuffled); use rows the model was not trained on.
    model: a torch module (with ``processor`` a Table), a scikit-learn estimator, or any function from a table to
    predictions. metric: a scikit-learn scorer's name (default "accuracy", or "r2" where y are floats), or a function
    ``(y, output) -> number``, higher being better. groups: name -> columns that are shuffled together; columns in no
    group stand alone. A repeat shuffles every column in the same order, so that models can be compared.

    Misleads when: columns are correlated: shuffling one makes rows that cannot exist, and the other makes up for it;
    group them.
    """
    if not isinstance(repeats, int) or repeats < 1:
        raise BadInput(f"repeats={repeats!r}: a whole number of at least 1.")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise BadInput(f"batch_size={batch_size!r}: a whole number of at least 1.")
    truth = np.asarray(y)
    predictor = predictor_of(model, X, processor, batch_size)
    if truth.ndim != 1 or len(truth) != predictor.rows:
        raise BadInput(f"y has shape {truth.shape} for {predictor.rows} rows: one value per row is needed.")
    chosen = _groups(predictor.columns, groups)
    score, name = scorer_of(metric, predictor, truth)
    baseline = score(predictor.output(None, ()))
    orders = [np.random.default_rng([seed, repeat]).permutation(predictor.rows) for repeat in range(repeats)]
    drops = np.zeros((len(chosen), repeats))
    jobs = [(i, repeat) for i in range(len(chosen)) for repeat in range(repeats)]
    for i, repeat in tracker(progress)(jobs, "shuffling"):
        drops[i, repeat] = baseline - score(predictor.output(orders[repeat], list(chosen.values())[i]))
    low, high = _limits(drops)
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
        warnings=predictor.warnings,
        model=predictor.name,
    )


def _groups(columns: Sequence[str], groups: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
    chosen: dict[str, tuple[str, ...]] = {}
    grouped: dict[str, str] = {}
    for name, members in (groups or {}).items():
        for column in members:
            if column not in columns:
                raise UnknownName(f"column in group {name!r}:", column, columns)
            if column in grouped:
                raise BadInput(f"column {column!r} is in two groups, {grouped[column]!r} and {name!r}.")
            grouped[column] = name
        if not members:
            raise BadInput(f"group {name!r} holds no column.")
        chosen[name] = tuple(members)
    for column in columns:
        if column not in grouped:
            chosen[column] = (column,)
    return chosen


def _limits(drops: Array) -> tuple[Array, Array]:
    """95 % limits of the mean over repeats (Student's t)."""
    repeats = drops.shape[1]
    mean = drops.mean(1)
    if repeats < 2:
        return np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    from scipy.stats import t

    error = t.ppf(0.975, repeats - 1) * drops.std(1, ddof=1) / np.sqrt(repeats)
    return mean - error, mean + error
