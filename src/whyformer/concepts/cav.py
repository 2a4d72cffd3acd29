"""A concept activation vector: the direction in a layer that tells a concept from something else."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyformer.errors import BadInput, MissingExtra

Array = np.ndarray[Any, Any]

CLASSIFIERS = ("logistic", "sgd")
FEWEST = 4  # of each side: two to learn from, and some held out


@dataclass(frozen=True, eq=False)
class CAV:
    """Points towards the concept; length 1."""

    direction_D: Array
    accuracy: float  # on the held-out third

    def __neg__(self) -> CAV:
        """The same line, read the other way round."""
        return CAV(-self.direction_D, self.accuracy)


def fit_cav(
    concept_ND: Array, other_ND: Array, classifier: str = "logistic", seed: int = 0, size: int | None = None
) -> CAV:
    """Learn the direction on two thirds of both sets, cut to the size of the smaller; score it on the rest."""
    size = min(len(concept_ND), len(other_ND), size or len(other_ND))
    if size < FEWEST:
        raise BadInput(f"a concept vector needs at least {FEWEST} examples on each side; there are {size}.")
    held = max(1, size // 3)
    # Stratified: the same number of both sides on either part of the split.
    drawn = (x_ND[np.random.default_rng(seed).permutation(len(x_ND))[:size]] for x_ND in (concept_ND, other_ND))
    parts = [x_ND.astype(np.float64) for x_ND in drawn]
    train_ND = np.concatenate([p[held:] for p in parts])
    test_ND = np.concatenate([p[:held] for p in parts])
    train_y, test_y = (np.repeat([1, 0], n) for n in (size - held, held))
    middle_D = train_ND.mean(0)
    # One number for all features: it turns no direction, and makes the penalty independent of the activations' unit.
    scale = float(np.sqrt(((train_ND - middle_D) ** 2).mean())) or 1.0
    weight_D, bias = _fitted((train_ND - middle_D) / scale, train_y, classifier, seed)
    length = float(np.linalg.norm(weight_D))
    direction_D = weight_D / length if length > 0 else weight_D
    right = (((test_ND - middle_D) / scale @ weight_D + bias) > 0) == test_y
    return CAV(direction_D, float(right.mean()))


def _fitted(x_ND: Array, y_N: Array, classifier: str, seed: int) -> tuple[Array, float]:
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression, SGDClassifier
    except ImportError:
        raise MissingExtra("scikit-learn", "eval", "tcav") from None
    if classifier == "logistic":
        # Newton's method reaches the optimum to the last digits; its Hessian is too large for flattened activations.
        solver = "newton-cholesky" if x_ND.shape[1] <= 1024 else "lbfgs"
        model = LogisticRegression(C=0.1, tol=1e-10, max_iter=2000, solver=solver)
    else:  # as in the authors' code, but seeded
        model = SGDClassifier(loss="hinge", alpha=0.01, max_iter=1000, tol=1e-5, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x_ND, y_N)
    return model.coef_[0], float(model.intercept_[0])
